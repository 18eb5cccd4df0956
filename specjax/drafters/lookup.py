"""Prompt lookup: drafts are copied from where the text was alike before.

A. Saxena's prompt lookup decoding (2023), with shorter n-grams where the
longest does not match, as vLLM's n-gram speculator has it. Summaries and edits
copy long stretches of what they were given.
"""

import dataclasses

import jax.numpy as jnp

from specjax import checks
from specjax import errors
from specjax.drafters import copies

# The longest n-gram that may be asked for.
LONGEST = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookupDrafter(copies.Copies):
  """Drafts what stood after the newest n-gram where it stood before.

  The longest n-gram counts that occurs again in prompt and output, and where
  asked in an encoder's source, which stands before them. Matches may overlap
  the newest n-gram. What follows a match may be shorter than gamma; after a
  match at a text's very end, or without a match, nothing is drafted.

  Attributes:
    gamma: tokens a round at most.
    min_n: of the shortest n-gram that may match.
    max_n: of the longest that is tried.
    latest: of several matches take the last one, else the first.
    source: look into an encoder's source, too.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  gamma: int
  min_n: int = 1
  max_n: int = 3
  latest: bool = False
  source: bool = True

  def __post_init__(self):
    super().__post_init__()
    for field, least in (("min_n", 1), ("max_n", self.min_n)):
      value = getattr(self, field)
      errors.require(
          checks.is_whole(value, least, LONGEST),
          field,
          f"give a whole number from {least} to {LONGEST}",
          value,
      )
    for field in ("latest", "source"):
      value = getattr(self, field)
      errors.require(
          isinstance(value, bool), field, "give True or False", value
      )

  def match(self, params, state, context) -> copies.Match:
    """What follows the chosen match; the longer it is, the more trust."""
    del params, state
    text_BS, newest_B = copies.own_text(context, self.source)
    matched_BS = self._matched(text_BS, newest_B)
    best_B1 = jnp.max(matched_BS, axis=1, keepdims=True)
    good_BS = (matched_BS == best_B1) & (best_B1 >= self.min_n)
    index_S = jnp.arange(text_BS.shape[1])
    if self.latest:
      place_B = jnp.max(jnp.where(good_BS, index_S, 0), axis=1)
    else:
      place_B = jnp.min(
          jnp.where(good_BS, index_S, index_S.size - 1), axis=1
      )
    tokens_BN, count_B = copies.continuation(text_BS, place_B, self.gamma)
    best_B = best_B1[:, 0]
    return copies.Match(
        tokens_BN=tokens_BN,
        count_B=jnp.where(best_B >= self.min_n, count_B, 0),
        trust_B=jnp.clip(best_B, 1, 3) - 1,
    )

  def _matched(self, text_BS, newest_B):
    """How many tokens up to each place are the newest ones, up to max_n."""
    columns = text_BS.shape[1]
    run_BS = jnp.arange(columns) < newest_B[:, None]
    matched_BS = jnp.zeros_like(text_BS)
    for n in range(self.max_n):
      back_BS = jnp.pad(
          text_BS, ((0, 0), (n, 0)), constant_values=copies.NOTHING
      )[:, :columns]
      place_B1 = newest_B[:, None] - n
      token_B1 = jnp.take_along_axis(
          text_BS, jnp.maximum(place_B1, 0), axis=1
      )
      there_B1 = (place_B1 >= 0) & (token_B1 != copies.NOTHING)
      run_BS &= there_B1 & (back_BS == token_B1)
      matched_BS += run_BS
    return matched_BS
