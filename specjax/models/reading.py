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
    taps: tuple[int, ...] = (),
):
  """Reads each row's first prompt - 1 tokens.

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
    taps: which hidden states to return, too; see the models' `decode`.

  Returns:
    A cache that holds those tokens, and a tuple of hidden_BTD, one a tap: T is
    width - 1, and what stands at or behind a row's prompt - 1 means nothing.
    () where no row has such tokens.
  """
  cache = module.empty_cache(tokens_BS.shape[0], slots)
  if width == 1:
    return cache, ()

  def read(cache, tokens_BT, start):
    place_T = start + jnp.arange(tokens_BT.shape[1])
    query = cache_lib.chain_query(
        tokens_BT,
        jnp.full_like(prompt_B, start),
        slots,
        place_T < prompt_B[:, None] - 1,
    )
    return module.apply(
        params, query, cache, memory, taps=taps, method="decode"
    )[1:]

  if width - 1 <= chunk:
    return read(cache, tokens_BS[:, : width - 1], 0)
  # Whole chunks; what is read beyond the prompts leaves no trace.
  missing = -(width - 1) % chunk
  tokens_BT = jnp.pad(tokens_BS[:, : width - 1], ((0, 0), (0, missing)))

  def read_chunk(i, carry):
    start = i * chunk
    part_BT = jax.lax.dynamic_slice_in_dim(tokens_BT, start, chunk, axis=1)
    cache, part = read(carry[0], part_BT, start)
    put = lambda whole_BTD, part_BTD: jax.lax.dynamic_update_slice_in_dim(
        whole_BTD, part_BTD, start, axis=1
    )
    return cache, jax.tree.map(put, carry[1], part)

  shapes = jax.eval_shape(lambda: read(cache, tokens_BT, 0)[1])
  features = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  # Only as far as this batch's own prompts go.
  chunks = (jnp.max(prompt_B) - 1 + chunk - 1) // chunk
  cache, features = jax.lax.fori_loop(
      0, chunks, read_chunk, (cache, features)
  )
  return cache, tuple(hidden_BTD[:, : width - 1] for hidden_BTD in features)
