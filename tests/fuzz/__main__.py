"""Damages files and has them read: a table of what became of them.

    python -m tests.fuzz --cases 20000 --seed 0
    python -m tests.fuzz --cases 400 --only "training's checkpoints"
    python -m tests.fuzz --seed 0 --case 1234    one of them, with its traceback

Cases run in a process of their own, whose memory is bounded; one that dies, or
says nothing for a minute, is a fault, too. The exit code is 1 where there is a
fault.
"""

import argparse
import collections
import json
import os
import pathlib
import resource
import selectors
import subprocess
import sys
import tempfile
from typing import Iterator, Sequence

PATIENCE = 60.0
# Bytes of addresses beyond what a process begins with: threads take some.
_ROOM = 2**33
_SHOWN = 30


def outcomes(
    seed: int, cases: int, first: int = 0, only: str = ""
) -> Iterator[dict]:
  """What became of each case, in order."""
  case, last = first, first + cases
  while case < last:
    for made in _until_it_ends(seed, case, last, only):
      yield made
      case = made["case"] + 1
    if case < last:
      yield {
          "case": case,
          "reader": "(the process)",
          "kind": "FAULT",
          "text": "died, or took too long",
          "seconds": PATIENCE,
      }
      case += 1


def _until_it_ends(
    seed: int, first: int, last: int, only: str
) -> Iterator[dict]:
  """Cases in a new process, as far as it gets."""
  words = [f"--seed={seed}", f"--worker={first}:{last}", f"--only={only}"]
  with subprocess.Popen(
      [sys.executable, "-m", "tests.fuzz", *words],
      stdout=subprocess.PIPE,
      env=os.environ | {"JAX_PLATFORMS": "cpu"},
  ) as process, selectors.DefaultSelector() as ready:
    ready.register(process.stdout, selectors.EVENT_READ)
    while ready.select(PATIENCE):
      line = process.stdout.readline()
      if not line:
        break
      yield json.loads(line)
    process.kill()


def _runner(folder: str, seed: int, only: str):
  """Of all readers, or of one."""
  from tests.fuzz import readers
  from tests.fuzz import runner

  chosen = [x for x in readers.READERS if only in ("", x.name)]
  return runner.Runner(pathlib.Path(folder), seed, chosen)


def work(seed: int, cases: range, only: str) -> None:
  """Runs cases, a line of JSON each."""
  with tempfile.TemporaryDirectory() as folder:
    run = _runner(folder, seed, only)
    status = pathlib.Path("/proc/self/status").read_text()
    size = int(status.partition("VmSize:")[2].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (size + _ROOM, size + _ROOM))
    for made in run.run(cases):
      print(json.dumps(vars(made)), flush=True)


def one(seed: int, case: int, only: str) -> None:
  """Runs one case, and lets all through that is raised."""
  with tempfile.TemporaryDirectory() as folder:
    run = _runner(folder, seed, only)
    print(run.one(case, run.reader(case)).text)
    run.reader(case).read(pathlib.Path(folder) / "work" / "case")


def table(made: Sequence[dict]) -> str:
  """Reader x outcome."""
  kinds = "read", "refused", "FAULT"
  rows: dict[str, collections.Counter] = {}
  seconds: collections.Counter = collections.Counter()
  for each in made:
    for name in (each["reader"], "all"):
      rows.setdefault(name, collections.Counter())[each["kind"]] += 1
      seconds[name] += each["seconds"]
  lines = [
      "| what is read | read | refused | faults | ms a case |",
      "|---|---|---|---|---|",
  ]
  for name in [*sorted(rows.keys() - {"all"}), "all"]:
    count = rows[name]
    numbers = [f"{count[kind]:,}" for kind in kinds]
    mean = 1e3 * seconds[name] / sum(count.values())
    lines.append(f"| {name} | {' | '.join(numbers)} | {mean:.1f} |")
  return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
  """Runs what the arguments ask for; returns the exit code."""
  parser = argparse.ArgumentParser(
      "python -m tests.fuzz",
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("--cases", type=int, default=20_000)
  parser.add_argument("--first", type=int, default=0, help="their first number")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--case", type=int, help="this one alone")
  parser.add_argument("--only", default="", help="what is read, by its name")
  parser.add_argument("--worker", help=argparse.SUPPRESS)
  parser.add_argument("--json", help="file that all outcomes go to, as lines")
  asked = parser.parse_args(argv[1:])
  if asked.worker:
    first, last = map(int, asked.worker.split(":"))
    work(asked.seed, range(first, last), asked.only)
    return 0
  if asked.case is not None:
    one(asked.seed, asked.case, asked.only)
    return 0
  made = []
  for each in outcomes(asked.seed, asked.cases, asked.first, asked.only):
    made.append(each)
    if asked.json:
      with open(asked.json, "a", encoding="utf-8") as file:
        file.write(json.dumps(each) + "\n")
  faults = [each for each in made if each["kind"] == "FAULT"]
  for each in faults[:_SHOWN]:
    print(f"{each['reader']}, case {each['case']}: {each['text'][:300]}")
  print(f"\nseed {asked.seed}\n\n{table(made)}")
  return 1 if faults else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv))
