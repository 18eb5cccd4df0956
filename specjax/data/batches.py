"""Token ids in padded batches of few shapes, in an order fixed by the seed.

Rows are put into length buckets, buckets are cut into batches, and grain
shuffles the batches anew each epoch. Any batch can be asked for by its number,
so a run that was killed goes on exactly where it stood.
"""

import dataclasses
from typing import Callable, NamedTuple, Sequence

import grain
import numpy as np

from specjax import checks
from specjax import errors


@dataclasses.dataclass(frozen=True)
class BatchConfig:
  """How rows become batches.

  Attributes:
    source_lengths: L of the buckets, rising; longer sources are cut.
    target_lengths: T of the buckets, rising; longer targets are cut.
    cost: bound on rows * (T + L / 3), about the work of one batch.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  source_lengths: tuple[int, ...] = (32, 64, 128, 192)
  target_lengths: tuple[int, ...] = (16, 32, 64, 128)
  cost: int = 1200

  def __post_init__(self):
    for field in ("source_lengths", "target_lengths"):
      check_lengths(field, getattr(self, field))
    errors.require(
        checks.is_whole(self.cost, 1), "cost", "give 1 or more", self.cost
    )


  def dataset(self, rows, seed: int):
    """`batches` of (sources, targets)."""
    return batches(*rows, self, seed)


class Batch(NamedTuple):
  """source_BL, target_BT padded with 0; lengths say what is real."""

  source_BL: np.ndarray
  source_length_B: np.ndarray
  target_BT: np.ndarray
  target_length_B: np.ndarray


def pad(rows, width: int) -> tuple[np.ndarray, np.ndarray]:
  """Lists of ids -> ([B, width] padded with 0, lengths_B); cuts at width."""
  lengths = np.array([min(len(row), width) for row in rows], np.int32)
  out = np.zeros((len(rows), width), np.int32)
  for i, row in enumerate(rows):
    out[i, : lengths[i]] = row[:width]
  return out, lengths


def check_lengths(field: str, lengths) -> None:
  """Refuses what are no lengths of buckets.

  Raises:
    errors.UserError: one line, which names the field.
  """
  good = checks.are_ids(lengths) and bool(lengths) and min(lengths) > 0
  errors.require(
      good and list(lengths) == sorted(set(lengths)),
      field,
      "give rising lengths, 1 or more",
      lengths,
  )


def bucket(lengths: Sequence[int], size: int) -> int:
  """The first of rising lengths that holds `size`, or the last one."""
  return next((n for n in lengths if size <= n), lengths[-1])


def plan(
    shapes: Sequence[tuple[int, ...]],
    rows_of: Callable[..., int],
    seed: int,
) -> list[tuple[tuple[int, ...], int, list[int]]]:
  """Which rows go together, those of one shape in an order of the seed.

  Args:
    shapes: of each row.
    rows_of: a shape's lengths -> rows of a batch of it.
    seed: fixes the grouping.

  Returns:
    Shape, rows of the batch, and the rows that are in it: as many, or fewer.
  """
  groups: dict[tuple[int, ...], list[int]] = {}
  for i in np.random.default_rng(seed).permutation(len(shapes)):
    groups.setdefault(shapes[i], []).append(int(i))
  out = []
  for shape, members in sorted(groups.items()):
    rows = max(1, rows_of(*shape))
    for start in range(0, len(members), rows):
      out.append((shape, rows, members[start : start + rows]))
  return out


def endless(one_epoch, seed: int):
  """An endless grain dataset of what can be indexed, each epoch shuffled."""
  return grain.MapDataset.source(one_epoch).shuffle(seed=seed).repeat()


class _Batches:
  """Random access to the batches of one pass over the rows."""

  def __init__(self, sources, targets, config: BatchConfig, seed: int):
    self._sources, self._targets = sources, targets
    shapes = [
        (
            bucket(config.source_lengths, len(source)),
            bucket(config.target_lengths, len(target)),
        )
        for source, target in zip(sources, targets)
    ]
    rows_of = lambda source, target: int(config.cost / (target + source / 3))
    self._plan = plan(shapes, rows_of, seed)

  def __len__(self) -> int:
    return len(self._plan)

  def __getitem__(self, index) -> Batch:
    (source_length, target_length), rows, chosen = self._plan[int(index)]
    # A short last batch is filled with empty rows: one shape a bucket.
    blank = [[]] * (rows - len(chosen))
    source_BL, source_length_B = pad(
        [self._sources[i] for i in chosen] + blank, source_length
    )
    target_BT, target_length_B = pad(
        [self._targets[i] for i in chosen] + blank, target_length
    )
    return Batch(source_BL, source_length_B, target_BT, target_length_B)


def batches(sources, targets, config: BatchConfig, seed: int):
  """An endless grain dataset of `Batch`, indexed by number.

  Args:
    sources: a list of id lists.
    targets: a list of id lists, EOS included.
    config: buckets and size.
    seed: fixes the grouping and each epoch's order.

  Returns:
    grain.MapDataset, and the number of batches in one epoch.
  """
  one_epoch = _Batches(sources, targets, config, seed)
  return endless(one_epoch, seed), len(one_epoch)
