"""Names of models -> folders on this machine.

In this order: a local folder, a model that ships with the package, the Hugging
Face cache, a download by huggingface_hub.
"""

from importlib import resources
import pathlib
import re

from specjax.checkpoints import files
from specjax.checkpoints import hf
from specjax.checkpoints import tokenizer
from specjax.errors import UserError

_WANTED = (
    "config.json",
    "model*.safetensors",
    hf.INDEX,
    *tokenizer.FILES,
)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def resolve(name: str, *, hint: str) -> pathlib.Path:
  """Finds the folder of a model, fetching it where that is possible.

  Args:
    name: a folder, a shipped model ("mini/target") or a Hugging Face name
      ("google/flan-t5-small").
    hint: ends the message where nothing can be had: what else to do.

  Raises:
    UserError: one line that says what to fetch and where to put it.
  """
  folder = pathlib.Path(name).expanduser()
  if name and folder.is_dir():
    return folder
  if not _HUB_NAME.fullmatch(name):
    raise UserError(f"{name!r} is no folder and no name of a model; {hint}")
  shipped = pathlib.Path(str(resources.files("specjax"))) / "assets" / name
  if shipped.is_dir():
    return shipped
  return _from_hub(name, hint)


def _from_hub(name: str, hint: str) -> pathlib.Path:
  try:
    import huggingface_hub as hub
  except ImportError:
    reason = "huggingface_hub is not installed: pip install 'specjax[hub]'"
    raise UserError(_cannot(name, reason, hint)) from None
  try:
    folder = _cached(hub, name) or pathlib.Path(
        hub.snapshot_download(name, allow_patterns=list(_WANTED))
    )
  # HTTPError is of the HTTP library that this huggingface_hub uses.
  except (OSError, ValueError, hub.errors.HTTPError) as error:
    raise UserError(_cannot(name, _reason(error), hint)) from None
  missing = _missing(folder)
  if missing == hf.WEIGHTS:
    raise UserError(
        f"{name} has no safetensors: fetch it with `hf download {name}"
        f" --local-dir DIR`, then python -m specjax.checkpoints.convert DIR OUT"
        " and give OUT"
    )
  if missing:
    raise UserError(_cannot(name, f"it has no {missing}", hint))
  return folder


def _cached(hub, name: str) -> pathlib.Path | None:
  """The cache's folder of a model, if it is complete.

  Judged by its files: a cache that another program filled need not hold all
  that a snapshot of the repository would.
  """
  config = hub.try_to_load_from_cache(name, "config.json")
  if not isinstance(config, str):
    return None
  folder = pathlib.Path(config).parent
  return None if _missing(folder) else folder


def _missing(folder: pathlib.Path) -> str | None:
  """Name of a file that a complete model would have, None if all are there."""
  if not (folder / "config.json").is_file():
    return "config.json"
  if not (folder / hf.WEIGHTS).is_file():
    if not (folder / hf.INDEX).is_file():
      return hf.WEIGHTS
    weight_map = files.read_json(folder / hf.INDEX).get("weight_map", {})
    for shard in weight_map.values():
      if not (folder / str(shard)).is_file():
        return str(shard)
  if not any((folder / file).is_file() for file in tokenizer.FILES):
    return tokenizer.FILES[0]
  return None


def _reason(error: BaseException) -> str:
  """The first line of what lies at the bottom of `error`."""
  while error.__cause__ is not None:
    error = error.__cause__
  lines = str(error).strip().splitlines()
  return lines[0][:200] if lines else type(error).__name__


def _cannot(name: str, reason: str, hint: str) -> str:
  return (
      f"{name} is neither on this machine nor to be had ({reason}): fetch it"
      f" elsewhere with `hf download {name} --local-dir DIR` and give the"
      f" folder DIR in place of the name; {hint}"
  )
