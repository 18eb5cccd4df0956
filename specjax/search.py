"""The best static tree of drafts: Sequoia's dynamic programme.

Chen et al. (arXiv 2402.12374). From the chance that the child of each rank is
accepted at each depth come the best trees of every size; from what wider
target passes and deeper drafts cost, the size that is fastest.
"""

import dataclasses
from typing import Any, Sequence

import numpy as np

from specjax import topology

_NEVER = -np.inf


@dataclasses.dataclass(frozen=True)
class Found:
  """A tree and what it is expected to do.

  Attributes:
    topology: the tree.
    tokens: that a round emits, the target's own among them.
    speedup: over plain decoding, by the costs that were given.
  """

  topology: topology.Topology
  tokens: float
  speedup: float


def expected_tokens(
    tree: topology.Topology, chance: Sequence[Sequence[float]]
) -> float:
  """Tokens that a round emits: 1 + sum over nodes of their paths' chances.

  >>> tree = topology.Topology(((0,), (1,), (0, 0)))
  >>> round(expected_tokens(tree, [[0.6, 0.2], [0.5, 0.1]]), 6)
  2.1

  Args:
    tree: whatever shape.
    chance: of the child of each rank to be accepted, for each depth.
  """
  share = lambda path: np.prod([chance[g][c] for g, c in enumerate(path)])
  return 1.0 + float(sum(map(share, tree.paths)))


class Best:
  """The best trees of every size that is no deeper than the chances say.

  With S_d(m) for what m nodes below a node of depth d are worth, and T_b of
  those its first b children,

    T_b(m) = max_y T_{b-1}(m - y) + chance_{d,b} (1 + S_{d+1}(y - 1))
    S_d(m) = max_b T_b(m)

  A node's elder siblings are always in the tree, too.
  """

  def __init__(self, chance: Sequence[Sequence[float]], nodes: int):
    """Finds them.

    Args:
      chance: of the child of each rank to be accepted, for each depth.
      nodes: of the largest tree.
    """
    alone = np.full(nodes + 1, _NEVER)
    alone[0] = 0.0
    # Below the last depth nothing stands.
    below, self._levels = alone, []
    for chance_C in reversed(chance):
      rows, taken = [alone], []
      for own in chance_C:
        row, took = _one_more(rows[-1], own, below)
        rows.append(row)
        taken.append(took)
      below = np.max(rows, axis=0)
      self._levels.insert(0, (np.argmax(rows, axis=0), taken))
    self.worth = below

  def tree(self, nodes: int) -> topology.Topology:
    """The best of exactly so many nodes.

    Raises:
      ValueError: depths and ranks leave no room for so many.
    """
    if not nodes or self.worth[nodes] == _NEVER:
      raise ValueError(f"nodes: no tree of {nodes} fits")
    return topology.Topology(tuple(self._paths((), nodes)))

  def _paths(self, path: topology.Path, nodes: int):
    """The nodes below a path."""
    if not nodes:
      return
    count, taken = self._levels[len(path)]
    for rank in reversed(range(count[nodes])):
      own = int(taken[rank][nodes])
      yield (*path, rank)
      yield from self._paths((*path, rank), own - 1)
      nodes -= own


def by_size(
    chance: Sequence[Sequence[float]], sizes: Sequence[int]
) -> dict[str, dict[str, Any]]:
  """The trees of some sizes that give most tokens, as topology.read has them.

  Whatever a level of drafts costs: for tokens a pass at equal sizes. `fastest`
  finds the depth that pays.

  Args:
    chance: of the child of each rank to be accepted, for each depth.
    sizes: nodes; those that do not fit are left out.
  """
  best = Best(chance, max(sizes))
  return {
      str(nodes): {
          "tokens": 1.0 + float(best.worth[nodes]),
          "paths": topology.dump(best.tree(nodes).paths),
      }
      for nodes in sizes
      if best.worth[nodes] > _NEVER
  }


def _one_more(row, own: float, below):
  """T_b from T_{b-1}, and how many nodes the b-th child is, with its own."""
  worth = np.where(below > _NEVER, own * (1.0 + np.maximum(below, 0)), _NEVER)
  child = np.concatenate([[_NEVER], worth[:-1]])
  size = np.arange(len(row))
  rest = size[:, None] - size
  sums = np.where(rest >= 0, row[rest] + child, _NEVER)
  return sums.max(axis=1), sums.argmax(axis=1)


def fastest(
    chance: Sequence[Sequence[float]],
    widths: Sequence[int],
    verify: Sequence[float],
    draft: Sequence[float],
) -> list[Found]:
  """The best tree for each number of nodes, the fastest depth of each.

  Args:
    chance: of the child of each rank to be accepted, for each depth.
    widths: tokens of target passes, rising from 1.
    verify: what those cost, in target steps; between them it grows evenly.
    draft: what a level of drafts costs in trees that fill such passes.

  Returns:
    One for each number of nodes that fits, from 1 to the widest pass less 1.
  """
  most = widths[-1] - 1
  found: dict[int, Found] = {}
  for depth in range(1, len(chance) + 1):
    best = Best(chance[:depth], most)
    for nodes in range(1, most + 1):
      if best.worth[nodes] == _NEVER:
        continue
      tokens = 1.0 + float(best.worth[nodes])
      level = np.interp(nodes + 1, widths, draft)
      cost = np.interp(nodes + 1, widths, verify) + depth * level
      speedup = float(tokens / cost)
      if nodes not in found or speedup > found[nodes].speedup:
        found[nodes] = Found(best.tree(nodes), tokens, speedup)
  return [found[nodes] for nodes in sorted(found)]
