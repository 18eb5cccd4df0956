"""Batches, optimiser and the training loop, on a network of a few weights."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.data import batches
from specjax.models import t5
from specjax.training import loop
from specjax.training import optimizer

_MODEL = t5.T5Config(
    vocab_size=20,
    d_model=8,
    d_kv=4,
    d_ff=16,
    num_layers=1,
    num_decoder_layers=1,
    num_heads=2,
    gated=True,
    tied=False,
)


def _rows(count, seed=0):
  rng = np.random.default_rng(seed)
  sources = [
      rng.integers(2, 20, rng.integers(3, 12)).tolist() + [1]
      for _ in range(count)
  ]
  # A copy task: something to learn within a few steps.
  return sources, [source[:4] + [1] for source in sources]


def _config(out, steps):
  return loop.TrainConfig(
      name="tiny",
      model=_MODEL,
      optimizer=optimizer.OptimizerConfig(warmup=2, steps=steps),
      batch=batches.BatchConfig((8, 16), (8,), cost=60),
      micro_batches=2,
      seed=0,
      out=pathlib.Path(out),
      evaluate_every=4,
      checkpoint_every=3,
  )


def test_batches_hold_every_row_once_an_epoch_in_the_same_order():
  sources, targets = _rows(37)
  config = batches.BatchConfig((8, 16), (8,), cost=60)
  data, count = batches.batches(sources, targets, config, seed=3)
  again, _ = batches.batches(sources, targets, config, seed=3)
  seen = []
  for i in range(count):
    np.testing.assert_array_equal(data[i].source_BL, again[i].source_BL)
    for row, length in zip(data[i].source_BL, data[i].source_length_B):
      if length:
        seen.append(tuple(row[:length]))
  assert sorted(seen) == sorted(tuple(source) for source in sources)
  second = [data[count + i].source_BL.tobytes() for i in range(count)]
  first = [data[i].source_BL.tobytes() for i in range(count)]
  assert first != second and sorted(first) == sorted(second)


def test_batches_have_one_shape_a_bucket_and_cut_long_rows():
  sources, targets = _rows(37)
  sources[0] = list(range(2, 19)) * 3
  config = batches.BatchConfig((8, 16), (8,), cost=60)
  data, count = batches.batches(sources, targets, config, seed=3)
  shapes = {data[i].source_BL.shape for i in range(count)}
  assert len(shapes) == len({width for _, width in shapes})
  assert max(width for _, width in shapes) == 16


def test_loss_ignores_padding():
  """Cross-entropy of labels [a, b, 1] fed [0, a, b] (transformers#8161)."""
  module = t5.T5(_MODEL)
  source = jnp.array([[3, 4, 1]])
  params = jax.jit(module.init)(
      jax.random.key(0), source, jnp.ones((1, 3), bool), source
  )
  total, count = jax.jit(loop.loss_sum, static_argnums=0)(
      module,
      params,
      jnp.array([[3, 4, 1, 9, 9], [7, 7, 7, 7, 7]]),
      jnp.array([3, 0]),
      jnp.array([[5, 6, 1, 9], [7, 7, 7, 7]]),
      jnp.array([3, 0]),
  )
  logits_BTV = jax.jit(module.apply)(
      params, source, jnp.ones((1, 3), bool), jnp.array([[0, 5, 6]])
  )
  log_p = jax.nn.log_softmax(logits_BTV)[0]
  want = -(log_p[0, 5] + log_p[1, 6] + log_p[2, 1])
  assert count == 3
  np.testing.assert_allclose(total, want, rtol=1e-5)


def test_optimizer_gives_layer_matrices_to_muon_and_the_rest_to_adamw():
  """A Muon update of a square matrix is orthogonal up to its scale."""
  module = t5.T5(_MODEL)
  ids = jnp.ones((1, 3), jnp.int32)
  params = jax.jit(module.init)(jax.random.key(0), ids, ids == 1, ids)
  rule = optimizer.make_optimizer(
      optimizer.OptimizerConfig(warmup=1, steps=9, weight_decay=0.0),
      head_width=4,
  )
  state = jax.jit(rule.init)(params)
  noise = lambda i, x: jax.random.normal(jax.random.key(i), x.shape)
  leaves, tree = jax.tree.flatten(params)
  gradient = tree.unflatten([noise(i, x) for i, x in enumerate(leaves)])
  # The first step's rate is 0: the warm-up begins there.
  update = jax.jit(rule.update)
  updates, state = update(gradient, state, params)
  assert all(not np.any(x) for x in jax.tree.leaves(updates))
  updates, _ = update(gradient, state, params)
  spread = lambda x: np.ptp(np.linalg.svd(x)[1]) / np.max(np.linalg.svd(x)[1])
  attention = updates["params"]["decoder_layers_0"]["attention"]
  inner = attention["q"]["kernel"]
  # Five Newton-Schulz steps leave singular values between about 0.7 and 1.2.
  assert spread(inner) < 0.5
  assert spread(updates["params"]["lm_head"]["kernel"]) > 0.5
  assert spread(updates["params"]["shared"]) > 0.5


def test_a_run_that_was_stopped_ends_like_one_that_was_not(tmp_path):
  rows = _rows(40)
  held = {"copy": _rows(8, seed=1)}
  whole = loop.run(_config(tmp_path / "whole", 8), rows, held)

  class Stop(Exception):
    """Stands for a kill."""

  config = _config(tmp_path / "cut", 8)
  step = loop.step
  calls = []

  def stopping(*args):
    calls.append(1)
    if len(calls) == 6:
      raise Stop
    return step(*args)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(loop, "step", stopping)
    with pytest.raises(Stop):
      loop.run(config, rows, held)
  resumed = loop.run(config, rows, held)
  jax.tree.map(np.testing.assert_array_equal, whole, resumed)
  log = (tmp_path / "cut" / "tiny" / "log.jsonl").read_text().splitlines()
  entries = [json.loads(line) for line in log]
  steps = [entry["step"] for entry in entries]
  assert steps == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8]
  # Steps that were taken twice gave the same losses both times.
  assert entries[3]["loss"] == entries[5]["loss"]
  assert entries[-1]["held_out_copy"] < entries[3]["held_out_copy"]


def test_queries_learn_slower_by_the_root_of_the_head_width():
  """Else T5's unscaled scores saturate under updates of equal size."""
  params = {"decoder_layers_0": {"q": jnp.eye(4), "k": jnp.eye(4)}}
  rule = optimizer.make_optimizer(
      optimizer.OptimizerConfig(warmup=1, steps=9, weight_decay=0.0),
      head_width=16,
  )
  state = rule.init(params)
  update = jax.jit(rule.update)
  _, state = update(params, state, params)
  updates, _ = update(params, state, params)
  layer = updates["decoder_layers_0"]
  np.testing.assert_allclose(layer["q"] * 4, layer["k"], rtol=1e-6)
