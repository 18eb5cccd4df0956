"""GPT-2: its config.json and tensors."""

import re
from typing import Any

from specjax.checkpoints import fields
from specjax.checkpoints import files
from specjax.checkpoints import places
from specjax.checkpoints.families import base
from specjax.checkpoints.families import decoder as shared
from specjax.models import decoder

EMBEDDING = "wte.weight"
_PREFIX = "transformer."
# Causal masks, which older writers store.
_BUFFERS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")


def parse(get: fields.Getter) -> decoder.DecoderConfig:
  """Fields of a config.json -> DecoderConfig."""
  size = get.integer("vocab_size", least=1)
  width = get.integer("n_embd", least=1)
  heads = get.integer("n_head", least=1)
  if width % heads:
    get.refuse("n_head", f"must divide n_embd, {width}")
  # Two names of one formula.
  known = ("gelu_new", "gelu_pytorch_tanh")
  get.one_of("activation_function", known[0], known)
  for name, wanted in (
      ("scale_attn_weights", True),
      ("scale_attn_by_inverse_layer_idx", False),
  ):
    if get.boolean(name, wanted) != wanted:
      get.refuse(name, f"must be {str(wanted).lower()}")
  return decoder.DecoderConfig(
      vocab_size=size,
      d_model=width,
      d_kv=width // heads,
      d_ff=get.integer("n_inner", 4 * width, least=1),
      num_layers=get.integer("n_layer", least=1, most=fields.LAYERS),
      num_heads=heads,
      num_kv_heads=heads,
      tied=get.boolean("tie_word_embeddings", True),
      gated=False,
      rms=False,
      rope=None,
      max_positions=get.integer("n_positions", 1024, least=1),
      norm_epsilon=get.real("layer_norm_epsilon", 1e-5),
      qkv_bias=True,
      out_bias=True,
      ff_bias=True,
      ends=shared.ends(get, size),
  )


def unparse(config: decoder.DecoderConfig) -> dict[str, Any]:
  """DecoderConfig -> fields that transformers 4 and 5 read alike."""
  return {
      "vocab_size": config.vocab_size,
      "n_embd": config.d_model,
      "n_head": config.num_heads,
      "n_inner": config.d_ff,
      "n_layer": config.num_layers,
      "n_positions": config.max_positions,
      "activation_function": "gelu_new",
      "layer_norm_epsilon": config.norm_epsilon,
      "tie_word_embeddings": config.tied,
      "eos_token_id": config.ends[0] if config.ends else None,
      "bos_token_id": config.ends[0] if config.ends else None,
  }


def fits(config) -> bool:
  """Whether a GPT-2 can have this shape."""
  return (
      isinstance(config, decoder.DecoderConfig)
      and not (config.rms or config.gated)
      and config.rope is None
      and config.qkv_bias and config.out_bias and config.ff_bias
      and config.num_heads == config.num_kv_heads
      and config.num_heads * config.d_kv == config.d_model
  )


def tidy(get: fields.Getter, config: decoder.DecoderConfig, tensors):
  """Leaves out masks, and the prefix of a model that was saved with a head."""
  del config
  named = files.once(
      ((name.removeprefix(_PREFIX), x) for name, x in tensors.items()), get.path
  )
  return {k: v for k, v in named.items() if not _BUFFERS.fullmatch(k)}


def copies(config: decoder.DecoderConfig) -> dict[str, str]:
  """A tied head."""
  return {shared.HEAD: EMBEDDING} if config.tied else {}


def table(config: decoder.DecoderConfig) -> places.Table:
  """Stored name -> Place; matrices are stored [in, out]."""
  width, wide = config.d_model, config.d_ff
  embedding = (config.vocab_size, width)
  positions = (config.max_positions, width)
  entries = {
      EMBEDDING: places.Place(("embedding",), embedding),
      "wpe.weight": places.Place(("positions",), positions),
  }
  if not config.tied:
    entries |= shared.matrix("lm_head", ("lm_head",), embedding)
  turned = places.Form(kernel=True, turned=True)
  joined = places.Form(
      kernel=True, turned=True, groups=config.num_heads, held=3
  )
  for i in range(config.num_layers):
    block, layer = f"h.{i}", f"layers_{i}"
    for name, path, shape, form in (
        ("attn.c_attn", ("attention", "qkv"), (width, 3 * width), joined),
        ("attn.c_proj", ("attention", "o"), (width, width), turned),
        ("mlp.c_fc", ("feed_forward", "wi"), (width, wide), turned),
        ("mlp.c_proj", ("feed_forward", "wo"), (wide, width), turned),
    ):
      entries |= shared.matrix(
          f"{block}.{name}", (layer, *path), shape, form, bias=True
      )
    entries |= _norm(f"{block}.ln_1", (layer, "attention_norm"), width)
    entries |= _norm(f"{block}.ln_2", (layer, "feed_forward_norm"), width)
  return entries | _norm("ln_f", ("final_norm",), width)


def _norm(name: str, path, width: int) -> places.Table:
  return {
      f"{name}.weight": places.Place((*path, "scale"), (width,)),
      f"{name}.bias": places.Place((*path, "bias"), (width,)),
  }


FAMILY = base.Family(
    architectures=("GPT2LMHeadModel", "GPT2Model"),
    module=decoder.Decoder,
    parse=parse,
    unparse=unparse,
    fits=fits,
    table=table,
    tidy=tidy,
    copies=copies,
    tokenizer=shared.tokenizer,
    question=shared.question,
    ask=shared.ask,
)
