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
  """

  module: nn.Module
  gamma: int
  argmax: bool = False
  temperature: float | None = None
  top_k: int | None = None
  top_p: float | None = None

  taps = ()

  def __post_init__(self):
    if not isinstance(self.gamma, int) or self.gamma < 1:
      raise errors.UserError(
          f"gamma: give a whole number from 1 on, got {self.gamma!r}; for "
          "plain decoding take no drafts"
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
    settings = self._settings(context.sampling)
    new_B = context.length_B - context.prompt_B

    def step(cache, tokens_BT, start_B, i):
      """Reads tokens from `start_B` on; draws draft token i."""
      query = cache_lib.chain_query(
          tokens_BT,
          start_B,
          cache.slots,
          jnp.broadcast_to(context.active_B[:, None], tokens_BT.shape),
      )
      logits_BTV, cache, _ = self.module.apply(
          params, query, cache, state.memory, method="decode"
      )
      logits_BV = sampling_lib.fit_width(logits_BTV[:, -1], width)
      law = sampling_lib.make_law(logits_BV, settings, new_B + i)
      draw_key_B = sampling_lib.fold(
          key_B, sampling_lib.Purpose.DRAFT, i
      )
      token_B = law.best if self.argmax else law.draw(draw_key_B)
      return cache, token_B, None if self.argmax else law

    # The two newest tokens; a row of one token has nothing at n - 2, and
    # chain_query lets a negative position leave no trace.
    newest = context.length_B[:, None] + jnp.array([-2, -1])
    newest_B2 = jnp.take_along_axis(
        context.tokens_BS, jnp.maximum(newest, 0), axis=1
    )
    cache, first_B, first_law = step(
        state.cache, newest_B2, context.length_B - 2, 0
    )

    def next_step(carry, i):
      cache, token_B = carry
      start_B = context.length_B + i - 1
      cache, token_B, law = step(cache, token_B[:, None], start_B, i)
      return (cache, token_B), (token_B, law)

    (cache, _), (rest_GB, rest_law) = jax.lax.scan(
        next_step, (cache, first_B), jnp.arange(1, self.gamma)
    )
    join = lambda first, rest: jnp.moveaxis(
        jnp.concatenate([first[None], rest]), 0, 1
    )
    proposal = proposals.Proposal(
        tokens_BN=join(first_B, rest_GB),
        count_B=jnp.full_like(context.length_B, self.gamma),
        law=jax.tree.map(join, first_law, rest_law),
        kind=self.kind,
    )
    return proposal, state.replace(cache=cache)

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """Nothing: the next first step reads what was emitted."""
    del params, tokens_BT, features, count_B, context
    return state

  def _settings(self, sampling):
    """The rows' settings, with the drafter's own where it has them."""

    def own(name, value):
      row_B = getattr(sampling, f"{name}_B")
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
