"""Tables of unigrams and bigrams as files, by path or by shipped name.

A file is safetensors: `log_unigram`, `log_backoff` and `count` of each id, the
ids of all listed `successor`s one after another, and their `log_prob`; its
metadata names the vocabulary. specjax.data.ngrams makes such files.
"""

import dataclasses
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import safetensors

from specjax import shipped
from specjax.checkpoints import files
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.drafters import ngram
from specjax.errors import shown, UserError

MAKER = "python -m specjax.data.ngrams"
_KEY = "specjax.ngrams"
_LOGS = ("BF16", "F32")
_IDS = ("U16", "U32")
# Tensor -> types that it may be stored in.
_TYPES = {
    "log_unigram": _LOGS,
    "log_backoff": _LOGS,
    "count": _IDS,
    "successor": _IDS,
    "log_prob": _LOGS,
}
# What bfloat16 may make of a probability of 1.
_ABOVE_ONE = 0.01


@dataclasses.dataclass(frozen=True)
class Ngrams:
  """Laws of the next token, as drafters.ngram.Table has them.

  Attributes:
    vocabulary: fingerprint of the tokenizer that it was counted with.
    log_unigram_V: float32.
    log_backoff_V: float32.
    count_V: int64, listed successors of each id.
    successor_E: int64, their ids, rising for each id.
    log_prob_E: float32.
  """

  vocabulary: str
  log_unigram_V: np.ndarray
  log_backoff_V: np.ndarray
  count_V: np.ndarray
  successor_E: np.ndarray
  log_prob_E: np.ndarray

  @property
  def left_E(self) -> np.ndarray:
    """The id that each successor follows."""
    return np.repeat(np.arange(len(self.count_V)), self.count_V)

  def on_device(self) -> ngram.Table:
    """The same for a drafter."""
    longest = int(self.count_V.max())
    padded = lambda array_E: np.pad(array_E, (0, longest))
    ids = lambda array: jnp.asarray(array, jnp.int32)
    return ngram.Table(
        log_unigram_V=jnp.asarray(self.log_unigram_V),
        log_backoff_V=jnp.asarray(self.log_backoff_V),
        start_V=ids(np.cumsum(self.count_V) - self.count_V),
        count_V=ids(self.count_V),
        successor_E=ids(padded(self.successor_E)),
        log_prob_E=jnp.asarray(padded(self.log_prob_E)),
        longest=longest,
    )


def save(path, table: Ngrams) -> None:
  """Writes a table: 4 bytes a listed successor and 6 an id of V < 65,536.

  Raises:
    UserError: nothing can be written there.
  """
  whole = np.uint16 if len(table.count_V) < 2**16 else np.uint32
  tensors = {
      "log_unigram": table.log_unigram_V.astype(jnp.bfloat16),
      "log_backoff": table.log_backoff_V.astype(jnp.bfloat16),
      "count": table.count_V.astype(whole),
      "successor": table.successor_E.astype(whole),
      "log_prob": table.log_prob_E.astype(jnp.bfloat16),
  }
  # The library writes several entries in no order of its own.
  metadata = {_KEY: json.dumps({"vocabulary": table.vocabulary})}
  files.write_tensors(path, tensors, metadata)


def find(name: str) -> pathlib.Path:
  """The file of a table: a path, or a shipped name such as mini/bigram.

  Raises:
    UserError: there is none; one line.
  """
  if found := shipped.find(name):
    return found
  known = sorted(
      f"{path.parent.name}/{path.stem}"
      for path in shipped.ASSETS.glob("*/*.safetensors")
      if _is_table(path)
  )
  ships = f" ({', '.join(known)} ships)" if known else ""
  raise UserError(
      f"table: {shown(name)} is no file, and does not ship with the"
      f" package{ships}; count one with {MAKER} --corpus DIR --out FILE, and"
      " give FILE"
  )


def _is_table(path: pathlib.Path) -> bool:
  """Whether one of the package's own files is a table; others are heads."""
  with safetensors.safe_open(path, framework="np") as file:
    return _KEY in (file.metadata() or {})


def load(name: str, tokenizer: tokenizer_lib.Pieces) -> Ngrams:
  """Reads and checks a table.

  Args:
    name: as `find` takes it.
    tokenizer: of the target that the drafts are for.

  Raises:
    UserError: it can't be had, is damaged, or was counted with another
      vocabulary; one line.
  """
  path = find(name)
  try:
    tensors, metadata = files.read_tensors(path, _TYPES)
  except UserError as error:
    raise UserError(f"table: {error}; count it again with {MAKER}") from None
  missing = sorted(_TYPES.keys() ^ tensors.keys())
  if missing or _KEY not in metadata:
    raise UserError(
        f"table: {path} holds no table of n-grams; {MAKER} makes one"
    )
  vocabulary = files.noted_vocabulary(metadata, _KEY)
  if vocabulary != tokenizer.fingerprint():
    raise UserError(
        f"table: {path} was counted with another vocabulary than the target's;"
        f" count one with {MAKER} --model TARGET"
    )
  fault = _fault(tensors, tokenizer.size)
  if fault:
    raise UserError(
        f"table: {path}: {fault}; count it again with {MAKER}"
    )
  logs = lambda name: tensors[name].astype(np.float32)
  ids = lambda name: tensors[name].astype(np.int64)
  return Ngrams(
      vocabulary,
      logs("log_unigram"),
      logs("log_backoff"),
      ids("count"),
      ids("successor"),
      logs("log_prob"),
  )


def _fault(tensors: dict[str, np.ndarray], size: int) -> str | None:
  """What is wrong with a table of V ids; None where nothing is."""
  count_V = tensors["count"].astype(np.int64)
  successor_E = tensors["successor"].astype(np.int64)
  for name, tensor in tensors.items():
    pairs = name in ("successor", "log_prob")
    want = (successor_E.size if pairs else size,)
    if tensor.shape != want:
      return f"{name} has shape {list(tensor.shape)}, not {list(want)}"
  for name in ("log_unigram", "log_backoff", "log_prob"):
    if not files.all_finite(tensors[name]):
      return f"{name} holds NaN or infinity"
    log_prob = tensors[name].astype(np.float32)
    if name != "log_backoff" and np.any(log_prob > _ABOVE_ONE):
      return f"{name} holds more than 0"
  if count_V.sum() != len(successor_E):
    return f"count says {count_V.sum()} successors, not {len(successor_E)}"
  if np.any(successor_E >= size):
    return f"successor holds an id that is not below {size}"
  code_E = np.repeat(np.arange(size), count_V) * size + successor_E
  if np.any(np.diff(code_E) <= 0):
    return "an id's successors do not rise"
  return None
