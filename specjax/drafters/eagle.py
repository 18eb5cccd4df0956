"""Drafts by EAGLE: the target's hidden states go on by themselves.

Li et al. (arXiv 2401.15077); models.eagle has the head. A head reads what the
target has read: at the end of each round it hears the true hidden states of
the tokens that were emitted, in the place of those that it had made up, and
thus knows the hidden state of the newest token but for its own error. From
there each draft is a step of the head, whose cost is that of one layer.

A text of one token has no hidden state yet: it is drafted for from the second
round on.
"""

import dataclasses
from typing import Any, ClassVar

from flax import struct
import jax
import jax.numpy as jnp

from specjax.drafters import drawing
from specjax.models import cache as cache_lib
from specjax.models import eagle
from specjax.models import reading


@struct.dataclass
class EagleState:
  """What the head knows of each row.

  Attributes:
    cache: its keys and values, of rows of length n the first n - 1 pairs.
    memory: its reading of the source, or None.
    hidden_BD: what it makes of the newest token's hidden state.
  """

  cache: cache_lib.Cache
  memory: Any
  hidden_BD: jax.Array


@dataclasses.dataclass(frozen=True)
class EagleDrafter(drawing.DrawingChain):
  """Draws gamma tokens, each from the hidden state that a head makes up.

  Its params are EagleParams.

  Attributes:
    model: the head and its target.
    gamma: tokens a round.
    chunk: tokens of a prompt that are read in one pass.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  model: eagle.Eagle
  gamma: int
  chunk: int = reading.CHUNK

  taps: ClassVar[tuple[int, ...]] = (eagle.TAP,)
  # Its laws need the target's hidden states, not the text alone.
  reader = None

  def prefill(self, params, context, *, prompt_width, slots):
    """Reads the source; the prompt is heard."""
    del prompt_width
    batch, head = context.length_B.shape[0], self.model.head
    shape = batch, head.config.d_model
    return EagleState(
        cache=head.empty_cache(batch, slots),
        memory=self.model.remember(params, context.memory),
        hidden_BD=jnp.zeros(shape, head.types.carried),
    )

  def propose(self, params, state, context, key_B, width):
    """A draw, and gamma - 1 steps of the head."""
    context = self.with_settings(context, width)

    def step(carry, i):
      cache, hidden_B1D, token_B = carry
      hidden_B1D, cache = self._read(
          params,
          state.replace(cache=cache),
          token_B[:, None],
          hidden_B1D,
          context.length_B - 2 + i,
          context.active_B[:, None],
      )
      logits_BV = self.model.logits(params, hidden_B1D)[:, 0]
      token_B, law = self.draw(logits_BV, context, key_B, i)
      return (cache, hidden_B1D, token_B), (token_B, law)

    logits_BV, hidden_B1D, state = self.begin(params, state, context)
    first_B, first_law = self.draw(logits_BV, context, key_B, 0)
    (cache, _, _), (rest_GB, rest_law) = jax.lax.scan(
        step,
        (state.cache, hidden_B1D, first_B),
        jnp.arange(1, self.gamma),
    )
    join = lambda first, rest: jnp.concatenate(
        [first[:, None], jnp.moveaxis(rest, 0, 1)], axis=1
    )
    law = jax.tree.map(join, first_law, rest_law)
    proposal = self.proposal(join(first_B, rest_GB), law, context)
    return proposal, state.replace(cache=cache)

  def begin(self, params, state, context):
    """The newest token's hidden state: it goes with those below it."""
    del context
    hidden_B1D = state.hidden_BD[:, None]
    return self.model.logits(params, hidden_B1D)[:, 0], hidden_B1D, state

  def read_nodes(
      self, params, state, context, tokens_BT, place_T, sees_BTT, above_BTD
  ):
    """Steps of the head from some places of a tree."""
    active_BT = jnp.broadcast_to(
        (context.active_B & self.ready(context))[:, None], tokens_BT.shape
    )
    query = cache_lib.tree_query(
        tokens_BT,
        place_T,
        context.length_B - 2,
        sees_BTT,
        state.cache.slots,
        active_BT,
    )
    hidden_BTD, cache = self.model.read(
        params, query, above_BTD, state.cache, state.memory
    )
    logits_BTV = self.model.logits(params, hidden_BTD)
    return logits_BTV, hidden_BTD, state.replace(cache=cache)

  def keep_path(self, state, context, path_BG):
    """Nothing: what was made up gives way to what is heard."""
    del context, path_BG
    return state

  def ready(self, context):
    """Rows of one token have no hidden state yet."""
    return context.length_B > 1

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """Reads each emitted token with the true hidden state before it."""
    (hidden_BTD,) = features
    start_B, width = context.length_B - 1, tokens_BT.shape[1]

    def read(carry, start, tokens_BT, hidden_BTD):
      cache, newest_BD = carry
      index_T = start + jnp.arange(tokens_BT.shape[1])
      hidden_BTD, cache = self._read(
          params,
          state.replace(cache=cache),
          tokens_BT,
          hidden_BTD,
          start_B + start,
          index_T < count_B[:, None],
      )
      last_BT = index_T == count_B[:, None] - 1
      at_B11 = jnp.argmax(last_BT, axis=1)[:, None, None]
      last_BD = jnp.take_along_axis(hidden_BTD, at_B11, axis=1)[:, 0]
      here_B1 = jnp.any(last_BT, axis=1)[:, None]
      return cache, jnp.where(here_B1, last_BD, newest_BD)

    carry = state.cache, state.hidden_BD
    if width <= self.chunk:
      cache, hidden_BD = read(carry, 0, tokens_BT, hidden_BTD)
      return state.replace(cache=cache, hidden_BD=hidden_BD)
    # Of a long prompt whole chunks; more than there is leaves no trace.
    missing = -width % self.chunk
    pad = lambda x: jnp.pad(
        x, ((0, 0), (0, missing), (0, 0))[: x.ndim]
    )
    whole = pad(tokens_BT), pad(hidden_BTD)

    def read_chunk(i, carry):
      start = i * self.chunk
      part = lambda x: jax.lax.dynamic_slice_in_dim(x, start, self.chunk, 1)
      return read(carry, start, *map(part, whole))

    chunks = (jnp.max(count_B) + self.chunk - 1) // self.chunk
    cache, hidden_BD = jax.lax.fori_loop(0, chunks, read_chunk, carry)
    return state.replace(cache=cache, hidden_BD=hidden_BD)

  def _read(self, params, state, tokens_BT, hidden_BTD, start_B, active_BT):
    """Pairs from position `start_B` on: hidden_BTD behind them, and the cache.

    Those of negative positions, of rows that are not ready, leave no trace.
    """
    query = cache_lib.chain_query(
        tokens_BT, start_B, state.cache.slots, active_BT
    )
    return self.model.read(
        params, query, hidden_BTD, state.cache, state.memory
    )
