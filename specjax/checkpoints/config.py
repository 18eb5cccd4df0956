"""A T5's config.json: read strictly, written for every transformers."""

import dataclasses
import json
from typing import Any

import jax.numpy as jnp

from specjax.checkpoints import files
from specjax.errors import UserError
from specjax.models import t5

FILE = "config.json"
_ARCHITECTURES = ("T5ForConditionalGeneration", "T5WithLMHeadModel")
_GATED = {"relu": False, "gated-gelu": True}
_SIZES = ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads")


def read(path) -> t5.T5Config:
  """Reads a config.json.

  Raises:
    UserError: a field is missing, mistyped or means another architecture.
  """
  return parse(files.read_json(path), path)


def parse(fields: dict[str, Any], path) -> t5.T5Config:
  """Fields of a config.json -> T5Config; `path` is for messages."""
  get = _Getter(fields, path)
  sizes = {name: get.integer(name, least=1) for name in _SIZES}
  pad = get.integer("pad_token_id", 0)
  config = t5.T5Config(
      **sizes,
      num_decoder_layers=get.integer(
          "num_decoder_layers", sizes["num_layers"], least=1
      ),
      gated=_is_gated(get),
      tied=_is_tied(get),
      relative_attention_num_buckets=get.integer(
          "relative_attention_num_buckets", 32, least=4
      ),
      relative_attention_max_distance=get.integer(
          "relative_attention_max_distance", 128
      ),
      layer_norm_epsilon=get.real("layer_norm_epsilon", 1e-6),
      decoder_start_token_id=get.integer("decoder_start_token_id", pad),
      pad_token_id=pad,
      eos_token_id=get.integer("eos_token_id", 1),
  )
  for name in ("decoder_start_token_id", "pad_token_id", "eos_token_id"):
    if getattr(config, name) >= config.vocab_size:
      get.refuse(name, f"must be below vocab_size, {config.vocab_size}")
  exact = config.relative_attention_num_buckets // 2
  if config.relative_attention_max_distance <= exact:
    get.refuse("relative_attention_max_distance", f"must be above {exact}")
  return config


@dataclasses.dataclass(frozen=True)
class _Getter:
  """Typed access to the fields; null is the same as absent."""

  fields: dict[str, Any]
  path: Any

  def refuse(self, name, remedy):
    value = self.fields.get(name)
    state = "is missing" if value is None else f"is {value!r}"
    raise UserError(f"{self.path}: field {name} {state}; it {remedy}")

  def typed(self, name, kinds, default, remedy):
    value = self.fields.get(name)
    value = default if value is None else value
    # To Python a bool is an int; to a config it is a mistake.
    if not isinstance(value, kinds) or (
        isinstance(value, bool) and kinds is not bool
    ):
      self.refuse(name, remedy)
    return value

  def integer(self, name, default=None, least=0):
    remedy = f"must be an integer from {least} on"
    value = self.typed(name, int, default, remedy)
    if value < least:
      self.refuse(name, remedy)
    return value

  def real(self, name, default):
    remedy = "must be a number from 0 to 1"
    value = self.typed(name, (int, float), default, remedy)
    if not 0 <= value <= 1:
      self.refuse(name, remedy)
    return float(value)


def _is_gated(get: _Getter) -> bool:
  """Checks the architecture, and gives the kind of its feed-forward."""
  if get.typed("model_type", str, None, "must be 't5'") != "t5":
    get.refuse("model_type", "must be 't5'")
  remedy = f"must be [{_ARCHITECTURES[0]!r}]"
  for name in get.typed("architectures", list, [], remedy):
    if name not in _ARCHITECTURES:
      get.refuse("architectures", remedy)
  remedy = f"must be one of {', '.join(_GATED)}"
  activation = get.typed("feed_forward_proj", str, "relu", remedy)
  if activation not in _GATED:
    get.refuse("feed_forward_proj", remedy)
  return _GATED[activation]


def _is_tied(get: _Getter) -> bool:
  """v1.0 ties its head and scales what feeds it; v1.1 does neither.

  transformers 5 writes tie_word_embeddings true for either version and tells
  them apart by scale_decoder_outputs (huggingface/transformers#43681).
  """
  tied = get.typed(
      "tie_word_embeddings", bool, True, "must be true (v1.0) or false (v1.1)"
  )
  remedy = "must equal tie_word_embeddings: true in v1.0, false in v1.1"
  scaled = get.typed("scale_decoder_outputs", bool, tied, remedy)
  if scaled and not tied:
    get.refuse("scale_decoder_outputs", remedy)
  return scaled


def dumps(config: t5.T5Config, dtype) -> str:
  """The text of a config.json that transformers 4 and 5 read alike."""
  fields = dataclasses.asdict(config)
  gated, tied = fields.pop("gated"), fields.pop("tied")
  fields |= {
      "architectures": [_ARCHITECTURES[0]],
      "model_type": "t5",
      "is_encoder_decoder": True,
      "feed_forward_proj": "gated-gelu" if gated else "relu",
      "tie_word_embeddings": tied,
      "scale_decoder_outputs": tied,
      "torch_dtype": jnp.dtype(dtype).name,
  }
  return json.dumps(fields, indent=2, sort_keys=True) + "\n"
