"""The main door: one experiment, with and without drafts.

    python -m specjax.run --config configs/ende_t5small.py
    python -m specjax.run --config configs/ende_t5small.py:mini
    python -m specjax.run --config configs/ende_t5small.py:mini,T1 \\
        --config.draft.gamma=5 --config.out=out/try
    python -m specjax.run --config configs/ende_t5small.py:mini \\
        --config.data.text="A fast text editor."

Prints the report and writes report.json, report.md, report.html and
details.json under `out`; with `data.text`, decodes that one text and shows
what became of every draft. `--help` lists the options.
"""

import dataclasses
import shlex
import sys
from typing import Sequence

from specjax import command_line
from specjax import experiment
from specjax import hosts
from specjax import options
from specjax import prepare
from specjax import sections
from specjax.measure import output
from specjax.measure import show
from specjax.measure import tables


def main(argv: Sequence[str]) -> int:
  """Runs what the arguments ask for; returns the exit code."""
  return options.door(
      "specjax.run",
      lambda: f"{__doc__}\nOptions and their defaults:\n{command_line.usage()}",
      work,
      argv,
      interrupted="interrupted; no report was written",
  )


def work(argv: Sequence[str]) -> None:
  """The experiment, or the one text, of the arguments' config.

  Raises:
    errors.UserError: the config can't be run here; mostly one line.
  """
  config = command_line.read(argv)
  together = hosts.together(config.hosts, config.mesh, "specjax.run")
  with together, prepare.enough_memory():
    if config.data.text:
      show_text(config)
    else:
      command = shlex.join(["python", "-m", "specjax.run", *argv[1:]])
      report(config, command)


def report(config: sections.Experiment, command: str) -> None:
  """Measures, prints the report and writes its files."""
  out = config.out or output.default(config.name)
  config = dataclasses.replace(config, out=out)
  if not hosts.first():
    experiment.run(prepare.prepare(config), command)
    return
  # Told now, not after minutes of work.
  folder = output.folder(out)
  made, details = experiment.run(prepare.prepare(config), command)
  output.save(folder, made, details)
  print(tables.text(made, details))
  print(f"\nwritten: {folder / 'report.json'}, report.md, report.html")


def show_text(config: sections.Experiment) -> None:
  """Decodes `data.text` and shows every round."""
  setup = prepare.prepare(config)
  result = experiment.trace(setup)
  if not hosts.first():
    return
  print(f"input   {show.plain(setup.examples[0].source)}")
  print(f"output  {show.plain(result.text)}")
  if result.finish == "length":
    print("        (cut at decode.max_new_tokens)")
  if not config.rule().lossless:
    print(f"        ({tables.LOSSY})")
  pieces = setup.target.tokenizer.shown
  print(f"\n{show.render(result, pieces, show.wants_colour(sys.stdout))}")


if __name__ == "__main__":
  options.leave(main(sys.argv))
