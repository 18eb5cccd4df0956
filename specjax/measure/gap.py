"""From the predicted speed-up to the measured one, factor by factor.

    measured = predicted (Thm 3.8)
        * sample * ends * tokens * verify * overhead * idle_rows

Each factor is 1 where the theorem's assumption holds. And what it would take to
be as fast as plain decoding.
"""

import collections
import dataclasses
import math
from typing import Sequence

from specjax import theory
from specjax.measure import steps as steps_lib
from specjax.measure import timing


@dataclasses.dataclass(frozen=True)
class Gap:
  """The factors.

  Attributes:
    sample: Eq. 1 at the alpha of the texts that are timed, over that at the
      alpha of all.
    ends: tokens a round on texts of a given length, were acceptance i.i.d.,
      over Eq. 1: a text's last round gives more than it has left.
    tokens: tokens a round, measured over those: acceptance is not i.i.d.
    verify: (gamma c + 1) / (gamma c + v): the verify step is not free.
    overhead: what the loops add to their steps: the share of steps in a
      speculative round, over that in a plain one.
    idle_rows: share of rows at work in speculative passes over that in plain
      ones; 1 at batch 1.
  """

  sample: float
  ends: float
  tokens: float
  verify: float
  overhead: float
  idle_rows: float

  @property
  def product(self) -> float:
    """Measured over predicted."""
    return math.prod(dataclasses.astuple(self))


def decompose(
    alpha: float,
    timed_alpha: float,
    lengths: Sequence[int],
    gamma: int,
    steps: steps_lib.Steps,
    plain: timing.Counts,
    speculative: timing.Counts,
    plain_seconds: float,
    speculative_seconds: float,
) -> Gap:
  """Takes the gap apart.

  Args:
    alpha: over the target's own plain output, of all texts.
    timed_alpha: likewise, of those that are timed.
    lengths: tokens of each of those, with drafts.
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
  endless = theory.expected_tokens(timed_alpha, gamma)
  # Texts of one length, at one rate, take as many rounds.
  rounds = sum(
      count * theory.expected_rounds(timed_alpha, gamma, length)
      for length, count in collections.Counter(lengths).items()
  )
  independent = sum(lengths) / rounds
  return Gap(
      sample=endless / theory.expected_tokens(alpha, gamma),
      ends=independent / endless,
      tokens=speculative.tokens_per_round / independent,
      verify=(drafts + 1) / (drafts + steps.verify_cost),
      overhead=(gamma * steps.draft + steps.verify)
      / round_
      * (token / steps.target),
      idle_rows=speculative.busy / plain.busy,
  )


@dataclasses.dataclass(frozen=True)
class BreakEven:
  """What one of three would be at a speed-up of 1, the others as they are.

  Beyond it drafts slow decoding down. None where the best there is, all drafts
  accepted or a step at no cost beyond one token's, would not do.

  Attributes:
    tokens: a round; gamma + 1 at most.
    c: 0 at least.
    verify_cost: v, 1 at least.
    lost: the same three names -> the factor by which the best there is would
      raise the speed-up.
  """

  tokens: float | None
  c: float | None
  verify_cost: float | None
  lost: dict[str, float]


def break_even(
    speedup: float, tokens: float, gamma: int, steps: steps_lib.Steps
) -> BreakEven:
  """From what was measured: speed-up ~ tokens / (gamma c + v).

  >>> steps = steps_lib.Steps(draft=0.5, target=1.0, verify=2.0)
  >>> made = break_even(0.6, 1.8, 2, steps)
  >>> made.tokens, made.c, made.verify_cost
  (3.0, None, None)
  >>> made.lost["verify_cost"]
  1.5

  Args:
    speedup: over plain decoding, as it was measured.
    tokens: a round.
    gamma: drafted tokens a round, 1 or more; of a tree, its depth.
    steps: seconds of the steps.
  """
  v, drafts = steps.verify_cost, gamma * steps.c
  # Loops and idle rows are in `speedup`, and stay as they are.
  bearable = speedup * (drafts + v)
  wanted = {
      "tokens": tokens / speedup,
      "c": (bearable - v) / gamma,
      "verify_cost": bearable - drafts,
  }
  most = gamma + 1
  return BreakEven(
      tokens=wanted["tokens"] if wanted["tokens"] <= most else None,
      c=wanted["c"] if wanted["c"] >= 0 else None,
      verify_cost=wanted["verify_cost"] if wanted["verify_cost"] >= 1 else None,
      lost={
          "tokens": most / tokens,
          "c": (drafts + v) / v,
          "verify_cost": (drafts + v) / (drafts + 1),
      },
  )
