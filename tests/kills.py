"""Stops three doors at random moments, and compares what comes in the end.

    python -m tests.kills --home DIR --kills 50
    python -m tests.kills --home DIR --kills 15 --first 30 --signal INT

A training run, a table and a benchmark on tiny models (tests.works) by turns:
each is stopped, goes on, is stopped again, and in the end is left alone. What
was done before a stop must be there after it, no file with a name of its own
may be half, and the results must be those of a run that nothing stopped,
timings aside. DIR keeps what is long to make, so that many stops can be spread
over several calls: `--first` is the number of the first one.

After Ctrl-C (INT) the door must have said one line, and 130. The table is of
all stops of a seed and a signal.
"""

import argparse
import collections
import json
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import Sequence

from tests import conftest  # noqa: F401  Compiles quickly.
from tests import works

_PATIENCE = 300


def run(work: works.Work, home, folder, delay=None, sign=None):
  """Starts it, and stops it after some seconds.

  Returns:
    Its exit code, what it said, and whether it was stopped.
  """
  said = home / "said.txt"
  stopped = False
  with said.open("wb") as errors:
    process = work.start(home, folder, errors)
    try:
      process.wait(delay or _PATIENCE)
    except subprocess.TimeoutExpired:
      process.send_signal(sign or signal.SIGKILL)
      stopped = True
    code = process.wait(_PATIENCE)
  text = said.read_text(errors="replace")
  if delay is None and code:
    raise RuntimeError(f"{work.name} fails: {text[-2000:]}")
  return code, text, stopped


def whole(work: works.Work, home) -> tuple[float, list]:
  """Seconds and results of a run that nothing stopped."""
  noted = home / "whole" / f"{work.name}.json"
  if not noted.exists():
    folder = home / "whole" / work.name
    began = time.monotonic()
    run(work, home, folder)
    made = [time.monotonic() - began, work.results(folder)]
    noted.write_text(json.dumps(made))
  seconds, results = json.loads(noted.read_text())
  return seconds, results


def compare(work: works.Work, home, folder) -> list[str]:
  """What is wrong with a run that has ended."""
  # As JSON has them.
  made = json.loads(json.dumps(work.results(folder)))
  faults = [] if made == whole(work, home)[1] else ["other results"]
  return faults + works.half_files(folder)


def stop(work: works.Work, home, rng, sign) -> tuple[int, list[str]]:
  """Stops a run once, beginning anew where one has ended.

  Returns:
    How many have ended meanwhile, and what is wrong.
  """
  folder, ended, faults = home / "cut" / work.name, 0, []
  while True:
    before = work.done(folder)
    delay = rng.uniform(0.1, whole(work, home)[0])
    code, said, stopped = run(work, home, folder, delay, sign)
    if not stopped:
      if code:
        return ended, faults + [f"exit code {code}: {said[-500:]}"]
      faults += compare(work, home, folder)
      ended += 1
      shutil.rmtree(folder)
      continue
    lost = before - work.done(folder)
    if lost and "all" not in work.done(folder):
      faults.append(f"lost {sorted(lost)}")
    faults += works.half_files(folder)
    if sign == signal.SIGINT:
      faults += plain_end(code, said)
    return ended, faults


def plain_end(code: int, said: str) -> list[str]:
  """What is wrong with an end by Ctrl-C."""
  # While Python itself begins, there is no door yet.
  good = code in (130, -signal.SIGINT, 0)
  faults = [] if good else [f"exit code {code}"]
  if "Traceback" in said:
    faults.append(f"traceback: {said[-1500:]}")
  lines = [line for line in re.split(r"[\r\n]+", said) if line.strip()]
  # Bars are lines, too.
  told = sum("interrupted" in line for line in lines)
  if code == 130 and (told != 1 or "interrupted" not in lines[-1]):
    faults.append(f"told {told} times: {said[-500:]}")
  return faults


def main(argv: Sequence[str]) -> int:
  """Runs what the arguments ask for; returns the exit code."""
  parser = argparse.ArgumentParser(
      "python -m tests.kills",
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("--home", type=pathlib.Path, required=True)
  parser.add_argument("--kills", type=int, default=50)
  parser.add_argument("--first", type=int, default=0)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--signal", choices=("KILL", "INT"), default="KILL")
  asked = parser.parse_args(argv[1:])
  # What runs in the background may have been told to ignore it, and would
  # tell its children so.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  home = asked.home.absolute()
  works.prepare(home)
  sign = signal.Signals[f"SIG{asked.signal}"]
  noted = home / f"stops_{asked.signal}_{asked.seed}.jsonl"

  def note(work, stops: int, ended: int, faults: Sequence[str]):
    """Keeps what became of a stop, or of a run that was left alone."""
    entry = [work.name, stops, ended, faults]
    with noted.open("a", encoding="utf-8") as file:
      file.write(json.dumps(entry) + "\n")

  for number in range(asked.first, asked.first + asked.kills):
    work = works.WORKS[number % len(works.WORKS)]
    rng = random.Random(f"{asked.seed} {number}")
    note(work, 1, *stop(work, home, rng, sign))
  for work in works.WORKS:
    folder = home / "cut" / work.name
    if folder.exists():
      run(work, home, folder)
      note(work, 0, 1, compare(work, home, folder))
      shutil.rmtree(folder)
  return show(noted, asked.signal)


def show(noted: pathlib.Path, sign: str) -> int:
  """Prints a table of what was noted; returns the exit code."""
  stops, ended, wrong = (collections.Counter() for _ in range(3))
  for line in noted.read_text(encoding="utf-8").splitlines():
    name, count, runs, faults = json.loads(line)
    stops[name] += count
    ended[name] += runs
    wrong[name] += len(faults)
    for fault in faults:
      print(f"{name}: {fault}")
  print(f"\n| work | SIG{sign} | runs compared | faults |")
  print("|---|---|---|---|")
  for name in stops:
    print(f"| {name} | {stops[name]} | {ended[name]} | {wrong[name]} |")
  return 1 if sum(wrong.values()) else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv))
