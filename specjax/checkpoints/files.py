"""Files of a model's directory: JSON, shard indices, writing in one step."""

import contextlib
import json
import os
import pathlib
import re
import shutil
from typing import Any, Iterator
import uuid

from specjax.errors import UserError

# What a model's directory is made of here; nothing else is ever replaced.
_OURS = re.compile(
    r"config\.json|model(-\d+-of-\d+)?\.safetensors"
    r"|model\.safetensors\.index\.json|spiece\.model|tokenizer\.json"
)


def read_json(path) -> dict[str, Any]:
  """Reads a JSON object; UserError where there is none."""
  try:
    fields = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
  except (FileNotFoundError, NotADirectoryError):
    raise UserError(f"{path} does not exist") from None
  except (UnicodeDecodeError, json.JSONDecodeError) as error:
    raise UserError(f"{path} is not JSON ({error}): fetch it again") from None
  if not isinstance(fields, dict):
    raise UserError(f"{path} must hold a JSON object")
  return fields


def read_index(path, suffix: str) -> dict[pathlib.Path, set[str]]:
  """Reads an index of shards: each file, and the tensors it must hold.

  Args:
    path: of an index as Hugging Face writes it, with a `weight_map`.
    suffix: what a shard's name ends in.

  Raises:
    UserError: a shard is missing, or its name leads out of the directory.
  """
  path = pathlib.Path(path)
  weight_map = read_json(path).get("weight_map")
  if not isinstance(weight_map, dict) or not weight_map:
    raise UserError(f"{path}: field weight_map must map tensors to files")
  shards = {}
  for name, file in weight_map.items():
    if not isinstance(file, str) or not re.fullmatch(
        rf"\w[\w.-]*{re.escape(suffix)}", file
    ):
      raise UserError(
          f"{path}: field weight_map puts {name} in {file!r}; it must be a"
          f" plain file name that ends in {suffix}"
      )
    shards.setdefault(path.parent / file, set()).add(name)
  for shard in shards:
    if not shard.is_file():
      raise UserError(f"{shard} is missing, though {path.name} names it")
  return shards


@contextlib.contextmanager
def fresh_directory(directory) -> Iterator[pathlib.Path]:
  """Gives an empty directory that takes the place of `directory` at the end.

  Raises:
    UserError: `directory` holds something that is no part of a model.
  """
  directory = pathlib.Path(directory).absolute()
  _check_replaceable(directory)
  directory.parent.mkdir(parents=True, exist_ok=True)
  unique = f".{directory.name}.{uuid.uuid4().hex}"
  part, old = directory.with_name(unique), directory.with_name(unique + ".old")
  part.mkdir()
  try:
    yield part
    if directory.exists():
      # A directory can't be renamed onto one that isn't empty.
      os.rename(directory, old)
    os.rename(part, directory)
  finally:
    shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _check_replaceable(directory: pathlib.Path) -> None:
  if not directory.exists():
    return
  if not directory.is_dir():
    raise UserError(f"{directory} is a file; give a new directory")
  foreign = [
      path.name
      for path in directory.iterdir()
      if not _OURS.fullmatch(path.name)
  ]
  if foreign:
    raise UserError(
        f"{directory} holds {min(foreign)}, which is no part of a model; give"
        " a new directory"
    )
