"""Draft heads: states on disk, what heads learn, and the door."""

import collections
import dataclasses
import functools
import json
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from specjax import checkpoints
from specjax import drafts as drafts_lib
from specjax import errors
from specjax import pipeline
from specjax import train
from specjax.checkpoints import heads as heads_file
from specjax.models import cache as cache_lib
from specjax.models import medusa
from specjax.training import commonest
from specjax.training import features
from specjax.training import heads as heads_training
from specjax.training import log as log_lib
from specjax.training import medusa as medusa_training
from specjax.training import medusa_joint
from tests import tiny


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
  with tiny.quick_compilation():
    yield


@pytest.fixture(scope="module", name="family")
def fixture_family(tmp_path_factory):
  """A T5 and a Llama, with their tokenizers."""
  made = {}
  for name, write in (
      ("t5", tiny.write_family),
      ("llama", lambda folder: tiny.write_decoders(folder, tiny.LLAMA)),
  ):
    made[name] = write(tmp_path_factory.mktemp(name))["target"]
  return made


def rows_of(kind, count=5):
  rng = np.random.default_rng(0)
  ids = lambda n: tuple(rng.integers(3, 50, n).tolist())
  source = lambda: ids(6) if kind == "t5" else None
  prompt = lambda: (0,) if kind == "t5" else ids(rng.integers(2, 9))
  return [
      features.Row(source(), prompt(), ids(rng.integers(3, 12)))
      for _ in range(count)
  ]


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_states_are_those_of_each_text_alone(
    kind, family, tmp_path, monkeypatch
):
  """Whatever stands beside it, in bfloat16; a stopped run goes on."""
  target, rows = checkpoints.load(family[kind]), rows_of(kind, 3)
  monkeypatch.setattr(features, "PART", 2)
  store = features.build(target, rows, tmp_path / "states")
  files = [store.file(part) for part in store.parts]
  assert sorted((tmp_path / "states").iterdir()) == sorted(files)
  assert len(files) == 2
  assert sum(file.stat().st_size for file in files) >= store.bytes_of(
      store.parts
  )
  module = target.module
  for i, row in enumerate(rows):
    memory = None
    if row.source:
      source_1L = jnp.asarray([row.source])
      memory = module.apply(
          target.params, source_1L, source_1L >= 0, method="encode"
      )
    query = cache_lib.whole_query(jnp.asarray([row.ids]))
    _, _, (want_1TD,) = module.apply(
        target.params, query, None, memory, taps=(-1,), method="decode"
    )
    got_TD = store.states(i).astype(np.float32)
    np.testing.assert_allclose(got_TD, want_1TD[0], rtol=0.01, atol=1e-3)
  before = [file.read_bytes() for file in files]
  files[1].unlink()
  done = []
  features.build(target, rows, tmp_path / "states", tick=done.append)
  assert done == [2, 1]
  assert [file.read_bytes() for file in files] == before


def test_a_disk_that_is_too_small_is_told_before_the_work(
    family, tmp_path, monkeypatch
):
  target = checkpoints.load(family["llama"])
  usage = collections.namedtuple("usage", "total used free")(10, 9, 2**20)
  monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
  with pytest.raises(errors.UserError, match="^out: the states of .* tokens"):
    features.build(target, rows_of("llama"), tmp_path / "new" / "states")
  assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("fault", ("cut", "object", "shape", "order", "empty"))
def test_damaged_states_are_told_before_the_training(fault, tmp_path):
  """And never unpickled."""
  rows = [features.Row(None, (1, 2), (3,)), features.Row(None, (4,), (5,))]
  store = features.Store(rows, tmp_path, 4)
  [part] = store.parts
  path, bits = store.file(part), np.arange(20, dtype=np.uint16).reshape(5, 4)
  np.save(path, bits)
  assert store.states(1).view(np.uint16).tolist() == bits[3:].tolist()
  changed = {
      "object": np.array([{}], object),
      "shape": bits[:4],
      "order": np.asfortranarray(bits),
  }
  if fault in changed:
    np.save(path, changed[fault], allow_pickle=True)
  else:
    path.write_bytes(path.read_bytes()[:-1] if fault == "cut" else b"")
  with pytest.raises(errors.UserError, match="is damaged .*; delete it"):
    features.Store(rows, tmp_path, 4).check()


def test_batches_begin_where_the_first_draft_is_made_from(family, tmp_path):
  target, rows = checkpoints.load(family["llama"]), rows_of("llama", 7)
  store = features.build(target, rows, tmp_path)
  short = features.BatchConfig(lengths=(8, 16), cost=32)
  whole = dataclasses.replace(short, lengths=(32,), prompts=True)
  for config, skip in ((short, lambda row: max(0, len(row.prompt) - 2)),
                       (whole, lambda row: 0)):
    data, count = config.dataset(store, 0)
    seen = []
    for batch in (data[i] for i in range(count)):
      for ids, answer, states in zip(*batch[:3]):
        if not answer.any():
          continue
        [i] = [
            i for i, row in enumerate(rows)
            if tuple(ids[answer]) == row.answer
        ]
        row = rows[i]
        want = row.ids[skip(row) :]
        assert tuple(ids[: len(want)]) == want and not ids[len(want) :].any()
        np.testing.assert_array_equal(
            states[: len(want)], store.states(i)[skip(row) :]
        )
        seen.append(i)
    assert sorted(seen) == list(range(7))


def test_answers_that_are_cut_away_are_left_out(family, tmp_path):
  """A step that only has such texts would divide nothing by nothing."""
  target = checkpoints.load(family["llama"])
  rows = [
      features.Row(None, (3,) * 5, (4, 5)),
      features.Row(None, (3,) * 8, (4, 5)),
      features.Row(None, (3,) * 9, (4, 5)),
  ]
  store = features.build(target, rows, tmp_path)
  config = features.BatchConfig(lengths=(6, 9), cost=9, prompts=True)
  data, count = config.dataset(store, 0)
  learnt = [int(data[i].answer_BT.sum()) for i in range(count)]
  assert sorted(learnt) == [1, 2]
  short = dataclasses.replace(config, lengths=(5,))
  with pytest.raises(errors.UserError, match="^lengths: none of 3 answers"):
    short.dataset(store, 0)


def objective_of(target, **options):
  config = target.module.config
  shape = medusa.MedusaConfig(config.d_model, config.vocab_size, heads=2)
  return medusa_training.Objective(shape, config, **options)


def test_heads_learn_what_stands_behind_the_next_token(family):
  """Head m of the state at t: token t + 1 + m, of the answer alone."""
  target = checkpoints.load(family["llama"])
  objective = objective_of(target, fade=0.5)
  rng = np.random.default_rng(0)
  ids_BT = np.array([[5, 6, 7, 8, 9, 0], [4, 3, 5, 0, 0, 0]])
  # Of the second row the only token of the answer is head 1's, at t = 0.
  answer_BT = np.array([[0, 0, 1, 1, 1, 0], [0, 0, 1, 0, 0, 0]], bool)
  states_BTD = jnp.asarray(rng.normal(size=(2, 6, 16)), jnp.bfloat16)
  batch = features.Batch(ids_BT, answer_BT, states_BTD)
  frozen = objective.frozen(target, ())
  params = objective.begin(target, frozen)
  sums = objective.sums(params, frozen, batch)
  logits_BTV = target.module.apply(
      target.params, states_BTD.astype(jnp.float32), method="head"
  )
  log_p = np.asarray(jax.nn.log_softmax(logits_BTV))
  first = [(0, 0, 7), (0, 1, 8), (0, 2, 9), (1, 0, 5)]
  second = [(0, 0, 8), (0, 1, 9)]
  losses = [-sum(log_p[at] for at in places) for places in (first, second)]
  np.testing.assert_allclose(sums["cross_entropy_1"], losses[0], rtol=1e-4)
  np.testing.assert_allclose(sums["cross_entropy_2"], losses[1], rtol=1e-4)
  np.testing.assert_allclose(
      sums["loss"], 0.5 * losses[0] + 0.25 * losses[1], rtol=1e-4
  )
  assert sums["tokens"] == sums["known_1"] == 4 and sums["known_2"] == 2
  found_MC, known_M = objective.ranks(params, frozen, batch, 300)
  np.testing.assert_array_equal(known_M, [4, 2])
  np.testing.assert_array_equal(np.sum(found_MC, axis=1), [4, 2])
  means = objective.means(sums)
  assert means["cross_entropy_1"] == pytest.approx(losses[0] / 4, rel=1e-4)


def test_acceptance_is_of_places_that_are_reached(monkeypatch):
  """A head counts where those before it were right."""
  config = tiny.LLAMA
  shape = medusa.MedusaConfig(config.d_model, config.vocab_size, heads=2)
  objective = medusa_training.Objective(shape, config)
  right = jnp.array([[1, 1, 0, 0]]), jnp.array([[1, 0, 1, 1]])
  known = jnp.ones((1, 4), bool), jnp.array([[1, 1, 1, 0]], bool)
  label_BT = jnp.zeros((1, 4), jnp.int32)
  logits = [jax.nn.one_hot(1 - hit_BT, 2) for hit_BT in right]
  monkeypatch.setattr(
      medusa_training.Objective,
      "_heads",
      lambda *_: zip(logits, (label_BT, label_BT), known, known),
  )
  means = objective.means(objective.sums_of((), (), ()))
  assert means["accepted_1"] == pytest.approx(0.5)
  assert means["accepted_2"] == pytest.approx(0.5)


def test_own_matrices_begin_as_the_targets(family):
  for kind in family:
    target = checkpoints.load(family[kind])
    config = target.module.config
    shape = medusa.MedusaConfig(
        config.d_model, config.vocab_size, heads=2, own=True
    )
    objective = medusa_training.Objective(shape, config)
    params = objective.begin(target, objective.frozen(target, ()))
    x_BTD = jnp.asarray(
        np.random.default_rng(0).normal(size=(1, 2, config.d_model))
    )
    made = medusa.MedusaParams(params, ())
    got_BTMV = medusa.logits(medusa.Medusa(shape), None, made, x_BTD, 2)
    want_BTV = target.module.apply(target.params, x_BTD, method="head")
    for m in range(2):
      np.testing.assert_allclose(got_BTMV[:, :, m], want_BTV, atol=1e-4)


def test_heads_that_choose_from_the_commonest_ids(family):
  """Their logits are those of all ids; others are never right."""
  target = checkpoints.load(family["llama"])
  config = target.module.config
  rows = [features.Row(None, (3,), (7, 7, 9, 9, 9, 5)),
          features.Row(None, (3,), (8, 5, 4))]
  assert commonest.commonest(rows, 300, 3).tolist() == [5, 7, 9]
  rng = np.random.default_rng(0)
  batch = features.Batch(
      np.array([[3, 7, 7, 9, 9, 9, 5], [3, 8, 5, 4, 0, 0, 0]]),
      np.array([[0, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0, 0]], bool),
      jnp.asarray(rng.normal(size=(2, 7, 16)), jnp.bfloat16),
  )
  made = {}
  for listed in (0, 3):
    shape = medusa.MedusaConfig(16, config.vocab_size, heads=2, listed=listed)
    objective = medusa_training.Objective(shape, config)
    frozen = objective.frozen(target, rows)
    params = objective.begin(target, frozen)
    made[listed] = objective.sums(params, frozen, batch)
    logits = medusa.logits(
        medusa.Medusa(shape),
        target.module,
        frozen.replace(heads=params),
        batch.states_BTD.astype(jnp.float32),
        2,
    )
    made[f"{listed} logits"] = np.asarray(logits)
  np.testing.assert_allclose(
      made["3 logits"], made["0 logits"][..., [5, 7, 9]], atol=1e-4
  )
  # The last token of the second row is not among them.
  assert made[3]["known_1"] == made[0]["known_1"] == 7
  assert made[3]["there_1"] == 6 and made[3]["there_2"] == 4


@pytest.fixture(scope="module", name="trained")
def fixture_trained(family, tmp_path_factory):
  """Kind of target -> a run of the door: its folder and its arguments."""
  folder = tmp_path_factory.mktemp("trained")
  corpus = tiny.write_corpus(folder / "corpus", rows=12)
  variants = {"t5": "ende_medusa", "llama": "smollm2_medusa"}

  @functools.cache
  def run(kind):
    variant = variants[kind]
    arguments = [
        "train",
        f"--config=configs/train_heads.py:{variant}",
        f"--config.target={family[kind]}",
        f"--config.corpus={corpus}",
        f"--config.out={folder / kind}",
        "--config.prompts=9",
        "--config.held_out_prompts=3",
        "--config.max_new_tokens=8",
        "--config.answer_batch=4",
        "--config.lengths=(16,)",
        "--config.cost=64",
        "--config.warmup=1",
        "--config.evaluate_every=2",
        f"--config.heads.{variant}.steps=3",
        f"--config.heads.{variant}.heads=2",
        f"--config.heads.{variant}.listed={0 if kind == 't5' else 40}",
    ]
    before = jax.config.jax_compilation_cache_dir
    try:
      assert train.main([*arguments, "--config.until=answers"]) == 0
      assert not (folder / kind / "states").exists()
      assert train.main(arguments) == 0
    finally:
      jax.config.update("jax_compilation_cache_dir", before)
    return folder / kind / variant, arguments

  return run


_T5_SLOW = pytest.mark.parametrize(
    "kind", [pytest.param("t5", marks=pytest.mark.slow), "llama"]
)


@_T5_SLOW
def test_the_door(kind, trained, family, capsys):
  """Answers, heads that load, their figures; a second run has no work."""
  folder, arguments = trained(kind)
  lines = [
      json.loads(line)
      for path in (folder.parent / "answers").rglob("*.jsonl")
      for line in path.read_text().splitlines()
  ]
  assert len(lines) == 12 and all(0 < len(x["tokens"]) <= 8 for x in lines)
  assert len(list((folder.parent / "answers").glob("*/*"))) == 3
  steps = log_lib.read(folder / "log.jsonl")
  assert [entry["step"] for entry in steps] == [1, 2, 3]
  assert 0 <= steps[-1]["held_out_answers_accepted_1"] <= 1
  figures = json.loads((folder / "acceptance.json").read_text())
  assert len(figures["accepted"]) == 2 and figures["tokens"] >= 1
  assert np.shape(figures["chance"]) == (2, 8)
  assert len(figures["trees"]["8"]["paths"]) == 8
  before = (folder / "heads.safetensors").read_bytes()
  cache = jax.config.jax_compilation_cache_dir
  try:
    assert train.main(arguments) == 0, capsys.readouterr().err
  finally:
    jax.config.update("jax_compilation_cache_dir", cache)
  assert (folder / "heads.safetensors").read_bytes() == before
  target = pipeline.load(family[kind])
  texts = tiny.TEXTS[:3]
  plain = pipeline.Decoder(target)(texts, max_new_tokens=10)
  for shape in (None, "[[0], [1], [0, 0]]"):
    drafts = drafts_lib.draft_medusa(
        target, str(folder / "heads.safetensors"), 2, shape
    )
    results = pipeline.Decoder(target, drafts)(texts, max_new_tokens=10)
    assert [x.tokens for x in results] == [x.tokens for x in plain]
    assert all(x.drafted for x in results)


@pytest.mark.slow
def test_eagles_heads_by_the_same_door(trained, family, capsys):
  """On the answers that are there, with the states of prompts, too."""
  folder, arguments = trained("llama")
  options = [x for x in arguments if ".heads=2" not in x]
  options = [x.replace("_medusa", "_eagle") for x in options]
  answers = folder.parent / "answers"
  before = sorted(answers.rglob("*.jsonl"))
  cache = jax.config.jax_compilation_cache_dir
  try:
    options += ["--config.lengths=(400,)", "--config.cost=800"]
    code = train.main(options)
    assert code == 0, capsys.readouterr().err
  finally:
    jax.config.update("jax_compilation_cache_dir", cache)
  assert sorted(answers.rglob("*.jsonl")) == before
  made = folder.parent / "smollm2_eagle"
  figures = json.loads((made / "acceptance.json").read_text())
  assert len(figures["accepted"]) == 4
  target = pipeline.load(family["llama"])
  drafts = drafts_lib.draft_eagle(target, str(made / "heads.safetensors"), 2)
  assert drafts.params.listed.ids_W.shape == (40,)
  [result] = pipeline.Decoder(target, drafts)(tiny.TEXTS[:1], max_new_tokens=6)
  [plain] = pipeline.Decoder(target)(tiny.TEXTS[:1], max_new_tokens=6)
  assert result.tokens == plain.tokens


@pytest.mark.slow
def test_a_second_stage(trained, family, tmp_path, capsys):
  """It begins with the first one's heads, and writes a target of its own."""
  folder, arguments = trained("t5")
  before = jax.config.jax_compilation_cache_dir
  rest = [x.replace("ende_medusa", "ende_medusa2") for x in arguments]
  start = f"--config.heads.ende_medusa2.start={folder / 'heads.safetensors'}"
  try:
    assert train.main([*rest, start]) == 0, capsys.readouterr().err
  finally:
    jax.config.update("jax_compilation_cache_dir", before)
  made = folder.parent / "ende_medusa2"
  tuned = pipeline.load(str(made / "hf"))
  drafts = drafts_lib.draft_medusa(tuned, str(made / "heads.safetensors"), 2)
  [result] = pipeline.Decoder(tuned, drafts)(tiny.TEXTS[:1], max_new_tokens=6)
  [plain] = pipeline.Decoder(tuned)(tiny.TEXTS[:1], max_new_tokens=6)
  assert result.tokens == plain.tokens
  old = pipeline.load(family["t5"]).params["params"]["shared"]
  assert np.any(np.asarray(tuned.params["params"]["shared"]) != old)


def test_heads_of_another_target_are_refused(trained, family, tmp_path):
  path = trained("llama")[0] / "heads.safetensors"
  target = pipeline.load(family["llama"])
  refused = lambda words: pytest.raises(errors.UserError, match=words)
  with refused("family is 'llama'; this one's is 't5'"):
    drafts_lib.draft_medusa(pipeline.load(family["t5"]), str(path), 1)
  with refused("^heads: 'none' is no file"):
    drafts_lib.draft_medusa(target, "none", 1)
  with refused("^gamma: give 2 or less"):
    drafts_lib.draft_medusa(target, str(path), 3)
  (tmp_path / "cut").write_bytes(path.read_bytes()[:-9])
  with refused("^heads: .*cut cannot be read"):
    drafts_lib.draft_medusa(target, str(tmp_path / "cut"), 1)
  with refused("holds no heads"):
    drafts_lib.draft_medusa(
        target, f"{family['llama']}/model.safetensors", 1
    )
  heads = heads_file.load(str(path), target, "medusa")
  for change, words in (
      (dict(kind="other"), "holds heads of kind 'other', not medusa"),
      (dict(shape=heads.shape | {"heads": 3}), "is damaged"),
      (dict(shape=heads.shape | {"heads": 0}), "is damaged"),
      (dict(shape={"size": 3}), "is damaged"),
      (dict(listed=None), "listed has 0 ids, not 40"),
      (dict(listed=heads.listed[::-1]), "no rising ids"),
      (dict(listed=heads.listed + 290), "no rising ids below 300"),
      (dict(shape=heads.shape | {"blocks": 10**9}), "blocks: give 1 to 64"),
      (dict(shape=heads.shape | {"d_model": 8}), "not as wide as its target"),
      (dict(shape={"a\nb": 3}), "is damaged"),
      (dict(params=jax.tree.map(lambda x: x * np.nan, heads.params)), "number"),
      (dict(params=heads.params | {"a\nb": np.ones(1)}), r"\(a b is \(1,\)"),
  ):
    changed = dataclasses.replace(heads, **change)
    heads_file.save(tmp_path / "changed", changed, target)
    with refused(words) as caught:
      drafts_lib.draft_medusa(target, str(tmp_path / "changed"), 1)
    assert "\n" not in str(caught.value)


def test_files_of_heads_that_lie(trained, family, tmp_path):
  """Types, and names of which one goes on where another ends."""
  path = trained("llama")[0] / "heads.safetensors"
  target = pipeline.load(family["llama"])
  with safetensors.safe_open(path, framework="np") as file:
    stored = {name: file.get_tensor(name) for name in file.keys()}
    notes = file.metadata()
  kernel = next(name for name in stored if name.endswith("kernel"))
  for changes, words in (
      ({kernel: stored[kernel].astype(np.int8)}, "holds what is no number"),
      ({kernel: stored[kernel].astype(np.float64)}, "holds what is no number"),
      ({"params/x": np.ones(1, np.float32)}, "is damaged"),
      ({kernel + "/x": np.ones(1, np.float32)}, "damaged|holds no heads"),
      ({"listed": stored["listed"].astype(np.uint64)[::-1]}, "no rising ids"),
      ({"listed": stored["listed"].astype(np.float32)}, "no rising ids"),
  ):
    made = {k: np.ascontiguousarray(v) for k, v in (stored | changes).items()}
    safetensors.numpy.save_file(made, tmp_path / "lies", notes)
    with pytest.raises(errors.UserError, match=f"^heads: .*({words})"):
      drafts_lib.draft_medusa(target, str(tmp_path / "lies"), 1)


@pytest.mark.parametrize("keep", [False, True])
@_T5_SLOW
def test_a_target_that_learns_with_its_heads(kind, keep, family):
  """Medusa-2's loss; without a step, its target is still what it was."""
  target = checkpoints.load(family[kind])
  config = target.module.config
  shape = medusa.MedusaConfig(config.d_model, config.vocab_size, heads=2)
  joint = medusa_joint.Joint(shape, config, 0.8, keep=keep)
  apart = medusa_training.Objective(shape, config, 0.8)
  frozen = joint.frozen(target, ())
  params = joint.begin(target, frozen)
  assert jax.tree.structure(params) == jax.tree.structure(
      jax.eval_shape(joint.init, jax.random.key(0))
  )
  rows = rows_of(kind, 3)
  store = features.Store(rows, None, config.d_model)
  how = features.BatchConfig(
      (32,), 96, prompts=True, states=False, sources=True
  )
  batch = how.dataset(store, 0)[0][0]
  sums = jax.jit(joint.sums)(params, frozen, batch)
  _, states_BTD = joint._read(params, batch)
  with_states = batch._replace(states_BTD=states_BTD)
  want = apart.sums(params["heads"], frozen, with_states)
  for name in set(want) - {"loss"}:
    np.testing.assert_allclose(sums[name], want[name], rtol=1e-4)
  np.testing.assert_allclose(
      sums["loss"], sums["cross_entropy_0"] + 0.2 * want["loss"], rtol=1e-4
  )
  if keep:
    np.testing.assert_allclose(sums["cross_entropy_0"], 0, atol=1e-3)
  else:
    assert sums["cross_entropy_0"] > 0
  slope = jax.grad(lambda x: joint.sums(x, frozen, batch)["loss"])(params)
  moved = jax.tree.map(lambda x: bool(jnp.any(x != 0)), slope)
  assert any(jax.tree.leaves(moved["target"]))
  assert any(jax.tree.leaves(moved["heads"]))


def test_kept_targets_learn_their_heads_by_and_by(monkeypatch):
  """0.01 sin(pi/2 batch / batches); both stages of the other recipe: 0.2."""
  config = tiny.LLAMA
  target = types.SimpleNamespace(module=types.SimpleNamespace(config=config))
  entry = types.SimpleNamespace(
      heads=2,
      blocks=1,
      own=False,
      listed=0,
      fade=0.8,
      joint=True,
      weight=0.0,
      share=0.25,
      keep=False,
      start="",
  )
  assert medusa_joint.make(entry, target, 8).weight == 0.2
  assert medusa_joint.make(entry, target, 8).batches == 0
  entry.keep = True
  joint = medusa_joint.make(entry, target, 8)
  assert (joint.weight, joint.batches, joint.held.batches) == (0.01, 8, 0)
  logits_BTV = jax.random.normal(jax.random.key(0), (2, 4, 3))
  monkeypatch.setattr(
      medusa_joint.Joint,
      "_read",
      lambda *_: (medusa.MedusaParams((), ()), logits_BTV),
  )
  monkeypatch.setattr(
      medusa_joint.Joint, "sums_of", lambda *_: {"loss": 3.0}
  )
  monkeypatch.setattr(
      medusa_joint.Joint,
      "_target",
      types.SimpleNamespace(apply=lambda _, x_BTD, method: x_BTD),
  )
  frozen = medusa.MedusaParams((), ())

  def loss(objective, number):
    batch = features.Batch(
        np.ones((2, 4), np.int32),
        np.ones((2, 4), bool),
        number_B=np.full((2,), number, np.uint32),
    )
    return objective.sums({"target": ()}, frozen, batch)["loss"]

  for number in (0, 2, 4, 7):
    want = 0.01 * np.sin(np.pi / 2 * number / 8) * 3.0
    assert loss(joint, number) == pytest.approx(want, abs=1e-6)
    assert loss(joint.held, number) == pytest.approx(0.03)


def test_heads_to_begin_with_are_looked_for_first(
    family, tmp_path, monkeypatch, capsys
):
  """Before hours of answers; not those that the same run makes before."""
  begun = []
  monkeypatch.setattr(
      heads_training.answers,
      "answered",
      lambda *_: begun.append(1) or ([features.Row((1,), (3,) * 9, (4,))], ""),
  )
  cache = jax.config.jax_compilation_cache_dir

  def run(variant, *words):
    arguments = [
        f"--config=configs/train_heads.py:{variant}",
        f"--config.target={family['t5']}",
        f"--config.out={tmp_path}",
        "--config.lengths=(2,)",
        f"--config.heads.ende_medusa2.start={start}",
        *words,
    ]
    try:
      assert train.main(["train", *arguments]) == 1
    finally:
      jax.config.update("jax_compilation_cache_dir", cache)
    return capsys.readouterr().err

  start = tmp_path / "ende_medusa" / "heads.safetensors"
  line = run("ende_medusa2")
  assert "heads.ende_medusa2.start: heads: " in line and "is no file" in line
  assert line.count("\n") == 1 and not begun
  # The first stage writes them; its prompts are too long, told before states.
  line = run("ende_medusa,ende_medusa2")
  assert "lengths: none of 1 answers begins" in line and len(begun) == 2
  assert not (tmp_path / "states").exists()


@pytest.mark.parametrize(
    "option, words",
    [
        ("until=never", "until: give one of answers, states, heads"),
        ("texts=none", "texts: give one of chat, prefixed"),
        ("prompts=0", "prompts: give 1 or more"),
        ("greedy_share=1.5", "greedy_share: give a number from 0 to 1"),
        ("heads.ende_medusa.kind=none", "heads.ende_medusa.kind: give one of"),
        ("heads.ende_medusa.heads=0", "heads: give 1 to 64"),
        ("heads.ende_medusa.fade=0.0", "fade: give a number in"),
        ("lengths=(8,8)", "lengths: give rising lengths"),
        ("temperature=-1.0", "temperature"),
        ("heads.ende_medusa.listed=-1", "listed: give 0 (all)"),
        ("heads.ende_eagle.listed=-1", "listed: give 0 (all)"),
    ],
)
def test_bad_options_are_one_line(option, words, capsys):
  kind = "ende_eagle" if "eagle" in option else "ende_medusa"
  arguments = ["train", f"--config=configs/train_heads.py:{kind}"]
  assert train.main([*arguments, f"--config.{option}"]) == 1
  line = capsys.readouterr().err
  assert words in line and line.count("\n") == 1
