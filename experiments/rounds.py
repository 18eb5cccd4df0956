"""Does a round add up? Its parts, timed apart, against a round of the loop.

Drafts and verify step are timed each alone and then together: what that takes
more is the price of sharing caches. The rest is what a whole round adds.
"""

import functools
import statistics
from typing import Any, Sequence

import jax
import jax.numpy as jnp

from experiments import pairs
from specjax import pictures
from specjax import prepare
from specjax.measure import steps as steps_lib
from specjax.measure import timing

# What the sum may be off the round.
BOUND = 0.05
_PARTS = {
    "drafts": "drafts, alone",
    "verify": "verify step, alone",
    "sharing": "both together: what it takes more",
    "rest": "judging, emitting, counting",
}


def measure(pair: pairs.Pair, temperature: float = 0) -> dict[str, Any]:
  """Milliseconds of the parts of a round, of their sum, and of the round."""
  setup = pairs.setup(pair.at(temperature))
  side, options = setup.speculative, setup.config.measure
  batches = [group.batch for group in setup.groups(options.timed_rows)]
  state = steps_lib.middle(side, batches[len(batches) // 2])
  loop, gamma = side.loop, setup.drafts.drafter.depth
  of_a_round = functools.partial(
      steps_lib.round_steps,
      loop,
      side.target_params,
      side.drafter_params,
      state,
  )
  runs = {
      "drafts": functools.partial(drafts, loop, side.drafter_params, state),
      "verify": functools.partial(
          steps_lib.target_steps,
          loop.target,
          side.target_params,
          state.replace(drafter=()),
          gamma + 1,
      ),
      "both": functools.partial(of_a_round, False),
      "whole": functools.partial(of_a_round, True),
  }
  # A sum of four times has the noise of all: more of them than elsewhere.
  repeats = 2 * options.repeats
  with prepare.bar("round", repeats * len(batches)) as bar:
    turn = steps_lib.Turns(runs, options.steps)

    def beside():
      turn()
      bar.update()

    times = timing.interleave(
        {timing.SPECULATIVE: side},
        batches,
        repeats=repeats,
        warmup=1,
        beside=beside,
    )
  passes = times.counts[timing.SPECULATIVE].passes
  found = []
  for i, decoding in enumerate(times.decode[timing.SPECULATIVE]):
    # The turns of this repeat: each beside one of its batches.
    mine = slice(i * len(batches), (i + 1) * len(batches))
    took = {k: statistics.mean(v[mine]) for k, v in turn.seconds.items()}
    found.append(parts(took, decoding / passes))
  return {
      "task": pair.task,
      "draft": pair.draft,
      "temperature": temperature,
      "gamma": gamma,
      "milliseconds": {
          key: 1e3 * statistics.median(one[key] for one in found)
          for key in found[0]
      },
      "sum_over_round": sorted(one["sum"] / one["round"] for one in found),
      "overhead": statistics.median(
          1 - (one["sum"] - one["rest"]) / one["round"] for one in found
      ),
  }


@functools.partial(jax.jit, static_argnums=0)
def drafts(loop, drafter_params, state, count):
  """`count` proposals with nothing between them; returns the tokens."""
  row_B = jnp.arange(state.length_B.shape[0])

  def step(i, carry):
    drafter, tokens_BS = carry
    now = state.replace(
        drafter=drafter, tokens_BS=tokens_BS, length_B=state.length_B + i % 2
    )
    proposal, drafter = loop.propose(drafter_params, now)
    # The newest token becomes a drafted one: the next step waits for it.
    newest_B = proposal.tokens_BN[:, -1]
    return drafter, tokens_BS.at[row_B, now.length_B - 1].set(newest_B)

  start = (state.drafter, state.tokens_BS)
  return jax.lax.fori_loop(0, count, step, start)[1]


def parts(took: dict[str, float], round_: float) -> dict[str, float]:
  """What a round is made of.

  Args:
    took: seconds of gamma draft steps, of a verify step, of both, and of a
      whole round, as steps.
    round_: of a round of the loop.
  """
  made = {
      "drafts": took["drafts"],
      "verify": took["verify"],
      "sharing": took["both"] - took["drafts"] - took["verify"],
      "rest": took["whole"] - took["both"],
  }
  return made | {"sum": sum(made.values()), "round": round_}


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
  panel.set_xticks(
      places,
      [f"{x['task']}\n{x['draft']}\nT = {x['temperature']}" for x in lines],
  )
  panel.set_ylabel("milliseconds")
  return figure
