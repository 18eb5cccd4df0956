"""Llama and Qwen2: their config.json and tensors."""

import dataclasses
import functools
import re
from typing import Any

from specjax.checkpoints import fields
from specjax.checkpoints import places
from specjax.checkpoints.families import base
from specjax.checkpoints.families import decoder as shared
from specjax.errors import UserError
from specjax.models import decoder
from specjax.models import rope as rope_lib

EMBEDDING = "model.embed_tokens.weight"
# Buffers of older writers, made from the config.
_BUFFERS = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
_LARGEST = 1e9


def parse(get: fields.Getter, *, qwen: bool) -> decoder.DecoderConfig:
  """Fields of a config.json -> DecoderConfig."""
  size = get.integer("vocab_size", least=1)
  width = get.integer("hidden_size", least=1)
  heads = get.integer("num_attention_heads", least=1)
  kv_heads = get.integer("num_key_value_heads", heads, least=1)
  if heads % kv_heads:
    get.refuse("num_key_value_heads", f"must divide the {heads} heads")
  if get.fields.get("head_dim") is None and width % heads:
    get.refuse("num_attention_heads", f"must divide hidden_size, {width}")
  head = get.integer("head_dim", width // heads, least=2)
  if head % 2:
    get.refuse("head_dim", "must be even")
  get.one_of("hidden_act", "silu", ("silu",))
  if get.boolean("use_sliding_window", False):
    get.refuse("use_sliding_window", "must be false")
  bias = False if qwen else get.boolean("attention_bias", False)
  return decoder.DecoderConfig(
      vocab_size=size,
      d_model=width,
      d_kv=head,
      d_ff=get.integer("intermediate_size", least=1),
      num_layers=get.integer("num_hidden_layers", least=1, most=fields.LAYERS),
      num_heads=heads,
      num_kv_heads=kv_heads,
      tied=get.boolean("tie_word_embeddings", False),
      gated=True,
      rms=True,
      rope=_rope(get),
      max_positions=get.integer("max_position_embeddings", 2048, least=1),
      norm_epsilon=get.real("rms_norm_eps", 1e-6),
      qkv_bias=qwen or bias,
      out_bias=bias,
      ff_bias=False if qwen else get.boolean("mlp_bias", False),
      ends=shared.ends(get, size),
  )


def _rope(get: fields.Getter) -> rope_lib.Rope:
  """Of transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters)."""
  remedy = "must be an object"
  both = get.typed("rope_scaling", dict, {}, remedy)
  both = both | get.typed("rope_parameters", dict, {}, remedy)
  given = fields.Getter(
      {"rope_theta": get.fields.get("rope_theta")} | both, f"{get.path}: rope"
  )
  theta = given.real("rope_theta", 10000.0, 1, _LARGEST)
  given.real("partial_rotary_factor", 1, 1, 1)
  # Older files say "type".
  key = "rope_type" if "rope_type" in both else "type"
  kind = given.one_of(key, "default", ("default", "linear", "llama3"))
  if kind == "default":
    return rope_lib.Rope(theta)
  factor = given.real("factor", None, 1, _LARGEST)
  if kind == "linear":
    return rope_lib.Rope(theta, rope_lib.Linear(factor))
  low = given.real("low_freq_factor", None, 0, _LARGEST)
  high = given.real("high_freq_factor", None, 0, _LARGEST)
  if high <= low:
    given.refuse("high_freq_factor", f"must be above low_freq_factor, {low}")
  context = given.integer("original_max_position_embeddings", least=1)
  return rope_lib.Rope(theta, rope_lib.Llama3(factor, low, high, context))


def unparse(config: decoder.DecoderConfig) -> dict[str, Any]:
  """DecoderConfig -> fields that transformers 4 and 5 read alike."""
  made = {
      "vocab_size": config.vocab_size,
      "hidden_size": config.d_model,
      "head_dim": config.d_kv,
      "intermediate_size": config.d_ff,
      "num_hidden_layers": config.num_layers,
      "num_attention_heads": config.num_heads,
      "num_key_value_heads": config.num_kv_heads,
      "hidden_act": "silu",
      "max_position_embeddings": config.max_positions,
      "rms_norm_eps": config.norm_epsilon,
      "rope_theta": config.rope.theta,
      "rope_scaling": _scaling(config.rope.scaling),
      "tie_word_embeddings": config.tied,
      "eos_token_id": list(config.ends),
  }
  if config.qkv_bias == config.out_bias:
    made |= {"attention_bias": config.out_bias, "mlp_bias": config.ff_bias}
  return made


def _scaling(scaling) -> dict[str, Any] | None:
  if scaling is None:
    return None
  if isinstance(scaling, rope_lib.Given):
    raise UserError("rope: a config.json can't hold divisors of frequencies")
  kind = {rope_lib.Linear: "linear", rope_lib.Llama3: "llama3"}[type(scaling)]
  return {"rope_type": kind} | dataclasses.asdict(scaling)


def fits(config, *, qwen: bool) -> bool:
  """Whether a Llama, or a Qwen2, can have this shape."""
  if not isinstance(config, decoder.DecoderConfig):
    return False
  return (
      config.rms
      and config.gated
      and config.rope is not None
      and config.qkv_bias == (qwen or config.out_bias)
      and not (qwen and (config.out_bias or config.ff_bias))
  )


def tidy(get: fields.Getter, config: decoder.DecoderConfig, tensors):
  """Leaves out buffers."""
  del get, config
  return {k: v for k, v in tensors.items() if not _BUFFERS.fullmatch(k)}


def copies(config: decoder.DecoderConfig) -> dict[str, str]:
  """A tied head."""
  return {shared.HEAD: EMBEDDING} if config.tied else {}


def table(config: decoder.DecoderConfig) -> places.Table:
  """Stored name -> Place."""
  width, wide = config.d_model, config.d_ff
  embedding = (config.vocab_size, width)
  entries = {EMBEDDING: places.Place(("embedding",), embedding)}
  if not config.tied:
    entries |= shared.matrix("lm_head", ("lm_head",), embedding)
  for i in range(config.num_layers):
    block, layer = f"model.layers.{i}", f"layers_{i}"
    entries |= _attention(config, f"{block}.self_attn", (layer, "attention"))
    path, mlp = (layer, "feed_forward"), f"{block}.mlp"
    matrix = functools.partial(shared.matrix, bias=config.ff_bias)
    entries |= matrix(f"{mlp}.gate_proj", (*path, "wi"), (wide, width))
    entries |= matrix(f"{mlp}.up_proj", (*path, "wi"), (wide, width))
    entries |= matrix(f"{mlp}.down_proj", (*path, "wo"), (width, wide))
    for name, norm in (
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "feed_forward_norm"),
    ):
      path = (layer, norm, "scale")
      entries[f"{block}.{name}.weight"] = places.Place(path, (width,))
  entries["model.norm.weight"] = places.Place(
      ("final_norm", "scale"), (width,)
  )
  return entries


def _attention(config: decoder.DecoderConfig, name: str, path) -> places.Table:
  """Keys and values of a head lie behind the queries that it serves."""
  inner = config.num_heads * config.d_kv
  few = config.num_kv_heads * config.d_kv
  form = places.Form(kernel=True, groups=config.num_kv_heads)
  entries = {}
  for part, rows in (("q", inner), ("k", few), ("v", few)):
    entries |= shared.matrix(
        f"{name}.{part}_proj",
        (*path, "qkv"),
        (rows, config.d_model),
        form,
        bias=config.qkv_bias,
    )
  return entries | shared.matrix(
      f"{name}.o_proj",
      (*path, "o"),
      (config.d_model, inner),
      bias=config.out_bias,
  )


def _family(architecture: str, qwen: bool) -> base.Family:
  return base.Family(
      architectures=(architecture,),
      module=decoder.Decoder,
      parse=functools.partial(parse, qwen=qwen),
      unparse=unparse,
      fits=functools.partial(fits, qwen=qwen),
      table=table,
      tidy=tidy,
      copies=copies,
      tokenizer=shared.tokenizer,
      question=shared.question,
      ask=shared.ask,
  )


LLAMA = _family("LlamaForCausalLM", qwen=False)
QWEN2 = _family("Qwen2ForCausalLM", qwen=True)
