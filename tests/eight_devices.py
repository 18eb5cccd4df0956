"""Decoding on eight devices; tests/test_sharding.py runs this file.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 \
      python -m pytest tests/eight_devices.py
"""

import dataclasses
import functools
import math
import re

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from specjax import checkpoints
from specjax import drafts as drafts_lib
from specjax import errors
from specjax import prepare
from specjax import sampling
from specjax import sharding
from specjax import topology
from specjax.checkpoints import published
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import dynamic
from specjax.drafters import eagle as eagle_drafter
from specjax.drafters import lookup
from specjax.drafters import medusa as medusa_drafter
from specjax.drafters import mixed
from specjax.drafters import model as model_drafter
from specjax.drafters import ngram
from specjax.drafters import none
from specjax.drafters import simulated
from specjax.drafters import suffix
from specjax.drafters import suffix_array
from specjax.drafters import suffix_dynamic
from specjax.drafters import tree as tree_drafter
from specjax.models import eagle
from specjax.models import listed
from specjax.models import medusa
from specjax.training import loop as train_loop
from specjax.training import objective
from specjax.verify import block
from specjax.verify import token
from specjax.verify import tree as tree_rule
from specjax.verify import typical
from tests import mocks
from tests import test_drafters_ngram
from tests import test_training
from tests import tiny

Loop = loop_lib.Loop
Settings = sampling.Settings

quick_compiles = mocks.quick_compiles
VOCABULARY = 32
BUDGET = 64
# Six rows: eight groups of devices have two more to fill.
SETTINGS = [
    Settings(eos=(1,)),
    Settings(1.0, eos=(1, 2)),
    Settings(0.7, top_k=5, eos=(1,)),
    Settings(1.0, top_p=0.8, eos=(3,)),
    Settings(2.0, top_k=9, top_p=0.9, min_new_tokens=4, eos=(1,)),
    Settings(forced_first=7, eos=(1,)),
]
BUDGETS = [20, 20, 9, 17, 20, 1]
# Name -> module and parameters.
TARGETS = {
    "t5": mocks.tiny_t5(vocabulary=VOCABULARY, heads=8),
    "llama": mocks.tiny_decoder("llama", vocabulary=VOCABULARY, heads=16),
    "gpt2": mocks.tiny_decoder("gpt2", vocabulary=VOCABULARY, heads=8),
}
MESHES = ((2, 4), (8, 1), (1, 8))
MOVED = re.compile(r" (all-gather|all-to-all|collective-permute)(-start)?\(")


def drafts_of(target):
  """A draft model of a target's kind, and its parameters."""
  module, params = TARGETS[target]
  drafter = model_drafter.ModelDrafter(module, 2)
  return drafter, mocks.blurred(params, 1, 0.2)


@functools.cache
def eagle_head():
  """A head of the T5, and its parameters."""
  module, params = TARGETS["t5"]
  model = eagle.of(module)
  head = jax.jit(model.init)(jax.random.key(0))
  # It drafts every second id.
  ids_W = np.arange(0, VOCABULARY, 2)
  kernel = listed.output_kernel(module, params, ids_W)
  some = listed.listed(ids_W, VOCABULARY, kernel)
  drafter = eagle_drafter.EagleDrafter(model, 2)
  return drafter, model.params(head, params, some)


@functools.cache
def medusa_heads():
  """Heads of the T5 that say something, and their parameters."""
  module, params = TARGETS["t5"]
  heads = medusa.Medusa(
      medusa.MedusaConfig(module.config.d_model, VOCABULARY, 2)
  )
  own = heads.init(
      jax.random.key(0),
      np.zeros((1, 1, module.config.d_model), np.float32),
      method="everything",
  )
  drafter = medusa_drafter.MedusaDrafter(
      heads=heads,
      target=module,
      topology=topology.read("[[0], [1], [0, 0]]"),
      gamma=2,
  )
  rng = np.random.default_rng(0)
  own = jax.tree.map(
      lambda x: rng.normal(scale=0.3, size=x.shape).astype(x.dtype), own
  )
  return drafter, medusa.MedusaParams(own, params)


def drafters():
  """Name -> drafter and parameters, for T5."""
  model, params = drafts_of("t5")
  copies = lookup.LookupDrafter(gamma=2)
  suffixes = suffix.SuffixDrafter(gamma=2, reach=8)
  branches = suffix_dynamic.make(gamma=2, nodes=5, reach=8)
  texts = [(5, 3, 9, 1, 4, 5, 3, 9), (7, 8, 2, 6)]
  tree = suffix_array.build(texts, 32, suffixes.reach)
  head, head_params = eagle_head()
  grown = lambda source: dynamic.DynamicTreeDrafter(
      source=source, top_k=2, depth=3, nodes=4
  )
  ngrams = test_drafters_ngram.make_table(3, 5)
  switched = drafts_lib.draft_mixed(
      drafts_lib.Drafts(copies, ()),
      drafts_lib.Drafts(model, params),
      c=0.1,
      matching=0.05,
      v=1.3,
  )
  return {
      "none": (none.NoDrafter(), ()),
      "lookup": (copies, ()),
      "suffix": (suffixes, tree),
      "suffix tree": (branches, tree),
      "eagle": (head, head_params),
      "eagle's own trees": (grown(head), head_params),
      "trees of a draft model": (grown(model), params),
      "medusa": medusa_heads(),
      "bigram": (ngram.NgramDrafter(ngram.BIGRAM, 2), ngrams),
      "unigram": (ngram.NgramDrafter(ngram.UNIGRAM, 2), ngrams),
      "confidence": (dataclasses.replace(model, confidence=0.3), params),
      "switched": (switched.drafter, switched.params),
      "mixed": (
          mixed.MixedDrafter(copies=copies, model=model),
          mixed.MixedParams((), params, None),
      ),
      "tree": (
          tree_drafter.TreeDrafter(
              source=model,
              topology=topology.read("[[0], [1], [0, 0]]"),
              siblings="distinct",
          ),
          params,
      ),
      "simulated": (
          simulated.SimulatedDrafter(2),
          simulated.replay({i: (0, 4, 5, 6, 7) for i in range(6)}, 0.8),
      ),
  }


# Name -> drafts, and a rule that is not their usual one.
RULES = {
    "block": ("model", block.BlockRule()),
    "typical": ("medusa", typical.TypicalRule()),
}


def make_loop(target, drafter, layout=None, name=None):
  rule = tree_rule.TreeRule() if drafter.trees else token.TokenRule()
  if name in RULES:
    rule = RULES[name][1]
  return Loop(TARGETS[target][0], drafter, rule, layout=layout)


def make_batch(target, rows):
  sources = mocks.SOURCES if target == "t5" else (None,)
  return requests_lib.make_batch(
      mocks.requests(
          SETTINGS, BUDGETS, prompts=[(0,), (4, 5)], sources=sources
      ),
      vocabulary=VOCABULARY,
      seed=3,
      rows=rows,
  )


def told(state):
  """What must be equal, of the rows that count."""
  rows = len(SETTINGS)
  tallies = jax.tree.map(lambda x: np.asarray(x)[:rows], state.tallies)
  # Sums of numbers that round otherwise.
  tallies = tallies.replace(overlap_BG=None)
  return mocks.texts(state)[:rows], tallies


@functools.cache
def alone(target, name):
  """The same on one device."""
  drafter, params = found(target, name)
  loop = make_loop(target, drafter, name=name)
  batch = make_batch(target, len(SETTINGS))
  state = mocks.decode(loop, TARGETS[target][1], params, batch, BUDGET)
  return told(state)


def found(target, name):
  """A drafter by its name, or that of a rule."""
  if name in RULES:
    name = RULES[name][0]
  return drafts_of(target) if name == "model" else drafters()[name]


def spread(target, name, layout):
  """Decodes on the layout: program, sizes of a device's caches, the end."""
  params = TARGETS[target][1]
  drafter, drafter_params = found(target, name)
  put = lambda tree, where: jax.tree.map(jax.device_put, tree, where)
  params = put(params, layout.target(params))
  drafter_params = put(drafter_params, layout.draft(drafter_params))
  loop = make_loop(target, drafter, layout, name)
  batch = make_batch(target, layout.rows(len(SETTINGS)))
  state = loop.prefill(params, drafter_params, batch, BUDGET)
  sizes = [
      math.prod(leaf.sharding.shard_shape(leaf.shape))
      for leaf in caches(state)
  ]
  program = Loop.run.lower(loop, params, drafter_params, state).compile()
  before = places(state)
  state = program(params, drafter_params, state)
  assert places(state) == before
  return program, sizes, state


def caches(state):
  """Keys and values of the target and, where it is one, of a draft model."""
  own = getattr(state.drafter, "cache", None)
  return jax.tree.leaves([state.cache, own])


def places(state):
  """Where each device has its part of each cache."""
  return [
      shard.data.unsafe_buffer_pointer()
      for leaf in caches(state)
      for shard in leaf.addressable_shards
  ]


def moved(text):
  """Elements of the largest array that devices hand to one another."""
  sizes = [0]
  for line in text.splitlines():
    if found := MOVED.search(line):
      shapes = re.findall(r"\w\[([\d,]*)\]", line[: found.start()])
      sizes += [math.prod(map(int, filter(None, x.split(",")))) for x in shapes]
  return max(sizes)


def check(target, name, mesh, drafts):
  """Tokens and tallies of one device; caches stay where they are."""
  layout = sharding.layout(*mesh, drafts)
  program, sizes, state = spread(target, name, layout)
  texts, tallies = told(state)
  expected_texts, expected_tallies = alone(target, name)
  assert texts == expected_texts
  jax.tree.map(np.testing.assert_array_equal, tallies, expected_tallies)
  data, model = mesh
  own = state.cache.key[0].addressable_shards[0].data.shape
  rows, heads = state.cache.key[0].shape[:2]
  assert own[:2] == (rows // data, heads // model)
  text = program.as_text()
  assert moved(text) < min(sizes)
  assert "input_output_alias" in text
  aliased = program.memory_analysis().alias_size_in_bytes
  assert aliased >= 4 * sum(sizes)


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(mesh, marks=[pytest.mark.slow] * (mesh != (2, 4)))
        for mesh in MESHES
    ],
    ids=str,
)
def test_draft_models(mesh):
  drafts = sharding.SHARDED if mesh == (1, 8) else sharding.REPLICATED
  check("t5", "model", mesh, drafts)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", (*drafters(), *RULES))
@pytest.mark.slow
def test_other_drafts(name, mesh):
  check("t5", name, mesh, sharding.SHARDED)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["llama", "gpt2"])
def test_decoder_only(target):
  check(target, "model", (2, 4), sharding.SHARDED)


def test_what_moves_is_seen():
  mesh = sharding.layout(8, 1).mesh
  named = lambda *spec: jax.sharding.NamedSharding(
      mesh, jax.sharding.PartitionSpec(*spec)
  )
  gather = jax.jit(
      lambda x: x + 1, in_shardings=named("data"), out_shardings=named()
  )
  text = gather.lower(np.zeros((8, 5), np.float32)).compile().as_text()
  assert moved(text) == 40


def test_a_sharded_draft_is_read_into_its_shards(tmp_path, monkeypatch):
  """No parameter of it is ever whole in a device; as the target's."""
  taken = []
  put = sharding.Layout.put

  def noted(layout, path, weights):
    taken.append(path)
    return put(layout, path, weights)

  monkeypatch.setattr(sharding.Layout, "put", noted)
  family = tiny.write_family(tmp_path)
  mesh = {"mesh__data": 4, "mesh__model": 2, "mesh__draft": "sharded"}
  setup = prepare.prepare(tiny.config(family, **mesh))
  # Both are of one shape.
  assert len(taken) == 2 * len(jax.tree.leaves(setup.drafts.params))
  assert sorted(taken) == sorted(2 * list(dict.fromkeys(taken)))
  drafts = setup.drafts.params["params"]["shared"]
  assert drafts.addressable_shards[0].data.shape == (80, 8)


def test_from_a_config(tmp_path):
  """Weights go to their devices; a batch is filled up; texts are the same."""
  family = tiny.write_family(tmp_path)
  one, many = (
      prepare.prepare(tiny.config(family, decode__batch=3, **mesh))
      for mesh in ({}, {"mesh__data": 4, "mesh__model": 2})
  )
  shared = many.target.params["params"]["shared"]
  assert shared.addressable_shards[0].data.shape == (80, 8)
  assert len(shared.sharding.device_set) == 8
  drafts = many.drafts.params["params"]["shared"]
  assert drafts.addressable_shards[0].data.shape == (160, 8)
  assert [group.batch.id_B.size for group in many.groups(5)] == [4, 4]
  assert [len(group.rows) for group in many.groups(5)] == [3, 2]
  assert many.decode(many.speculative) == one.decode(one.speculative)


@pytest.mark.slow
def test_random_weights_are_the_same(monkeypatch):
  monkeypatch.setitem(published._V1_1, "tiny", (8, 4, 16, 1, 4))
  layout = sharding.layout(2, 4)
  one, many = (
      checkpoints.load("random:tiny", layout=each).params
      for each in (None, layout)
  )
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6)
  jax.tree.map(close, one, many)
  shared = many["params"]["shared"]
  assert shared.addressable_shards[0].data.shape == (32_128 // 4, 8)


def training(out, steps):
  """A run's recipe, and what it reads: six rows, so that some are filled up."""
  config = dataclasses.replace(
      test_training._config(out, steps),
      objective=objective.Objective(
          dataclasses.replace(
              test_training._MODEL, vocab_size=40, num_heads=8
          )
      ),
      checkpoint_every=2,
  )
  return config, test_training._rows(6)


def test_a_checkpoint_goes_to_other_devices(tmp_path):
  """Written on 8 x 1; each device of 2 x 4 or of one reads its parts."""
  config, _ = training(tmp_path, 2)
  written = train_loop.initial(config, sharding.layout(8, 1))
  with ocp.CheckpointManager(config.folder / "checkpoints") as saved:
    saved.save(2, args=ocp.args.StandardSave(written))
  for data, model in ((1, 1), (2, 4)):
    layout = sharding.layout(data, model)
    with ocp.CheckpointManager(config.folder / "checkpoints") as saved:
      *read, step = train_loop.restore(config, saved, layout=layout)
    assert step == 2
    jax.tree.map(np.testing.assert_array_equal, tuple(read), written)
    leaves = jax.tree_util.tree_leaves_with_path(read)
    for _, leaf in leaves:
      assert len(leaf.sharding.device_set) == data * model
    # The embedding, and both moments of it.
    parts = [
        leaf.addressable_shards[0].data.shape
        for path, leaf in leaves
        if path[-1] == jax.tree_util.DictKey("shared")
    ]
    assert parts == [(40 // model, 8)] * 3


@pytest.mark.slow
def test_training_goes_on_on_other_devices(tmp_path):
  """Ends as on one device, up to the order of sums."""
  ends = []
  for name, meshes in (("one", [(1, 1)] * 2), ("many", [(2, 4), (4, 2)])):
    for steps, mesh in zip((2, 4), meshes):
      config, rows = training(tmp_path / name, steps)
      layout = sharding.layout(*mesh)
      end = train_loop.run(config, rows, {"own": rows}, layout=layout)
    ends.append(end)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
  jax.tree.map(close, *ends)


def test_what_does_not_divide(tmp_path):
  family = tiny.write_family(tmp_path)
  for mesh, line in (
      ({"mesh__data": 9}, "mesh: give data x model of 8 or less"),
      ({"mesh__model": 4}, "mesh.model: give a divisor of 2, the heads of"),
  ):
    with pytest.raises(errors.UserError, match=line):
      prepare.prepare(tiny.config(family, **mesh))
  loop = make_loop("t5", none.NoDrafter(), sharding.layout(8, 1))
  with pytest.raises(errors.UserError, match="rows: give a multiple of the 8"):
    loop.prefill(TARGETS["t5"][1], (), make_batch("t5", 6), BUDGET)
