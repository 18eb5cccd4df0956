"""Earlier responses, for suffix decoding, as files.

A file is safetensors: `tokens` of all responses one after another, oldest
first, and the `length` of each; its metadata names the vocabulary.
"""

import json
import os
from typing import Sequence

import numpy as np
import safetensors.numpy

from specjax import writing
from specjax.checkpoints import files
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.errors import shown, UserError

_KEY = "specjax.responses"
_TYPES = {"tokens": ("I32",), "length": ("I32",)}


def save(
    path, responses: Sequence[np.ndarray], tokenizer: tokenizer_lib.Tokenizer
) -> None:
  """Writes responses, oldest first; the file is whole or what it was.

  Raises:
    UserError: nothing can be written there.
  """
  none = np.zeros(0, np.int32)
  tensors = {
      "tokens": np.concatenate([none, *responses]).astype(np.int32),
      "length": np.array([len(ids) for ids in responses], np.int32),
  }
  metadata = {_KEY: json.dumps({"vocabulary": tokenizer.fingerprint()})}
  try:
    content = safetensors.numpy.save(tensors, metadata)
    writing.write(os.path.expanduser(path), content)
  except OSError as error:
    raise UserError(
        f"save: {path}: {error.strerror}; give another file"
    ) from None


def find(path) -> str:
  """The path of a file that is there.

  Raises:
    UserError: there is none; one line.
  """
  expanded = os.path.expanduser(path)
  if not os.path.isfile(expanded):
    raise UserError(
        f"load: {shown(str(path))} is no file; give one that draft.suffix.save"
        " wrote"
    )
  return expanded


def load(
    path, tokenizer: tokenizer_lib.Tokenizer, vocabulary: int
) -> list[np.ndarray]:
  """Reads and checks responses.

  Args:
    path: of a file that `save` wrote.
    tokenizer: of the target that they are for.
    vocabulary: V of its law; models are often wider than their tokenizer.

  Raises:
    UserError: it can't be had, is damaged, or has another vocabulary; one
      line.
  """
  path = find(path)
  try:
    tensors, metadata = files.read_tensors(path, _TYPES)
  except UserError as error:
    raise UserError(
        f"load: {error}; give a file that draft.suffix.save wrote"
    ) from None
  if _TYPES.keys() != tensors.keys() or _KEY not in metadata:
    raise UserError(
        f"load: {path} holds no responses; give a file that draft.suffix.save"
        " wrote"
    )
  if files.noted_vocabulary(metadata, _KEY) != tokenizer.fingerprint():
    raise UserError(
        f"load: {path} has another vocabulary than the target's; give"
        " responses of this target"
    )
  tokens, length = tensors["tokens"], tensors["length"]
  fault = _fault(tokens, length, vocabulary)
  if fault:
    raise UserError(f"load: {path} is damaged ({fault}); give another file")
  return np.split(tokens, np.cumsum(length)[:-1]) if len(length) else []


def _fault(tokens: np.ndarray, length: np.ndarray, size: int) -> str | None:
  """What is wrong; None where nothing is."""
  if tokens.ndim != 1 or length.ndim != 1:
    return "tokens and length must have one axis"
  if np.any(length < 0) or np.sum(length, dtype=np.int64) != len(tokens):
    return "length does not add up to the tokens"
  if np.any((tokens < 0) | (tokens >= size)):
    return f"tokens holds an id that is not below {size}"
  return None
