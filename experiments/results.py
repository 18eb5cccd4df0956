"""What the scripts share that write results/.

    script = results.Script.start("table3", arguments)
    cells = script.cells({"ende small": functools.partial(run, "ende")})
    script.write({"cells": cells}, markdown, {"table3": draw})

A table is made cell by cell; a cell that is done is kept, so that a run that
was stopped goes on where it stood.
"""

import argparse
import dataclasses
import hashlib
import json
import pathlib
import shlex
from typing import Any, Callable, Iterable, Mapping, Sequence

import tqdm

from specjax import errors
from specjax import kept
from specjax import options
from specjax import pictures
from specjax import programs
from specjax import strict_json
from specjax import writing
from specjax.measure import environment
from specjax.measure import output

# Packages that no plain installation has -> the extra that brings them.
_EXTRAS = {
    "torch": "parity",
    "transformers": "parity",
    "gguf": "gguf",
    "matplotlib": "plot",
    "datasets": "hub",
    "huggingface_hub": "hub",
}
_PARTS = pathlib.Path("out/experiments")
COMMITTED = pathlib.Path(__file__).parents[1] / "results"
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
    except ModuleNotFoundError as error:
      extra = _EXTRAS.get((error.name or "").partition(".")[0])
      if not extra:
        raise
      raise errors.UserError(
          f"{error}: python -m pip install -e '.[{extra}]'"
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
      cls,
      module: str,
      arguments: argparse.Namespace,
      name: str | None = None,
      more: Sequence[str] = (),
  ) -> "Script":
    """Notes what is run, on what, before the work.

    Args:
      module: of the script, in experiments.
      arguments: its options; `out` is not part of the command that is noted.
      name: of the files, where it is not the module's.
      more: arguments that are not among the options.

    Raises:
      errors.UserError: nothing can be written to `out`.
    """
    folder = output.folder(arguments.out)
    words = ["python", "-m", f"experiments.{module}"]
    for key, value in sorted(vars(arguments).items()):
      values = value if isinstance(value, list) else [value]
      if key != "out" and value is not None:
        for one in map(str, values):
          option = f"--{key.replace('_', '-')}"
          words += [f"{option}={one}"] if one[:1] == "-" else [option, one]
    head = environment.where(shlex.join([*words, *more]))
    same = {key: head[key] for key in ("command", "commit", "device")}
    digest = hashlib.sha256(json.dumps(same).encode()).hexdigest()[:12]
    parts = _PARTS / f"{name or module}-{digest}"
    if str(head["commit"]).endswith("-dirty"):
      # Nobody knows which source the cells there were made with.
      kept.drop(parts)
    return cls(name or module, folder, parts, head)

  def cells(
      self,
      makers: dict[str, Callable[[], Any]],
      minutes: Mapping[str, float] | None = None,
  ) -> dict[str, Any]:
    """Makes all that is not there yet, in order, each kept at once.

    Args:
      makers: of the cells, by name.
      minutes: that each takes about, for the bar; all alike by default.
    """
    made, unit = {}, "min" if minutes else "cell"
    shares = minutes or dict.fromkeys(makers, 1)
    total = sum(shares[key] for key in makers)
    with tqdm.tqdm(total=total, desc=self.name, unit=unit) as bar:
      for key, make in makers.items():
        bar.set_postfix_str(key)
        made[key] = self._store.kept(_file(key), make)
        programs.drop_many()
        bar.update(shares[key])
    return made

  def cell(self, key: str) -> Any:
    """One that is done."""
    return self._store.get(_file(key))

  @property
  def _store(self) -> kept.Folder:
    return kept.Folder(self.parts)

  def write(
      self,
      made: dict[str, Any],
      markdown: Callable[[dict], str],
      draw: Mapping[str, Callable[[dict], Any]] | None = None,
  ) -> None:
    """Writes all files, shows the table, drops the parts.

    Args:
      made: what <name>.json holds besides the head.
      markdown: makes <name>.md of it.
      draw: makes the figure of each <key>.png.
    """
    made = self.head | made
    writing.write(self.folder / f"{self.name}.json", output.dumps(made))
    for key, make in (draw or {}).items():
      pictures.save(make(made), self.folder / f"{key}.png")
    writing.write(self.folder / f"{self.name}.md", markdown(made))
    kept.drop(self.parts)
    print(markdown(made))


def _file(key: str) -> str:
  """What a cell's file is called."""
  return key.replace(" ", "_")


def table(head: str, rows: Iterable[Sequence[Any]]) -> list[str]:
  """Lines of a table in Markdown.

  Args:
    head: the columns' names with " | " between them.
    rows: their cells.
  """
  line = lambda cells: f"| {' | '.join(map(str, cells))} |"
  columns = head.split(" | ")
  return [line(columns), "|" + "---|" * len(columns), *map(line, rows)]


def read(name: str) -> dict[str, Any]:
  """What results/<name>.json holds.

  Raises:
    errors.UserError: it was not made yet.
  """
  path = COMMITTED / f"{name}.json"
  if not path.is_file():
    raise errors.UserError(
        f"{path}: is not there; python -m experiments.{name} makes it"
    )
  try:
    return strict_json.fields(path.read_bytes())
  except ValueError as error:
    raise errors.UserError(
        f"{path} is damaged ({error}); python -m experiments.{name} makes it"
    ) from None
