"""T5 directories: weights that are read or refused, and what is written."""

import dataclasses
import json
import pathlib
import pickle
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from specjax.checkpoints import hf
from specjax.checkpoints import places
from specjax.checkpoints.families import t5 as family
from specjax.errors import UserError
from specjax.models import t5
from tests import tiny

V1_0 = t5.T5Config(
    vocab_size=30,
    d_model=8,
    d_kv=3,
    d_ff=12,
    num_layers=1,
    num_decoder_layers=2,
    num_heads=2,
    gated=False,
    tied=True,
)
V1_1 = dataclasses.replace(V1_0, gated=True, tied=False)
BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
  """A v1.1 directory."""
  tiny.write_random_t5(tmp_path / "t5", V1_1, 0)
  return tmp_path / "t5"


@pytest.fixture
def tied_folder(tmp_path) -> pathlib.Path:
  """A v1.0 directory."""
  tiny.write_random_t5(tmp_path / "tied", V1_0, 0)
  return tmp_path / "tied"


def edit_tensors(folder, change):
  """Rewrites the weights after `change` worked on the dict of them."""
  path = folder / "model.safetensors"
  tensors = safetensors.numpy.load_file(path)
  change(tensors)
  safetensors.numpy.save_file(tensors, path)


def refusal(folder, load=hf.load_model) -> str:
  """The one line that `load` refuses with."""
  with pytest.raises(UserError) as caught:
    load(folder)
  line = str(caught.value)
  assert "\n" not in line
  return line


def leaves_equal(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("config", (V1_0, V1_1), ids=("v1.0", "v1.1"))
def test_table_is_the_whole_model(config):
  """Paths and shapes are those of `module.init`, kernels turned and joined."""
  ids_BT = jnp.zeros((1, 2), jnp.int32)
  made = jax.eval_shape(
      lambda: t5.T5(config).init(
          jax.random.key(0), ids_BT, ids_BT == 0, ids_BT
      )
  )
  made = {
      tuple(key.key for key in path[1:]): leaf.shape
      for path, leaf in jax.tree.leaves_with_path(made)
  }
  table = family.table(config)
  wanted = {}
  for path, names in places.by_path(table).items():
    form, shapes = table[names[0]].form, [table[name].shape for name in names]
    wanted[path] = form.join([np.zeros(shape) for shape in shapes]).shape
    assert form.shape(shapes) == wanted[path]
  assert made == wanted


@pytest.mark.parametrize("config", (V1_0, V1_1), ids=("v1.0", "v1.1"))
@pytest.mark.parametrize("shard_bytes", (1500, 10**9))
def test_round_trip(tmp_path, config, shard_bytes):
  tiny.write_random_t5(tmp_path / "a", config, 5, max_shard_bytes=shard_bytes)
  module, params = hf.load_model(tmp_path / "a")
  assert module.config == config
  hf.save_model(tmp_path / "b", module, params, dtype=jnp.float32)
  leaves_equal(params, hf.load_model(tmp_path / "b")[1])


@pytest.mark.parametrize("wanted", (jnp.float32, jnp.bfloat16, jnp.float16))
@pytest.mark.parametrize("stored", (np.float32, jnp.bfloat16, np.float16))
def test_types(folder, stored, wanted):
  """Every stored type is read into every wanted one, with one rounding."""
  whole = safetensors.numpy.load_file(folder / "model.safetensors")

  def cast(tensors):
    for name, value in tensors.items():
      tensors[name] = value.astype(stored)

  edit_tensors(folder, cast)
  module, params = hf.load_model(folder, wanted)
  assert module.dtype == wanted
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {
      jnp.dtype(wanted)
  }
  np.testing.assert_array_equal(
      params["params"]["shared"],
      whole["shared.weight"].astype(stored).astype(wanted),
  )


def test_shards_are_small_and_listed(tmp_path):
  tiny.write_random_t5(tmp_path, V1_1, 0, max_shard_bytes=1500)
  index = json.loads((tmp_path / hf.INDEX).read_text())
  files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
  assert files == sorted(set(index["weight_map"].values()))
  assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
  total = 0
  for file in files:
    tensors = safetensors.numpy.load_file(tmp_path / file)
    size = sum(value.nbytes for value in tensors.values())
    assert size <= 1500 or len(tensors) == 1
    total += size
  assert index["metadata"]["total_size"] == total


def test_every_odd_tensor_is_named(folder):
  def change(tensors):
    del tensors[BIAS]
    del tensors["decoder.final_layer_norm.weight"]
    tensors["decoder.adapter.weight"] = np.zeros(3, np.float32)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].T.copy()

  edit_tensors(folder, change)
  line = refusal(folder)
  assert f"missing {BIAS}" in line
  assert "missing decoder.final_layer_norm.weight" in line
  assert "surplus decoder.adapter.weight" in line
  assert "lm_head.weight has shape [8, 30], not [30, 8]" in line


@pytest.mark.parametrize("value", (np.nan, np.inf))
def test_numbers_that_are_none(folder, value):
  def change(tensors):
    tensors[BIAS][3, 1] = value

  edit_tensors(folder, change)
  assert f"tensor {BIAS} holds NaN or infinity" in refusal(folder)


def test_overflow_of_the_wanted_type(folder):
  def change(tensors):
    tensors[BIAS][3, 1] = 1e6

  edit_tensors(folder, change)
  hf.load_model(folder)
  line = refusal(folder, lambda x: hf.load_model(x, jnp.float16))
  assert f"{BIAS} holds NaN or infinity (as float16)" in line


def test_integers_are_no_weights(folder):
  def change(tensors):
    tensors["shared.weight"] = tensors["shared.weight"].astype(np.int8)

  edit_tensors(folder, change)
  assert "tensor shared.weight is of type I8" in refusal(folder)


def test_missing_embedding_is_never_the_head(folder):
  """huggingface/transformers#48154."""

  def change(tensors):
    del tensors["shared.weight"]

  edit_tensors(folder, change)
  assert "missing shared.weight" in refusal(folder)


@pytest.mark.parametrize("side", ("encoder", "decoder"))
def test_embedding_under_another_name(folder, side):
  _, params = hf.load_model(folder)

  def change(tensors):
    tensors[f"{side}.embed_tokens.weight"] = tensors.pop("shared.weight")

  edit_tensors(folder, change)
  leaves_equal(params, hf.load_model(folder)[1])


def test_copies_in_a_tied_file(tied_folder):
  """Public v1.0 files hold the embedding four times, and a dead bias."""
  _, params = hf.load_model(tied_folder)

  def change(tensors):
    for name in (*family.EMBEDDINGS, "lm_head.weight"):
      tensors[name] = tensors["shared.weight"].copy()
    tensors[family.UNUSED] = np.zeros((32, 2), np.float32)

  edit_tensors(tied_folder, change)
  leaves_equal(params, hf.load_model(tied_folder)[1])


@pytest.mark.parametrize("name", (*family.EMBEDDINGS, "lm_head.weight"))
def test_copies_that_differ(tied_folder, name):
  def change(tensors):
    tensors[name] = tensors["shared.weight"].copy()
    tensors[name][2, 2] += 1e-3

  edit_tensors(tied_folder, change)
  line = refusal(tied_folder)
  assert f"tensor {name} differs from shared.weight" in line
  assert ("tie_word_embeddings" in line) == (name == "lm_head.weight")


@pytest.mark.parametrize(
    "file",
    (
        "../model.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "..\\model.safetensors",
        ".safetensors",
        "model.bin",
        3,
    ),
)
def test_shards_stay_in_the_directory(tmp_path, file):
  tiny.write_random_t5(tmp_path / "t5", V1_1, 0)
  folder = tmp_path / "t5"
  weights = (folder / "model.safetensors").rename(
      tmp_path / "model.safetensors"
  )
  tensors = safetensors.numpy.load_file(weights)
  (folder / hf.INDEX).write_text(
      json.dumps({"weight_map": dict.fromkeys(tensors, file)})
  )
  line = refusal(folder)
  assert "weight_map" in line and "plain file name" in line


def test_faulty_indices(tmp_path):
  tiny.write_random_t5(tmp_path, V1_1, 0, max_shard_bytes=1500)
  path = tmp_path / hf.INDEX
  index = json.loads(path.read_text())
  shard = index["weight_map"][BIAS]
  del index["weight_map"][BIAS]
  path.write_text(json.dumps(index))
  line = refusal(tmp_path)
  assert shard in line and f"disagree about {BIAS}" in line
  (tmp_path / shard).unlink()
  assert f"{shard} is missing" in refusal(tmp_path)
  path.write_text("{}")
  assert "field weight_map must map" in refusal(tmp_path)
  path.unlink()
  assert f"holds neither model.safetensors nor {hf.INDEX}" in refusal(tmp_path)


def test_broken_weights(folder):
  path = folder / "model.safetensors"
  path.write_bytes(path.read_bytes()[:-4])
  assert "model.safetensors cannot be read" in refusal(folder)


def test_pickles_are_never_opened(folder):
  """A pickle whose reading would make a file; the line names the converter."""
  (folder / "model.safetensors").unlink()
  trap = folder / "trap"

  class Trap:

    def __reduce__(self):
      return pathlib.Path.touch, (trap,)

  path = folder / "pytorch_model-00001-of-00002.bin"
  path.write_bytes(pickle.dumps(Trap()))
  line = refusal(folder)
  assert f"python -m specjax.checkpoints.convert {folder} OUT" in line
  assert path.name in line
  assert not trap.exists()
  pickle.loads(path.read_bytes())
  assert trap.exists()


def test_writing_replaces_a_model_only(folder):
  module, params = hf.load_model(folder)
  hf.save_model(folder, module, params)
  assert hf.load_model(folder)[0].config == V1_1
  (folder / "thesis.tex").write_text("years of work")
  line = refusal(folder, lambda x: hf.save_model(x, module, params))
  assert "holds thesis.tex" in line
  assert (folder / "thesis.tex").exists()
  line = refusal(
      folder / "thesis.tex", lambda x: hf.save_model(x, module, params)
  )
  assert "is a file" in line


def test_writing_that_fails_leaves_nothing(folder):
  """The older directory stays as it was, with nothing beside it."""
  module, params = hf.load_model(folder)
  before = {path.name: path.read_bytes() for path in folder.iterdir()}
  broken = jax.tree.map(lambda x: x * jnp.nan, params)
  line = refusal(folder, lambda x: hf.save_model(x, module, broken))
  assert "shared.weight holds NaN or infinity" in line
  assert {x.name: x.read_bytes() for x in folder.iterdir()} == before
  assert list(folder.parent.iterdir()) == [folder]


def test_writing_checks_the_parameters(tmp_path):
  module = t5.T5(V1_1)
  params = {"params": {"shared": np.zeros((30, 7)), "odd": {"x": np.zeros(2)}}}
  line = refusal(tmp_path, lambda x: hf.save_model(x, module, params))
  assert "missing lm_head.weight" in line
  assert "surplus odd/x" in line
  assert "shared.weight has shape [30, 7], not [30, 8]" in line
  line = refusal(
      tmp_path, lambda x: hf.save_model(x, module, params, dtype=jnp.float16)
  )
  assert "bfloat16 or float32" in line


def test_written_files(tmp_path):
  """Others may read them, and the tokenizer has its usual name."""
  source = tmp_path / "vocabulary.model"
  source.write_bytes(b"pieces")
  tiny.write_random_t5(tmp_path / "t5", V1_1, 0, tokenizer_file=source)
  made = {path.name: path for path in (tmp_path / "t5").iterdir()}
  assert set(made) == {"config.json", "model.safetensors", "spiece.model"}
  assert made["spiece.model"].read_bytes() == b"pieces"
  modes = {stat.S_IMODE(path.stat().st_mode) for path in made.values()}
  assert len(modes) == 1
  tiny.write_random_t5(
      tmp_path / "t5", V1_1, 0, tokenizer_file=tmp_path / "t5" / "config.json"
  )
  assert (tmp_path / "t5" / "tokenizer.json").exists()
  assert not (tmp_path / "t5" / "spiece.model").exists()


def test_names_from_a_file_stay_on_the_line(folder):
  def change(tensors):
    del tensors[BIAS]
    tensors |= {f"a\n\x1b[31m{i}" + "x" * 999: np.zeros(1) for i in range(99)}

  edit_tensors(folder, change)
  line = refusal(folder)
  assert f"missing {BIAS}" in line and "; and 79 more" in line
  assert line.isprintable() and len(line) < 4000
