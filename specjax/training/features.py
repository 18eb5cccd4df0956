"""What a target's states are along its own texts: made once, kept on disk.

Heads learn from the states that feed the target's output matrix (or others,
by their tap), at every token of a prompt and its answer. One pass over each
text gives them; they lie as bfloat16, a file for some hundred rows, and are
mapped into memory when they are read. A run that was stopped goes on with the
next file.
"""

import dataclasses
import functools
import os
import pathlib
import shutil
from typing import Callable, NamedTuple, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checkpoints
from specjax import checks
from specjax import errors
from specjax import writing
from specjax.data import batches
from specjax.decoding import requests as requests_lib
from specjax.models import cache as cache_lib
from specjax.models import reading
from specjax.training import texts

PART = 256  # rows of a file
# The state that feeds the output matrix, behind the final norm.
LAST = -1
_TOKENS = 4096  # of one pass
_SPARE = 2**28  # bytes of a disk that are left free


class Row(NamedTuple):
  """One text of a target's: what it was asked, and what it answered.

  Attributes:
    source: what an encoder reads, else None.
    prompt: ids that the decoder begins with.
    answer: its own ids.
  """

  source: tuple[int, ...] | None
  prompt: tuple[int, ...]
  answer: tuple[int, ...]

  @property
  def ids(self) -> tuple[int, ...]:
    """All that the decoder reads."""
    return self.prompt + self.answer


@dataclasses.dataclass(frozen=True)
class Store:
  """Rows, and the states along them.

  Attributes:
    rows: the texts.
    folder: of the files.
    width: D.
  """

  rows: Sequence[Row]
  folder: pathlib.Path
  width: int

  def __len__(self) -> int:
    return len(self.rows)

  @functools.cached_property
  def start_R(self) -> np.ndarray:
    """Where each row begins among all tokens; one more for the end."""
    lengths = [len(row.ids) for row in self.rows]
    return np.concatenate([[0], np.cumsum(lengths)])

  @property
  def parts(self) -> list[range]:
    """The rows of each file."""
    starts = range(0, len(self.rows), PART)
    return [range(i, min(i + PART, len(self.rows))) for i in starts]

  def file(self, part: range) -> pathlib.Path:
    """Where the states of some rows lie: apart by what those rows are."""
    rows = self.rows[part.start : part.stop]
    return self.folder / f"{texts.digest(rows)}.npy"

  @functools.cached_property
  def _maps(self) -> list[np.ndarray]:
    return list(map(self._map, self.parts))

  def _map(self, part: range) -> np.ndarray:
    path, rows = self.file(part), self.rows[part.start : part.stop]
    wanted = sum(len(row.ids) for row in rows), self.width
    try:
      bits_TD = np.lib.format.open_memmap(path, mode="r")
      fits = (bits_TD.dtype, bits_TD.shape) == (np.uint16, wanted)
      if not fits or not bits_TD.flags.c_contiguous:
        raise ValueError(f"it holds no {wanted[0]} rows of uint16")
    # numpy does not say all that it raises of a damaged file.
    except Exception as error:
      raise errors.UserError(
          f"{path} is damaged ({errors.reason(error)}); delete it, and the same"
          " command makes it anew"
      ) from None
    return bits_TD

  def check(self) -> None:
    """Raises errors.UserError where a file is damaged."""
    self._maps

  def states(self, row: int) -> np.ndarray:
    """hidden_TD of a row, bfloat16."""
    part = self.parts[row // PART]
    start = self.start_R[row] - self.start_R[part.start]
    length = len(self.rows[row].ids)
    bits_TD = self._maps[row // PART][start : start + length]
    return np.asarray(bits_TD).view(jnp.bfloat16)

  def bytes_of(self, parts: Sequence[range]) -> int:
    """What some files take on disk."""
    tokens = sum(
        self.start_R[part.stop] - self.start_R[part.start] for part in parts
    )
    return int(tokens) * self.width * 2


def build(
    target: checkpoints.Checkpoint,
    rows: Sequence[Row],
    folder: pathlib.Path,
    *,
    tap: int = LAST,
    tick: Callable[[int], None] = lambda rows: None,
) -> Store:
  """Reads the texts; what is in `folder` already is not read again.

  Args:
    target: whose states they are.
    rows: its texts.
    folder: of this target and this tap alone.
    tap: which states, as models number them.
    tick: called with the number of rows done.

  Raises:
    errors.UserError: the disk has no room for them, or a file that was there
      is damaged.
  """
  store = Store(rows, folder, target.module.config.d_model)
  missing = [part for part in store.parts if not store.file(part).exists()]
  _check_room(store, missing)
  tick(len(rows) - sum(map(len, missing)))
  for part in missing:
    bits = np.concatenate(_read_rows(target, [rows[i] for i in part], tap))
    with writing.whole(store.file(part)) as path, path.open("wb") as file:
      np.save(file, bits)
    tick(len(part))
  # Now, and not in the middle of a training run.
  store.check()
  return store


def _check_room(store: Store, missing: Sequence[range]) -> None:
  """Refuses what would fill the disk.

  Raises:
    errors.UserError: one line, with what it takes and what is free.
  """
  needed, place = store.bytes_of(missing), store.folder
  while not place.exists():
    place = place.parent
  free = shutil.disk_usage(place).free
  if missing and needed + _SPARE > free:
    tokens = sum(len(store.rows[i].ids) for part in missing for i in part)
    raise errors.UserError(
        f"out: the states of {tokens:,} tokens take {needed / 2**30:.2f} GiB,"
        f" and {os.fspath(place)} has {free / 2**30:.2f} GiB free; give another"
        " out, or fewer prompts"
    )


def _read_rows(target, rows: Sequence[Row], tap: int) -> list[np.ndarray]:
  """States of each row as the bits of bfloat16, some rows a pass."""
  width_of = requests_lib.source_width
  shapes = [
      (width_of(len(row.source or ())), width_of(len(row.ids))) for row in rows
  ]
  rows_of = lambda source, text: _TOKENS // (source + text)
  out: list[np.ndarray] = [np.empty(0)] * len(rows)
  for (source, text), count, chosen in batches.plan(shapes, rows_of, seed=0):
    blank = [()] * (count - len(chosen))
    ids_BT, _ = batches.pad([rows[i].ids for i in chosen] + blank, text)
    read = dict(source_BL=None, source_mask_BL=None)
    if rows[0].source is not None:
      sources = [rows[i].source for i in chosen]
      read = _padded_sources(sources + blank, source)
    bits_BTD = np.asarray(
        _states(target.module, tap, target.params, ids_BT, **read)
    )
    for place, i in enumerate(chosen):
      out[i] = bits_BTD[place, : len(rows[i].ids)]
  return out


@functools.partial(jax.jit, static_argnums=(0, 1))
def _states(module, tap: int, params, ids_BT, source_BL, source_mask_BL):
  """Bits of hidden_BTD; what stands behind a text is never seen by it."""
  memory = reading.encode(module, params, source_BL, source_mask_BL)
  query = cache_lib.whole_query(ids_BT)
  # Of the logits that are not wanted, as few as can be.
  _, _, (hidden_BTD,) = module.apply(
      params, query, None, memory, taps=(tap,), newest=True, method="decode"
  )
  return jax.lax.bitcast_convert_type(
      hidden_BTD.astype(jnp.bfloat16), jnp.uint16
  )


class Batch(NamedTuple):
  """Texts and their states, padded with 0.

  Attributes:
    ids_BT: tokens.
    answer_BT: True at those that the target wrote.
    states_BTD: the target's at each of them, bfloat16; None where they were
      not asked for.
    source_BL: what an encoder reads; None where there is none, or where it
      was not asked for.
    source_mask_BL: True at its real tokens.
    number_B: how many batches were read before.
  """

  ids_BT: np.ndarray
  answer_BT: np.ndarray
  states_BTD: np.ndarray | None = None
  source_BL: np.ndarray | None = None
  source_mask_BL: np.ndarray | None = None
  number_B: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class BatchConfig:
  """How rows of a store become batches.

  Attributes:
    lengths: T of the buckets, rising; longer texts are cut, and those left out
      of whose answer nothing would be left.
    cost: tokens of a batch.
    prompts: with their prompts; else from two tokens before the answer on:
      what a draft of its first token is made from.
    states: with the target's states.
    sources: with what an encoder reads, where there is one.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  lengths: tuple[int, ...]
  cost: int
  prompts: bool = False
  states: bool = True
  sources: bool = False

  def __post_init__(self):
    batches.check_lengths("lengths", self.lengths)
    errors.require(
        checks.is_whole(self.cost, 1), "cost", "give 1 or more", self.cost
    )

  def skipped(self, row: Row) -> int:
    """Tokens at a text's begin that are not read."""
    return 0 if self.prompts else max(0, len(row.prompt) - 2)

  def kept(self, rows: Sequence[Row]) -> list[int]:
    """The texts whose answers begin within the longest bucket.

    Raises:
      errors.UserError: there are none.
    """
    # From a text that is cut before its answer there is nothing to learn.
    longest = self.lengths[-1]
    kept = [
        i
        for i, row in enumerate(rows)
        if len(row.prompt) - self.skipped(row) < longest
    ]
    errors.require(
        bool(kept),
        "lengths",
        f"none of {len(rows)} answers begins among that many tokens; give"
        " longer ones",
        self.lengths,
    )
    return kept

  def dataset(self, store: Store, seed: int):
    """An endless dataset of `Batch`, and how many are one epoch.

    Raises:
      errors.UserError: no answer begins within the longest text.
    """
    one_epoch = _Batches(store, self, seed)
    endless = batches.endless(one_epoch, seed).map_with_index(_numbered)
    return endless, len(one_epoch)


class _Batches:
  """Random access to the batches of one pass over a store."""

  def __init__(self, store: Store, config: BatchConfig, seed: int):
    self._store = store
    self._skip = list(map(config.skipped, store.rows))
    self._states = config.states
    self._sources = config.sources and store.rows[0].source is not None
    width_of = lambda row: requests_lib.source_width(len(row.source))
    kept = config.kept(store.rows)
    shapes = [
        (
            batches.bucket(
                config.lengths, len(store.rows[i].ids) - self._skip[i]
            ),
            width_of(store.rows[i]) if self._sources else 0,
        )
        for i in kept
    ]
    rows_of = lambda text, source: config.cost // text
    self._plan = [
        (shape, rows, [kept[i] for i in chosen])
        for shape, rows, chosen in batches.plan(shapes, rows_of, seed)
    ]

  def __len__(self) -> int:
    return len(self._plan)

  def __getitem__(self, index) -> Batch:
    (width, source), count, chosen = self._plan[int(index)]
    store = self._store
    batch = Batch(
        ids_BT=np.zeros((count, width), np.int32),
        answer_BT=np.zeros((count, width), bool),
    )
    if self._states:
      shape = count, width, store.width
      batch = batch._replace(states_BTD=np.zeros(shape, jnp.bfloat16))
    if self._sources:
      sources = [store.rows[i].source for i in chosen]
      batch = batch._replace(
          **_padded_sources(sources + [()] * (count - len(chosen)), source)
      )
    for place, i in enumerate(chosen):
      row, skip = store.rows[i], self._skip[i]
      ids = row.ids[skip : skip + width]
      batch.ids_BT[place, : len(ids)] = ids
      batch.answer_BT[place, len(row.prompt) - skip : len(ids)] = True
      if self._states:
        states_TD = store.states(i)[skip:]
        batch.states_BTD[place, : len(ids)] = states_TD[: len(ids)]
    return batch


def _numbered(number: int, batch: Batch) -> Batch:
  """The batch, and which one of a run it is."""
  rows = batch.ids_BT.shape[0]
  return batch._replace(number_B=np.full((rows,), number, np.uint32))


def _padded_sources(sources, width: int) -> dict[str, np.ndarray]:
  """Sources as arrays; one without tokens has a first one that is seen."""
  source_BL, length_B = batches.pad(sources, width)
  seen_BL = np.arange(width) < np.maximum(length_B, 1)[:, None]
  return {"source_BL": source_BL, "source_mask_BL": seen_BL}
