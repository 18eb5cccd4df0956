"""What drafters share that copy tokens from texts at hand."""

from typing import ClassVar

from flax import struct
import jax
import jax.numpy as jnp

from specjax.drafters import chain
from specjax.verify import proposal as proposals

# Stands where a text has no token; it equals no token, itself included.
NOTHING = -1


@struct.dataclass
class Match:
  """What could be copied.

  Attributes:
    tokens_BN: ids; NOTHING, or without meaning, from `count` on.
    count_B: how many there are; 0 without a match.
    trust_B: 0, 1 or 2: how much speaks for them.
  """

  tokens_BN: jax.Array
  count_B: jax.Array
  trust_B: jax.Array


class Copies(chain.Chain):
  """A chain of at most gamma tokens that were read somewhere: point masses.

  A round may have fewer, or none; alpha has no meaning for such drafts, so
  there is no reader. A drafter adds `match(params, state, context)`, which
  gives a Match.
  """

  kind: ClassVar[proposals.Kind] = proposals.Kind.POINT
  reader: ClassVar[None] = None

  @property
  def widths(self) -> tuple[int, ...]:
    """No drafts, a quarter of all, a half, all."""
    drafts = {self.nodes // 4, self.nodes // 2, self.nodes}
    return (1, *(n + 1 for n in sorted(drafts - {0})))

  def prefill(self, params, context, *, prompt_width, slots):
    """No state."""
    del params, context, prompt_width, slots
    return ()

  def propose(self, params, state, context, key_B, width):
    """All that was found; matching leaves the state as it is."""
    del key_B, width
    return self.proposal(self.match(params, state, context)), state

  def proposal(self, match: Match) -> proposals.Proposal:
    """Of what was found."""
    return proposals.Proposal(
        tokens_BN=jnp.maximum(match.tokens_BN, 0),
        count_B=match.count_B,
        law=None,
        kind=self.kind,
    )


def own_text(context, source: bool):
  """What a row's drafts may be copied from.

  Args:
    context: at the top of the round.
    source: whether an encoder's source stands before the row's own text.

  Returns:
    text_BS, with NOTHING at padding and between source and text, and the place
    of each row's newest token.
  """
  tokens_BS = context.tokens_BS
  known_BS = jnp.arange(tokens_BS.shape[1]) < context.length_B[:, None]
  text_BS = jnp.where(known_BS, tokens_BS, NOTHING)
  newest_B = context.length_B - 1
  if not source or context.source_BL is None:
    return text_BS, newest_B
  source_BL = jnp.where(
      context.source_mask_BL, context.source_BL, NOTHING
  )
  apart_B1 = jnp.full_like(source_BL[:, :1], NOTHING)
  before = source_BL.shape[1] + 1
  text_BS = jnp.concatenate([source_BL, apart_B1, text_BS], axis=1)
  return text_BS, newest_B + before


def continuation(text_BS, place_B, count: int):
  """The `count` tokens that stand after a place.

  Returns:
    tokens_BN, and how many of them there are before the first NOTHING.
  """
  index_BN = place_B[:, None] + 1 + jnp.arange(count)
  tokens_BN = jnp.take_along_axis(
      text_BS, index_BN, axis=1, mode="fill", fill_value=NOTHING
  )
  there_BN = jnp.cumprod(tokens_BN != NOTHING, axis=1, dtype=jnp.int32)
  return tokens_BN, jnp.sum(there_BN, axis=1)
