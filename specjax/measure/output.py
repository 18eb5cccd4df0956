"""The files of a run, each whole or not there."""

import json
import os
import pathlib
import re

from specjax import errors
from specjax import writing
from specjax.measure import tables
from specjax.measure.page import html


def default(name: str) -> str:
  """The folder of a run by its name."""
  return "out/" + re.sub(r"[^\w.-]+", "_", name)


def folder(path: str) -> pathlib.Path:
  """The folder for a run's files, made where it is missing.

  Raises:
    errors.UserError: nothing can be written there.
  """
  made = pathlib.Path(os.path.expanduser(path))
  try:
    made.mkdir(parents=True, exist_ok=True)
    writing.write(made / "report.json.test", "")
    (made / "report.json.test").unlink()
  except OSError as error:
    raise errors.UserError(
        f"out: {path}: {error.strerror}; give another folder"
    ) from None
  return made


def dumps(value) -> str:
  """JSON for people."""
  return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def save(made: pathlib.Path, report: dict, details: dict) -> None:
  """Writes report.json, details.json, report.md and report.html."""
  writing.write(made / "details.json", dumps(details))
  writing.write(made / "report.html", html.page(report, details))
  writing.write(made / "report.md", tables.markdown(report, details))
  # Last, so that where it is, the others are.
  writing.write(made / "report.json", dumps(report))
