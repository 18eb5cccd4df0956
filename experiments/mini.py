"""The paper's pairs of task and draft, on the shipped family.

    python -m experiments.mini
    python -m experiments.mini --dtype bfloat16

Runs configs/{ende,cnndm}_t5{small,base,large}.py:mini at temperature 0 and 1.
Writes results/mini_<dtype>.json (the reports) and results/mini_<dtype>.md. Some
eight minutes on two CPU cores with the default 24 rows, of which 8 are timed.
"""

import functools
import sys
from typing import Sequence

from experiments import results
from specjax import command_line
from specjax import experiment
from specjax import options
from specjax import prepare
from specjax import sections
from specjax.measure import environment

TASKS = ("ende", "cnndm")
DRAFTS = ("small", "base", "large")
TEMPERATURES = (0, 1)


def run(task: str, draft: str, temperature: int, settings: list[str]) -> dict:
  """The report of one line of the table."""
  variant = "mini,T1" if temperature else "mini"
  arguments = [
      "run",
      f"--config=configs/{task}_t5{draft}.py:{variant}",
      "--config.measure.traced_rows=0",
      *settings,
  ]
  setup = prepare.prepare(command_line.read(arguments))
  command = f"python -m specjax.run {' '.join(arguments[1:])}"
  return experiment.run(setup, command)[0]


def line(key: str, report: dict) -> str:
  """One row of the table."""
  predicted, measured = report["predicted_speedup"], report["measured_speedup"]
  quality = report["quality"]
  cells = [
      *key.split(),
      str(report["gamma"]),
      f"{report['alpha']:.2f}",
      f"{report['block_efficiency']:.2f}",
      f"{report['c']:.3f}",
      f"{report['verify_cost']:.2f}",
      f"{predicted['theorem_3_8']:.2f}",
      f"{predicted['with_verify_cost']:.2f}",
      f"{report['gap']['overhead']:.2f}",
      f"{measured['median']:.2f} ({measured['low']:.2f} to"
      f" {measured['high']:.2f})",
      str(report["mismatched_rows"]),
      f"{quality['metric']} {quality['plain']:.1f}"
      f" / {quality['speculative']:.1f}",
  ]
  return "| " + " | ".join(cells) + " |"


def markdown(made: dict) -> str:
  """The table for people."""
  head = (
      "task | draft | T | gamma | alpha | tokens a pass | c | v |"
      " Thm 3.8 | with v | overhead | measured | rows that differ | quality,"
      " plain / speculative"
  )
  lines = [
      "# The paper's pairs on the shipped family",
      "",
      f"{environment.headline(made)}, {made['dtype']}, batch 1.",
      "",
      f"| {head} |",
      "|" + "---|" * len(head.split("|")),
  ]
  lines += [line(key, report) for key, report in made["reports"].items()]
  return "\n".join(lines) + "\n"


def _parser() -> options.Parser:
  parser = results.parser("mini", __doc__)
  parser.add_argument(
      "--rows", type=results.SOME, default=24, help="of each task"
  )
  parser.add_argument("--timed-rows", type=results.SOME, default=8)
  parser.add_argument(
      "--dtype", choices=sections.DTYPES, default=sections.DTYPES[0]
  )
  return parser


def work(argv: Sequence[str]) -> None:
  """Runs, prints and writes."""
  arguments = _parser().read(argv)
  script = results.Script.start("mini", arguments, f"mini_{arguments.dtype}")
  settings = [
      f"--config.data.rows={arguments.rows}",
      f"--config.measure.timed_rows={arguments.timed_rows}",
      f"--config.decode.dtype={arguments.dtype}",
  ]
  reports = script.cells({
      f"{task} {draft} {temperature}": functools.partial(
          run, task, draft, temperature, settings
      )
      for task in TASKS
      for temperature in TEMPERATURES
      for draft in DRAFTS
  })
  script.write({"dtype": arguments.dtype, "reports": reports}, markdown)


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door("mini", _parser().format_help, work, argv)


if __name__ == "__main__":
  sys.exit(main(sys.argv))
