"""The ids that heads choose from: those that answers have most often."""

from typing import Sequence

import numpy as np

from specjax import checkpoints
from specjax.models import listed as listed_lib
from specjax.training import features


def commonest(rows: Sequence[features.Row], size: int, count: int):
  """The ids that answers have most often; ties to the smaller id.

  Args:
    rows: texts with their answers.
    size: V.
    count: how many are asked for, W.

  Returns:
    ids_W, rising.
  """
  found_V = np.bincount(
      np.concatenate([np.asarray(row.answer, np.int64) for row in rows]),
      minlength=size,
  )
  return np.sort(np.argsort(-found_V, kind="stable")[:count])


def listed(
    target: checkpoints.Checkpoint, rows: Sequence[features.Row], count: int
) -> listed_lib.Listed | None:
  """So many of them, with the target's output in float32; None (0) is all."""
  if not count:
    return None
  size = target.module.config.vocab_size
  ids_W = commonest(rows, size, count)
  kernel = listed_lib.output_kernel(target.module, target.params, ids_W)
  return listed_lib.listed(ids_W, size, kernel)
