"""Turns drafts off in rows where they do not pay.

All is counted in target steps: an accepted draft saves one, and a round that
drafted took longer than a plain one by what its drafts and its wider pass
cost.
"""

import dataclasses

from flax import struct
import jax
import jax.numpy as jnp

from specjax import checks
from specjax import errors


@struct.dataclass
class Account:
  """Of one source of drafts, row by row.

  Attributes:
    saved_B: target steps; the older, the less they count.
    spent_B: likewise.
    rest_B: rounds without drafts until the next try.
    pause_B: how long the next rest is.
  """

  saved_B: jax.Array
  spent_B: jax.Array
  rest_B: jax.Array
  pause_B: jax.Array

  @property
  def open_B(self) -> jax.Array:
    """Rows that may draft."""
    return self.rest_B <= 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Switch:
  """When a row stops drafting, and when it tries again.

  A row drafts while it has saved as much as it has spent. Then it rests for
  `pause` rounds, and tries one round; whenever that does not pay, the next
  rest is twice as long. All of it is known before a round's drafts are drawn,
  so it changes no law.

  Attributes:
    credit: target steps that a row has saved when it begins.
    keep: in each round that drafts, this share of what was saved and spent
      before still counts.
    pause: rounds of the first rest.
    longest: rounds of the longest.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  credit: float = 1.0
  keep: float = 0.8
  pause: int = 8
  longest: int = 64

  def __post_init__(self):
    for field, most in (("credit", 1e6), ("keep", 1)):
      value = getattr(self, field)
      errors.require(
          checks.is_number(value) and 0 <= value <= most,
          field,
          f"give a number from 0 to {most:g}",
          value,
      )
    for field, least in (("pause", 1), ("longest", self.pause)):
      value = getattr(self, field)
      errors.require(
          checks.is_whole(value, least, 2**20),
          field,
          f"give a whole number from {least} to {2**20}",
          value,
      )

  def account(self, like_B) -> Account:
    """Of rows that have not begun; `like_B` has their shape."""
    fill = lambda value, dtype: jnp.full(like_B.shape, value, dtype)
    return Account(
        saved_B=fill(self.credit, jnp.float32),
        spent_B=fill(0, jnp.float32),
        rest_B=fill(0, jnp.int32),
        pause_B=fill(self.pause, jnp.int32),
    )

  def settle(
      self, account: Account, active_B, *, drafted_B, saved_B, spent_B
  ) -> Account:
    """The account after a round.

    Args:
      account: before it.
      active_B: rows that had the round.
      drafted_B: rows that drafted, of those.
      saved_B: target steps that it saved them.
      spent_B: target steps that it cost them.
    """
    saved_B = self.keep * account.saved_B + saved_B
    spent_B = self.keep * account.spent_B + spent_B
    stops_B = drafted_B & (saved_B < spent_B)
    pays_B = drafted_B & ~stops_B
    twice_B = jnp.minimum(2 * account.pause_B, self.longest)
    # After a rest nothing counts but what came of the new try.
    carried = lambda new_B, old_B: jnp.where(
        pays_B, new_B, jnp.where(stops_B, 0.0, old_B)
    )
    return Account(
        saved_B=carried(saved_B, account.saved_B),
        spent_B=carried(spent_B, account.spent_B),
        rest_B=jnp.where(
            stops_B,
            account.pause_B,
            jnp.maximum(account.rest_B - active_B, 0),
        ),
        pause_B=jnp.where(
            stops_B, twice_B, jnp.where(pays_B, self.pause, account.pause_B)
        ),
    )
