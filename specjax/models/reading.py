"""A model's first look at a request: source and prompt."""

import jax.numpy as jnp

from specjax.models import cache as cache_lib


def encode(module, params, source_BL, mask_BL):
  """Memory of the source; None for models without an encoder."""
  if source_BL is None:
    return None
  return module.apply(params, source_BL, mask_BL, method="encode")


def read_prompt(
    module, params, tokens_BS, prompt_B, memory, *, width: int, slots: int
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
  """
  cache = module.empty_cache(tokens_BS.shape[0], slots)
  if width == 1:
    return cache
  tokens_BT = tokens_BS[:, : width - 1]
  active_BT = jnp.arange(width - 1) < prompt_B[:, None] - 1
  query = cache_lib.chain_query(
      tokens_BT, jnp.zeros_like(prompt_B), slots, active_BT
  )
  return module.apply(params, query, cache, memory, method="decode")[1]
