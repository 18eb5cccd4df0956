"""config.json of a T5: fields that are read, refused and written."""

import dataclasses
import json

import jax.numpy as jnp
import pytest

from specjax.checkpoints import config as config_lib
from specjax.errors import UserError
from specjax.models import t5

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


@pytest.fixture
def path(tmp_path):
  """A v1.1 config.json."""
  path = tmp_path / "config.json"
  path.write_text(config_lib.dumps(V1_1, jnp.float32))
  return path


def edit(path, **fields):
  """Sets fields; None takes one away."""
  config = json.loads(path.read_text()) | fields
  config = {k: v for k, v in config.items() if v is not None}
  path.write_text(json.dumps(config))


def refusal(path) -> str:
  """The one line that the file is refused with."""
  with pytest.raises(UserError) as caught:
    config_lib.read(path)
  line = str(caught.value)
  assert line.startswith(str(path)) and "\n" not in line
  return line


@pytest.mark.parametrize("config", (V1_0, V1_1), ids=("v1.0", "v1.1"))
def test_round_trip(tmp_path, config):
  config = dataclasses.replace(
      config,
      relative_attention_num_buckets=16,
      relative_attention_max_distance=64,
      layer_norm_epsilon=1e-5,
      decoder_start_token_id=4,
      pad_token_id=3,
      eos_token_id=2,
  )
  (tmp_path / "config.json").write_text(config_lib.dumps(config, jnp.bfloat16))
  assert config_lib.read(tmp_path / "config.json") == config


@pytest.mark.parametrize("field", ("d_kv", "num_heads", "vocab_size"))
@pytest.mark.parametrize("value", (None, "4", 4.0, True, 0, -1))
def test_sizes_are_checked(path, field, value):
  edit(path, **{field: value})
  line = refusal(path)
  assert f"field {field} " in line
  assert ("is missing" if value is None else repr(value)) in line
  assert "must be an integer from 1 on" in line


@pytest.mark.parametrize(
    "field, value",
    (
        ("model_type", "mt5"),
        ("model_type", None),
        ("architectures", ["T5EncoderModel"]),
        ("architectures", "T5ForConditionalGeneration"),
        ("feed_forward_proj", "gated-silu"),
        ("feed_forward_proj", "gelu"),
        ("feed_forward_proj", 1),
        ("tie_word_embeddings", "false"),
        ("tie_word_embeddings", 0),
        ("scale_decoder_outputs", True),
        ("num_decoder_layers", "2"),
        ("eos_token_id", [1]),
        ("eos_token_id", 30),
        ("decoder_start_token_id", -1),
        ("layer_norm_epsilon", "1e-6"),
        ("layer_norm_epsilon", float("nan")),
        ("relative_attention_num_buckets", 2),
        ("relative_attention_max_distance", 16),
    ),
)
def test_fields_are_checked(path, field, value):
  edit(path, **{field: value})
  line = refusal(path)
  assert f"field {field} " in line
  assert "; it must " in line


def test_fields_of_public_checkpoints(path):
  """What they leave out has T5's defaults, what else they hold is unread."""
  edit(
      path,
      pad_token_id=None,
      decoder_start_token_id=None,
      scale_decoder_outputs=None,
      relative_attention_max_distance=None,
      architectures=["T5WithLMHeadModel"],
      n_positions=512,
      task_specific_params={"summarization": {"prefix": "summarize: "}},
  )
  assert config_lib.read(path) == V1_1
  edit(path, num_decoder_layers=None)
  assert config_lib.read(path).num_decoder_layers == V1_1.num_layers


@pytest.mark.parametrize(
    "tie, scale, tied",
    (
        (False, None, False),
        (False, False, False),
        # The form of transformers 5, whose tie flag says nothing.
        (True, False, False),
        (True, True, True),
        (True, None, True),
        (None, None, True),
    ),
)
def test_version(path, tie, scale, tied):
  """huggingface/transformers#43681."""
  edit(path, tie_word_embeddings=tie, scale_decoder_outputs=scale)
  assert config_lib.read(path).tied == tied


@pytest.mark.parametrize("field", ("num_layers", "num_decoder_layers"))
def test_models_are_not_endless(path, field):
  """A table of all tensors would be built before one is read."""
  edit(path, **{field: 10**9})
  assert f"{field} is 1000000000; it must be 1000 or less" in refusal(path)


def test_what_is_no_config(path):
  path.write_text("{")
  assert "is not JSON" in refusal(path)
  path.write_bytes(b"\xff\xfe")
  assert "is not JSON" in refusal(path)
  path.write_text("[]")
  assert "must hold a JSON object" in refusal(path)
  path.unlink()
  assert "does not exist" in refusal(path)
