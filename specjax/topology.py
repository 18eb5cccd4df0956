"""Static trees of drafts, as rank paths: Medusa's way (arXiv 2401.10774).

A node is the ranks on the way to it: (0, 2) is the third choice below the
first choice below the root. The root is the text's newest token, and no node.
"""

import dataclasses
import functools
import pathlib
from typing import Iterable

from specjax import checks
from specjax import errors
from specjax import shipped
from specjax import strict_json

# The most nodes, the deepest path and the highest rank.
NODES, DEPTH, RANKS = 1024, 64, 64
Path = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Topology:
  """Nodes in order of depth, then of their ranks: a parent precedes its child.

  Place 0 is the root, place i + 1 node i.

  Attributes:
    paths: of the nodes, in any order; sorted here.

  Raises:
    errors.UserError: a path is no path, comes twice, or has no parent.
  """

  paths: tuple[Path, ...]

  def __post_init__(self):
    paths = [tuple(path) for path in self.paths]
    errors.require(
        0 < len(paths) <= NODES, "tree", f"give 1 to {NODES} paths", paths
    )
    for path in paths:
      good = 0 < len(path) <= DEPTH
      good = good and all(checks.is_whole(rank, 0, RANKS - 1) for rank in path)
      errors.require(
          good,
          "tree",
          f"a path is 1 to {DEPTH} ranks, each from 0 to {RANKS - 1}",
          path,
      )
    known = set(paths)
    for path in paths:
      errors.require(
          len(path) == 1 or path[:-1] in known,
          "tree",
          f"give the path above it, too: {list(path[:-1])}",
          list(path),
      )
    errors.require(
        len(known) == len(paths), "tree", "give each path once", paths
    )
    ordered = sorted(paths, key=lambda path: (len(path), path))
    object.__setattr__(self, "paths", tuple(ordered))

  @property
  def nodes(self) -> int:
    """N."""
    return len(self.paths)

  @property
  def depth(self) -> int:
    """G, nodes of the longest path."""
    return len(self.paths[-1])

  @functools.cached_property
  def parents(self) -> tuple[int, ...]:
    """The node above each; -1 is the root."""
    node = {path: i for i, path in enumerate(self.paths)} | {(): -1}
    return tuple(node[path[:-1]] for path in self.paths)

  @property
  def whole(self) -> bool:
    """Whether each node's elder siblings are there, too."""
    known = set(self.paths)
    return all(
        path[-1] == 0 or (*path[:-1], path[-1] - 1) in known
        for path in self.paths
    )

  def children(self, place: int) -> tuple[int, ...]:
    """The nodes right below a place."""
    return tuple(i for i, up in enumerate(self.parents) if up == place - 1)

  def level(self, depth: int) -> tuple[int, ...]:
    """The places of so many ranks that have children."""
    return tuple(
        place
        for place, path in enumerate(((), *self.paths))
        if len(path) == depth and self.children(place)
    )


def chain(gamma: int) -> Topology:
  """Of first choices only."""
  return Topology(tuple((0,) * (i + 1) for i in range(gamma)))


def read(text: str) -> Topology:
  """Paths as JSON, or a file that has them as its "paths".

  A file that ships with the package goes by its name, such as mini/medusa_tree.
  FILE:8 is the tree of 8 nodes among a file's "trees".

  >>> read("[[0], [1], [0, 0]]").parents
  (-1, -1, 0)

  Raises:
    errors.UserError: there is no such file, or it holds no such tree.
  """
  if text.lstrip().startswith("["):
    return _paths(text, text)
  path, nodes = find(text)
  if path is None:
    raise errors.UserError(
        f"tree: {errors.shown(text)} is no file here; give one from python -m"
        ' specjax.tree, or paths such as "[[0], [1], [0, 0]]"'
    )
  try:
    content = path.read_text(encoding="utf-8")
  except (OSError, UnicodeDecodeError) as error:
    raise errors.UserError(
        f"tree: {errors.shown(text)} can't be read ({error})"
    ) from None
  return _paths(content, text, nodes)


def find(text: str) -> tuple[pathlib.Path | None, str]:
  """The file that a tree is read from, if any; nodes of the tree, or ""."""
  path, nodes = shipped.find(text, ".json"), ""
  name, colon, number = text.rpartition(":")
  if path is None and colon and number.isdecimal():
    path, nodes = shipped.find(name, ".json"), number
  return path, nodes


def _paths(content: str, name: str, nodes: str = "") -> Topology:
  """The tree of some JSON; of so many nodes, where that is said."""
  known = []
  try:
    made = strict_json.loads(content)
    if nodes:
      known = list(map(str, made["trees"]))
      made = made["trees"][nodes]
    made = made["paths"] if isinstance(made, dict) else made
    paths = tuple(tuple(path) for path in made)
  except (ValueError, TypeError, KeyError):
    if nodes and nodes not in known:
      others = errors.line(errors.several(known)) or "no sizes to choose from"
      raise errors.UserError(
          f"tree: {errors.shown(name)}: the file has none of {nodes} nodes; it"
          f" has {others}"
      ) from None
    raise errors.UserError(
        "tree: give a list of rank paths as JSON, such as"
        f' "[[0], [1], [0, 0]]", got {errors.shown(name)}'
    ) from None
  return Topology(paths)


def dump(paths: Iterable[Path]) -> list[list[int]]:
  """Paths as JSON has them."""
  return [list(path) for path in paths]
