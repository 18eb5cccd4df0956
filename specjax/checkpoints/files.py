"""Files of a model's directory: JSON, shard indices, writing in one step."""

import contextlib
import os
import pathlib
import re
import shutil
from typing import Any, Iterable, Iterator, Mapping, Sequence, TypeVar
import uuid

import numpy as np
import safetensors
import safetensors.numpy

from specjax import strict_json
from specjax import writing
from specjax.errors import line, reason, shown, UserError

PICKLES = "pytorch_model*.bin"
_T = TypeVar("_T")
_AGAIN = ": delete it and fetch it again"
# What a model's directory is made of here; nothing else is ever replaced.
_OURS = re.compile(
    r"config\.json|model(-\d+-of-\d+)?\.safetensors"
    r"|model\.safetensors\.index\.json|spiece\.model|tokenizer\.json"
    r"|(tokenizer|generation)_config\.json|chat_template\.jinja"
)


def read_bytes(path) -> bytes:
  """Reads a file; UserError where that is refused."""
  try:
    return pathlib.Path(path).read_bytes()
  except (FileNotFoundError, NotADirectoryError):
    raise UserError(f"{path} does not exist") from None
  except OSError as error:
    raise UserError(f"{path} cannot be read ({error.strerror})") from None


def read_json(path) -> dict[str, Any]:
  """Reads a JSON object; UserError where there is none."""
  content = read_bytes(path)
  try:
    fields = strict_json.loads(content)
  except ValueError as error:
    raise UserError(f"{path} is not JSON ({error}){_AGAIN}") from None
  if not isinstance(fields, dict):
    raise UserError(f"{path} must hold a JSON object{_AGAIN}")
  return fields


def read_tensors(path, types: Mapping[str, Sequence[str]]):
  """Tensors and metadata of a small safetensors file.

  Args:
    path: of the file.
    types: name of a tensor -> types that it may be stored in; what has another
      name or type is left out.

  Raises:
    UserError: it is none, or damaged.
  """
  try:
    with safetensors.safe_open(path, framework="np") as file:
      names = [
          name
          for name in file.keys()
          if file.get_slice(name).get_dtype() in types.get(name, ())
      ]
      tensors = {name: file.get_tensor(name) for name in names}
      return tensors, file.metadata() or {}
  except (safetensors.SafetensorError, OSError) as error:
    raise UserError(f"{path} cannot be read ({reason(error)})") from None


def all_finite(values: np.ndarray) -> bool:
  """Whether none is NaN or infinite, of whatever bits they are made."""
  with np.errstate(all="ignore"):
    return bool(np.isfinite(values).all())


def noted_vocabulary(metadata: Mapping[str, str], key: str) -> str | None:
  """The tokenizer's fingerprint in a file's metadata; None if there is none."""
  try:
    return strict_json.loads(metadata[key])["vocabulary"]
  except (LookupError, TypeError, ValueError):
    return None


def once(named: Iterable[tuple[str, _T]], where) -> dict[str, _T]:
  """Tensors by name.

  Raises:
    UserError: two have one name.
  """
  made: dict[str, _T] = {}
  for name, tensor in named:
    if name in made:
      raise UserError(f"{where}: tensor {line(name)} comes twice{_AGAIN}")
    made[name] = tensor
  return made


def read_index(path, suffix: str) -> dict[str, set[str]]:
  """Reads an index of shards: the name of each, and the tensors in it.

  Args:
    path: of an index as Hugging Face writes it, with a `weight_map`.
    suffix: what a shard's name ends in.

  Raises:
    UserError: it is none, or a shard's name leads out of the directory.
  """
  weight_map = read_json(path).get("weight_map")
  if not isinstance(weight_map, dict) or not weight_map:
    raise UserError(
        f"{path}: field weight_map must map tensors to files{_AGAIN}"
    )
  shards = {}
  for name, file in weight_map.items():
    # No system has longer names.
    if not isinstance(file, str) or not re.fullmatch(
        rf"\w[\w.-]{{,200}}{re.escape(suffix)}", file
    ):
      raise UserError(
          f"{path}: field weight_map puts {shown(name)} in {shown(file)}, which"
          f" is no plain file name that ends in {suffix}{_AGAIN}"
      )
    shards.setdefault(file, set()).add(name)
  return shards


def write_tensors(path, tensors, metadata: Mapping[str, str]) -> None:
  """Writes a safetensors file, whole or not at all.

  Raises:
    UserError: it can't be written; names the option `out`.
  """
  try:
    writing.write(
        os.path.expanduser(path), safetensors.numpy.save(tensors, metadata)
    )
  except OSError as error:
    raise UserError(
        f"out: {path}: {error.strerror}; give another file"
    ) from None


def find_shards(path, suffix: str) -> dict[pathlib.Path, set[str]]:
  """The files of `read_index`, which are there, each with its tensors.

  Raises:
    UserError: a shard is missing or unreachable, or the index is none.
  """
  path = pathlib.Path(path)
  names = read_index(path, suffix)
  shards = {path.parent / name: names[name] for name in names}
  for shard in shards:
    # A file in a directory that may not be searched counts as missing, too.
    if not os.path.isfile(shard):
      raise UserError(f"{shard} is missing, though {path.name} names it")
  return shards


def refuse_pickles(directory: pathlib.Path) -> None:
  """Raises UserError where pickled weights lie in a directory.

  Of a directory that has no others.
  """
  pickles = sorted(directory.glob(PICKLES))
  if pickles:
    raise UserError(
        f"{directory} holds only {pickles[0].name}, which is never unpickled"
        " here; convert it once, python -m specjax.checkpoints.convert"
        f" {directory} OUT, and give OUT"
    )


@contextlib.contextmanager
def fresh_directory(directory) -> Iterator[pathlib.Path]:
  """Gives an empty directory that takes the place of `directory` at the end.

  Whatever goes wrong, what was there before stays.

  Raises:
    UserError: `directory` holds something that is no part of a model, or
      nothing can be written there.
  """
  # Of a link, what it points to is replaced.
  directory = pathlib.Path(os.path.realpath(directory))
  try:
    with _replacing(directory) as part:
      yield part
  except (OSError, safetensors.SafetensorError) as error:
    reason = str(error)
    if isinstance(error, OSError) and error.filename:
      reason = f"{error.filename}: {error.strerror}"
    raise UserError(
        f"{directory} cannot be written ({reason}); give another directory"
    ) from None


@contextlib.contextmanager
def _replacing(directory: pathlib.Path) -> Iterator[pathlib.Path]:
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
    if old.exists() and not directory.exists():
      # Stopped between the two.
      os.rename(old, directory)
    shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _check_replaceable(directory: pathlib.Path) -> None:
  if not directory.name:
    raise UserError(f"{directory} cannot be replaced; give a new directory")
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
