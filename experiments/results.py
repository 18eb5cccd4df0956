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
import sys
from typing import Any, Callable

import tqdm

from specjax import errors
from specjax import writing
from specjax.measure import environment
from specjax.measure import output

_PARTS = pathlib.Path("out/experiments")


def parser(doc: str) -> argparse.ArgumentParser:
  """Options of all scripts."""
  made = argparse.ArgumentParser(description=doc.split("\n")[0])
  made.add_argument("--out", default="results", help="folder for the files")
  return made


def exit_code(name: str, main: Callable[[], int | None]) -> int:
  """Runs a script's `main`; bad input and missing packages are one line."""
  try:
    return main() or 0
  except ImportError as error:
    line = f"{error}: pip install -e '.[parity,train]'"
  except errors.UserError as error:
    line = str(error)
  except KeyboardInterrupt:
    line = "interrupted; the same command goes on where it stood"
  print(f"experiments.{name}: {line}", file=sys.stderr)
  return 1


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
