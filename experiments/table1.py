"""Table 1 of the paper: operations and speed-up of an alpha and a gamma.

    python -m experiments.table1
    python -m experiments.table1 --config configs/ende_t5small.py

The paper's table is arithmetic, with drafts for nothing (c and c-hat 0) and a
verify step that costs a target step (v 1). Beside it what the loop makes of
such drafts: simulated ones, right with probability alpha, over the target's own
greedy output of the first config's texts. Tokens a round are counted in rounds
that the end of a text could not cut, operations are the gamma + 1 tokens a
round that the target reads over those, and the speed-up is timed: what is left
of it tells this device's v, and the loop's own time.

Writes results/table1.json, .md and .png. About three minutes on two CPU cores.
"""

import functools
import sys
from typing import Sequence

from experiments import intervals
from experiments import pairs
from experiments import paper
from experiments import results
from specjax import experiment
from specjax import options
from specjax import outputs
from specjax import pictures
from specjax import prepare
from specjax import theory
from specjax.measure import environment
from specjax.measure import tables

NAME = "table1"


def run(pair: pairs.Pair, row: dict) -> dict:
  """One line of the table: the paper's row, theory, and what was measured."""
  alpha, gamma = row["alpha"], row["gamma"]
  config = pair.at(0, kind="simulated", alpha=alpha, gamma=gamma)
  model = pairs.target(config.target.checkpoint, config.decode.dtype)
  setup = prepare.prepare(config, model)
  report, _ = experiment.run(setup)
  rows = experiment.traces(setup, len(setup.requests))
  tokens = whole_rounds(rows, gamma)
  return {
      "paper": row,
      "theory": {
          "tokens": theory.expected_tokens(alpha, gamma),
          "operations": theory.operations(alpha, gamma),
          "speedup": theory.speedup(alpha, gamma, 0),
      },
      "tokens": tokens.mean,
      "tokens_half_width": tokens.half_width,
      "operations": (gamma + 1) / tokens.mean,
      "c": report["c"],
      "verify_cost": report["verify_cost"],
      "with_verify_cost": report["predicted_speedup"]["with_verify_cost"],
      "measured_speedup": report["measured_speedup"],
  }


def whole_rounds(rows: Sequence[outputs.Result], gamma: int) -> intervals.Share:
  """Tokens a round, of the rounds that no end of a text could cut.

  Whether a round counts is known when it begins, so its tokens are those of
  any round.

  Args:
    rows: with their traces.
    gamma: drafted tokens a round.
  """
  tokens, rounds = [], []
  for row in rows:
    begun, counted, count = 0, 0, 0
    for made in row.trace:
      if begun + gamma + 1 > len(row.tokens):
        break
      emitted = made.accepted + (made.next is not None)
      begun, counted, count = begun + emitted, counted + emitted, count + 1
    tokens.append(counted)
    rounds.append(count)
  return intervals.Share(tokens, rounds)


def _cells(line: dict) -> list[str]:
  """One row of the table."""
  theirs, ours = line["paper"], line["theory"]
  return [
      theirs["alpha"],
      theirs["gamma"],
      f"{theirs['operations']:.2f} / {ours['operations']:.2f} /"
      f" {line['operations']:.2f}",
      f"{ours['tokens']:.2f} / {line['tokens']:.2f} +-"
      f" {tables.number(line['tokens_half_width'])}",
      f"{theirs['speedup']:.2f} / {ours['speedup']:.2f}",
      f"{line['verify_cost']:.2f}",
      f"{line['with_verify_cost']:.2f}",
      pairs.spread(line["measured_speedup"]),
  ]


def markdown(made: dict) -> str:
  """The table for people."""
  head = (
      "alpha | gamma | operations: paper / theory / counted | tokens a round:"
      " Eq. 1 / counted | speed-up at c 0, v 1: paper / theory | v here |"
      " Thm 3.8 with v | measured"
  )
  return "\n".join([
      "# Table 1: operations and speed-up",
      "",
      f"{environment.headline(made)}, {made['dtype']}, batch {made['batch']}.",
      "",
      "Counted and measured with simulated drafts over"
      f" {made['target']}'s greedy output of {made['rows']} texts; +- is a 95 %"
      " interval over texts. With c-hat 1 the first row's operations would be"
      f" {theory.operations(0.6, 2, 1):.2f}.",
      "",
      *results.table(head, map(_cells, made["lines"])),
      "",
      f"![]({NAME}.png)",
  ]) + "\n"


def draw(made: dict):
  """Curves of the theory over gamma; the paper's points and ours."""
  figure, (speed, cost) = pictures.panels(2, columns=2)
  gammas = range(1, 13)
  alphas = sorted({line["paper"]["alpha"] for line in made["lines"]})
  for i, alpha in enumerate(alphas):
    of_alpha = [x for x in made["lines"] if x["paper"]["alpha"] == alpha]
    places = [line["paper"]["gamma"] for line in of_alpha]
    colour = f"C{i}"
    for panel, key, curve in (
        (speed, "speedup", lambda gamma: theory.expected_tokens(alpha, gamma)),
        (cost, "operations", lambda gamma: theory.operations(alpha, gamma)),
    ):
      panel.plot(
          gammas, list(map(curve, gammas)), color=colour, label=f"alpha {alpha}"
      )
      printed = [line["paper"][key] for line in of_alpha]
      panel.plot(places, printed, "o", color=colour, fillstyle="none", ms=9)
    counted = [line["tokens"] for line in of_alpha]
    ends = [line["tokens_half_width"] or 0.0 for line in of_alpha]
    speed.errorbar(places, counted, ends, fmt="x", color=colour, capsize=3)
    cost.plot(places, [x["operations"] for x in of_alpha], "x", color=colour)
  for panel in (speed, cost):
    panel.plot([], [], "o", color="grey", fillstyle="none", label="paper")
    panel.plot([], [], "x", color="grey", label="counted here")
    panel.set_xlabel("gamma, drafted tokens a round")
  speed.set_ylabel("tokens a round = speed-up at c 0, v 1")
  cost.set_ylabel("operations a token, over plain decoding")
  return figure


def _parser() -> options.Parser:
  return pairs.parser(NAME, __doc__, rows=40, timed_rows=8)


def work(argv: Sequence[str]) -> None:
  """Runs, prints and writes."""
  _, script, [pair, *_] = pairs.start(_parser(), NAME, argv, pairs.CONFIGS[:1])
  lines = script.cells({
      f"alpha {row['alpha']} gamma {row['gamma']}": functools.partial(
          run, pair, row
      )
      for row in paper.rows("table1")
  })
  config = pair.config
  script.write(
      {
          "dtype": config.decode.dtype,
          "batch": config.decode.batch,
          "target": config.target.checkpoint,
          "rows": config.data.rows,
          "lines": list(lines.values()),
      },
      markdown,
      {NAME: draw},
  )


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door(NAME, _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
