"""Rotary positions (Su et al., arXiv 2104.09864), and how long texts bend them.

The two halves of a head are pairs of coordinates: pair i turns by
position * theta^(-2 i / K), divided by what the scaling says.
"""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Linear:
  """Every frequency is divided by `factor` (arXiv 2306.15595)."""

  factor: float

  def divisors(self, frequency_E):
    """What each frequency is divided by."""
    return np.full_like(frequency_E, self.factor)


@dataclasses.dataclass(frozen=True)
class Llama3:
  """Low frequencies are divided, high ones kept, those between blended.

  As Llama 3.1 does it; names are those of Hugging Face's rope_scaling.

  Attributes:
    factor: that low frequencies are divided by.
    low_freq_factor: those with fewer turns in the original context are low.
    high_freq_factor: those with more are high.
    original_max_position_embeddings: the context before.
  """

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_max_position_embeddings: int

  def divisors(self, frequency_E):
    """What each frequency is divided by."""
    low, high = self.low_freq_factor, self.high_freq_factor
    context = self.original_max_position_embeddings
    turns_E = context * frequency_E / (2 * math.pi)
    kept_E = np.clip((turns_E - low) / (high - low), 0, 1)
    return 1 / ((1 - kept_E) / self.factor + kept_E)


@dataclasses.dataclass(frozen=True)
class Given:
  """Each frequency has its own divisor, as files of llama.cpp list them."""

  values: tuple[float, ...]

  def divisors(self, frequency_E):
    """What each frequency is divided by."""
    del frequency_E
    return np.asarray(self.values)


@dataclasses.dataclass(frozen=True)
class Rope:
  """How queries and keys turn.

  Attributes:
    theta: base of the frequencies.
    scaling: of them, or None.
  """

  theta: float = 10000.0
  scaling: Linear | Llama3 | Given | None = None

  def turns(self, position_BT, width: int):
    """cos_B1TE and sin_B1TE for heads of K = `width`; E is K / 2, pairs."""
    frequency_E = self.theta ** (-np.arange(0, width, 2) / width)
    if self.scaling is not None:
      frequency_E = frequency_E / self.scaling.divisors(frequency_E)
    angle_BTE = position_BT[..., None] * frequency_E.astype(np.float32)
    return jnp.cos(angle_BTE)[:, None], jnp.sin(angle_BTE)[:, None]


def turn(x_BHTK, turns):
  """Turns every pair of coordinates; in float32, whatever the type."""
  cos_B1TE, sin_B1TE = turns
  first, second = jnp.split(x_BHTK.astype(jnp.float32), 2, axis=-1)
  y_BHTK = jnp.concatenate(
      [
          first * cos_B1TE - second * sin_B1TE,
          second * cos_B1TE + first * sin_B1TE,
      ],
      axis=-1,
  )
  return y_BHTK.astype(x_BHTK.dtype)
