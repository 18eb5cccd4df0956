"""All of results/ that is of the shipped family, anew.

    python -m experiments.all

Runs the scripts one after another, in one process, so that they share models
and compiled programs, and brings docs/theory.md up to date. What is written
comes into results/ at the end, all at once: so every file names the commit that
it was made with. Run again after an interruption, it goes on where it stood.
Needs the extras parity and plot. `--rows` makes every table of so few texts, to
try the scripts out; `--config.SECTION.KEY=VALUE` goes to those on pairs.

Writes results/all.json and .md, too: how long each took, about an hour in all
on two CPU cores.
"""

import contextlib
import functools
import pathlib
import sys
import time
from typing import Any, Iterator, Sequence

import jax
from jax.experimental.compilation_cache import compilation_cache

from experiments import baseline
from experiments import bigger_draft
from experiments import document
from experiments import figures
from experiments import lossless
from experiments import pairs
from experiments import predicted_c
from experiments import results
from experiments import rounds
from experiments import table1
from experiments import table2_and_4
from experiments import table3
from experiments import table5
from specjax import errors
from specjax import options
from specjax import pictures
from specjax import writing
from specjax.measure import environment

NAME = "all"
# Script, arguments, and minutes on two CPU cores.
RUNS = (
    (table1, (), 2.3),
    (table2_and_4, (), 19.8),
    (table3, (), 6.6),
    (table5, (), 5.7),
    (bigger_draft, (), 3.2),
    (figures, (), 9.5),
    (rounds, (), 4.7),
    (predicted_c, (), 0.1),
    (lossless, ("--rows=4",), 3.7),
    (baseline, ("--dtype=float32",), 1.6),
    (baseline, ("--dtype=bfloat16",), 1.3),
)
_NOT_ON_PAIRS = lossless, baseline
_WITHOUT_TEXTS = (predicted_c,)


def run(script, arguments: Sequence[str]) -> dict[str, Any]:
  """Runs one script.

  Raises:
    errors.UserError: it failed; it said why.
    KeyboardInterrupt: it was stopped.
  """
  began = time.perf_counter()
  code = script.main([script.__name__, *arguments])
  if code == options.INTERRUPTED:
    raise KeyboardInterrupt
  if code:
    raise errors.UserError(f"{script.__name__} failed, see above")
  return {"minutes": (time.perf_counter() - began) / 60}


@contextlib.contextmanager
def compiled_in(folder: pathlib.Path) -> Iterator[None]:
  """Keeps what is compiled: scripts share programs, and drop them when many."""
  before = jax.config.jax_compilation_cache_dir
  jax.config.update("jax_compilation_cache_dir", str(folder.absolute()))
  try:
    yield
  finally:
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


def arguments_of(
    script, own: Sequence[str], rows: int | None, changes: Sequence[str]
) -> list[str]:
  """What a script is given besides the folder."""
  out = list(own)
  if script in _WITHOUT_TEXTS:
    return out
  if rows:
    out = [word for word in out if not word.startswith("--rows")]
    out.append(f"--rows={rows}")
  return out if script in _NOT_ON_PAIRS else [*out, *changes]


def markdown(made: dict) -> str:
  """The table for people."""
  lines = made["scripts"]
  total = sum(line["minutes"] for line in lines)
  return "\n".join([
      "# How long all results took",
      "",
      f"{environment.headline(made)}.",
      "",
      *results.table(
          "command | minutes",
          [
              *((f"`{x['command']}`", f"{x['minutes']:.1f}") for x in lines),
              ("all", f"{total:.1f}"),
          ],
      ),
  ]) + "\n"


def _parser() -> options.Parser:
  made = results.parser(NAME, __doc__)
  made.add_argument("--rows", type=results.SOME, help="of each table")
  return made


def work(argv: Sequence[str]) -> None:
  """Runs all, then writes."""
  own, changes = pairs.split(argv)
  arguments = _parser().read(own)
  pictures.check()
  whole = results.Script.start(NAME, arguments, more=changes)
  folder = whole.parts / "files"
  commands, makers, minutes = {}, {}, {}
  for script, given, share in RUNS:
    words = arguments_of(script, given, arguments.rows, changes)
    key = " ".join([script.__name__, *given]).replace("--", "")
    commands[key] = " ".join(["python -m", script.__name__, *words])
    makers[key] = functools.partial(run, script, [*words, f"--out={folder}"])
    minutes[key] = share
  print(f"about {sum(minutes.values()):.0f} minutes on two CPU cores")
  with compiled_in(whole.parts / "compiled"):
    made = whole.cells(makers, minutes)
  # Where a script was killed, names with a dot are half files.
  for path in sorted(folder.glob("[!.]*")):
    writing.write(whole.folder / path.name, path.read_bytes())
  whole.write(
      {
          "scripts": [
              {"command": commands[key]} | made[key] for key in commands
          ]
      },
      markdown,
  )
  if whole.folder.resolve() == results.COMMITTED:
    document.main([document.NAME])


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door(NAME, _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
