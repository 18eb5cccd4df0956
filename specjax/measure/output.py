"""The files of a run, each whole or not there."""

import json
import os
import pathlib
import uuid

from specjax import errors
from specjax.measure import html
from specjax.measure import tables


def folder(path: str) -> pathlib.Path:
  """The folder for a run's files, made where it is missing.

  Raises:
    errors.UserError: nothing can be written there.
  """
  made = pathlib.Path(path).expanduser()
  try:
    made.mkdir(parents=True, exist_ok=True)
    write(made / "report.json.test", "")
    (made / "report.json.test").unlink()
  except OSError as error:
    raise errors.UserError(f"out: {path}: {error.strerror}") from None
  return made


def write(path: pathlib.Path, text: str) -> None:
  """Writes a file that is whole or not there."""
  part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
  try:
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
  finally:
    part.unlink(missing_ok=True)


def dumps(value) -> str:
  """JSON for people."""
  return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def save(made: pathlib.Path, report: dict, details: dict) -> None:
  """Writes report.json, details.json, report.md and report.html."""
  write(made / "details.json", dumps(details))
  write(made / "report.html", html.page(report, details))
  write(made / "report.md", tables.markdown(report, details))
  # Last, so that where it is, the others are.
  write(made / "report.json", dumps(report))
