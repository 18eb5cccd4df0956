"""How Hugging Face names a T5's tensors, and where they go."""

from specjax.models import t5

SHARED = "shared.weight"
HEAD = "lm_head.weight"
# Other writers store the embedding under these names too.
EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# Old v1.0 files carry it; no version of the model reads it.
UNUSED = (
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
)

Table = dict[str, tuple[tuple[str, ...], tuple[int, ...]]]


def table(config: t5.T5Config) -> Table:
  """Stored name -> (path in the parameters, stored shape), every tensor."""
  embedding = (config.vocab_size, config.d_model)
  entries = {SHARED: (("shared",), embedding)}
  if not config.tied:
    entries[HEAD] = (("lm_head", "kernel"), embedding)
  return (
      entries
      | _stack(config, "encoder", config.num_layers, cross=False)
      | _stack(config, "decoder", config.num_decoder_layers, cross=True)
  )


def _stack(config: t5.T5Config, side: str, depth: int, *, cross: bool) -> Table:
  bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
  entries = {
      bias: (
          (f"{side}_bias", "table"),
          (config.relative_attention_num_buckets, config.num_heads),
      )
  }
  for i in range(depth):
    block, layer = f"{side}.block.{i}.layer", f"{side}_layers_{i}"
    parts = [("SelfAttention", "attention")]
    if cross:
      parts.append(("EncDecAttention", "cross"))
    for j, (name, path) in enumerate(parts):
      entries |= _norm(config, f"{block}.{j}.layer_norm", layer, f"{path}_norm")
      entries |= _attention(config, f"{block}.{j}.{name}", layer, path)
    last = f"{block}.{len(parts)}"
    entries |= _norm(config, f"{last}.layer_norm", layer, "feed_forward_norm")
    entries |= _feed_forward(config, f"{last}.DenseReluDense", layer)
  return entries | _norm(config, f"{side}.final_layer_norm", f"{side}_norm")


def _norm(config: t5.T5Config, name: str, *path: str) -> Table:
  return {f"{name}.weight": ((*path, "scale"), (config.d_model,))}


def _attention(config: t5.T5Config, name: str, *path: str) -> Table:
  inner, width = config.num_heads * config.d_kv, config.d_model
  shapes = {x: (inner, width) for x in "qkv"} | {"o": (width, inner)}
  return {
      f"{name}.{part}.weight": ((*path, part, "kernel"), shape)
      for part, shape in shapes.items()
  }


def _feed_forward(config: t5.T5Config, name: str, layer: str) -> Table:
  wide, width = config.d_ff, config.d_model
  into = ("wi_0", "wi_1") if config.gated else ("wi",)
  shapes = {x: (wide, width) for x in into} | {"wo": (width, wide)}
  return {
      f"{name}.{part}.weight": ((layer, "feed_forward", part, "kernel"), shape)
      for part, shape in shapes.items()
  }
