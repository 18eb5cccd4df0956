"""What a request asks of the sampler, and a batch of requests as arrays."""

import dataclasses
import math

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks
from specjax import errors

TEMPERATURES = (1e-4, 1e4)


@dataclasses.dataclass(frozen=True)
class Settings:
  """How one request samples.

  Attributes:
    temperature: 0 is greedy.
    top_k: keep the k likeliest tokens; 0, or more than there are, keeps all.
    top_p: keep the fewest likeliest tokens whose mass reaches top_p; the one
      that crosses the line stays. 0 is greedy, 1 keeps all.
    min_new_tokens: no EOS before so many new tokens.
    forced_first: id of the first new token, or None.
    eos: ids that end a text; None is the model's own, or T5's 1 where no
      model is asked.
    suppressed: ids that never come out.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_new_tokens: int = 0
  forced_first: int | None = None
  eos: tuple[int, ...] | None = None
  suppressed: tuple[int, ...] = ()

  @property
  def ends(self) -> tuple[int, ...]:
    """The ids that end a text."""
    return (1,) if self.eos is None else self.eos

  def __post_init__(self):
    low, high = TEMPERATURES
    temperature, top_p = self.temperature, self.top_p
    errors.require(
        checks.is_number(temperature)
        and (temperature == 0 or low <= temperature <= high),
        "temperature",
        f"give 0 (greedy) or a number from {low:g} to {high:g}",
        temperature,
    )
    errors.require(
        checks.is_whole(self.top_k, most=math.inf),
        "top_k",
        "give 0 (off) or a count",
        self.top_k,
    )
    errors.require(
        checks.is_number(top_p) and 0 <= top_p <= 1,
        "top_p",
        "give a number from 0 to 1",
        top_p,
    )
    count, first = self.min_new_tokens, self.forced_first
    good = checks.is_whole(count)
    errors.require(good, "min_new_tokens", "give a count below 2^31", count)
    for field in ("eos", "suppressed"):
      ids = getattr(self, field)
      if field != "eos" or ids is not None:
        good = checks.are_ids(ids)
        errors.require(good, field, "give a tuple of token ids", ids)
        object.__setattr__(self, field, tuple(ids))
    errors.require(
        first is None or checks.is_whole(first),
        "forced_first",
        "give a token id or None",
        first,
    )
    errors.require(
        first not in self.suppressed
        and not (self.min_new_tokens and first in self.ends),
        "forced_first",
        "give an id that suppressed and min_new_tokens allow",
        first,
    )


@struct.dataclass
class Sampling:
  """Settings of a batch as arrays.

  Attributes:
    temperature_B: float32.
    top_k_B: int32.
    top_p_B: float32.
    min_new_tokens_B: int32.
    forced_first_B: int32, -1 where no token is forced.
    eos_BE: int32, padded with -1.
    suppressed_V: bool.
  """

  temperature_B: jax.Array
  top_k_B: jax.Array
  top_p_B: jax.Array
  min_new_tokens_B: jax.Array
  forced_first_B: jax.Array
  eos_BE: jax.Array
  suppressed_V: jax.Array

  @property
  def greedy_B(self) -> jax.Array:
    """Rows that take the argmax."""
    return (self.temperature_B <= 0) | (self.top_p_B <= 0)


def stack(settings: list[Settings], vocabulary: int) -> Sampling:
  """Puts the settings of a batch's rows side by side.

  Args:
    settings: one a row.
    vocabulary: V of the law, which is the target's.

  Raises:
    errors.UserError: an id lies outside the vocabulary, the rows' suppressed
      ids differ, or no token would be left.
  """
  errors.require(bool(settings), "settings", "give at least one row", settings)
  suppressed = set(settings[0].suppressed)
  for row in settings:
    errors.require(
        set(row.suppressed) == suppressed,
        "suppressed",
        f"give all rows of a batch the same ids ({sorted(suppressed)})",
        row.suppressed,
    )
    first = () if row.forced_first is None else (row.forced_first,)
    for field, ids in (
        ("eos", row.ends),
        ("suppressed", row.suppressed),
        ("forced_first", first),
    ):
      errors.require(
          all(token < vocabulary for token in ids),
          field,
          f"give ids below the vocabulary's size {vocabulary}",
          ids,
      )
    banned = suppressed | set(row.ends if row.min_new_tokens else ())
    errors.require(
        len(banned) < vocabulary,
        "suppressed",
        "leave at least one token",
        row.suppressed,
    )
  width = max(len(row.ends) for row in settings)
  eos = [row.ends + (-1,) * (width - len(row.ends)) for row in settings]
  suppressed_V = np.zeros(vocabulary, bool)
  suppressed_V[list(suppressed)] = True
  # More than V keeps all as V does, and fits an int32.
  top_k = [min(row.top_k, vocabulary) for row in settings]
  forced = [
      -1 if row.forced_first is None else row.forced_first for row in settings
  ]
  column = lambda values, dtype: jnp.asarray(np.asarray(values, dtype))
  return Sampling(
      temperature_B=column([row.temperature for row in settings], np.float32),
      top_k_B=column(top_k, np.int32),
      top_p_B=column([row.top_p for row in settings], np.float32),
      min_new_tokens_B=column(
          [row.min_new_tokens for row in settings], np.int32
      ),
      forced_first_B=column(forced, np.int32),
      eos_BE=column(eos, np.int32).reshape(len(settings), width),
      suppressed_V=jnp.asarray(suppressed_V),
  )
