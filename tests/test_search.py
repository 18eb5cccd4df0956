"""The best static tree, against all trees there are; what it is made of."""

import dataclasses
import functools
import itertools
import json

import jax
import numpy as np
import pytest

from specjax import checkpoints
from specjax import command_line
from specjax import search
from specjax import topology
from specjax import tree as door
from specjax.checkpoints import heads as heads_file
from specjax.measure import ranks
from specjax.measure import steps as steps_lib
from specjax.models import medusa
from tests import tiny

Topology = topology.Topology


@functools.cache
def below(nodes, depth, most):
  """Every set of paths of so many nodes, elder siblings first."""
  if not nodes:
    return [()]
  if not depth:
    return []
  out = []
  for children in range(1, min(nodes, most) + 1):
    for sizes in itertools.product(range(1, nodes + 1), repeat=children):
      if sum(sizes) != nodes:
        continue
      parts = [below(size - 1, depth - 1, most) for size in sizes]
      for chosen in itertools.product(*parts):
        paths = []
        for rank, inner in enumerate(chosen):
          paths += [(rank,), *((rank, *path) for path in inner)]
        out.append(tuple(paths))
  return out


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("falling", [True, False], ids=["falling", "any"])
def test_no_tree_is_better(seed, falling):
  """Chances that fall with the rank, and chances that don't."""
  rng = np.random.default_rng(seed)
  depth, most, nodes = 3, 3, 6
  chance = rng.random((depth, most)) / most
  if falling:
    chance = -np.sort(-chance, axis=1)
  best = search.Best(chance.tolist(), nodes)
  for size in range(1, nodes + 1):
    every = [Topology(paths) for paths in below(size, depth, most)]
    want = max(search.expected_tokens(tree, chance) for tree in every)
    made = best.tree(size)
    assert (made.nodes, made.whole) == (size, True)
    assert search.expected_tokens(made, chance) == pytest.approx(want)
    assert 1 + best.worth[size] == pytest.approx(want)


def test_what_does_not_fit():
  best = search.Best([[0.5, 0.2]], 4)
  assert best.tree(2).paths == ((0,), (1,))
  with pytest.raises(ValueError, match="no tree of 3"):
    best.tree(3)


def test_costs_choose_the_size():
  """Free passes take all nodes; dear ones few; dear drafts stay shallow."""
  chance = [[0.6, 0.2, 0.1]] * 4
  widths = [1, 2, 4, 8, 16]
  pick = lambda verify, draft: max(
      search.fastest(chance, widths, verify, draft),
      key=lambda found: found.speedup,
  )
  free = pick([1.0] * 5, [0.0] * 5)
  assert (free.topology.nodes, free.topology.depth) == (15, 4)
  assert free.speedup == pytest.approx(free.tokens)
  dear = pick([1.0, 1.2, 1.9, 3.0, 5.0], [0.0] * 5)
  assert dear.topology.nodes < 4
  shallow = pick([1.0] * 5, [1.0] * 5)
  assert shallow.topology.depth == 1 and shallow.topology.nodes == 3
  # Wide levels of drafts are dear: what they cost is no other tree's matter.
  narrow = pick([1.0] * 5, [0.0, 0.1, 0.1, 2.0, 2.0])
  assert narrow.topology.nodes == 3 and narrow.topology.depth > 1
  found = search.fastest(chance, widths, [1.0] * 5, [0.0] * 5)
  assert [each.topology.nodes for each in found] == list(range(1, 16))


class _Result:
  """As outputs.Result, as far as it is read."""

  def __init__(self, *rounds):
    self.trace = rounds


class _Round:

  def __init__(self, nodes, accepted):
    self.nodes, self.accepted = nodes, accepted


def test_ranks_are_counted():
  tree = Topology(((0,), (1,), (2,), (0, 0), (1, 0), (1, 1)))
  counted = ranks.Ranks(2, 3)
  counted.count(
      tree,
      [
          _Result(_Round((1, 5), 2), _Round((2,), 0), _Round((2,), 1)),
          _Result(_Round((0, 3), 1), _Round((1,), 1)),
      ],
  )
  np.testing.assert_array_equal(counted.tried_GC, [[5, 5, 5], [2, 1, 0]])
  np.testing.assert_array_equal(counted.accepted_GC, [[1, 2, 1], [0, 1, 0]])
  chance = counted.chance_GC()
  # Ranks that were never tried lean on none; seldom ones on all depths.
  assert chance[1, 0] == pytest.approx((0 + 50 * 1 / 7) / 52)
  assert chance[1, 2] == pytest.approx(1 / 5)


def test_the_door(tmp_path, capsys, monkeypatch):
  """A file that a config takes; costs are told, to save their compilation."""
  family = tiny.write_family(tmp_path)
  timed = []

  def measure(_, speculative, __, **how):
    timed.append(speculative.loop.drafter.nodes)
    return steps_lib.Steps(draft=0.0, target=1.0, verify=1.0)

  monkeypatch.setattr(steps_lib, "measure", measure)
  out = tmp_path / "made" / "tree.json"
  words = ["--nodes", "5", "--depth=2", "--ranks=2", "--out", str(out)]
  arguments = tiny.arguments(
      family,
      draft__checkpoint=family["target"],
      draft__siblings="distinct",
      data__rows=2,
      decode__max_new_tokens=8,
  )
  with tiny.quick_compilation():
    assert door.main([*arguments, *words]) == 0
  made = json.loads(out.read_text())
  # The draft is the target: rank 0 is always right, and passes are free.
  assert made["expected_tokens"] == pytest.approx(3.0)
  assert [0, 0] in made["paths"] and made["depth"] == 2
  assert made["siblings"] == "distinct" and made["rule"] == "tree"
  assert made["widths"] == [1, 2, 4, 6] and len(made["acceptance"]) == 2
  # Each size with the drafts of its own tree.
  assert timed == [1, 3, 5] and made["draft_costs"] == [0.0] * 4
  assert "chosen" in capsys.readouterr().out
  assert list(made["trees"]) == ["1", "2", "3", "4", "5"]
  assert made["trees"]["5"]["tokens"] == pytest.approx(3.0)
  config = command_line.read([*arguments, f"--config.draft.tree={out}:4"])
  assert config.draft.topology().nodes == 4
  config = command_line.read([*arguments, f"--config.draft.tree={out}"])
  assert config.draft.topology() == Topology(tuple(map(tuple, made["paths"])))


def test_no_tree_is_deeper_than_there_are_heads(tmp_path, monkeypatch):
  """Each of Medusa's heads is a level; six of them are looked for else."""
  family = tiny.write_family(tmp_path)
  target = checkpoints.load(family["target"])
  config = target.module.config
  shape = medusa.MedusaConfig(config.d_model, config.vocab_size, heads=2)
  zero = np.zeros((1, 1, config.d_model), np.float32)
  params = medusa.Medusa(shape).init(
      jax.random.key(0), zero, method="everything"
  )
  heads = heads_file.Heads("medusa", dataclasses.asdict(shape), params)
  heads_file.save(tmp_path / "heads.safetensors", heads, target)
  monkeypatch.setattr(
      door, "_costs", lambda _, __, most: ([1, most + 1], [1.0] * 2, [0.0] * 2)
  )
  arguments = tiny.arguments(
      family,
      draft__kind="medusa",
      draft__heads=tmp_path / "heads.safetensors",
      draft__gamma=1,
      data__rows=2,
      decode__max_new_tokens=8,
  )
  words = ["--nodes=6", "--ranks=2", f"--out={tmp_path / 'tree.json'}"]
  with tiny.quick_compilation():
    assert door.main([*arguments, *words]) == 0
  made = json.loads((tmp_path / "tree.json").read_text())
  assert len(made["acceptance"]) == 2 and made["depth"] <= 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "--out: give a file"),
        (["--out=x", "--nodes=0"], "--nodes: give whole numbers from 1"),
        (["--out=x", "--node=3"], "node: there is no such option"),
        (["--out=x", "--config.draft.kind=lookup"], "draft.tree: drafts of"),
        (["--out=x", "--config.verify.rule=block"], "verify.rule: block"),
        (["--out=/dev/null/x"], "--out: /dev/null/x: "),
    ],
)
def test_what_the_door_refuses(words, line, capsys):
  config = str(tiny.CONFIGS / "ende_t5small.py:mini")
  assert door.main(["tree", "--config", config, *words]) == 1
  error = capsys.readouterr().err
  assert line in error and error.count("\n") == 1
