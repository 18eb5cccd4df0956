"""Turns pytorch_model*.bin into safetensors, once.

    python -m specjax.checkpoints.convert DIR OUT

Needs torch (extra `parity`). Weights are read with torch's weights-only
loader, which runs no code from the file.
"""

import argparse
import pathlib
import pickle
import sys

import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import config as config_lib
from specjax.checkpoints import files
from specjax.checkpoints import hf
from specjax.checkpoints import names
from specjax.checkpoints import tokenizer
from specjax.errors import UserError
from specjax.models import t5

WEIGHTS = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"


def convert(source, destination, *, dtype: str | None = None) -> None:
  """Writes the T5 of `source` to `destination` as safetensors.

  Args:
    source: a directory with config.json and pytorch_model.bin or its shards.
    destination: a new directory; the tokenizer is copied along.
    dtype: float32 or bfloat16; None keeps bfloat16 and makes all else float32.

  Raises:
    UserError: torch is missing, or a field, file or tensor is wrong.
  """
  source = pathlib.Path(source)
  config = config_lib.read(source / config_lib.FILE)
  tensors, stored = _read(source)
  dtype = jnp.dtype(dtype or stored)
  params = hf.params_from_tensors(config, tensors, dtype, source)
  present = [
      source / name for name in tokenizer.FILES if (source / name).is_file()
  ]
  hf.save_t5(
      destination,
      t5.T5(config, dtype=dtype),
      params,
      dtype=dtype,
      tokenizer_file=present[0] if present else None,
  )


def _read(source: pathlib.Path) -> tuple[dict[str, hf.Tensor], str]:
  """Tensors by name, and the type to keep them in."""
  try:
    import torch
  except ImportError:
    raise UserError(
        "converting needs torch: pip install 'specjax[parity]'"
    ) from None
  if (source / WEIGHTS).is_file():
    paths = [source / WEIGHTS]
  elif (source / INDEX).is_file():
    paths = list(files.read_index(source / INDEX, ".bin"))
  else:
    raise UserError(f"{source} holds neither {WEIGHTS} nor {INDEX}")
  stored = {}
  for path in paths:
    try:
      stored |= torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
      reason = str(error).splitlines()[0]
      raise UserError(
          f"{path} is not a file of weights alone ({reason}): fetch it again"
          " from a place you trust"
      ) from None
  tensors = {}
  for name, value in stored.items():
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
      raise UserError(f"{source}: {name} is not a tensor of floats")
    tensors[name] = hf.Tensor(tuple(value.shape), _reader(torch, value))
  half = stored.get(names.SHARED)
  keep = half is not None and half.dtype == torch.bfloat16
  return tensors, "bfloat16" if keep else "float32"


def _reader(torch, value):
  def read() -> np.ndarray:
    if value.dtype == torch.bfloat16:
      # numpy has no such type of its own: the bits are handed over.
      return value.view(torch.int16).numpy().view(jnp.bfloat16)
    return value.numpy()

  return read


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("source", metavar="DIR")
  parser.add_argument("destination", metavar="OUT")
  parser.add_argument("--dtype", choices=("float32", "bfloat16"))
  arguments = parser.parse_args()
  try:
    convert(arguments.source, arguments.destination, dtype=arguments.dtype)
  except UserError as error:
    sys.exit(str(error))


if __name__ == "__main__":
  main()
