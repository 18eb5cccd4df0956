"""How Hugging Face names a T5's tensors, and where they go."""

import dataclasses

from specjax.models import t5

SHARED = "shared.weight"
HEAD = "lm_head.weight"
# Other writers store the embedding under these names too.
EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# Old v1.0 files carry it; no version of the model reads it.
UNUSED = (
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
)



@dataclasses.dataclass(frozen=True)
class Place:
  """Where a stored tensor goes.

  Attributes:
    path: of the parameter.
    shape: of the stored tensor; torch stores kernels [out, in].
    part: which of the M products in a kernel [in, M, out] it is; None where
      it is the whole parameter.
  """

  path: tuple[str, ...]
  shape: tuple[int, ...]
  part: int | None = None

  @property
  def is_kernel(self) -> bool:
    """Does the parameter hold it transposed?"""
    return self.path[-1] == "kernel"


Table = dict[str, Place]


def table(config: t5.T5Config) -> Table:
  """Stored name -> Place, every tensor; parts of one kernel in their order."""
  embedding = (config.vocab_size, config.d_model)
  entries = {SHARED: Place(("shared",), embedding)}
  if not config.tied:
    entries[HEAD] = Place(("lm_head", "kernel"), embedding)
  return (
      entries
      | _stack(config, "encoder", config.num_layers, cross=False)
      | _stack(config, "decoder", config.num_decoder_layers, cross=True)
  )


def _stack(config: t5.T5Config, side: str, depth: int, *, cross: bool) -> Table:
  bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
  shape = (config.relative_attention_num_buckets, config.num_heads)
  entries = {bias: Place((f"{side}_bias", "table"), shape)}
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


def _norm(config: t5.T5Config, name: str, *path: str) -> Table:
  return {f"{name}.weight": Place((*path, "scale"), (config.d_model,))}


def _kernel(name: str, stored, path, shape) -> Table:
  """The stored matrices that make one kernel."""
  alone = len(stored) == 1
  return {
      f"{name}.{each}.weight": Place(
          (*path, "kernel"), shape, None if alone else part
      )
      for part, each in enumerate(stored)
  }


def _attention(config: t5.T5Config, name: str, path, kernels) -> Table:
  inner, width = config.num_heads * config.d_kv, config.d_model
  entries = _kernel(name, "o", (*path, "o"), (width, inner))
  for kernel in kernels:
    entries |= _kernel(name, kernel, (*path, kernel), (inner, width))
  return entries


def _feed_forward(config: t5.T5Config, name: str, layer: str) -> Table:
  wide, width = config.d_ff, config.d_model
  into = ("wi_0", "wi_1") if config.gated else ("wi",)
  path = (layer, "feed_forward")
  return _kernel(name, into, (*path, "wi"), (wide, width)) | _kernel(
      name, ("wo",), (*path, "wo"), (width, wide)
  )
