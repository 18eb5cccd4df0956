"""Tables 2 and 4 of the paper: expected and measured speed-up of its pairs.

    python -m experiments.table2_and_4
    python -m experiments.table2_and_4 --config.decode.dtype=float32
    python -m experiments.table2_and_4 --config configs/ende_t5small.py

Each pair at temperature 0 and 1, at the paper's gamma and at the best one: that
of the largest E[tokens] / (gamma c(gamma) + v(gamma)) among gamma 1 to 8, with
alpha, c and v as measured here before. Both are then decoded and timed.

Writes results/table2_and_4.json, .md and .png. About twenty minutes on two CPU
cores.
"""

import functools
import sys
from typing import Any, Sequence

from experiments import pairs
from experiments import paper
from experiments import plots
from experiments import results
from specjax import options
from specjax import pictures
from specjax.measure import environment
from specjax.measure import tables

NAME = "table2_and_4"
_PAPER, _BEST = "paper", "best"
_number = tables.number


def published(pair: pairs.Pair, temperature: int) -> dict[str, Any]:
  """The paper's row of a pair; {} where it has none."""
  return paper.find(
      NAME,
      task=pair.task,
      draft=f"t5-{pair.draft}",
      temperature=temperature,
  )


def run(script, pair: pairs.Pair, temperature: int, choice: str) -> dict:
  """One line of the table.

  Args:
    script: whose cells hold the costs, and the paper's gamma before the best.
    pair: of the line.
    temperature: of the line.
    choice: which gamma.
  """
  theirs = published(pair, temperature)
  gamma = theirs.get("gamma", pair.config.draft.gamma)
  if choice == _BEST:
    costs = script.cell(f"{pair.task} {temperature} costs")
    before = script.cell(f"{pair} {temperature} {_PAPER}")
    gamma, _ = pairs.best_gamma(
        costs["alpha"][pair.draft],
        costs["c_by_gamma"][pair.draft],
        costs["verify_cost"],
    )
    if gamma == before["gamma"]:
      return before
  return {
      "task": pair.task,
      "draft": pair.draft,
      "temperature": temperature,
      "paper": theirs,
  } | pairs.measured(pair.at(temperature, gamma=gamma))


def _cells(line: dict) -> list[str]:
  """One row of the table."""
  theirs, predicted = line["paper"], line["predicted_speedup"]
  both = lambda key, digits, ours: (
      f"{_number(theirs.get(key), digits)} / {_number(ours, digits)}"
  )
  quality, count = line["quality"], line["mismatched_rows"]
  return [
      line["task"],
      line["draft"],
      line["temperature"],
      both("gamma", 0, line["gamma"]),
      both("alpha", 2, line["alpha"]),
      both("c", 3, line["c"]),
      _number(line["verify_cost"]),
      _number(line["block_efficiency"]),
      both("expected_speedup", 1, predicted["theorem_3_8"]),
      _number(predicted["with_verify_cost"]),
      f"{_number(theirs.get('measured_speedup'), 1)} /"
      f" {pairs.spread(line['measured_speedup'])}",
      " x ".join(map(_number, line["gap"].values())),
      _number(count, 0),
      f"{_number(quality['plain'], 1)} / {_number(quality['speculative'], 1)}",
  ]


_HEAD = (
    "task | draft | T | gamma | alpha | c | v | tokens a pass | Thm 3.8 |"
    " with v | measured | gap | rows that differ | quality, plain /"
    " speculative"
)


def markdown(made: dict) -> str:
  """The tables for people."""
  at, best = made["lines"][_PAPER], made["lines"][_BEST]
  first = at[0]
  return "\n".join([
      "# Tables 2 and 4: expected and measured speed-up",
      "",
      f"{environment.headline(made)}, {first['dtype']}, batch"
      f" {first['batch']}.",
      "",
      "Figures with a slash: the paper's (T5-XXL on one TPU-v4) / ours. Gap:"
      " the factors from Theorem 3.8 to the measured speed-up, sample x ends x"
      " tokens x verify x overhead x idle rows. Of a measured speed-up both"
      f" ends of {len(first['speedups'])} repeats are given.{pairs.rising(at)}",
      "",
      "At the paper's gamma:",
      "",
      *results.table(_HEAD, map(_cells, at)),
      "",
      "At the best gamma by the alpha, c and v measured here:",
      "",
      *results.table(_HEAD, map(_cells, best)),
      "",
      f"![]({NAME}.png)",
  ]) + "\n"


def draw(made: dict):
  """A panel a task and temperature: expected and measured, ours and theirs."""
  at, best = made["lines"][_PAPER], made["lines"][_BEST]
  keys = dict.fromkeys((line["task"], line["temperature"]) for line in at)
  figure, panels = pictures.panels(len(keys), columns=2)
  for panel, key in zip(panels, keys):
    rows = [
        pair
        for pair in zip(at, best)
        if (pair[0]["task"], pair[0]["temperature"]) == key
    ]
    _bars(panel, rows)
    panel.set_title(f"{key[0]}, temperature {key[1]}")
  return figure


def _bars(panel, rows: Sequence[tuple[dict, dict]]) -> None:
  """Each draft's bars side by side; whiskers are the repeats."""
  none = float("nan")
  theirs = lambda key: [at["paper"].get(key, none) for at, _ in rows]
  expected = [
      best["predicted_speedup"]["with_verify_cost"] for _, best in rows
  ]
  width = 0.18

  def bar(i, values, label, colour, **options):
    places = [x + (i - 2) * width for x in range(len(rows))]
    panel.bar(places, values, width, label=label, color=colour, **options)

  def measured(i, which, label, colour):
    found = [row[which]["measured_speedup"] for row in rows]
    medians = [speedup["median"] for speedup in found]
    bar(i, medians, label, colour, yerr=plots.ends(found), capsize=2)

  bar(0, theirs("expected_speedup"), "paper: expected", "lightgrey")
  bar(1, theirs("measured_speedup"), "paper: measured", "grey")
  bar(2, expected, "ours: expected with v, best gamma", "navajowhite")
  measured(3, 1, "ours: measured, best gamma", "darkorange")
  measured(4, 0, "ours: measured, paper's gamma", "saddlebrown")
  plots.plain(panel)
  panel.set_xticks(range(len(rows)), [at["draft"] for at, _ in rows])
  panel.set_ylabel("speed-up")


def _parser() -> options.Parser:
  return pairs.parser(NAME, __doc__, rows=24, timed_rows=8)


def work(argv: Sequence[str]) -> None:
  """Runs, prints and writes."""
  _, script, chosen = pairs.start(_parser(), NAME, argv)
  costs = {
      f"{task} {temperature} costs": functools.partial(
          pairs.costs, of_task, temperature
      )
      for task, of_task in pairs.by_task(chosen).items()
      for temperature in pairs.TEMPERATURES
  }
  lines = {
      choice: {
          f"{pair} {temperature} {choice}": functools.partial(
              run, script, pair, temperature, choice
          )
          for temperature in pairs.TEMPERATURES
          for pair in chosen
      }
      for choice in (_PAPER, _BEST)
  }
  made = script.cells(costs | lines[_PAPER] | lines[_BEST])
  script.write(
      {
          "costs": {key: made[key] for key in costs},
          "lines": {
              choice: [made[key] for key in keys]
              for choice, keys in lines.items()
          },
      },
      markdown,
      {NAME: draw},
  )


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door(NAME, _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
