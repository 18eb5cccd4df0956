"""The files of a run: all of them whole, or those that were there before."""

import contextlib
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
  files = {
      "report.json": dumps(report),
      "report.md": tables.markdown(report, details),
      "report.html": html.page(report, details),
      "details.json": dumps(details),
  }
  with contextlib.ExitStack() as parts:
    for name, text in files.items():
      part = parts.enter_context(writing.whole(made / name))
      part.write_text(text, encoding="utf-8")
    # All of them are on the disk: now an older run's go. They come to their
    # names in the other order, so that where report.json is, the others are.
    (made / "report.json").unlink(missing_ok=True)
