"""The log of a training run, one JSON line a step, and its curves."""

import json
import pathlib

from specjax import checks
from specjax import strict_json
from specjax import writing


class Log:
  """Appends lines; on a resume, drops those after the checkpoint."""

  def __init__(self, path: pathlib.Path, step: int):
    """Keeps the lines up to `step`, the step that training goes on from."""
    kept = [entry for entry in read(path) if entry["step"] <= step]
    self._path = path
    writing.write(path, "".join(map(_line, kept)))

  def write(self, entry: dict) -> None:
    """Adds the line of a step."""
    with self._path.open("a", encoding="utf-8") as file:
      file.write(_line(entry))


def _line(entry: dict) -> str:
  return json.dumps(entry) + "\n"


def read(path: pathlib.Path) -> list[dict]:
  """The steps of a log, in order; a line cut off by a kill is left out."""
  if not path.is_file():
    return []
  made = map(_entry, path.read_bytes().splitlines())
  return [entry for entry in made if entry is not None]


def _entry(line: bytes) -> dict | None:
  """What a line says of a step; None where it was damaged."""
  try:
    entry = strict_json.loads(line)
    numbers = all(map(checks.is_number, entry.values()))
    return entry if numbers and checks.is_whole(entry["step"], 1) else None
  except (AttributeError, LookupError, TypeError, ValueError):
    return None
