"""Brings docs/theory.md up to what its Python lines print today.

    python -m experiments.document

The document's figures are printed by the lines above them, and those that were
measured here come from results/*.json: after new results this writes the new
ones in. The test suite runs the same lines and fails where they differ.
"""

import contextlib
import doctest
import io
import pathlib
import sys
from typing import Any, Sequence

from experiments import results
from specjax import options
from specjax import writing

NAME = "document"
FILE = pathlib.Path(__file__).parents[1] / "docs" / "theory.md"


def refreshed(text: str) -> str:
  """The text with what its Python lines print now in place of what it says."""
  names: dict[str, Any] = {}
  lines, shift = text.split("\n"), 0
  for example in doctest.DocTestParser().get_examples(text):
    begin = example.lineno + example.source.count("\n") + shift
    old = example.want.count("\n")
    new = [
        f"{' ' * example.indent}{line}".rstrip()
        for line in _printed(example.source, names).splitlines()
    ]
    lines[begin : begin + old] = new
    shift += len(new) - old
  return "\n".join(lines)


def _printed(source: str, names: dict[str, Any]) -> str:
  """What lines print, as at Python's own prompt."""
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    exec(compile(source, str(FILE), "single"), names)
  return printed.getvalue()


def _parser() -> options.Parser:
  return options.Parser(f"experiments.{NAME}", __doc__)


def work(argv: Sequence[str]) -> None:
  """Rewrites the document where it has changed."""
  _parser().read(argv)
  text = FILE.read_text("utf-8")
  new = refreshed(text)
  if new != text:
    writing.write(FILE, new)
  print(f"{FILE.name}: {'brought up to date' if new != text else 'as it was'}")


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door(NAME, _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
