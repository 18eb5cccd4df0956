"""Drafts by a smaller model of the same vocabulary (arXiv 2211.17192)."""

import dataclasses
from typing import Any

from flax import linen as nn
from flax import struct
import jax
import jax.numpy as jnp

from specjax import checks
from specjax import errors
from specjax.drafters import drawing
from specjax.models import cache as cache_lib
from specjax.models import reading


# Rounds of so many drafts have passes of their own where rows may stop.
_DRAFTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@struct.dataclass
class ModelState:
  """The draft model's own cache and its own reading of the source."""

  cache: cache_lib.Cache
  memory: Any


@dataclasses.dataclass(frozen=True)
class ModelDrafter(drawing.DrawingChain):
  """Draws gamma tokens one after another from a draft model.

  Every round's first step re-reads the two newest tokens, so the cache is
  whole again after a full acceptance (whose last token the draft model never
  read) without a special case.

  With a `confidence` a row drafts on while the product of its drafts' chances,
  by the draft model's own softmax, is at least that, as in the stops of
  assisted generation. They look at q alone, and a token that made a row stop is
  still judged, so the output law is exact.

  Attributes:
    module: the draft model; encoder-decoders read the source themselves.
    gamma: tokens a round; at most, with a confidence.
    chunk: tokens of a prompt that are read in one pass.
    confidence: from 0, which always drafts gamma tokens, to 1.
    positions: of the longest text that the draft model was made for; rows that
      would go beyond it get no drafts. None is no bound.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  module: nn.Module
  gamma: int
  chunk: int = reading.CHUNK
  confidence: float = 0.0
  positions: int | None = None

  def __post_init__(self):
    super().__post_init__()
    good = checks.is_number(self.confidence) and 0 <= self.confidence <= 1
    errors.require(
        good, "confidence", "give a number from 0 to 1", self.confidence
    )

  @property
  def widths(self) -> tuple[int, ...]:
    """gamma drafts and the newest token; fewer where a row may stop."""
    if not self.confidence:
      return super().widths
    drafts = (n for n in _DRAFTS if n < self.gamma)
    return tuple(n + 1 for n in (*drafts, self.gamma))

  def ready(self, context):
    """Rows whose drafts are all within the draft model's positions."""
    if self.positions is None:
      return super().ready(context)
    return context.length_B + self.gamma - 1 <= self.positions

  @property
  def whole(self) -> "ModelDrafter":
    """The same drafts, but gamma of them in every round."""
    return dataclasses.replace(self, confidence=0.0)

  @property
  def reader(self) -> nn.Module:
    """Gives its laws along a text."""
    return self.module

  def prefill(self, params, context, *, prompt_width, slots):
    """Encodes the source and reads the prompt."""
    memory = reading.encode(
        self.module, params, context.source_BL, context.source_mask_BL
    )
    cache, _ = reading.read_prompt(
        self.module,
        params,
        context.tokens_BS,
        context.prompt_B,
        memory,
        width=prompt_width,
        slots=slots,
        chunk=self.chunk,
    )
    return ModelState(cache=cache, memory=memory)

  def propose(self, params, state, context, key_B, width):
    """gamma sequential steps of the draft model."""
    context = self.with_settings(context, width)

    def step(cache, tokens_BT, start_B, i):
      """Reads tokens from `start_B` on; draws draft token i."""
      logits_BV, cache = self._read(
          params, state.memory, cache, context, tokens_BT, start_B
      )
      node = self.draw(logits_BV, context, key_B, i)
      return cache, node, self._chance(logits_BV, context, node, i)

    def next_step(cache, token_B, i):
      start_B = context.length_B + i - 1
      return step(cache, token_B[:, None], start_B, i)

    newest_B2 = _newest_two(context)
    first = step(state.cache, newest_B2, context.length_B - 2, 0)
    if self.confidence:
      cache, nodes, count_B = self._while_sure(first, next_step, context)
      proposal = self.proposal(*nodes, context)
      count_B = jnp.minimum(proposal.count_B, count_B)
      proposal = proposal.replace(count_B=count_B)
      return proposal, state.replace(cache=cache)

    def scanned(carry, i):
      cache, node, _ = next_step(*carry, i)
      return (cache, node[0]), node

    cache, node, _ = first
    (cache, _), rest = jax.lax.scan(
        scanned, (cache, node[0]), jnp.arange(1, self.gamma)
    )
    join = lambda first, rest: jnp.concatenate(
        [first[:, None], jnp.moveaxis(rest, 0, 1)], axis=1
    )
    nodes = jax.tree.map(join, node, rest)
    return self.proposal(*nodes, context), state.replace(cache=cache)

  def _chance(self, logits_BV, context, node, i):
    """Of a drawn token, by the draft model; None where nobody asks."""
    if not self.confidence:
      return None
    return self.law(logits_BV, context, i).confidence(node[0])

  def _while_sure(self, first, next_step, context):
    """Drafts on in the rows that are sure of all their drafts.

    Args:
      first: cache, first node (token and law) and its chance_B.
      next_step: the same of draft token i, from the cache and the token before.
      context: at the top of the round.

    Returns:
      The cache, the nodes with leading [B, G], and how many count_B count.
    """
    most_B = jnp.where(context.active_B, context.remaining_B - 1, 0)

    def going(sure_B, count_B):
      return (sure_B >= self.confidence) & (count_B < most_B)

    def more(carry):
      i, *_, sure_B, count_B = carry
      return (i < self.gamma) & jnp.any(going(sure_B, count_B))

    def turn(carry):
      i, cache, token_B, nodes, sure_B, count_B = carry
      cache, node, chance_B = next_step(cache, token_B, i)
      nodes = jax.tree.map(
          lambda all_BG, one_B: all_BG.at[:, i].set(one_B), nodes, node
      )
      goes_B = going(sure_B, count_B)
      sure_B = jnp.where(goes_B, sure_B * chance_B, 0.0)
      return i + 1, cache, node[0], nodes, sure_B, count_B + goes_B

    cache, node, chance_B = first
    spread = lambda one_B: jnp.repeat(one_B[:, None], self.gamma, axis=1)
    count_B = jnp.ones_like(context.length_B)
    start = 1, cache, node[0], jax.tree.map(spread, node), chance_B, count_B
    _, cache, _, nodes, _, count_B = jax.lax.while_loop(more, turn, start)
    return cache, nodes, count_B

  def begin(self, params, state, context):
    """Re-reads the two newest tokens: logits_BV behind them."""
    logits_BV, cache = self._read(
        params,
        state.memory,
        state.cache,
        context,
        _newest_two(context),
        context.length_B - 2,
    )
    return logits_BV, (), state.replace(cache=cache)

  def read_nodes(
      self, params, state, context, tokens_BT, place_T, sees_BTT, above_BT
  ):
    """Reads some places of a tree: logits_BTV behind them."""
    active_BT = jnp.broadcast_to(context.active_B[:, None], tokens_BT.shape)
    query = cache_lib.tree_query(
        tokens_BT,
        place_T,
        context.length_B - 1,
        sees_BTT,
        state.cache.slots,
        active_BT,
    )
    logits_BTV, cache, _ = self.module.apply(
        params, query, state.cache, state.memory, method="decode"
    )
    return logits_BTV, above_BT, state.replace(cache=cache)

  def keep_path(self, state, context, path_BG):
    """Moves what was read of the path to where a chain has it."""
    cache = cache_lib.keep_path(state.cache, context.length_B - 1, path_BG)
    return state.replace(cache=cache)

  def catch_up(self, params, state, context, known_B, width: int):
    """The state once the cache lacks but the two newest tokens of a row.

    Args:
      params: of the draft model.
      state: of the drafter.
      context: at the top of the round; only active rows are read.
      known_B: how many of its tokens a row's cache holds.
      width: tokens a pass.
    """
    end_B = jnp.where(context.active_B, context.length_B - 2, 0)

    def read(carry):
      known_B, cache = carry
      place_BT = known_B[:, None] + jnp.arange(width)
      tokens_BT = jnp.take_along_axis(
          context.tokens_BS, place_BT, axis=1, mode="clip"
      )
      missing_BT = place_BT < end_B[:, None]
      query = cache_lib.chain_query(
          tokens_BT, known_B, cache.slots, missing_BT
      )
      _, cache, _ = self.module.apply(
          params, query, cache, state.memory, method="decode"
      )
      return known_B + width, cache

    _, cache = jax.lax.while_loop(
        lambda carry: jnp.any(carry[0] < end_B), read, (known_B, state.cache)
    )
    return state.replace(cache=cache)

  def _read(self, params, memory, cache, context, tokens_BT, start_B):
    """Reads tokens from `start_B` on; logits_BV of the next one, cache."""
    active_BT = jnp.broadcast_to(context.active_B[:, None], tokens_BT.shape)
    query = cache_lib.chain_query(tokens_BT, start_B, cache.slots, active_BT)
    logits_B1V, cache, _ = self.module.apply(
        params, query, cache, memory, newest=True, method="decode"
    )
    return logits_B1V[:, 0], cache


def _newest_two(context):
  """newest_B2: the tokens at n - 2 and n - 1 of rows of length n.

  A row of one token has nothing at n - 2; its place is a negative position,
  which `chain_query` lets leave no trace.
  """
  place_B2 = context.length_B[:, None] + jnp.array([-2, -1])
  return jnp.take_along_axis(
      context.tokens_BS, jnp.maximum(place_B2, 0), axis=1
  )
