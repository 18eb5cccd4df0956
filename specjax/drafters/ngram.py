"""Drafts from counts: unigrams and bigrams (arXiv 2211.17192, Table 3).

A bigram's law is sparse: a token's listed successors have a probability each,
all others share what is left as the unigram has them.
"""

import dataclasses

from flax import struct
import jax
import jax.numpy as jnp

from specjax import errors
from specjax.drafters import drawing

# What a drafter's order may be: without context, or given the newest token.
UNIGRAM, BIGRAM = 1, 2


@struct.dataclass
class Table:
  """Laws of the next token x after token w, on the device.

  q(x | w) = exp(log_prob) where x is a listed successor of w, else
  exp(log_backoff(w) + log_unigram(x)). E is for listed successors; those of
  token w are the count_V[w] from start_V[w] on. No array is [V, V].

  Attributes:
    log_unigram_V: float32.
    log_backoff_V: float32; 0 where a token has no successors.
    start_V: int32.
    count_V: int32.
    successor_E: int32 ids; `longest` entries of padding at the end.
    log_prob_E: float32.
    longest: the most successors of one token, static.
  """

  log_unigram_V: jax.Array
  log_backoff_V: jax.Array
  start_V: jax.Array
  count_V: jax.Array
  successor_E: jax.Array
  log_prob_E: jax.Array
  longest: int = struct.field(pytree_node=False)

  def unigram(self, last_B):
    """logits_BV, the same in every row."""
    shape = last_B.shape + self.log_unigram_V.shape
    return jnp.broadcast_to(self.log_unigram_V, shape)

  def bigram(self, last_B):
    """logits_BV after the newest tokens.

    Ids that the table does not have are followed by the unigram.
    """
    size = self.log_unigram_V.shape[0]
    known_B = (last_B >= 0) & (last_B < size)
    row_B = jnp.where(known_B, last_B, 0)
    backoff_B = jnp.where(known_B, self.log_backoff_V[row_B], 0.0)
    count_B = jnp.where(known_B, self.count_V[row_B], 0)
    index_E = jnp.arange(self.longest)
    place_BE = self.start_V[row_B][:, None] + index_E
    # An index beyond V is dropped; no two are the same.
    token_BE = jnp.where(
        index_E < count_B[:, None], self.successor_E[place_BE], size + index_E
    )
    put = lambda logits_V, token_E, value_E: logits_V.at[token_E].set(
        value_E, mode="drop", unique_indices=True
    )
    return jax.vmap(put)(
        self.log_unigram_V + backoff_B[:, None],
        token_BE,
        self.log_prob_E[place_BE],
    )


@dataclasses.dataclass(frozen=True)
class NgramDrafter(drawing.DrawingChain):
  """Draws gamma tokens, one after another, from a Table.

  The first context is the newest committed token, which at the beginning of
  a text is the decoder's start token.

  Attributes:
    order: UNIGRAM or BIGRAM.
    gamma: tokens a round.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  order: int
  gamma: int

  def __post_init__(self):
    super().__post_init__()
    orders = (UNIGRAM, BIGRAM)
    good = self.order in orders
    errors.require(good, "order", f"give one of {orders}", self.order)

  @property
  def reader(self) -> "NgramDrafter":
    """Gives its laws along a text."""
    return NgramDrafter(self.order, 1)

  def prefill(self, params, context, *, prompt_width, slots):
    """No state."""
    del params, context, prompt_width, slots
    return ()

  def propose(self, params, state, context, key_B, width):
    """gamma lookups in the table `params`."""
    context = self.with_settings(context, width)

    def step(last_B, i):
      logits_BV = self._logits(params, last_B)
      token_B, law = self.draw(logits_BV, context, key_B, i)
      return token_B, (token_B, law)

    _, drawn = jax.lax.scan(step, _newest(context), jnp.arange(self.gamma))
    tokens_BN, law = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), drawn)
    return self.proposal(tokens_BN, law, context), state

  def begin(self, params, state, context):
    """logits_BV behind the newest token."""
    return self._logits(params, _newest(context)), (), state

  def read_nodes(
      self, params, state, context, tokens_BT, place_T, sees_BTT, above_BT
  ):
    """logits_BTV behind some tokens, whatever stands before them."""
    del context, place_T, sees_BTT
    return self._behind(params, tokens_BT), above_BT, state

  def keep_path(self, state, context, path_BG):
    """Nothing: it has no state."""
    del context, path_BG
    return state

  def along(self, params, text_BS, width: int):
    """logits_BTV along a text; place t is of the draft of text_BS[:, t + 1]."""
    del width
    return self._behind(params, text_BS[:, :-1])

  def _behind(self, params, tokens_BT):
    """logits_BTV of the tokens that follow."""
    logits = self._logits(params, tokens_BT.reshape(-1))
    return logits.reshape(*tokens_BT.shape, -1)

  def _logits(self, table, last_B):
    """logits_BV of the next token."""
    if self.order == UNIGRAM:
      return table.unigram(last_B)
    return table.bigram(last_B)


def _newest(context):
  """newest_B: the last committed token."""
  return jnp.take_along_axis(
      context.tokens_BS, context.length_B[:, None] - 1, axis=1
  )[:, 0]
