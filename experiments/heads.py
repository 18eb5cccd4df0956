"""Heads that read the target's hidden states: Medusa, EAGLE-1, EAGLE-2.

    python -m experiments.heads

The shipped family's target on both tasks, greedy and at temperature 1: chains,
static trees and EAGLE-2's trees of 8 nodes, and the static tree that
specjax.tree found fastest on two CPU cores. Speed-ups stand
beside the generalised theorem, tokens / (gamma c + v), with the tokens a round
that were measured, for heads have no alpha; and beside what v alone would have
to be for drafts to pay. At temperature 1 BLEU and ROUGE stand beside plain
sampling with several seeds: drafts are to be no farther from them than they
are from one another.

`--rows N` takes N texts of each task, `--seeds N` so many plain samples;
`--config.SECTION.KEY=VALUE` changes all. Writes results/heads.json and .md. It
goes on where it was stopped.
"""

import functools
import operator
import sys
from typing import Any, Sequence

from experiments import pairs
from experiments import results
from specjax import command_line
from specjax import experiment
from specjax import options
from specjax import prepare
from specjax.data import metrics
from specjax.data import tasks as tasks_lib
from specjax.measure import environment
from specjax.measure import tables

NAME = "heads"
# Task -> tokens of an output, at most.
TASKS = {"mini_ende": 96, "mini_summ": 48}
TEMPERATURES = 0, 1
_MEDUSA = "configs/ende_medusa.py:mini"
_EAGLE = "configs/ende_eagle2.py:mini"
_TREE = "draft.tree=mini/{}"
_NO_DYNAMIC = "draft.dynamic.nodes=0"
# Drafts -> their config, and what changes it.
KINDS = {
    "Medusa, tree of 8": (_MEDUSA, (_TREE.format("medusa_tree_8"),)),
    "EAGLE, chain of 4": (_EAGLE, (_NO_DYNAMIC,)),
    "EAGLE-1, tree of 8": (
        _EAGLE, (_NO_DYNAMIC, _TREE.format("eagle_tree_8"))
    ),
    "EAGLE-2, tree of 8": (_EAGLE, ()),
    "EAGLE, fastest tree": (
        _EAGLE, (_NO_DYNAMIC, _TREE.format("eagle_tree"))
    ),
}
_PLAIN = _MEDUSA, ("draft.kind=none", "draft.tree=")
_KEPT = (
    "acceptance_by_position", "block_efficiency", "break_even", "c", "gamma",
    "measured_speedup", "mismatched_rows", "nodes", "predicted_speedup",
    "quality", "verify_cost",
)


def setup(
    source: tuple[str, Sequence[str]],
    task: str,
    temperature: float,
    changes: Sequence[str],
) -> prepare.Setup:
  """What a line of the table takes, loaded.

  Args:
    source: of drafts, as in KINDS.
    task: of TASKS.
    temperature: of the requests.
    changes: of the user's; they go before all.
  """
  file, own = source
  # An EAGLE's siblings are drawn where the text is; Medusa's are the likeliest.
  tree = any(word.startswith("draft.tree=") for word in own)
  if temperature and tree and file == _EAGLE:
    own = *own, "draft.siblings=distinct"
  values = (
      *own,
      f"data.task={task}",
      f"decode.max_new_tokens={TASKS[task]}",
      f"sampling.temperature={temperature}",
      "measure.traced_rows=0",
  )
  words = [f"--config.{value}" for value in values]
  return prepare.prepare(
      command_line.read(["", f"--config={file}", *words, *changes])
  )


def measure(
    kind: str, task: str, temperature: float, changes: Sequence[str]
) -> dict[str, Any]:
  """One line: what a run of it reports."""
  with prepare.enough_memory():
    made = setup(KINDS[kind], task, temperature, changes)
    report, _ = experiment.run(made)
  line = {"kind": kind, "task": task, "temperature": temperature}
  return line | {key: report[key] for key in _KEPT}


def plain_score(task: str, seed: int, changes: Sequence[str]) -> float:
  """BLEU or ROUGE of a plain sample at temperature 1."""
  # Seeds that no drafts have.
  changes = *changes, f"--config.decode.seed={seed}"
  made = setup(_PLAIN, task, 1, changes)
  with prepare.bar("plain", len(made.requests)) as bar:
    found = made.decode(made.plain, bar.update)
  return metrics.score(
      tasks_lib.get_task(task).metric,
      [row.text for row in found],
      [example.reference for example in made.examples],
  )


def markdown(made: dict[str, Any]) -> str:
  """The tables for people."""
  number = tables.number
  rows = []
  for line in made["lines"]:
    lost = line["break_even"]["lost"]
    quality = line["quality"]
    rows.append([
        line["task"],
        line["temperature"],
        line["kind"],
        line["nodes"],
        " ".join(number(share) for share in line["acceptance_by_position"]),
        number(line["block_efficiency"]),
        number(line["c"], 3),
        number(line["verify_cost"]),
        number(line["predicted_speedup"]["from_tokens"]),
        pairs.spread(line["measured_speedup"]),
        f"{max(lost, key=lost.get)} {number(max(lost.values()))}x",
        number(line["break_even"]["verify_cost"]),
        number(quality["speculative"]),
        number(line["mismatched_rows"], 0),
    ])
  scores = [
      [task, " ".join(map(number, found))]
      for task, found in made["plain"].items()
  ]
  return "\n".join([
      "# Heads that read the target's hidden states",
      "",
      f"{environment.headline(made)}, batch 1.",
      "",
      "Theorem: tokens a timed pass over gamma c + v. `most lost to`: what it"
      " would gain if all drafts were accepted, cost nothing, or v were 1. `1x"
      " at v`: what v alone would be where drafts neither cost nor gain.",
      "",
      *results.table(
          "task | T | drafts | nodes | accepted by position | tokens a pass | c"
          " | v | theorem | measured | most lost to | 1x at v | BLEU or"
          " ROUGE-Lsum | rows that differ",
          rows,
      ),
      "",
      "Plain samples at temperature 1, each with a seed of its own:",
      "",
      *results.table("task | BLEU or ROUGE-Lsum", scores),
  ]) + "\n"


def _parser() -> options.Parser:
  made = results.parser(NAME, __doc__)
  made.add_argument(
      "--rows", type=results.COUNT, default=0, help="of each task; 0: all"
  )
  made.add_argument("--seeds", type=results.SOME, default=4)
  return made


def work(argv: Sequence[str]) -> None:
  """Measures, prints and writes."""
  own, changes = pairs.split(argv)
  arguments = _parser().read(own)
  script = results.Script.start(NAME, arguments, more=changes)
  changes = [f"--config.data.rows={arguments.rows}", *changes]
  lines = {
      f"{task} {temperature} {kind}": functools.partial(
          measure, kind, task, temperature, changes
      )
      for temperature in TEMPERATURES
      for task in TASKS
      for kind in KINDS
  }
  plain = {
      task: {
          f"{task} seed {seed}": functools.partial(
              plain_score, task, seed, changes
          )
          for seed in range(1, arguments.seeds + 1)
      }
      for task in TASKS
  }
  made = script.cells(functools.reduce(operator.or_, plain.values(), lines))
  script.write(
      {
          "lines": [made[key] for key in lines],
          "plain": {
              task: [made[key] for key in keys] for task, keys in plain.items()
          },
      },
      markdown,
  )


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door(NAME, _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
