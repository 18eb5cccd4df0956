"""Directories of Llama, Qwen2 and GPT-2: what is read, and what is refused."""

import dataclasses
import json
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from specjax import checkpoints
from specjax.checkpoints import config as config_lib
from specjax.checkpoints import families
from specjax.checkpoints import hf
from specjax.checkpoints import places
from specjax.checkpoints.families import llama
from specjax.errors import UserError
from specjax.models import decoder
from specjax.models import rope as rope_lib
from tests import tiny

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
SHAPES = pathlib.Path(__file__).parents[1] / "configs" / "lm1b"
NAMES = ("llama", "qwen2", "gpt2")
Q = "model.layers.0.self_attn.q_proj.weight"


def fields_of(name):
  return json.loads((FIXTURES / name / "config.json").read_text())


def read(tmp_path, name, **changes):
  """The shape in a fixture's config.json; fields of None are taken away."""
  fields = fields_of(name) | changes
  path = tmp_path / "config.json"
  path.write_text(
      json.dumps({k: v for k, v in fields.items() if v is not None})
  )
  return config_lib.read(path)


def refusal(run) -> str:
  with pytest.raises(UserError) as caught:
    run()
  line = str(caught.value)
  assert "\n" not in line
  return line


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_whole_models(name):
  """Paths and shapes are those of `module.init`; forms undo themselves."""
  config = config_lib.read(FIXTURES / name / "config.json")
  assert families.model_type(config) == name
  ids_B1 = jnp.zeros((1, 1), jnp.int32)
  made = jax.eval_shape(decoder.Decoder(config).init, jax.random.key(0), ids_B1)
  made = {
      tuple(key.key for key in path[1:]): leaf.shape
      for path, leaf in jax.tree.leaves_with_path(made)
  }
  table = families.of(config).table(config)
  rng = np.random.default_rng(0)
  wanted = {}
  for path, names in places.by_path(table).items():
    form, shapes = table[names[0]].form, [table[name].shape for name in names]
    stored = [rng.normal(size=shape) for shape in shapes]
    joined = form.join(stored)
    wanted[path] = form.shape(shapes)
    assert joined.shape == wanted[path]
    jax.tree.map(
        np.testing.assert_array_equal, form.split(joined, shapes), stored
    )
  assert made == wanted


@pytest.mark.parametrize(
    "name, size, least, most",
    (("gpt97m", 97e6, 0.995, 1.005), ("gpt6m", 6e6, 0.95, 1.0)),
)
def test_the_papers_models(name, size, least, most):
  """arXiv 2211.17192, section 4.1: 97M and 6M parameters."""
  config = config_lib.read(SHAPES / name / "config.json")
  table = families.of(config).table(config)
  count = sum(place.size for place in table.values())
  assert least * size <= count <= most * size
  assert config.vocab_size == 8000 and not config.tied


def test_both_versions_of_transformers(tmp_path):
  """5 puts theta and scaling into one field; 4 had two, and older names."""
  scaling = fields_of("llama")["rope_scaling"]
  four = read(tmp_path, "llama")
  five = read(
      tmp_path,
      "llama",
      rope_theta=None,
      rope_scaling=None,
      rope_parameters=scaling | {"rope_theta": 50.0},
  )
  old = read(tmp_path, "llama", rope_scaling={"type": "linear", "factor": 2})
  assert four == five
  assert four.rope == rope_lib.Rope(50.0, rope_lib.Llama3(8.0, 1.0, 4.0, 24))
  assert old.rope == rope_lib.Rope(50.0, rope_lib.Linear(2.0))
  assert read(tmp_path, "llama", rope_scaling=None).rope.scaling is None


def test_what_files_leave_out(tmp_path):
  absent = dict.fromkeys(
      "num_key_value_heads head_dim attention_bias mlp_bias rope_theta"
      " tie_word_embeddings architectures rope_scaling".split()
  )
  config = read(tmp_path, "llama", hidden_size=24, **absent)
  assert (config.num_kv_heads, config.d_kv) == (4, 6)
  assert not (config.qkv_bias or config.out_bias or config.ff_bias)
  assert config.rope == rope_lib.Rope(10000.0) and not config.tied
  config = read(tmp_path, "gpt2", n_inner=None, tie_word_embeddings=None)
  assert config.d_ff == 80 and config.tied and config.rope is None


@pytest.mark.parametrize(
    "name, changes, part",
    (
        ("llama", {"hidden_size": None}, "hidden_size is missing"),
        ("llama", {"hidden_size": "20"}, "hidden_size is '20'"),
        ("llama", {"num_key_value_heads": 3}, "must divide the 4 heads"),
        ("llama", {"head_dim": 7}, "field head_dim is 7; it must be even"),
        ("llama", {"head_dim": None, "hidden_size": 22}, "num_attention_heads"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("llama", {"attention_bias": 1}, "must be true or false"),
        ("llama", {"rope_theta": -1.0}, "rope: field rope_theta is -1.0"),
        ("llama", {"rope_scaling": {"rope_type": "yarn"}}, "is 'yarn'"),
        ("llama", {"rope_scaling": {"rope_type": "given"}}, "must be one of"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ("llama", {"rope_scaling": 8}, "is 8; it must be an object"),
        (
            "llama",
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 0.5",
        ),
        ("llama", {"eos_token_id": [2, 44]}, "eos_token_id is [2, 44]"),
        ("llama", {"eos_token_id": True}, "eos_token_id is True"),
        ("llama", {"architectures": ["LlamaModel"]}, "LlamaForCausalLM"),
        ("llama", {"model_type": "mixtral"}, "one of t5, llama, qwen2, gpt2"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window is True"),
        # A table of all its tensors would be built before one is read.
        ("llama", {"num_hidden_layers": 10**9}, "it must be 1000 or less"),
        ("gpt2", {"n_layer": 2**60}, "it must be 1000 or less"),
        ("llama", {"vocab_size": 10**30}, "it must be 2147483647 or less"),
        ("llama", {"hidden_act": "x\n" * 9999}, "it must be one of silu"),
        ("gpt2", {"activation_function": "relu"}, "activation_function"),
        ("gpt2", {"n_head": 3}, "field n_head is 3; it must divide n_embd, 20"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights is False"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "must be false"),
    ),
)
def test_fields_are_checked(tmp_path, name, changes, part):
  line = refusal(lambda: read(tmp_path, name, **changes))
  assert part in line and line.startswith(str(tmp_path))
  assert "\n" not in line and len(line) < 500


def test_ends_of_the_generation_config(tmp_path):
  """An instruct model ends turns by more than its text ends by."""
  assert read(tmp_path, "llama").ends == (2,)
  assert read(tmp_path, "llama", eos_token_id=None).ends == ()
  path = tmp_path / "generation_config.json"
  path.write_text('{"eos_token_id": [7, 2]}')
  assert read(tmp_path, "llama").ends == (7, 2)
  path.write_text('{"temperature": 0.6}')
  assert read(tmp_path, "llama").ends == (2,)
  # It is a file of its own, whatever the config says.
  path.unlink()
  assert read(tmp_path, "llama", generation_config=3).ends == (2,)


def test_shapes_that_no_file_can_hold(tmp_path):
  odd = dataclasses.replace(
      config_lib.read(FIXTURES / "gpt2" / "config.json"), gated=True
  )
  assert "config: no t5, llama" in refusal(
      lambda: config_lib.dumps(odd, jnp.float32)
  )
  given = rope_lib.Rope(1e4, rope_lib.Given((1.0, 2.0, 2.0, 2.0)))
  given = dataclasses.replace(read(tmp_path, "llama"), rope=given)
  assert "divisors" in refusal(lambda: config_lib.dumps(given, jnp.float32))


def copy(tmp_path, name, change):
  """A fixture's directory with other tensors."""
  tensors = safetensors.numpy.load_file(FIXTURES / name / "model.safetensors")
  change(tensors)
  safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
  text = (FIXTURES / name / "config.json").read_text()
  (tmp_path / "config.json").write_text(text)
  return tmp_path


def test_what_older_writers_store(tmp_path):
  """Buffers, a copy of the head, and GPT-2 with and without its prefix."""
  (tmp_path / "qwen2").mkdir()
  (tmp_path / "gpt2").mkdir()

  def qwen2(tensors):
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = np.ones(2)
    tensors["lm_head.weight"] = tensors[llama.EMBEDDING].copy()

  def plain(tensors):
    assert all(name.startswith("transformer.") for name in tensors)
    for name in list(tensors):
      tensors[name.removeprefix("transformer.")] = tensors.pop(name)
    tensors["h.1.attn.bias"] = np.ones((1, 1, 48, 48), bool)
    tensors["h.1.attn.masked_bias"] = np.full((), -1e4, np.float32)

  for name, change in (("qwen2", qwen2), ("gpt2", plain)):
    folder = copy(tmp_path / name, name, change)
    jax.tree.map(
        np.testing.assert_array_equal,
        hf.load_model(folder)[1],
        hf.load_model(FIXTURES / name)[1],
    )


def test_faulty_tensors(tmp_path):
  def head(tensors):
    tensors["lm_head.weight"] = tensors[llama.EMBEDDING] + 1

  line = refusal(lambda: hf.load_model(copy(tmp_path, "qwen2", head)))
  assert f"lm_head.weight differs from {llama.EMBEDDING}" in line
  assert "tie_word_embeddings be false" in line

  def shape(tensors):
    tensors[Q] = tensors[Q][:-1].copy()
    del tensors["model.norm.weight"]
    tensors["model.layers.9.x"] = np.ones(1, np.float32)

  line = refusal(lambda: hf.load_model(copy(tmp_path, "llama", shape)))
  assert f"{Q} has shape [31, 20], not [32, 20]" in line
  assert "missing model.norm.weight" in line
  assert "surplus model.layers.9.x" in line

  def kind(tensors):
    tensors[Q] = tensors[Q].astype(np.int8)

  line = refusal(lambda: hf.load_model(copy(tmp_path, "llama", kind)))
  assert f"tensor {Q} is of type I8" in line


def test_no_tokenizer(tmp_path):
  folder = copy(tmp_path, "llama", lambda tensors: None)
  line = refusal(lambda: checkpoints.load(str(folder)))
  assert "has no spiece.model or tokenizer.json" in line
  (tmp_path / "spiece.model").write_bytes(b"")
  line = refusal(lambda: checkpoints.load(str(folder)))
  assert "holds no tokenizer.json" in line


@pytest.mark.parametrize("keep", (True, False))
def test_bfloat16_matrices_stay(tmp_path, keep):
  config = config_lib.read(FIXTURES / "gpt2" / "config.json")
  tiny.write_random_decoder(tmp_path, config, dtype=jnp.bfloat16)
  _, params = hf.load_model(tmp_path, keep_bfloat16=keep)
  params = params["params"]
  wanted = jnp.bfloat16 if keep else jnp.float32
  assert params["embedding"].dtype == wanted
  assert params["layers_0"]["attention"]["qkv"]["kernel"].dtype == wanted
  # What is only added, to one row a token, costs nothing in float32.
  assert params["layers_0"]["attention"]["qkv"]["bias"].dtype == jnp.float32
  assert params["positions"].dtype == jnp.float32


def test_llama3_scaling_is_its_paper():
  """Three ranges of wavelengths, by the definition."""
  scaling = rope_lib.Llama3(8.0, 1.0, 4.0, 8192)
  wavelengths = np.array([100.0, 8192 / 4, 8192 / 2.5, 8192.0, 1e5])
  got = scaling.divisors(2 * math.pi / wavelengths)
  blend = (2.5 - 1) / (4 - 1)
  middle = 1 / ((1 - blend) / 8 + blend)
  np.testing.assert_allclose(got, [1, 1, middle, 8, 8], rtol=1e-12)
