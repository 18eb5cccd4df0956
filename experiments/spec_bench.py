"""Prompts by category on SmolLM2, several kinds of drafts by turns.

    python -m experiments.spec_bench --load copies --prompts question.jsonl
    python -m experiments.spec_bench --load agent

- copies: what is looked up in the prompt, and suffix trees that begin empty at
  each prompt, both with the off-switch, on Spec-Bench's question.jsonl
- agent: the same and trees that keep earlier responses, on the project's own
  edits, corrections and similar requests

Greedy, batch 1, at most 128 tokens an answer, each decoded once by every kind
of drafts, by specjax.bench; `--config.SECTION.KEY=VALUE` changes a config's
options, such as measure.repeats. Writes results/bench_LOAD.json and .md. Needs
the extra gguf and SmolLM2's package. On two CPU cores it takes long: a run goes
on where it was stopped, and `--first N` takes N prompts of each category.
"""

import dataclasses
import sys
from typing import Any, Sequence

from experiments import pairs
from experiments import results
from specjax import bench
from specjax import errors
from specjax import options
from specjax import strict_json
from specjax.data import prompts as prompts_lib
from specjax.measure import tables

NAME = "spec_bench"
# Of a benchmark's details.
_TEXTS = "outputs", "trace", "answers"


@dataclasses.dataclass(frozen=True)
class Load:
  """Which drafts are compared.

  Attributes:
    config: file of the target.
    drafters: as specjax.bench takes them.
  """

  config: str
  drafters: tuple[str, ...]


_COPIES = "lookup:switch.on=true", "suffix:cold:switch.on=true"
LOADS = {
    "copies": Load("configs/smollm2.py", _COPIES),
    "agent": Load("configs/smollm2.py", (*_COPIES, "suffix:switch.on=true")),
}


def markdown(made: dict[str, Any]) -> str:
  """The report's own tables, under the command of this script."""
  head = f"`{made['command']}`, commit {made['commit']}, {made['date']}"
  title, _, own, *rest = tables.markdown(
      made["report"], made["details"]
  ).splitlines()
  return "\n".join([title, "", f"{head}, by {own}", *rest]) + "\n"


def _figures(details: dict[str, Any]) -> dict[str, Any]:
  """Details without texts, which would be most of them."""
  made = {k: v for k, v in details.items() if k not in _TEXTS}
  if "drafters" in made:
    made["drafters"] = {k: _figures(v) for k, v in made["drafters"].items()}
  return made


def _parser() -> options.Parser:
  made = results.parser(NAME, __doc__)
  made.add_argument("--load", choices=LOADS, default="agent")
  made.add_argument(
      "--prompts", default=prompts_lib.AGENT, help="as for specjax.bench"
  )
  made.add_argument(
      "--first",
      type=results.COUNT,
      default=0,
      help="prompts of each category; 0 takes all",
  )
  return made


def work(argv: Sequence[str]) -> None:
  """Measures, prints and writes."""
  own, changes = pairs.split(argv)
  arguments = _parser().read(own)
  load = LOADS[arguments.load]
  if arguments.load != "agent" and arguments.prompts == prompts_lib.AGENT:
    raise errors.UserError(
        f"--prompts: which for {arguments.load}? give Spec-Bench's"
        " question.jsonl"
    )
  script = results.Script.start(
      NAME, arguments, f"bench_{arguments.load}", changes
  )
  folder = script.parts / "run"
  bench.work([
      "specjax.bench",
      f"--config={load.config}",
      "--config.decode.max_new_tokens=128",
      "--config.measure.repeats=1",
      *changes,
      f"--config.out={folder}",
      f"--prompts={arguments.prompts}",
      f"--drafters={','.join(load.drafters)}",
      f"--first={arguments.first}",
  ])
  read = lambda name: strict_json.fields((folder / name).read_bytes())
  report, details = read("report.json"), read("details.json")
  script.write({"report": report, "details": _figures(details)}, markdown)


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door(NAME, _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
