"""Does a round add up? Its parts, timed apart, against a round of the loop.

Drafts and verify step are timed each on its own, then by turns: what that takes
more is the price of sharing caches. The loop's own time is that of a round with
drafts that cost nothing, less the verify step.
"""

import functools
import statistics
from typing import Any, Sequence

from experiments import pairs
from specjax import pictures
from specjax import pipeline
from specjax import prepare
from specjax.measure import steps as steps_lib
from specjax.measure import timing

# What the sum may be off the round.
BOUND = 0.05
_SIMULATED = "simulated"
_PARTS = {
    "drafts": "drafts, alone",
    "verify": "verify step, alone",
    "sharing": "both by turns: what it takes more",
    "loop": "the loop, with drafts that cost nothing",
}


def measure(pair: pairs.Pair) -> dict[str, Any]:
  """Milliseconds of the parts of a round, of their sum, and of the round."""
  setup = pairs.setup(pair.at(0))
  gamma = setup.config.draft.gamma
  tokens = {
      request.id: result.tokens
      for request, result in zip(setup.requests, setup.output)
  }
  # How often they are right does not matter: a round is a round.
  free = setup.side(
      pipeline.draft_simulated(setup.target, tokens, gamma, alpha=0.5)
  )
  side, options = setup.speculative, setup.config.measure
  batches = [group.batch for group in setup.groups(options.timed_rows)]
  state = steps_lib.middle(side, batches[len(batches) // 2])
  target, drafter = side.loop.target, side.loop.drafter
  runs = {
      "verify": functools.partial(
          steps_lib.target_steps,
          target,
          side.target_params,
          state.replace(drafter=()),
          gamma + 1,
      ),
      "drafts": functools.partial(
          steps_lib.draft_steps, drafter, side.drafter_params, state
      ),
      "both": functools.partial(
          steps_lib.both_steps,
          drafter,
          target,
          side.drafter_params,
          side.target_params,
          state,
      ),
  }
  sides = {timing.SPECULATIVE: side, _SIMULATED: free}
  found: list[dict[str, float]] = []
  # A sum of four times has the noise of all: more of them than elsewhere.
  repeats = 2 * options.repeats
  with prepare.bar("round", repeats) as bar:
    for _ in range(repeats):
      seconds = steps_lib.interleave(runs, options.steps, 1)
      times = timing.interleave(sides, batches, repeats=1, warmup=1)
      for name in sides:
        seconds[name] = times.decode[name][0] / times.counts[name].passes
      found.append(parts(seconds))
      bar.update()
  return {
      "draft": pair.draft,
      "gamma": gamma,
      "milliseconds": {
          key: 1e3 * statistics.median(one[key] for one in found)
          for key in found[0]
      },
      "sum_over_round": sorted(one["sum"] / one["round"] for one in found),
  }


def parts(seconds: dict[str, float]) -> dict[str, float]:
  """What a round is made of.

  Args:
    seconds: of gamma draft steps, a verify step, and both by turns; of a round
      of the loop with the drafts and with simulated ones.
  """
  made = {
      "drafts": seconds["drafts"],
      "verify": seconds["verify"],
      "sharing": seconds["both"] - seconds["drafts"] - seconds["verify"],
      "loop": seconds[_SIMULATED] - seconds["verify"],
  }
  return made | {
      "sum": sum(made.values()), "round": seconds[timing.SPECULATIVE]
  }


def ratio(line: dict[str, Any]) -> float:
  """The sum of the parts over the round, the median of the repeats."""
  return statistics.median(line["sum_over_round"])


def add_up(lines: Sequence[dict[str, Any]]) -> bool:
  """Whether the parts come to the round in every line."""
  return all(abs(ratio(line) - 1) <= BOUND for line in lines)


def draw(lines: Sequence[dict[str, Any]]):
  """Stacked parts beside the round."""
  figure, [panel] = pictures.panels(1)
  places = range(len(lines))
  left, right = ([x + d for x in places] for d in (-0.2, 0.2))
  bottom = [0.0] * len(lines)
  for key, label in _PARTS.items():
    values = [line["milliseconds"][key] for line in lines]
    panel.bar(left, values, 0.38, bottom=bottom, label=label)
    bottom = [a + b for a, b in zip(bottom, values)]
  whole = [line["milliseconds"]["round"] for line in lines]
  panel.bar(right, whole, 0.38, color="saddlebrown", label="a round, whole")
  panel.set_xticks(places, [line["draft"] for line in lines])
  panel.set_ylabel("milliseconds")
  return figure
