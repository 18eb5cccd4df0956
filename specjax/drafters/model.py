"""Drafts by a smaller model of the same vocabulary (arXiv 2211.17192)."""

import dataclasses
from typing import Any

from flax import linen as nn
from flax import struct
import jax
import jax.numpy as jnp

from specjax import errors
from specjax import sampling as sampling_lib
from specjax import settings as settings_lib
from specjax.models import cache as cache_lib
from specjax.models import reading
from specjax.verify import proposal as proposals

# The least and the most tokens of a round.
GAMMAS = (1, 1024)


@struct.dataclass
class ModelState:
  """The draft model's own cache and its own reading of the source."""

  cache: cache_lib.Cache
  memory: Any


@dataclasses.dataclass(frozen=True)
class ModelDrafter:
  """Draws gamma tokens one after another from a draft model.

  Every round's first step re-reads the two newest tokens, so the cache is
  whole again after a full acceptance (whose last token the draft model never
  read) without a special case.

  Attributes:
    module: the draft model; encoder-decoders read the source themselves.
    gamma: tokens a round.
    argmax: draft the argmax and report point masses, at any temperature.
    temperature: of the drafts in sampled rows; None is the row's own.
    top_k: likewise.
    top_p: likewise.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  module: nn.Module
  gamma: int
  argmax: bool = False
  temperature: float | None = None
  top_k: int | None = None
  top_p: float | None = None

  taps = ()

  def __post_init__(self):
    low, high = GAMMAS
    errors.require(
        settings_lib.is_whole(self.gamma, low, high),
        "gamma",
        f"give a whole number from {low} to {high}, or for plain decoding"
        " take no drafts",
        self.gamma,
    )
    errors.require(
        isinstance(self.argmax, bool),
        "argmax",
        "give True or False",
        self.argmax,
    )
    # Refuses what no law can be made of, and names it.
    settings_lib.Settings(**self._own())

  @property
  def kind(self) -> proposals.Kind:
    """Sampled chain, or point masses where the argmax is drafted."""
    return proposals.Kind.POINT if self.argmax else proposals.Kind.CHAIN

  @property
  def nodes(self) -> int:
    """N = gamma."""
    return self.gamma

  @property
  def depth(self) -> int:
    """G = gamma."""
    return self.gamma

  def prefill(self, params, context, *, prompt_width, slots):
    """Encodes the source and reads the prompt."""
    memory = reading.encode(
        self.module, params, context.source_BL, context.source_mask_BL
    )
    cache = reading.read_prompt(
        self.module,
        params,
        context.tokens_BS,
        context.prompt_B,
        memory,
        width=prompt_width,
        slots=slots,
    )
    return ModelState(cache=cache, memory=memory)

  def propose(self, params, state, context, key_B, width):
    """gamma sequential steps of the draft model."""
    settings = self._settings(context.sampling, width)

    def step(cache, tokens_BT, start_B, i):
      """Reads tokens from `start_B` on; draws draft token i."""
      logits_BV, cache = self._read(
          params, state.memory, cache, context, tokens_BT, start_B
      )
      new_B = context.length_B - context.prompt_B + i
      law = sampling_lib.make_law(
          sampling_lib.fit_width(logits_BV, width), settings, new_B
      )
      if self.argmax:
        return cache, law.best, None
      draw_key_B = sampling_lib.fold(key_B, sampling_lib.Purpose.DRAFT, i)
      return cache, law.draw(draw_key_B), law

    def next_step(carry, i):
      cache, token_B = carry
      start_B = context.length_B + i - 1
      cache, token_B, law = step(cache, token_B[:, None], start_B, i)
      return (cache, token_B), (token_B, law)

    newest_B2 = _newest_two(context)
    cache, first_B, first_law = step(
        state.cache, newest_B2, context.length_B - 2, 0
    )
    (cache, _), (rest_GB, rest_law) = jax.lax.scan(
        next_step, (cache, first_B), jnp.arange(1, self.gamma)
    )
    join = lambda first, rest: jnp.moveaxis(
        jnp.concatenate([first[None], rest]), 0, 1
    )
    law = jax.tree.map(join, first_law, rest_law)
    proposal = proposals.Proposal(
        tokens_BN=join(first_B, rest_GB),
        count_B=self._count(law, context),
        law=law,
        kind=self.kind,
    )
    return proposal, state.replace(cache=cache)

  def _read(self, params, memory, cache, context, tokens_BT, start_B):
    """Reads tokens from `start_B` on; logits_BV of the next one, cache."""
    active_BT = jnp.broadcast_to(context.active_B[:, None], tokens_BT.shape)
    query = cache_lib.chain_query(tokens_BT, start_B, cache.slots, active_BT)
    logits_BTV, cache, _ = self.module.apply(
        params, query, cache, memory, method="decode"
    )
    return logits_BTV[:, -1], cache

  def _count(self, law, context):
    """gamma, or fewer where a narrower draft has no token to draw.

    Such a node was drawn from nothing, so it may not be judged as if it were.
    Whether a law is empty is known before the token is drawn.
    """
    if law is None:
      return jnp.full_like(context.length_B, self.gamma)
    drawn_BN = jnp.cumprod(law.possible, axis=1, dtype=jnp.int32)
    return jnp.sum(drawn_BN, axis=1)

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """Nothing: the next first step reads what was emitted."""
    del params, tokens_BT, features, count_B, context
    return state

  def _settings(self, sampling, width: int):
    """The rows' settings, with the drafter's own where it has them."""

    def own(name, value):
      row_B = getattr(sampling, f"{name}_B")
      # More than V keeps all as V does, and fits an int32.
      value = min(value, width) if name == "top_k" else value
      return jnp.where(
          sampling.greedy_B, row_B, jnp.asarray(value, row_B.dtype)
      )

    return sampling.replace(
        **{f"{name}_B": own(name, x) for name, x in self._own().items()}
    )

  def _own(self) -> dict[str, float]:
    """The settings that are the drafter's own."""
    settings = {
        "temperature": self.temperature,
        "top_k": self.top_k,
        "top_p": self.top_p,
    }
    return {name: x for name, x in settings.items() if x is not None}


def _newest_two(context):
  """newest_B2: the tokens at n - 2 and n - 1 of rows of length n.

  A row of one token has nothing at n - 2; its place is a negative position,
  which `chain_query` lets leave no trace.
  """
  place_B2 = context.length_B[:, None] + jnp.array([-2, -1])
  return jnp.take_along_axis(
      context.tokens_BS, jnp.maximum(place_B2, 0), axis=1
  )
