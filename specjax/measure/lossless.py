"""Greedy speculative decoding must give plain decoding's tokens.

Where it does not, plain decoding's own two best logits tell a fault from a
near tie: two programs round differently, and only there may it show.
"""

import dataclasses
import functools
from typing import Sequence

import jax
import jax.numpy as jnp

from specjax import sharding
from specjax.measure import acceptance

# By the type that was decoded in: two programs' float32 logits differ by about
# 1e-6 of their size, which is some ten; bfloat16 keeps 8 bits of each number.
NEAR_TIE = {"float32": 1e-4, "bfloat16": 0.25}


@dataclasses.dataclass(frozen=True)
class Mismatch:
  """A row that differs.

  Attributes:
    row: its place among the rows, from 0.
    position: of the first new token that differs, from 0.
    gap: between plain decoding's two best logits there, in float32.
    bound: a gap below it is a near tie.
  """

  row: int
  position: int
  gap: float
  bound: float = NEAR_TIE["float32"]

  @property
  def near_tie(self) -> bool:
    """Whether rounding explains it."""
    return self.gap < self.bound


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
  """Place of the first token that differs, or is missing; None if equal."""
  if tuple(a) == tuple(b):
    return None
  pairs = zip(a, b)
  length = min(len(a), len(b))
  return next((i for i, (x, y) in enumerate(pairs) if x != y), length)


@functools.partial(jax.jit, static_argnums=0)
def _gaps(module, params, batch, text_BS):
  law = acceptance.teacher_forced(
      module, params, batch, batch.sampling, text_BS
  )
  best_BT2 = jax.lax.top_k(law.logits, 2)[0]
  return best_BT2[..., 0] - best_BT2[..., 1]


def two_best_gap(module, params, batch, text_BS, position: int) -> float:
  """Gap of the two best logits where a new token was chosen, in float32.

  Args:
    module: the target.
    params: its variables, of any type.
    batch: of one row.
    text_BS: prompt and plain decoding's new tokens.
    position: of the token among the new ones.
  """
  whole = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
  module = module.clone(dtype=jnp.float32, carried=None)
  gap_BT = _gaps(module, whole, batch, text_BS)
  return float(sharding.fetch(gap_BT)[0, position])
