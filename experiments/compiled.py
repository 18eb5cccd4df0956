"""The paper's twelve rows, compiled for a TPU at full size.

    python -m experiments.compiled
    python -m experiments.compiled --topology v5p:2x2x1

Tables 2 and 4 have T5-XXL with three drafts, two tasks and two temperatures, on
one TPU-v4. Each row's loop is compiled by XLA for that chip, from the configs
and the public models' shapes: whether it fits, whether anything in it waits for
the host, the bytes that a step must read beside XLA's count, and the c and v
that the chip's published speeds allow, with the speed-up that follows from the
paper's alpha.

Writes results/compiled_<generation>.json and .md. Needs the extra `tpu`, in an
environment of its own. A row takes minutes on two CPU cores; it goes on after
an interruption.
"""

import functools
import pathlib
import sys
from typing import Any, Sequence

from experiments import paper
from experiments import results
from specjax import command_line
from specjax import options
from specjax import roofline
from specjax import theory
from specjax import tpu
from specjax.measure import environment

NAME = "compiled"
_CONFIGS = pathlib.Path(__file__).parents[1] / "configs"


def arguments(row: dict[str, Any]) -> list[str]:
  """The config of a paper's row, as options; temperature is no part of it.

  A program takes any temperature.
  """
  file = f"{row['task']}_{row['draft'].replace('-', '')}.py"
  return [
      "--config", str(_CONFIGS / file), f"--config.draft.gamma={row['gamma']}"
  ]


def compiled(words: Sequence[str], devices, chip: roofline.Chip) -> dict:
  """What one program comes to."""
  config = command_line.read([NAME, *words])
  made = tpu.estimate(tpu.abstract(config, devices), chip)
  c, v = made.costs
  return {
      "memory": made.memory | {"peak": made.peak},
      "fits": made.peak <= chip.memory,
      "rows_that_fit": made.rows_that_fit(chip.memory),
      "host_transfers": made.hosts,
      "heads": list(made.heads),
      "c": c,
      "v": v,
      "steps": {
          name: {
              "weights": step.weights,
              "caches": step.caches,
              "counted": step.counted,
              "read": step.read,
              "milliseconds": 1e3 * step.seconds,
          }
          for name, step in made.steps.items()
      },
  }


def _cells(line: dict) -> list[Any]:
  row, found = line["paper"], line["compiled"]
  steps = [found["steps"][name] for name in ("draft", "target", "verify")]
  over = lambda key: " ".join(
      f"{step[key] / (step['weights'] + step['caches']):.2f}" for step in steps
  )
  return [
      f"{row['task']} {row['draft']}",
      row["temperature"],
      row["gamma"],
      f"{found['memory']['peak'] / 2**30:.1f}",
      "yes" if found["fits"] else "NO",
      f"{found['rows_that_fit']} or more",
      found["host_transfers"],
      over("read"),
      over("counted"),
      f"{row['c']} / {found['c']:.3f}",
      f"{found['v']:.2f}",
      f"{row['expected_speedup']} / {row['measured_speedup']} /"
      f" {line['speedup']:.2f}",
  ]


def markdown(made: dict) -> str:
  """The table for people."""
  heads = [K for line in made["lines"] for K in line["compiled"]["heads"]]
  head = (
      "row | T | gamma | GiB | fits | rows | host transfers | XLA's"
      " bytes over those of shapes: draft, target, verify | with copies | c:"
      " paper / chip | v | speed-up: paper expected / measured / chip"
  )
  return "\n".join([
      f"# Tables 2 and 4, compiled for {made['topology']}",
      "",
      f"{environment.headline(made)}.",
      "",
      f"One chip of {made['memory'] / 2**30:.1f} GiB. {tpu.why(heads)}",
      "",
      *results.table(head, map(_cells, made["lines"])),
  ]) + "\n"


def _parser() -> options.Parser:
  made = results.parser(NAME, __doc__)
  made.add_argument("--topology", default="v4:2x2x1", help="chips")
  return made


def work(argv: Sequence[str]) -> None:
  """Compiles, prints and writes."""
  asked = _parser().read(argv)
  chip = tpu.find_chip(asked.topology)
  devices = tpu.find_devices(asked.topology)
  generation = asked.topology.partition(":")[0]
  script = results.Script.start(NAME, asked, f"{NAME}_{generation}")
  rows = paper.rows("table2_and_4")
  # Both temperatures of a gamma are one program.
  key = lambda row: f"{row['task']} {row['draft']} {row['gamma']}"
  found = script.cells({
      key(row): functools.partial(compiled, arguments(row), devices, chip)
      for row in rows
  })
  lines = []
  for row in rows:
    own = found[key(row)]
    speedup = theory.speedup(row["alpha"], row["gamma"], own["c"], own["v"])
    lines.append({"paper": row, "compiled": own, "speedup": speedup})
  script.write(
      {"topology": asked.topology, "memory": chip.memory, "lines": lines},
      markdown,
  )


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door(NAME, _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
