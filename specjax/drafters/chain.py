"""What drafters share that take gamma tokens, one after another."""

from typing import ClassVar

from specjax import checks
from specjax import errors

# The least and the most tokens of a round.
GAMMAS = (1, 1024)


class Chain:
  """A chain of gamma tokens; a drafter adds the field, and where they are from.

  Raises:
    errors.UserError: gamma is out of its range.
  """

  gamma: int
  taps: ClassVar[tuple[int, ...]] = ()
  learns = False
  trees = False

  def __post_init__(self):
    low, high = GAMMAS
    errors.require(
        checks.is_whole(self.gamma, low, high),
        "gamma",
        f"give a whole number from {low} to {high}, or for plain decoding"
        " take no drafts",
        self.gamma,
    )

  @property
  def nodes(self) -> int:
    """N = gamma."""
    return self.gamma

  @property
  def depth(self) -> int:
    """G = gamma."""
    return self.gamma

  @property
  def whole(self):
    """The same drafts, but gamma of them in every round."""
    return self

  @property
  def widths(self) -> tuple[int, ...]:
    """gamma drafts and the newest token, in every round."""
    return (self.gamma + 1,)

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """Nothing: the next round reads what was emitted."""
    del params, tokens_BT, features, count_B, context
    return state
