"""Files that are whole or not there."""

import contextlib
import os
import pathlib
from typing import Iterator
import uuid


@contextlib.contextmanager
def whole(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary name beside `path`, which becomes `path` at the end.

  Its folder is made where it is missing. Where the block raises, `path` stays
  what it was, and nothing is left over.
  """
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
  try:
    yield part
    os.replace(part, path)
  except OSError as error:
    # A write that is refused names no file, and nobody knows the other name.
    if error.filename in (None, part, os.fspath(part)):
      error.filename = os.fspath(path)
    raise
  finally:
    part.unlink(missing_ok=True)


def write(path: pathlib.Path, content: str | bytes) -> None:
  """Writes text (as UTF-8) or bytes."""
  if isinstance(content, str):
    content = content.encode("utf-8")
  with whole(path) as part:
    part.write_bytes(content)
