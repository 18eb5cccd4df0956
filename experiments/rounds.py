"""Does a round add up? Its parts, timed apart, against a round of the loop.

    python -m experiments.rounds

Drafts and verify step are timed each alone and then together: what that takes
more is the price of sharing caches. The rest is what a whole round adds:
judging, emitting, counting. Their sum is held against a round of the loop, in
a text of 24 tokens or more, and what a round takes beyond drafts and verify
step is the loop's overhead. A call of the compiled loop costs something before
its first round, too: that is timed by calls that have none, and told apart.
Every draft greedily, and each task's first one at temperature 1.

Writes results/rounds.json, .md and .png. About four minutes on two CPU cores.
"""

import dataclasses
import functools
import statistics
import sys
import time
from typing import Any, Sequence

import jax
import jax.numpy as jnp

from experiments import pairs
from experiments import results
from specjax import errors
from specjax import options
from specjax import pictures
from specjax import prepare
from specjax.measure import environment
from specjax.measure import steps as steps_lib
from specjax.measure import tables
from specjax.measure import timing

NAME = "rounds"
# What the sum may be off the round.
BOUND = 0.05
# Of a text: the rows that speed is asked of.
_TOKENS = 24
_PARTS = {
    "drafts": "drafts, alone",
    "verify": "verify step, alone",
    "sharing": "both together: what it takes more",
    "rest": "judging, emitting, counting",
}


def measure(pair: pairs.Pair, temperature: float = 0) -> dict[str, Any]:
  """Milliseconds of the parts of a round, of their sum, and of the round.

  Raises:
    errors.UserError: no text is long enough.
  """
  setup = long_texts(pairs.setup(pair.at(temperature)))
  side, measured = setup.speculative, setup.config.measure
  groups = setup.groups(len(setup.requests))
  # Steps and rounds of one shape: of the text whose width is the middle one.
  batch = groups[len(groups) // 2].batch
  batches = [batch] * measured.timed_rows
  state = steps_lib.middle(side, batch)
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
  repeats = measured.repeats
  with prepare.bar("round", repeats * len(batches)) as bar:
    turn = steps_lib.Turns(runs, measured.steps)
    call = EmptyCall(side, batch)

    def beside():
      turn()
      call()
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
    calls = call.seconds[mine]
    round_ = (decoding - sum(calls)) / passes
    found.append(parts(took, round_) | {"call": statistics.mean(calls)})
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


def long_texts(setup: prepare.Setup) -> prepare.Setup:
  """The same with those texts only that come out long enough with drafts.

  Raises:
    errors.UserError: there are none.
  """
  found = setup.output
  if not setup.config.greedy:  # Another sample than plain decoding's.
    with prepare.bar("texts", len(setup.requests)) as bar:
      found = setup.decode(setup.speculative, bar.update)
  lengths = [len(row.tokens) for row in found]
  chosen = [i for i, length in enumerate(lengths) if length >= _TOKENS]
  if not chosen:
    raise errors.UserError(
        f"--rows: none of {len(lengths)} texts has {_TOKENS} tokens (the"
        f" longest has {max(lengths)}); take more"
    )
  of = lambda values: [values[i] for i in chosen]
  return dataclasses.replace(
      setup,
      examples=of(setup.examples),
      requests=of(setup.requests),
      output=of(setup.output),
  )


class EmptyCall:
  """Times calls of a side's loop whose rows have all ended.

  Attributes:
    seconds: of each call.
  """

  def __init__(self, side, batch):
    self._side, self._batch = side, batch
    self.seconds: list[float] = []

  def __call__(self) -> None:
    # As a text's own call: behind its prefill, with what that left in caches.
    state = self._side.prefill(self._batch)
    state = state.replace(done_B=jnp.ones_like(state.done_B))
    jax.block_until_ready(state)
    began = time.perf_counter()
    jax.block_until_ready(self._side.run(state))
    self.seconds.append(time.perf_counter() - began)


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
  panel.set_ylim(top=1.4 * max(whole))  # The legend's place.
  return figure


def markdown(made: dict[str, Any]) -> str:
  """The table for people."""
  lines, number = made["lines"], tables.number
  shown = (*_PARTS, "sum", "round")
  cells = [
      [
          line["task"],
          line["draft"],
          line["temperature"],
          line["gamma"],
          *(number(line["milliseconds"][key], 3) for key in shown),
          f"{ratio(line):.3f} ({line['sum_over_round'][0]:.3f} to"
          f" {line['sum_over_round'][-1]:.3f})",
          f"{line['overhead']:.1%}",
          number(line["milliseconds"]["call"], 3),
      ]
      for line in lines
  ]
  good = "" if add_up(lines) else "NOT "
  return "\n".join([
      "# Does a round add up?",
      "",
      f"{environment.headline(made)}, {made['dtype']}, batch 1, a text of"
      f" {_TOKENS} tokens or more: of those there are the one of middle width.",
      "",
      "Milliseconds, medians. Drafts and verify step: each timed alone."
      " Sharing: what both take more together; c has it, too. Rest: judging,"
      f" emitting, counting. Their sum is {good}within {BOUND:.0%} of a round"
      " of the loop in every line. The loop's overhead is what a round takes"
      " beyond its drafts and verify step, timed together. A call of the loop"
      " costs a text the last column's time besides its rounds.",
      "",
      *results.table(
          "task | draft | T | gamma | drafts | verify | sharing |"
          " rest | sum | round | sum over round | loop's overhead | a call",
          cells,
      ),
      "",
      f"![]({NAME}.png)",
  ]) + "\n"


def _parser() -> options.Parser:
  return pairs.parser(NAME, __doc__, rows=200, timed_rows=8)


def work(argv: Sequence[str]) -> None:
  """Measures, prints and writes."""
  _, script, chosen = pairs.start(_parser(), NAME, argv)
  taken = [(pair, 0) for pair in chosen]
  taken += [(of_task[0], 1) for of_task in pairs.by_task(chosen).values()]
  makers = {
      f"{pair.task} {pair.draft} {temperature}": functools.partial(
          measure, pair, temperature
      )
      for pair, temperature in taken
  }
  made = script.cells(makers)
  script.write(
      {
          "dtype": chosen[0].config.decode.dtype,
          "lines": [made[key] for key in makers],
      },
      markdown,
      {NAME: lambda made: draw(made["lines"])},
  )


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door(NAME, _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
