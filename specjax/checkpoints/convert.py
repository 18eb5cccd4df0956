"""Turns pytorch_model*.bin into safetensors, once.

    python -m specjax.checkpoints.convert DIR OUT

Needs torch (extra `parity`). Weights are read with torch's weights-only
loader, which runs no code from the file.
"""

import pathlib
import sys
from typing import Any, Sequence

import jax.numpy as jnp
import numpy as np

from specjax import errors
from specjax import options
from specjax.checkpoints import config as config_lib
from specjax.checkpoints import eagle
from specjax.checkpoints import files
from specjax.checkpoints import hf
from specjax.checkpoints import text_tokenizer
from specjax.checkpoints import tokenizer
from specjax.errors import UserError

WEIGHTS = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"
DTYPES = ("float32", "bfloat16")


def convert(source, destination, *, dtype: str | None = None) -> None:
  """Writes the model of `source` to `destination` as safetensors.

  Args:
    source: a directory with config.json and pytorch_model.bin or its shards:
      a model, or an EAGLE head.
    destination: a new directory; the tokenizer is copied along.
    dtype: float32 or bfloat16; None keeps bfloat16 and makes all else float32.

  Raises:
    UserError: torch is missing, or a field, file or tensor is wrong.
  """
  if dtype not in (None, *DTYPES):
    known = ", ".join(DTYPES)
    raise UserError(f"dtype: give one of {known}, got {errors.shown(dtype)}")
  source = pathlib.Path(source)
  get = config_lib.fields(source / config_lib.FILE)
  family, config = config_lib.parse(get)
  held = _read(source)
  if eagle.WEIGHT in held:
    eagle.refuse_eagle_3(get, held)
    tensors, stored = _tensors(held, source)
    dtype = jnp.dtype(dtype or stored)
    eagle.save(destination, *eagle.read(get, tensors, dtype), dtype=dtype)
    return
  tensors, stored = _tensors(family.tidy(get, config, held), source)
  dtype = jnp.dtype(dtype or stored)
  params = hf.params_from_tensors(config, tensors, dtype, source)
  hf.save_model(
      destination,
      family.module(config, dtype=dtype),
      params,
      dtype=dtype,
      **companions(source),
  )


def companions(source: pathlib.Path) -> dict[str, Any]:
  """What hf.save_model is to copy beside the weights of a directory."""
  here = lambda names: [
      source / name for name in names if (source / name).is_file()
  ]
  return {
      "tokenizer_file": next(iter(here(tokenizer.FILES)), None),
      "beside": here((config_lib.GENERATION, *text_tokenizer.BESIDE)),
  }


def _read(source: pathlib.Path) -> dict[str, Any]:
  """What the files of a directory hold, by name."""
  try:
    import torch
  except ImportError:
    raise UserError(
        "converting needs torch: pip install 'specjax[parity]'"
    ) from None
  if (source / WEIGHTS).is_file():
    paths = [source / WEIGHTS]
  elif (source / INDEX).is_file():
    paths = list(files.find_shards(source / INDEX, ".bin"))
  else:
    raise UserError(f"{source} holds neither {WEIGHTS} nor {INDEX}")
  stored = {}
  for path in paths:
    stored |= _load(torch, path)
  return stored


def _tensors(
    stored: dict[str, Any], source: pathlib.Path
) -> tuple[dict[str, hf.Tensor], str]:
  """Tensors by name, and the type to keep them in."""
  import torch

  floats = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
  tensors = {}
  for name, value in stored.items():
    if (
        not isinstance(value, torch.Tensor)
        or value.dtype not in floats
        or value.layout is not torch.strided
        # A view may say that it is bigger than what it looks at.
        or value.nbytes > value.untyped_storage().nbytes()
    ):
      name = errors.line(name)
      raise UserError(f"{source}: {name} is not a tensor of floats")
    tensors[name] = hf.Tensor(tuple(value.shape), _reader(torch, value))
  keep = any(value.dtype == torch.bfloat16 for value in stored.values())
  return tensors, "bfloat16" if keep else "float32"


def _load(torch, path: pathlib.Path) -> dict[str, Any]:
  """What a file holds by name; runs no code from it."""
  try:
    stored = torch.load(path, map_location="cpu", weights_only=True)
  except OSError as error:
    reason = error.strerror or errors.reason(error)
    raise UserError(f"{path} cannot be read ({reason})") from None
  # Of a file that is cut or damaged, the loader raises whatever it trips over.
  except Exception as error:
    lines = str(error).strip().splitlines()
    reason = errors.line(lines[0], 200) if lines else type(error).__name__
    raise UserError(
        f"{path} is not a file of weights alone ({reason}): fetch it again"
        " from a place you trust"
    ) from None
  if not isinstance(stored, dict):
    raise UserError(
        f"{path} holds a {type(stored).__name__}, not tensors by name: save"
        " the model's state_dict there"
    )
  for name in stored:
    if not isinstance(name, str):
      raise UserError(f"{path}: {errors.shown(name)} is not a tensor's name")
  return stored


def _reader(torch, value):
  # A parameter asks for gradients, and then gives no array.
  value = value.detach()

  def read() -> np.ndarray:
    if value.dtype == torch.bfloat16:
      # numpy has no such type of its own: the bits are handed over.
      return value.view(torch.int16).numpy().view(jnp.bfloat16)
    return value.numpy()

  return read


def _parser() -> options.Parser:
  parser = options.Parser("specjax.checkpoints.convert", __doc__)
  parser.add_argument("source", metavar="DIR")
  parser.add_argument("destination", metavar="OUT")
  parser.add_argument("--dtype", choices=DTYPES)
  return parser


def main(argv: Sequence[str]) -> int:
  """Converts a directory; returns the exit code."""
  usage = _parser().format_help
  return options.door("specjax.checkpoints.convert", usage, work, argv)


def work(argv: Sequence[str]) -> None:
  """What the arguments ask for."""
  asked = _parser().read(argv)
  convert(asked.source, asked.destination, dtype=asked.dtype)


if __name__ == "__main__":
  options.leave(main(sys.argv))
