"""Batches, optimiser and the training loop, on a network of a few weights."""

import dataclasses
import pathlib
import shutil

import filelock
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
from specjax.data import batches
from specjax.models import t5
from specjax.training import curves
from specjax.training import log as log_lib
from specjax.training import loop
from specjax.training import objective
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


def _config(out, steps, seed=0, **options):
  return loop.TrainConfig(
      name="tiny",
      objective=objective.Objective(_MODEL, **options),
      optimizer=optimizer.OptimizerConfig(warmup=2, steps=steps),
      batch=batches.BatchConfig((8, 16), (8,), cost=60),
      micro_batches=2,
      seed=seed,
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
  sums = jax.jit(objective.Objective(_MODEL).sums)(
      params,
      (),
      (
          jnp.array([[3, 4, 1, 9, 9], [7, 7, 7, 7, 7]]),
          jnp.array([3, 0]),
          jnp.array([[5, 6, 1, 9], [7, 7, 7, 7]]),
          jnp.array([3, 0]),
      ),
  )
  logits_BTV = jax.jit(module.apply)(
      params, source, jnp.ones((1, 3), bool), jnp.array([[0, 5, 6]])
  )
  log_p = jax.nn.log_softmax(logits_BTV)[0]
  want = -(log_p[0, 5] + log_p[1, 6] + log_p[2, 1])
  assert sums["tokens"] == 3
  np.testing.assert_allclose(sums["loss"], want, rtol=1e-5)


@pytest.mark.parametrize("kind", [None, *objective.DIVERGENCES])
def test_places_that_count_have_a_gradient(kind, monkeypatch):
  """sgl-project/SpecForge#885: the first one too, and none past the end."""
  monkeypatch.setattr(objective, "_logits", lambda model, logits, _: logits)
  options = {} if kind is None else dict(teacher=_MODEL, divergence=kind)
  sums = objective.Objective(_MODEL, **options).sums
  (teacher, _), (student, _) = _laws(0, (2, 4, 20)), _laws(1, (2, 4, 20))
  target_BT = jnp.array([[5, 6, 1, 9], [1, 7, 7, 7]])
  batch = None, None, target_BT, jnp.array([3, 1])
  slope_BTV = jax.grad(lambda x: sums(x, teacher, batch)["loss"])(student)
  np.testing.assert_array_equal(
      np.any(slope_BTV != 0, axis=-1), [[1, 1, 1, 0], [1, 0, 0, 0]]
  )


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
  # Five Newton-Schulz steps leave singular values between about 0.7 and 1.2.
  for i in range(3):
    assert spread(attention["qkv"]["kernel"][:, i]) < 0.5
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
  logs = [
      log_lib.read(tmp_path / run / "tiny" / "log.jsonl")
      for run in ("whole", "cut")
  ]
  for a, b in zip(*logs, strict=True):
    del a["tokens_per_second"], b["tokens_per_second"]
    assert a == b
  assert [entry["step"] for entry in logs[0]] == list(range(1, 9))
  name = "held_out_copy_loss"
  losses = [entry[name] for entry in logs[0] if name in entry]
  assert len(losses) == 2 and losses[1] < losses[0]


def test_two_processes_do_not_train_in_one_folder(tmp_path):
  config = _config(tmp_path, 3)
  config.folder.mkdir(parents=True)
  with filelock.FileLock(config.folder / "lock"):
    with pytest.raises(errors.UserError, match="another process trains there"):
      loop.run(config, _rows(40), {})
  loop.run(config, _rows(40), {})


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path):
  path = tmp_path / "log.jsonl"
  path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
  log = log_lib.Log(path, 2)
  log.write({"step": 3, "loss": 0.5})
  assert log_lib.read(path)[1:] == [{"step": 2}, {"step": 3, "loss": 0.5}]


def test_lines_that_are_no_steps_are_left_out(tmp_path):
  path = tmp_path / "log.jsonl"
  odd = (b"3", b"[", b"\xff", b'{"loss": 1}', b'{"step": "4"}', b"[" * 99_999,
         b'{"step": 5, "loss": "x"}', b'{"step": -1}', b"9" * 5000)
  path.write_bytes(b'{"step": 1}\n' + b"\n".join(odd) + b'\n{"step": 2}\n')
  assert log_lib.read(path) == [{"step": 1}, {"step": 2}]


def test_damaged_checkpoints_and_a_full_disk(tmp_path, monkeypatch):
  """Told in one line; the run goes on from the checkpoint before."""
  rows, folder = _rows(40), tmp_path / "tiny"
  loop.run(_config(tmp_path, 3), rows, {})
  save = loop.ocp.CheckpointManager.save

  def full(*_, **__):
    raise ValueError("OS error 28:\nNo space left on device")

  with monkeypatch.context() as patch:
    patch.setattr(loop.ocp.CheckpointManager, "save", full)
    line = f"{folder}/checkpoints/6 cannot be written .*No space left"
    with pytest.raises(errors.UserError, match=line):
      loop.run(_config(tmp_path, 8), rows, {})
  assert loop.ocp.CheckpointManager.save is save
  loop.run(_config(tmp_path, 8), rows, {})
  newest = folder / "checkpoints" / "8"
  for path in sorted(newest.rglob("*")):
    if path.is_file():
      path.write_bytes(path.read_bytes()[:3])
  with pytest.raises(errors.UserError, match=f"^{newest} cannot be read") as e:
    loop.run(_config(tmp_path, 9), rows, {})
  assert "\n" not in str(e.value)
  shutil.rmtree(newest)
  loop.run(_config(tmp_path, 9), rows, {})
  steps = [e["step"] for e in log_lib.read(folder / "log.jsonl")]
  assert steps == list(range(1, 10))
  for recipe in ("{", "[]", "\xff", '{"seed": 0, "seed": 0}'):
    (folder / "recipe.json").write_text(recipe, "latin-1")
    with pytest.raises(errors.UserError, match="recipe.json is missing or dam"):
      loop.run(_config(tmp_path, 9), rows, {})


def test_another_recipe_is_refused_and_a_longer_run_is_not(tmp_path):
  rows = _rows(40)
  loop.run(_config(tmp_path, 3), rows, {})
  with pytest.raises(errors.UserError, match="seed 0, not 7"):
    loop.run(_config(tmp_path, 3, seed=7), rows, {})
  loop.run(_config(tmp_path, 5), rows, {})
  (tmp_path / "tiny" / "recipe.json").rename(tmp_path / "recipe.json")
  with pytest.raises(errors.UserError, match="recipe.json is missing"):
    loop.run(_config(tmp_path, 6), rows, {})
  steps = [e["step"] for e in log_lib.read(tmp_path / "tiny" / "log.jsonl")]
  assert steps == [1, 2, 3, 4, 5]


def test_rates_rise_stay_and_fall():
  config = optimizer.OptimizerConfig(warmup=4, steps=20, decay=0.25)
  rate = optimizer.schedule(config, 2.0)
  got = [float(rate(i)) for i in (0, 2, 4, 14, 15, 17, 20)]
  np.testing.assert_allclose(got, [0, 1, 2, 2, 2, 1.2, 0], atol=1e-6)
  always = optimizer.schedule(
      optimizer.OptimizerConfig(warmup=4, steps=20, decay=1.0), 2.0
  )
  np.testing.assert_allclose(always(12), 1.0)


def test_curves_are_a_picture(tmp_path):
  log = log_lib.Log(tmp_path / "log.jsonl", 0)
  for i in range(3):
    log.write({"step": i, "loss": 3.0 - i})
  held_out = {"held_out_a_loss": 1, "held_out_a_overlap": 1}
  log.write({"step": 4, "loss": 1} | held_out)
  curves.draw(tmp_path / "log.jsonl", tmp_path / "curves.png")
  assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_queries_learn_slower_by_the_root_of_the_head_width():
  """Else T5's unscaled scores saturate under updates of equal size."""
  three = jnp.stack([jnp.eye(4)] * 3, axis=1)
  params = {"decoder_layers_0": {"q": jnp.eye(4), "qkv": three}}
  rule = optimizer.make_optimizer(
      optimizer.OptimizerConfig(warmup=1, steps=9, weight_decay=0.0),
      head_width=16,
  )
  state = rule.init(params)
  update = jax.jit(rule.update)
  _, state = update(params, state, params)
  updates, _ = update(params, state, params)
  layer = updates["decoder_layers_0"]
  slow, *fast = jnp.moveaxis(layer["qkv"], 1, 0)
  for each in fast:
    np.testing.assert_allclose(slow * 4, each, rtol=1e-5)
    np.testing.assert_allclose(layer["q"] * 4, each, rtol=1e-5)


def _laws(seed, shape=(2, 3, 5)):
  logits = 2 * jax.random.normal(jax.random.key(seed), shape)
  return logits, np.asarray(jax.nn.softmax(logits), np.float64)


@pytest.mark.parametrize(
    "kind, want",
    [
        ("forward_kl", lambda p, q: (p * np.log(p / q)).sum(-1)),
        ("reverse_kl", lambda p, q: (q * np.log(q / p)).sum(-1)),
        ("total_variation", lambda p, q: 1 - np.minimum(p, q).sum(-1)),
    ],
)
def test_divergences(kind, want):
  """Of p, the teacher's law, and q; 0 where they are one."""
  (teacher, p), (student, q) = _laws(0), _laws(1)
  got = objective.divergence(kind, teacher, student)
  np.testing.assert_allclose(got, want(p, q), rtol=1e-5)
  np.testing.assert_allclose(
      objective.divergence(kind, teacher, teacher), 0, atol=1e-6
  )


@pytest.fixture(name="teacher", scope="module")
def fixture_teacher(tmp_path_factory):
  return loop.run(_config(tmp_path_factory.mktemp("t"), 8), _rows(60), {})


@pytest.mark.parametrize(
    "kind",
    [
        "forward_kl",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in objective.DIVERGENCES
            if kind != "forward_kl"
        ),
    ],
)
def test_a_distilled_student_comes_close_to_its_teacher(
    kind, teacher, tmp_path
):
  """On texts of random tokens, which say nothing of the teacher's law."""
  rows, held = _rows(60), {"copy": _rows(8, seed=1)}
  config = dataclasses.replace(
      _config(tmp_path / kind, 40, seed=5, teacher=_MODEL, divergence=kind),
      # One shape to compile.
      batch=batches.BatchConfig((16,), (8,), cost=120),
  )
  loop.run(config, rows, held, teacher)
  log = log_lib.read(config.folder / "log.jsonl")
  first, last = log[3], log[-1]
  assert last["held_out_copy_overlap"] > first["held_out_copy_overlap"] + 0.05
  assert last["held_out_copy_loss"] < first["held_out_copy_loss"]
  assert 0 <= last["held_out_copy_agreement"] <= 1


def test_a_teacher_is_its_own_best_student(tmp_path):
  rows = _rows(20)
  config = _config(tmp_path, 2, teacher=_MODEL, weight=0.5)
  params = loop.initial(config)[0]
  batch, _ = batches.batches(*rows, config.batch, seed=0)
  means = loop.held_out(config, params, params, [batch[0], batch[1]])
  np.testing.assert_allclose(means["overlap"], 1, rtol=1e-5)
  np.testing.assert_allclose(means["agreement"], 1)
  np.testing.assert_allclose(
      means["loss"], means["cross_entropy"] / 2, rtol=1e-5
  )


@pytest.mark.parametrize(
    "options, word",
    [
        (dict(divergence="kl"), "divergence"),
        (dict(weight=-0.5), "weight"),
        (dict(weight=1.5), "weight"),
        (dict(teacher=dataclasses.replace(_MODEL, vocab_size=21)), "teacher"),
    ],
)
def test_bad_objectives_are_refused(options, word):
  with pytest.raises(ValueError, match=word):
    objective.Objective(_MODEL, **options)


def test_a_run_may_begin_with_weights(tmp_path):
  """Of any type, as a checkpoint's may be."""
  config = _config(tmp_path, 1)
  config = dataclasses.replace(
      config, optimizer=dataclasses.replace(config.optimizer, warmup=1)
  )
  mine = jax.tree.map(
      lambda x: (x + 1).astype(jnp.bfloat16), loop.initial(config)[0]
  )
  trained = loop.run(config, _rows(20), {}, begin=mine)
  moved = jax.tree.map(
      lambda new, old: float(jnp.abs(new - old).max()), trained, mine
  )
  assert max(jax.tree.leaves(moved)) < 0.5


def test_a_loss_that_is_no_number_stops_the_run(tmp_path, monkeypatch):
  """Before a checkpoint of it pushes out a good one."""
  config = _config(tmp_path, 8)
  step = loop.step

  def diverging(*args):
    params, state, means = step(*args)
    return params, state, means | {"loss": float("nan")}

  monkeypatch.setattr(loop, "step", diverging)
  with pytest.raises(errors.UserError, match="loss is nan at step 1"):
    loop.run(config, _rows(40), {})
  assert not list((config.folder / "checkpoints").glob("[0-9]*"))
