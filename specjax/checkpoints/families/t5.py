"""T5: its config.json, its tensors, and what its encoder is asked."""

import dataclasses
from typing import Any, Sequence

from specjax import errors
from specjax.checkpoints import chat as chat_lib
from specjax.checkpoints import fields
from specjax.checkpoints import places
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.checkpoints.families import base
from specjax.models import t5

SHARED = "shared.weight"
HEAD = "lm_head.weight"
# Other writers store the embedding under these names too.
EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# Old v1.0 files carry it; no version of the model reads it.
UNUSED = (
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
)
_GATED = {"relu": False, "gated-gelu": True}
_SIZES = ("vocab_size", "d_model", "d_kv", "d_ff", "num_heads")


def parse(get: fields.Getter) -> t5.T5Config:
  """Fields of a config.json -> T5Config."""
  sizes = {name: get.integer(name, least=1) for name in _SIZES}
  depth = get.integer("num_layers", least=1, most=fields.LAYERS)
  pad = get.integer("pad_token_id", 0)
  config = t5.T5Config(
      **sizes,
      num_layers=depth,
      num_decoder_layers=get.integer(
          "num_decoder_layers", depth, least=1, most=fields.LAYERS
      ),
      gated=_GATED[get.one_of("feed_forward_proj", "relu", tuple(_GATED))],
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


def _is_tied(get: fields.Getter) -> bool:
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


def unparse(config: t5.T5Config) -> dict[str, Any]:
  """T5Config -> fields that transformers 4 and 5 read alike."""
  made = dataclasses.asdict(config)
  gated, tied = made.pop("gated"), made.pop("tied")
  return made | {
      "is_encoder_decoder": True,
      "feed_forward_proj": "gated-gelu" if gated else "relu",
      "tie_word_embeddings": tied,
      "scale_decoder_outputs": tied,
  }


def tidy(get: fields.Getter, config: t5.T5Config, tensors):
  """Leaves out what no version reads, and names the embedding `SHARED`.

  An absent `SHARED` is never taken from the head, which in v1.1 is another
  matrix (huggingface/transformers#48154).
  """
  tensors = {k: v for k, v in tensors.items() if k != UNUSED}
  for name in EMBEDDINGS:
    if SHARED not in tensors and name in tensors:
      tensors[SHARED] = tensors.pop(name)
  # transformers 5 leaves out a v1.1 head that it tied all the same.
  ties = get.fields.get("tie_word_embeddings") is not False
  if not config.tied and ties and SHARED in tensors:
    tensors.setdefault(HEAD, tensors[SHARED])
  return tensors


def copies(config: t5.T5Config) -> dict[str, str]:
  """Names that may hold a copy of another tensor."""
  names = EMBEDDINGS + ((HEAD,) if config.tied else ())
  return dict.fromkeys(names, SHARED)


def table(config: t5.T5Config) -> places.Table:
  """Stored name -> Place."""
  embedding = (config.vocab_size, config.d_model)
  entries = {SHARED: places.Place(("shared",), embedding)}
  if not config.tied:
    entries[HEAD] = places.Place(
        ("lm_head", "kernel"), embedding, places.KERNEL
    )
  return (
      entries
      | _stack(config, "encoder", config.num_layers, cross=False)
      | _stack(config, "decoder", config.num_decoder_layers, cross=True)
  )


def _stack(
    config: t5.T5Config, side: str, depth: int, *, cross: bool
) -> places.Table:
  bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
  shape = (config.relative_attention_num_buckets, config.num_heads)
  entries = {bias: places.Place((f"{side}_bias", "table"), shape)}
  for i in range(depth):
    block, layer = f"{side}.block.{i}.layer", f"{side}_layers_{i}"
    parts = [("SelfAttention", "attention", ("qkv",))]
    if cross:
      parts.append(("EncDecAttention", "cross", ("q", "kv")))
    for j, (stored, part, kernels) in enumerate(parts):
      entries |= _norm(config, f"{block}.{j}.layer_norm", layer, f"{part}_norm")
      name, path = f"{block}.{j}.{stored}", (layer, part)
      entries |= _attention(config, name, path, kernels)
    last = f"{block}.{len(parts)}"
    entries |= _norm(config, f"{last}.layer_norm", layer, "feed_forward_norm")
    entries |= _feed_forward(config, f"{last}.DenseReluDense", layer)
  return entries | _norm(config, f"{side}.final_layer_norm", f"{side}_norm")


def _norm(config: t5.T5Config, name: str, *path: str) -> places.Table:
  return {f"{name}.weight": places.Place((*path, "scale"), (config.d_model,))}


def _kernel(name: str, stored, path, shape) -> places.Table:
  """The stored matrices that make one kernel."""
  place = places.Place((*path, "kernel"), shape, places.KERNEL)
  return {f"{name}.{each}.weight": place for each in stored}


def _attention(config: t5.T5Config, name: str, path, kernels) -> places.Table:
  inner, width = config.num_heads * config.d_kv, config.d_model
  entries = _kernel(name, "o", (*path, "o"), (width, inner))
  for kernel in kernels:
    entries |= _kernel(name, kernel, (*path, kernel), (inner, width))
  return entries


def _feed_forward(config: t5.T5Config, name: str, layer: str) -> places.Table:
  wide, width = config.d_ff, config.d_model
  into = ("wi_0", "wi_1") if config.gated else ("wi",)
  path = (layer, "feed_forward")
  return _kernel(name, into, (*path, "wi"), (wide, width)) | _kernel(
      name, ("wo",), (*path, "wo"), (width, wide)
  )


def question(config: t5.T5Config, ids: tuple[int, ...]) -> base.Question:
  """The encoder reads them."""
  return base.Question(ids, (config.decoder_start_token_id,))


def ask(
    config: t5.T5Config,
    tokenizer: tokenizer_lib.Tokenizer,
    texts: Sequence[chat_lib.Said],
    most: int,
    chat: bool | None,
) -> list[base.Question]:
  """The encoder reads the text, cut before its EOS; see base.Family.ask."""
  errors.require(not chat, "chat", "T5 has no template for it; give None", chat)
  rows = tokenizer.encode_batch([*map(chat_lib.joined, texts)])
  cut = lambda row: (
      row if len(row) <= most else row[: most - 1] + [tokenizer.eos_id]
  )
  return [question(config, tuple(cut(row))) for row in rows]


FAMILY = base.Family(
    architectures=("T5ForConditionalGeneration", "T5WithLMHeadModel"),
    module=t5.T5,
    parse=parse,
    unparse=unparse,
    fits=lambda config: isinstance(config, t5.T5Config),
    table=table,
    tidy=tidy,
    copies=copies,
    tokenizer=lambda directory, config: tokenizer_lib.Tokenizer.load(directory),
    question=question,
    ask=ask,
)
