"""Files that come with the package, by short names such as mini/bigram."""

from importlib import resources
import os
import pathlib
import re

# Models, tables, heads and trees, a folder for each target.
ASSETS = pathlib.Path(str(resources.files("specjax"))) / "assets"
_NAME = re.compile(r"\w[\w-]*/\w[\w.-]*")


def find(name: str, suffix: str = ".safetensors") -> pathlib.Path | None:
  """A file by its path, or by a shipped name without suffix; or None."""
  # os.path takes any name, however odd or long; pathlib does not.
  path = os.path.expanduser(name)
  if os.path.isfile(path):
    return pathlib.Path(path)
  if _NAME.fullmatch(name):
    path = ASSETS / f"{name}{suffix}"
    return path if os.path.isfile(path) else None
  return None
