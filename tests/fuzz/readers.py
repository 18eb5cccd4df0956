"""Everything that reads files, each with good files of its own."""

import dataclasses
import functools
import importlib.util
import json
import pathlib
from typing import Callable
from unittest import mock

from flax import traverse_util
import gguf
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import safetensors.numpy

from experiments import results
from specjax import benchmark
from specjax import checkpoints
from specjax import command_line
from specjax import config as config_lib
from specjax import errors
from specjax import heads
from specjax import kept
from specjax import strict_json
from specjax import topology
from specjax.checkpoints import config as model_config
from specjax.checkpoints import convert
from specjax.checkpoints import eagle as eagle_file
from specjax.checkpoints import heads as heads_file
from specjax.checkpoints import hf
from specjax.checkpoints import ngrams as ngrams_file
from specjax.checkpoints import responses
from specjax.checkpoints.families import t5 as t5_family
from specjax.data import ngrams
from specjax.data import prompts
from specjax.data import tasks
from specjax.models import decoder
from specjax.models import eagle
from specjax.models import medusa
from specjax.training import features
from specjax.training import log as log_lib
from specjax.training import loop
from specjax.training import optimizer
from specjax.training import texts
from tests import gguf_files
from tests import tiny

LLAMA = dataclasses.replace(tiny.LLAMA, d_model=8, d_ff=8, num_kv_heads=2)
GPT2 = dataclasses.replace(
    tiny.GPT2, d_model=8, d_kv=2, d_ff=8, max_positions=32
)
T5 = tiny.SHAPE
_HINT = "another one"
_CONFIG = tiny.CONFIGS / "ende_t5small.py"


@dataclasses.dataclass(frozen=True)
class Reader:
  """What reads some files.

  Attributes:
    name: of what is read.
    write: makes the good files in a folder.
    read: reads them from a folder; errors.UserError is how it refuses. What it
      takes must be of use: an assertion that fails is a fault.
    share: of all cases.
    writes: it goes on writing there; what the system refuses then is told by
      the door.
  """

  name: str
  write: Callable[[pathlib.Path], None]
  read: Callable[[pathlib.Path], object]
  share: float = 1.0
  writes: bool = False


# --- models -----------------------------------------------------------------


def _write_t5(folder):
  """In two files, with an index."""
  spiece = tiny.write_tokenizer(folder)
  tiny.write_random_t5(
      folder / "model", T5, max_shard_bytes=6000, tokenizer_file=spiece
  )
  spiece.unlink()


def _write_decoder(config, folder):
  tiny.write_decoders(folder, config)
  for path in [*folder.glob("draft/*"), *folder.glob("*.json*")]:
    path.unlink()
  (folder / "draft").rmdir()
  (folder / "target").rename(folder / "model")
  text = json.dumps({"eos_token_id": [1], "max_length": 20})
  (folder / "model" / model_config.GENERATION).write_text(text)


def _read_model(folder):
  """As a door would: name, weights, tokenizer, a text."""
  [path] = folder.iterdir()
  loaded = checkpoints.load(str(path), hint=_HINT)
  _check_finite(loaded.params)
  [asked] = loaded.ask(["a fast editor"], 64)
  ids = (asked.source or ()) + asked.prompt
  assert all(0 <= i < loaded.module.config.vocab_size for i in ids)
  loaded.tokenizer.decode(ids)


def _check_finite(params):
  for leaf in jax.tree.leaves(params):
    assert bool(np.isfinite(np.asarray(leaf, np.float32)).all())


def _write_gguf(folder):
  config = dataclasses.replace(
      gguf_files.CONFIG, vocab_size=280, d_model=16, d_kv=4, d_ff=16,
      num_layers=1,
  )
  gguf_files.write(
      folder / "model.gguf", config, tokenizer=gguf_files.byte_level(size=280)
  )


def _write_quantised(folder):
  config = dataclasses.replace(
      gguf_files.CONFIG, vocab_size=280, d_model=32, d_kv=8, d_ff=32,
      num_layers=1,
  )
  gguf_files.write(
      folder / "model.gguf",
      config,
      tokenizer=gguf_files.byte_level(size=280),
      quantisation=gguf.GGMLQuantizationType.Q4_0,
  )


def _write_pickles(folder):
  import torch

  _write_t5(folder)
  model = folder / "model"
  module, params = hf.load_model(model)
  table = t5_family.table(module.config)
  leaves = hf._stored(table, traverse_util.flatten_dict(params["params"]))
  stored = {name: torch.tensor(np.array(x)) for name, x in leaves.items()}
  for path in model.glob("*.safetensors*"):
    path.unlink()
  torch.save(stored, model / convert.WEIGHTS)


def _read_pickles(folder):
  model = folder / "model"
  get = model_config.fields(model / model_config.FILE)
  family, config = model_config.parse(get)
  held = convert._read(model)
  tensors, _ = convert._tensors(family.tidy(get, config, held), model)
  _check_finite(hf.params_from_tensors(config, tensors, jnp.float32, model))


# --- heads, n-grams, responses, trees ---------------------------------------


class _Pieces:
  """A tokenizer, as far as files are concerned."""

  size = 12
  start_id = 0

  def fingerprint(self):
    return "abc"


@functools.cache
def _target() -> checkpoints.Checkpoint:
  """A target of random weights."""
  config = dataclasses.replace(LLAMA, vocab_size=_Pieces.size)
  module = decoder.Decoder(config)
  ids = jnp.zeros((1, 1), jnp.int32)
  params = module.init(jax.random.key(0), ids)
  return checkpoints.Checkpoint("made up", module, params, _Pieces())


def _random(shapes):
  rng = np.random.default_rng(0)
  draw = lambda leaf: rng.standard_normal(leaf.shape).astype(np.float32)
  return jax.tree.map(draw, shapes)


def _write_eagle(folder):
  target = _target()
  model = eagle.of(target.module, target.module.config, jnp.float32)
  head = _random(jax.eval_shape(model.init, jax.random.key(0)))
  eagle_file.save(folder / "head", target.module.config, head)


def _write_eagle_of_some(folder):
  """With offsets of the ids that it chooses from, and their output."""
  _write_eagle(folder)
  path = folder / "head" / "model.safetensors"
  width = _target().module.config.d_model
  tensors = safetensors.numpy.load_file(path) | {
      "d2t": np.array([0, 2, 2]),
      "lm_head.weight": np.ones((3, width), np.float32),
  }
  safetensors.numpy.save_file(tensors, path)


def _write_eagle_file(folder):
  target = _target()
  model = eagle.of(target.module, target.module.config, jnp.float32)
  head = _random(jax.eval_shape(model.init, jax.random.key(0)))
  made = heads_file.Heads("eagle", {"d_ff": None}, head)
  heads_file.save(folder / "head.safetensors", made, target)


def _read_eagle(folder):
  [path] = folder.iterdir()
  _, params = eagle_file.load(str(path), _target(), jnp.float32)
  _check_finite(params.head)


def _write_medusa(folder):
  target = _target()
  config = medusa.MedusaConfig(8, _Pieces.size, heads=2, listed=5, own=True)
  module = medusa.Medusa(config)
  shapes = jax.eval_shape(
      lambda: module.init(
          jax.random.key(0), jnp.zeros((1, 1, 8)), method="everything"
      )
  )
  made = heads_file.Heads(
      "medusa", dataclasses.asdict(config), _random(shapes), np.arange(5)
  )
  heads_file.save(folder / "heads.safetensors", made, target)


def _read_medusa(folder):
  [path] = folder.iterdir()
  _, params = heads.draft_medusa(_target(), str(path), 2)
  _check_finite(params.heads)


def _write_ngrams(folder):
  counts = ngrams.count([[3, 4, 3, 5, 1], [3, 4, 7, 1]], 0, _Pieces.size)
  table = ngrams.smooth(counts, _Pieces().fingerprint())
  ngrams_file.save(folder / "table.safetensors", table)


def _read_ngrams(folder):
  [path] = folder.iterdir()
  ngrams_file.load(str(path), _Pieces()).on_device()


def _write_responses(folder):
  rows = [np.array(ids, np.int32) for ids in ((5, 6, 1), (7,), (8, 9, 1))]
  responses.save(folder / "known.safetensors", rows, _Pieces())


def _read_responses(folder):
  [path] = folder.iterdir()
  for ids in responses.load(path, _Pieces(), _Pieces.size):
    assert ids.ndim == 1 and all(0 <= i < _Pieces.size for i in ids)


def _write_tree(folder):
  text = json.dumps({"paths": [[0], [1], [0, 0], [0, 1]], "nodes": 4})
  (folder / "tree.json").write_text(text)


def _read_tree(folder):
  assert topology.read(str(folder / "tree.json")).nodes > 0


# --- texts ------------------------------------------------------------------


def _write_prompts(folder):
  rows = [
      {"question_id": 7, "category": "a", "turns": ["draft", "verify"]},
      {"question_id": 8, "category": "b", "turns": ["drafts are small"]},
      {"id": "x", "prompt": "one text"},
  ]
  lines = "".join(json.dumps(row) + "\n" for row in rows)
  (folder / "question.jsonl").write_text(lines)


def _read_prompts(folder):
  for row in prompts.load(str(folder / "question.jsonl")):
    _check_texts(row.id, row.category, *row.turns)


def _check_texts(*values):
  """Text that a tokenizer and a report can take."""
  for text in values:
    assert isinstance(text, str) and text.encode("utf-8") is not None


def _write_texts(folder):
  tiny.write_rows(folder)
  (folder / "rows.jsonl").rename(folder / "a.jsonl")
  (folder / "b.en").write_text("one\ntwo\n")
  (folder / "b.de").write_text("eins\nzwei\n")


def _read_texts(folder):
  for path in (folder / "a.jsonl", [folder / "b.en", folder / "b.de"]):
    for row in tasks.load_task("file", path=path):
      _check_texts(row.id, row.source, row.reference)


# --- what a run goes on from ------------------------------------------------

_RUN = {"config": {"seed": 0}, "prompts": ["a"], "commit": "1"}
_CELL = {"lines": [{"alpha": 0.5, "name": "x"}], "count": 3}


def _write_kept(folder):
  benchmark.Store.open(folder, _RUN)
  kept.Folder(folder).kept("cell", lambda: _CELL)


def _read_kept(folder):
  """What is taken is what was made, or is made anew."""
  store = benchmark.Store.open(folder, _RUN)
  assert store.kept("cell", lambda: _CELL) == _CELL


def _write_results(folder):
  (folder / "table.json").write_text(json.dumps(_CELL | {"commit": "1"}))


def _read_results(folder):
  with mock.patch.object(results, "COMMITTED", folder):
    assert isinstance(results.read("table"), dict)


_ROWS = [features.Row(None, (1, 2, 3), (4, 5)), features.Row(None, (1,), (2,))]
_WIDTH = 8


@dataclasses.dataclass(frozen=True)
class _Objective:
  """A name in a recipe; and what has one matrix to learn."""

  size: int = 2
  head_width = 0
  target_share = 1.0

  def init(self, key):
    return {"params": {"kernel": jax.random.normal(key, (self.size, 2))}}


def _training(folder) -> loop.TrainConfig:
  return loop.TrainConfig(
      name="run",
      objective=_Objective(),
      optimizer=optimizer.OptimizerConfig(
          matrix_rate=0.1, embedding_rate=0.1, other_rate=0.1, warmup=1,
          steps=10, decay=0.5, weight_decay=0.0,
      ),
      batch=features.BatchConfig((8,), 16),
      micro_batches=1,
      seed=0,
      out=folder,
      evaluate_every=2,
      checkpoint_every=2,
      data="abc",
  )


def _write_training(folder):
  config = _training(folder)
  config.folder.mkdir()
  loop._check_recipe(config, None)
  log = log_lib.Log(config.folder / "log.jsonl", 0)
  for step in (1, 2, 3):
    log.write({"step": step, "loss": 1.0 / step, "tokens_per_second": 5.0})
  lines = [json.dumps({"row": i, "tokens": [3, 4]}) + "\n" for i in range(3)]
  (folder / "0000000.jsonl").write_text("".join(lines))
  store = features.Store(_ROWS, folder, _WIDTH)
  [part] = store.parts
  count = sum(len(row.ids) for row in _ROWS)
  np.save(store.file(part), np.ones((count, _WIDTH), np.uint16))


def _read_training(folder):
  config = _training(folder)
  loop._check_recipe(config, 3)
  log_lib.Log(config.folder / "log.jsonl", 2).write({"step": 3, "loss": 1.0})
  steps = [entry["step"] for entry in log_lib.read(config.folder / "log.jsonl")]
  assert steps[-1] == 3 and all(step <= 3 for step in steps)
  for path in folder.glob("*.jsonl"):
    rows = texts._read(path, 3, 10)
    assert all(max(ids) < 10 for ids in rows.values())
  store = features.Store(_ROWS, folder, _WIDTH)
  store.check()
  assert store.states(0).shape == (5, _WIDTH)


def _managed(config):
  return ocp.CheckpointManager(
      config.folder / "checkpoints",
      options=ocp.CheckpointManagerOptions(
          max_to_keep=2, enable_async_checkpointing=False
      ),
  )


def _write_checkpoints(folder):
  config = _training(folder)
  with _managed(config) as saved:
    for step in (2, 4):
      loop._save(config, saved, step, loop.initial(config))


def _read_checkpoints(folder):
  config = _training(folder)
  with _managed(config) as saved:
    params, state, step = loop.restore(config, saved)
  assert step in (0, 2, 4)
  # Both were written at the start.
  made = loop.initial(config)
  jax.tree.map(np.testing.assert_array_equal, (params, state), made)


# --- values of options ------------------------------------------------------


def _write_options(folder):
  """A value for every option."""
  (folder / "options.json").write_text(json.dumps(_defaults()))


def _read_options(folder):
  """What a person gives for them; a file holds them for the while."""
  try:
    held = strict_json.fields((folder / "options.json").read_bytes()).items()
    given = [(k, v) for k, v in held if v != _defaults().get(k, "none")]
    flags = [f"--config.{key}={_given(value)}" for key, value in given]
  except (OSError, ValueError):
    raise errors.UserError("options: none that could be given") from None
  command_line.read(["run", f"--config={_CONFIG}:mini", *flags])


@functools.cache
def _defaults():
  """As JSON has them."""
  leaves = dict(command_line._leaves(config_lib.default()))
  return json.loads(json.dumps(leaves))


def _given(value) -> str:
  return value if isinstance(value, str) else json.dumps(value)


READERS = (
    Reader("T5 folder", _write_t5, _read_model, 3),
    Reader(
        "Llama folder", functools.partial(_write_decoder, LLAMA), _read_model, 3
    ),
    Reader(
        "GPT-2 folder", functools.partial(_write_decoder, GPT2), _read_model
    ),
    Reader("GGUF file", _write_gguf, _read_model, 3),
    Reader("quantised GGUF file", _write_quantised, _read_model, 1),
    Reader("pickled weights", _write_pickles, _read_pickles, 1),
    Reader("EAGLE folder", _write_eagle, _read_eagle, 1),
    Reader("EAGLE folder with d2t", _write_eagle_of_some, _read_eagle, 0.5),
    Reader("EAGLE file", _write_eagle_file, _read_eagle, 0.5),
    Reader("Medusa heads", _write_medusa, _read_medusa, 0.5),
    Reader("n-grams", _write_ngrams, _read_ngrams, 1),
    Reader("responses", _write_responses, _read_responses, 1),
    Reader("tree", _write_tree, _read_tree, 1),
    Reader("prompts", _write_prompts, _read_prompts, 2),
    Reader("texts", _write_texts, _read_texts, 2),
    Reader("kept parts", _write_kept, _read_kept, 1),
    Reader("results", _write_results, _read_results, 0.5),
    Reader("training's files", _write_training, _read_training, 2, True),
    Reader(
        "training's checkpoints",
        _write_checkpoints,
        _read_checkpoints,
        # By its name alone: a case takes as long as twenty of others.
        0,
        True,
    ),
    Reader("options", _write_options, _read_options, 0.5),
)
# Without what reads and writes pickles; other cases are drawn then.
if importlib.util.find_spec("torch") is None:
  READERS = tuple(x for x in READERS if x.name != "pickled weights")
