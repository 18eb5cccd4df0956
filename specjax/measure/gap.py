"""From the predicted speed-up to the measured one, factor by factor.

    measured = predicted (Thm 3.8) * tokens * verify * overhead * idle_rows

Each factor is 1 where the theorem's assumption holds.
"""

import dataclasses

from specjax import theory
from specjax.measure import steps as steps_lib
from specjax.measure import timing


@dataclasses.dataclass(frozen=True)
class Gap:
  """The factors.

  Attributes:
    tokens: tokens a round, measured over Eq. 1: positions are not i.i.d.,
      and the last round of a text is cut.
    verify: (gamma c + 1) / (gamma c + v): the verify step is not free.
    overhead: what the loops add to their steps: the share of steps in a
      speculative round, over that in a plain one.
    idle_rows: share of rows at work in speculative passes over that in plain
      ones; 1 at batch 1.
  """

  tokens: float
  verify: float
  overhead: float
  idle_rows: float

  @property
  def product(self) -> float:
    """Measured over predicted."""
    return self.tokens * self.verify * self.overhead * self.idle_rows


def decompose(
    alpha: float,
    gamma: int,
    steps: steps_lib.Steps,
    plain: timing.Counts,
    speculative: timing.Counts,
    plain_seconds: float,
    speculative_seconds: float,
) -> Gap:
  """Takes the gap apart.

  Args:
    alpha: over the target's own plain output.
    gamma: drafted tokens a round; 0 without drafts.
    steps: seconds of the steps, timed on their own.
    plain: what was done in `plain_seconds`.
    speculative: what was done in `speculative_seconds`.
    plain_seconds: decoding time after the prefill.
    speculative_seconds: likewise.
  """
  token = plain_seconds / plain.passes
  round_ = speculative_seconds / speculative.passes
  drafts = gamma * steps.c
  return Gap(
      tokens=speculative.tokens_per_round
      / theory.expected_tokens(alpha, gamma),
      verify=(drafts + 1) / (drafts + steps.verify_cost),
      overhead=(gamma * steps.draft + steps.verify)
      / round_
      * (token / steps.target),
      idle_rows=speculative.busy / plain.busy,
  )
