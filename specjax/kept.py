"""What a run that may be stopped has made so far, kept in a folder.

    store = Folder(path)
    cell = store.kept("cell", make)   # made once, whoever asks again

A file is a digest and JSON: one that was damaged is told, never used.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any, Callable
import uuid

from specjax import errors
from specjax import writing


@dataclasses.dataclass(frozen=True)
class Folder:
  """Values by name."""

  folder: pathlib.Path

  def has(self, name: str) -> bool:
    """Whether that is made."""
    return os.path.lexists(self._path(name))

  def kept(self, name: str, make: Callable[[], Any]) -> Any:
    """What `make` gives, as JSON has it; read where it was made before.

    Raises:
      errors.UserError: its file is damaged.
    """
    if not self.has(name):
      text = json.dumps(make(), allow_nan=False)
      writing.write(self._path(name), f"{_digest(text.encode())}\n{text}")
    return self.get(name)

  def get(self, name: str) -> Any:
    """What was made; raises as `kept`."""
    path = self._path(name)
    try:
      digest, _, content = path.read_bytes().partition(b"\n")
      good = digest == _digest(content).encode()
    except OSError:
      good = False
    if not good:
      raise errors.UserError(
          f"{path} is damaged; delete it, and the same command makes it anew"
      )
    return json.loads(content)

  def _path(self, name: str) -> pathlib.Path:
    return self.folder / f"{name}.kept"


def drop(folder: pathlib.Path) -> None:
  """Removes a folder of a run that is over, where there is one.

  Nothing of it is ever taken for another run's, wherever it is stopped.
  """
  if folder.is_dir():
    gone = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    os.rename(folder, gone)
    shutil.rmtree(gone)


def _digest(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()
