"""Is speculative decoding lossless on the shipped family's held-out rows?

    python -m experiments.lossless

Decodes all rows of both tasks in float32 with each draft, at batch 1 and 8:

- greedy: every row against plain decoding of the same batch size; a row that
  differs is listed with the gap of plain decoding's two best logits there
- greedy and at temperature 1: every row at batch 8 against the same row alone

Writes results/lossless.json and results/lossless.md, and exits with 1 where a
row differs that no near tie explains. About ten minutes on two CPU cores.
"""

import dataclasses
import functools
import sys
from typing import Sequence

from experiments import results
from specjax import draft_section
from specjax import experiment
from specjax import options
from specjax import prepare
from specjax import sections
from specjax.measure import environment

TASKS = {"mini_ende": 96, "mini_summ": 48}
DRAFTS = ("small", "base", "large")
BATCHES = (1, 8)


def setup(task: str, draft: str, *, batch: int, temperature: float, rows: int):
  """Everything that one cell of the table decodes with."""
  return prepare.prepare(
      sections.Experiment(
          draft=draft_section.Draft(checkpoint=f"mini/{draft}", gamma=4),
          data=sections.Data(task=task, rows=rows, max_source_tokens=256),
          decode=sections.Decode(max_new_tokens=TASKS[task], batch=batch),
          sampling=sections.Sampling(temperature=temperature),
      )
  )


def differing(a, b) -> list[int]:
  """Numbers of the rows whose tokens differ."""
  return [i for i, (x, y) in enumerate(zip(a, b)) if x.tokens != y.tokens]


def listed(made: prepare.Setup, a, b, temperature: float) -> list[dict]:
  """Differing rows; greedy ones with plain decoding's gap where they part."""
  if temperature:
    return [{"row": i} for i in differing(a, b)]
  return [
      dataclasses.asdict(entry) | {"near_tie": entry.near_tie}
      for entry in experiment.mismatches(made, a, b)
  ]


def compare(task: str, draft: str, rows: int) -> list[dict]:
  """All comparisons of one task and draft."""
  out = []

  def note(what, a, b, made, temperature):
    out.append({
        "task": task,
        "draft": draft,
        "what": what,
        "rows": len(a),
        "differing": listed(made, a, b, temperature),
    })

  for temperature in (0.0, 1.0):
    decoded = []
    for batch in BATCHES:
      made = setup(
          task, draft, batch=batch, temperature=temperature, rows=rows
      )
      decoded.append(made.decode(made.speculative))
      if temperature == 0:
        plain = made.decode(made.plain)
        what = f"batch {batch}, greedy: speculative against plain"
        note(what, plain, decoded[-1], made, temperature)
    what = f"temperature {temperature:g}: alone against beside others"
    note(what, *decoded, made, temperature)
  return out


def markdown(report: dict) -> str:
  """The table for people."""
  lines = [
      "# Losslessness on the shipped rows",
      "",
      f"{environment.headline(report)}, float32, gamma 4.",
      "",
      "| task | draft | comparison | rows | differing |",
      "|---|---|---|---|---|",
  ]
  for cell in report["cells"]:
    words = [
        f"row {entry['row']}"
        + (
            f" (token {entry['position']}, gap {entry['gap']:.2e},"
            f" near tie: {'yes' if entry['near_tie'] else 'NO'})"
            if "gap" in entry
            else ""
        )
        for entry in cell["differing"]
    ]
    lines.append(
        f"| {cell['task']} | {cell['draft']} | {cell['what']} |"
        f" {cell['rows']} | {'; '.join(words) or '0'} |"
    )
  return "\n".join(lines) + "\n"


def _parser() -> options.Parser:
  parser = results.parser("lossless", __doc__)
  parser.add_argument(
      "--rows", type=results.COUNT, default=0, help="a task; 0 is all"
  )
  return parser


def work(argv: Sequence[str]) -> int:
  """Decodes, compares and writes; returns the exit code."""
  arguments = _parser().read(argv)
  script = results.Script.start("lossless", arguments)
  parts = script.cells({
      f"{task} {draft}": functools.partial(
          compare, task, draft, arguments.rows
      )
      for task in TASKS
      for draft in DRAFTS
  })
  found = sum(parts.values(), [])
  script.write({"cells": found}, markdown)
  entries = [entry for cell in found for entry in cell["differing"]]
  return int(not all(entry.get("near_tie") for entry in entries))


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door("lossless", _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
