"""A model's first look at a request: source and prompt."""

import jax
import jax.numpy as jnp

from specjax.models import cache as cache_lib

# Tokens of a prompt that are read in one pass.
CHUNK = 128


def encode(module, params, source_BL, mask_BL):
  """Memory of the source; None for models without an encoder."""
  if source_BL is None:
    return None
  return module.apply(params, source_BL, mask_BL, method="encode")


def read_prompt(
    module,
    params,
    tokens_BS,
    prompt_B,
    memory,
    *,
    width: int,
    slots: int,
    chunk: int = CHUNK,
):
  """A cache that holds each row's first prompt - 1 tokens.

  The prompt's last token is left for the first round to read.

  Args:
    module: the model.
    params: its variables.
    tokens_BS: committed tokens, prompt first.
    prompt_B: length of each prompt.
    memory: from `encode`.
    width: longest prompt.
    slots: S of the cache.
    chunk: tokens of a row read in one pass; scores of a pass are [chunk, S].
  """
  cache = module.empty_cache(tokens_BS.shape[0], slots)
  if width == 1:
    return cache

  def read(cache, tokens_BT, start):
    place_T = start + jnp.arange(tokens_BT.shape[1])
    query = cache_lib.chain_query(
        tokens_BT,
        jnp.full_like(prompt_B, start),
        slots,
        place_T < prompt_B[:, None] - 1,
    )
    return module.apply(params, query, cache, memory, method="decode")[1]

  if width - 1 <= chunk:
    return read(cache, tokens_BS[:, : width - 1], 0)
  # Whole chunks; what is read beyond the prompts leaves no trace.
  missing = -(width - 1) % chunk
  tokens_BT = jnp.pad(tokens_BS[:, : width - 1], ((0, 0), (0, missing)))

  def read_chunk(i, cache):
    start = i * chunk
    part_BT = jax.lax.dynamic_slice_in_dim(tokens_BT, start, chunk, axis=1)
    return read(cache, part_BT, start)

  # Only as far as this batch's own prompts go.
  chunks = (jnp.max(prompt_B) - 1 + chunk - 1) // chunk
  return jax.lax.fori_loop(0, chunks, read_chunk, cache)
