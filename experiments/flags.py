"""Do XLA's flags make decoding on the CPU faster? Each set against none.

    python -m experiments.flags

Flags are read when XLA starts, so that every set gets a process of its own: the
main door on the shipped family's first texts, plain and with drafts. The sets
take turns, once there and once back. `--flags='--xla_a=x --xla_b=y'` tries one
set of one's own (several times: several sets); `--config.SECTION.KEY=VALUE`
changes all runs.

Writes results/flags.json and .md. About ten minutes on two CPU cores; it goes
on where it was stopped.
"""

import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any, Sequence

from experiments import pairs
from experiments import results
from experiments import turns
from specjax import errors
from specjax import options
from specjax.measure import environment

NAME = "flags"
_CONFIG = "configs/ende_t5small.py:mini"
# Few texts, timed only: neither pages nor traces.
_SHORT = (
    "--config.data.rows=12",
    "--config.measure.timed_rows=12",
    "--config.measure.traced_rows=0",
)
# What speaks to compiling loops, products and threads on a CPU.
SETS = (
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_enable_concurrency_optimized_scheduler=false",
    "--xla_cpu_use_xnnpack=false",
    "--xla_cpu_use_onednn=true",
    "--xla_cpu_enable_fast_math=true",
    "--xla_cpu_prefer_vector_width=512",
    "--xla_cpu_multi_thread_eigen=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
_NONE = ""
_SIDES = "plain", "speculative"


def measure(flags: str, changes: Sequence[str]) -> dict[str, Any]:
  """Milliseconds a token of both ways to decode under these flags.

  Returns:
    Side -> milliseconds; or `refused`, what XLA says of a flag that it does
    not take.

  Raises:
    errors.UserError: the run fails for another reason.
  """
  with tempfile.TemporaryDirectory() as folder:
    words = [f"--config={_CONFIG}", *_SHORT, *changes]
    done = subprocess.run(
        [sys.executable, "-m", "specjax.run", *words, f"--config.out={folder}"],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
      told = done.stderr.strip().splitlines() or ["no message"]
      said = [line for line in told if "XLA_FLAGS" in line]
      if said and flags != _NONE:
        return {"refused": errors.line(said[0])}
      raise errors.UserError(
          f"the run with {flags or 'no flags'} fails: {errors.line(told[-1])}"
      )
    report = json.loads((pathlib.Path(folder) / "report.json").read_text())
  speed = report["tokens_per_second"]
  return {side: 1e3 / speed[side] for side in _SIDES}


def lines(made: dict[str, dict], sets: Sequence[str]) -> list[dict[str, Any]]:
  """One line a set: its milliseconds, and how they stand to those without.

  Args:
    made: of each cell.
    sets: of flags, the empty one first.
  """
  out = []
  cells = [
      [made[_cell(turn, i)] for turn in range(2)] for i in range(len(sets))
  ]
  for flags, found in zip(sets, cells):
    refused = next((x["refused"] for x in found if "refused" in x), None)
    line = {"flags": flags, "refused": refused}
    if refused is None:
      for side in _SIDES:
        values = [one[side] for one in found]
        bare = [one[side] for one in cells[0]]
        line[side] = {
            "milliseconds": statistics.mean(values),
            "over_none": turns.spread([v / b for v, b in zip(values, bare)]),
        }
    out.append(line)
  return out


def _cell(turn: int, number: int) -> str:
  """What a cell is called, and its file: flags may hold what files may not."""
  return f"turn {turn} set {number}"


def markdown(made: dict[str, Any]) -> str:
  """The table for people."""
  cells = []
  for line in made["lines"]:
    shown = f"`{line['flags']}`" if line["flags"] else "none"
    if line["refused"]:
      cells.append((shown, f"refused: {line['refused']}", "", "", ""))
      continue
    cell = [shown]
    for side in _SIDES:
      over = line[side]["over_none"]
      cell.append(f"{line[side]['milliseconds']:.3f}")
      cell.append(
          f"{over['median']:.2f} ({over['low']:.2f} to {over['high']:.2f})"
      )
    cells.append(cell)
  return "\n".join([
      "# Do XLA's flags make decoding on the CPU faster?",
      "",
      f"{environment.headline(made)}, {made['config']}.",
      "",
      "Milliseconds a token, decoding alone, and how many times what the same"
      " turn took without flags: below 1 is faster. Each set ran twice, in a"
      " process of its own.",
      "",
      *results.table(
          "flags | plain | over none | with drafts | over none", cells
      ),
  ]) + "\n"


def _parser() -> options.Parser:
  made = results.parser(NAME, __doc__)
  made.add_argument("--flags", action="append", help="a set of them")
  return made


def work(argv: Sequence[str]) -> None:
  """Measures, prints and writes."""
  own, changes = pairs.split(argv)
  arguments = _parser().read(own)
  sets = (_NONE, *(arguments.flags or SETS))
  script = results.Script.start(NAME, arguments, more=changes)
  there = list(enumerate(sets))
  makers = {
      _cell(turn, i): functools.partial(measure, flags, changes)
      for turn, order in enumerate((there, there[::-1]))
      for i, flags in order
  }
  made = script.cells(makers)
  script.write(
      {"config": _CONFIG, "lines": lines(made, sets)},
      markdown,
  )


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door(NAME, _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
