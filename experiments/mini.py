"""The paper's six pairs of task and draft, on the shipped family.

    python -m experiments.mini

Runs configs/{ende,cnndm}_t5{small,base,large}.py:mini, one after the other,
and writes results/mini.json (the six reports) and results/mini.md. About seven
minutes on two CPU cores with the default 20 rows, of which 8 are timed.
"""

import argparse
import sys

from specjax import command_line
from specjax import errors
from specjax import experiment
from specjax import prepare
from specjax import writing
from specjax.measure import environment
from specjax.measure import output

COMMAND = "python -m experiments.mini"
NAMES = [
    f"{task}_t5{draft}"
    for task in ("ende", "cnndm")
    for draft in ("small", "base", "large")
]


def run(name: str, options: list[str]) -> dict:
  """The report of one config."""
  arguments = ["run", f"--config=configs/{name}.py:mini", *options]
  setup = prepare.prepare(command_line.read(arguments))
  command = f"python -m specjax.run {' '.join(arguments[1:])}"
  return experiment.run(setup, command)[0]


def line(name: str, report: dict) -> str:
  """One row of the table."""
  predicted, measured = report["predicted_speedup"], report["measured_speedup"]
  quality = report["quality"]
  cells = [
      f"{name}:mini",
      str(report["gamma"]),
      f"{report['alpha']:.2f}",
      f"{report['block_efficiency']:.2f}",
      f"{report['c']:.3f}",
      f"{report['verify_cost']:.2f}",
      f"{predicted['theorem_3_8']:.2f}",
      f"{predicted['with_verify_cost']:.2f}",
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
      "config | gamma | alpha | tokens a pass | c | v | Thm 3.8 | with v |"
      " measured | rows that differ | quality, plain / speculative"
  )
  lines = [
      "# The paper's pairs on the shipped family",
      "",
      f"{environment.headline(made)}, float32, batch 1, greedy.",
      "",
      f"| {head} |",
      "|" + "---|" * len(head.split("|")),
  ]
  lines += [line(name, report) for name, report in made["reports"].items()]
  return "\n".join(lines) + "\n"


def main() -> None:
  """Runs, prints and writes."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--rows", type=int, default=20, help="of each task")
  parser.add_argument("--timed-rows", type=int, default=8)
  parser.add_argument("--out", default="results")
  arguments = parser.parse_args()
  folder = output.folder(arguments.out)
  options = [
      f"--config.data.rows={arguments.rows}",
      f"--config.measure.timed_rows={arguments.timed_rows}",
  ]
  made = environment.where(
      f"{COMMAND} --rows {arguments.rows} --timed-rows {arguments.timed_rows}"
  )
  made["reports"] = {name: run(name, options) for name in NAMES}
  writing.write(folder / "mini.json", output.dumps(made))
  writing.write(folder / "mini.md", markdown(made))
  print(markdown(made))


if __name__ == "__main__":
  try:
    main()
  except errors.UserError as error:
    sys.exit(f"experiments.mini: {error}")
