"""Figures: speed-up over gamma and batch, operations, acceptance.

    python -m experiments.figures
    python -m experiments.figures --config configs/ende_t5small.py

Greedy, on the task of the first config:

- figures_gamma.png: speed-up against gamma of every draft: Theorem 3.8, the
  same with the measured v, and measured
- figures_operations.png: operations a token against gamma (Theorem 3.11, c-hat
  by the weights that a decoder step multiplies), and as counted
- figures_positions.png: acceptance by position at the largest gamma
- figures_predicted.png: predicted against measured, ours and the paper's
- figures_batch.png: speed-up of the first draft against the batch, 1 to 64

Writes those, results/figures.json and results/figures.md. About eleven minutes
on two CPU cores.
"""

import functools
import sys
from typing import Any, Sequence

from experiments import curves
from experiments import pairs
from experiments import paper
from experiments import results
from specjax import options
from specjax import theory
from specjax.measure import environment
from specjax.measure import tables
from specjax.measure import weights

NAME = "figures"
GAMMAS = (1, 2, 4, 7)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
_ENDE = pairs.CONFIGS[:3]
_DRAW = {
    "gamma": curves.gamma,
    "operations": curves.operations,
    "predicted": curves.predicted,
    "positions": curves.positions,
    "batch": curves.batch,
}
_HEAD = (
    "alpha | c | v | tokens a pass | Thm 3.8 | with v | measured | x sample |"
    " x ends | x tokens | x verify | x overhead | x idle rows"
)
_number = tables.number


def at_gamma(pair: pairs.Pair, gamma: int) -> dict[str, Any]:
  """One point of the curves."""
  made = pairs.measured(pair.at(0, gamma=gamma))
  ratio, tokens = c_hat(pair), made["block_efficiency"]
  return made | {
      "draft": pair.draft,
      "c_hat": ratio,
      "operations": (gamma * ratio + gamma + 1) / tokens,
  }


def at_batch(pair: pairs.Pair, batch: int, rows: int) -> dict[str, Any]:
  """One point over the batch, on so many rows."""
  steps = pair.config.measure.steps
  # A step of many rows takes long, and is as steady with fewer of them.
  measure = {"timed_rows": rows, "steps": max(5, steps // batch), "repeats": 3}
  return pairs.measured(pair.at(0, batch=batch, measure=measure))


def c_hat(pair: pairs.Pair) -> float:
  """Operations of a draft step over those of a target step on one token."""
  if pair.config.draft.kind != "model":
    # A look-up multiplies nothing.
    return 0.0
  setup = pairs.setup(pair.config)
  count = lambda params: sum(leaf.size for leaf in weights.of_a_step(params))
  return count(setup.drafts.params) / count(setup.target.params)


def _cells(line: dict) -> list[str]:
  """What stands under _HEAD."""
  return [
      _number(line["alpha"]),
      _number(line["c"], 3),
      _number(line["verify_cost"]),
      _number(line["block_efficiency"]),
      _number(line["predicted_speedup"]["theorem_3_8"]),
      _number(line["predicted_speedup"]["with_verify_cost"]),
      pairs.spread(line["measured_speedup"]),
      *(_number(value) for value in line["gap"].values()),
  ]


def markdown(made: dict) -> str:
  """The figures' numbers for people."""
  return "\n".join([
      "# Figures",
      "",
      f"{environment.headline(made)}, {made['dtype']}, {made['task']}, greedy.",
      *_over_gamma(made["gammas"], made["task"]),
      *_by_position(curves.last_of_each(made["gammas"])),
      *_over_batch(made["batches"]),
  ]) + "\n"


def _section(title: str, *parts: Sequence[str], pictures: Sequence[str] = ()):
  """Lines of a section: a blank one before each part."""
  shown = [f"![]({NAME}_{name}.png)" for name in pictures]
  lines = ["", f"## {title}"]
  for part in (*parts, shown):
    lines += ["", *part]
  return lines


def _over_gamma(lines: Sequence[dict], task: str) -> list[str]:
  ours = [
      [line["draft"], line["gamma"], *_cells(line), _number(line["operations"])]
      for line in lines
  ]
  theirs = [
      [
          row["draft"],
          row["gamma"],
          row["expected_speedup"],
          _number(theory.speedup(row["alpha"], row["gamma"], row["c"])),
          row["measured_speedup"],
      ]
      for row in paper.rows("table2_and_4")
      if (row["task"], row["temperature"]) == (task, 0)
  ]
  return _section(
      "Speed-up and operations against gamma",
      results.table(f"draft | gamma | {_HEAD} | operations", ours),
      ["The paper's, by T5-XXL on one TPU-v4:"],
      results.table("draft | gamma | expected | Thm 3.8 | measured", theirs),
      pictures=("gamma", "operations", "predicted"),
  )


def _by_position(lines: Sequence[dict]) -> list[str]:
  shares = [
      [
          line["draft"],
          _number(line["alpha"]),
          *(
              f"{_number(share)} of {count}"
              for share, count in zip(
                  line["acceptance_by_position"], line["judged_by_position"]
              )
          ),
      ]
      for line in lines
  ]
  places = map(str, range(1, max(line["gamma"] for line in lines) + 1))
  return _section(
      "Acceptance by position",
      ["Accepted, of the drafts that were judged at the position."],
      results.table(" | ".join(["draft", "alpha", *places]), shares),
      pictures=["positions"],
  )


def _over_batch(lines: Sequence[dict]) -> list[str]:
  cells = [[line["batch"], line["gamma"], *_cells(line)] for line in lines]
  return _section(
      f"Batch, with {lines[0]['drafter']}",
      results.table(f"batch | gamma | {_HEAD}", cells),
      pictures=["batch"],
  )


def _parser() -> options.Parser:
  made = pairs.parser(NAME, __doc__, rows=max(BATCHES), timed_rows=8)
  made.add_argument(
      "--batch-rows",
      type=results.SOME,
      default=max(BATCHES),
      help="timed at each batch",
  )
  return made


def work(argv: Sequence[str]) -> None:
  """Runs, prints and writes."""
  arguments, script, chosen = pairs.start(_parser(), NAME, argv, _ENDE)
  first = chosen[0]
  chosen = pairs.by_task(chosen)[first.task]
  gammas = {
      f"{pair.draft} gamma {gamma}": functools.partial(at_gamma, pair, gamma)
      for pair in chosen
      for gamma in GAMMAS
  }
  batches = {
      f"batch {batch}": functools.partial(
          at_batch, first, batch, arguments.batch_rows
      )
      for batch in BATCHES
  }
  made = script.cells(gammas | batches)
  script.write(
      {
          "dtype": first.config.decode.dtype,
          "task": first.task,
          "gammas": [made[key] for key in gammas],
          "batches": [made[key] for key in batches],
      },
      markdown,
      {f"{NAME}_{name}": draw for name, draw in _DRAW.items()},
  )


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door(NAME, _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
