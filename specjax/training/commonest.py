"""The ids that heads choose from: those that answers have most often."""

from typing import Sequence

import jax.numpy as jnp
import numpy as np

from specjax import checkpoints
from specjax import errors
from specjax.models import listed as listed_lib
from specjax.training import features


def commonest(rows: Sequence[features.Row], size: int, count: int):
  """The ids that answers have most often, rising; ties to the smaller id."""
  found_V = np.bincount(
      np.concatenate([np.asarray(row.answer, np.int64) for row in rows]),
      minlength=size,
  )
  return np.sort(np.argsort(-found_V, kind="stable")[:count])


def listed(
    target: checkpoints.Checkpoint, rows: Sequence[features.Row], count: int
) -> listed_lib.Listed | None:
  """So many of them, with the target's output; None (0) is all ids.

  Raises:
    errors.UserError: the target has no more ids.
  """
  if not count:
    return None
  size = target.module.config.vocab_size
  errors.require(
      count <= size, "listed", f"give 0 (all), or up to {size}", count
  )
  ids_W = commonest(rows, size, count)
  kernel = listed_lib.output_kernel(target.module, target.params, ids_W)
  return listed_lib.Listed(jnp.asarray(ids_W), kernel)
