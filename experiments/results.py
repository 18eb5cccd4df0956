"""What the scripts share that write results/.

    script = results.Script.start("mini", arguments)
    cells = script.cells({"ende small": functools.partial(run, "ende")})
    script.write({"cells": cells}, markdown)

A table is made cell by cell; a cell that is done is kept, so that a run that
was stopped goes on where it stood.
"""

import argparse
import dataclasses
import hashlib
import json
import pathlib
import shlex
import shutil
from typing import Any, Callable, Sequence

import tqdm

from specjax import errors
from specjax import options
from specjax import writing
from specjax.measure import environment
from specjax.measure import output

_PARTS = pathlib.Path("out/experiments")
# Types of argparse.
COUNT, SOME = options.whole(0, 10**6), options.whole(1, 10**6)


def parser(module: str, doc: str) -> options.Parser:
  """Options of all scripts."""
  made = options.Parser(f"experiments.{module}", doc)
  made.add_argument("--out", default="results", help="folder for the files")
  return made


def door(
    module: str,
    usage: Callable[[], str],
    work: Callable[[Sequence[str]], int | None],
    argv: Sequence[str],
) -> int:
  """options.door of a script; a package that is missing is one line, too."""

  def tried(argv: Sequence[str]) -> int | None:
    try:
      return work(argv)
    except ImportError as error:
      raise errors.UserError(
          f"{error}: pip install -e '.[parity,train]'"
      ) from None

  return options.door(
      f"experiments.{module}",
      usage,
      tried,
      argv,
      interrupted="interrupted; the same command goes on where it stood",
  )


@dataclasses.dataclass(frozen=True)
class Script:
  """One run of a script.

  Attributes:
    name: of its files.
    folder: where they go.
    parts: where finished cells wait.
    head: command, commit, date and device (measure.environment.where).
  """

  name: str
  folder: pathlib.Path
  parts: pathlib.Path
  head: dict[str, Any]

  @classmethod
  def start(
      cls, module: str, arguments: argparse.Namespace, name: str | None = None
  ) -> "Script":
    """Notes what is run, on what, before the work.

    Args:
      module: of the script, in experiments.
      arguments: its options; `out` is not part of the command that is noted.
      name: of the files, where it is not the module's.

    Raises:
      errors.UserError: nothing can be written to `out`.
    """
    folder = output.folder(arguments.out)
    words = ["python", "-m", f"experiments.{module}"]
    for key, value in sorted(vars(arguments).items()):
      if key != "out":
        words += [f"--{key.replace('_', '-')}", str(value)]
    head = environment.where(shlex.join(words))
    same = {key: head[key] for key in ("command", "commit", "device")}
    digest = hashlib.sha256(json.dumps(same).encode()).hexdigest()[:12]
    parts = _PARTS / f"{name or module}-{digest}"
    if str(head["commit"]).endswith("-dirty"):
      # Nobody knows which source the cells there were made with.
      shutil.rmtree(parts, ignore_errors=True)
    return cls(name or module, folder, parts, head)

  def cells(self, makers: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Makes all that is not there yet, in order, each kept at once."""
    made = {}
    with tqdm.tqdm(total=len(makers), desc=self.name, unit="cell") as bar:
      for key, make in makers.items():
        bar.set_postfix_str(key)
        path = self.parts / f"{key.replace(' ', '_')}.json"
        if not path.is_file():
          writing.write(path, output.dumps(make()))
        made[key] = json.loads(path.read_text(encoding="utf-8"))
        bar.update()
    return made

  def write(
      self, made: dict[str, Any], markdown: Callable[[dict], str]
  ) -> None:
    """Writes <name>.json and <name>.md, shows the table, drops the parts."""
    made = self.head | made
    writing.write(self.folder / f"{self.name}.json", output.dumps(made))
    writing.write(self.folder / f"{self.name}.md", markdown(made))
    shutil.rmtree(self.parts, ignore_errors=True)
    print(markdown(made))
