"""What a chip allows: decoding against its memory and its arithmetic.

A pass over a few tokens reads all weights once and does 2 operations a weight
and token; it takes the longer of the two times (Williams, Waterman, Patterson
2009, "Roofline"). That is where v = 1 comes from, and where it ends. Pure
functions of plain numbers; every one raises ValueError, in one line that names
the argument, for what is out of its range.
"""

import dataclasses
import math

from specjax import theory


@dataclasses.dataclass(frozen=True)
class Chip:
  """Two speeds, and a size.

  Attributes:
    operations: peak floating-point operations a second.
    bandwidth: bytes of memory a second.
    memory: bytes of it; infinite where that does not matter.
  """

  operations: float
  bandwidth: float
  memory: float = math.inf

  def __post_init__(self):
    _check_above_zero(operations=self.operations, bandwidth=self.bandwidth)
    if not self.memory > 0:
      raise ValueError(f"memory: must be above 0, got {self.memory}")

  @property
  def ridge(self) -> float:
    """Operations a byte above which arithmetic is the limit.

    >>> round(Chip(275e12, 1.2e12).ridge)  # TPU v4, bfloat16
    229
    """
    return self.operations / self.bandwidth


@dataclasses.dataclass(frozen=True)
class Weights:
  """What a pass of a model reads.

  Attributes:
    count: weights that a token is multiplied with.
    bytes_each: of a weight.
    row_bytes: keys and values that each row of the batch reads besides.
  """

  count: float
  bytes_each: float = 2.0
  row_bytes: float = 0.0

  def __post_init__(self):
    _check_above_zero(count=self.count, bytes_each=self.bytes_each)
    if not 0 <= self.row_bytes < math.inf:
      raise ValueError(f"row_bytes: must be 0 or more, got {self.row_bytes}")

  def bytes_read(self, rows: int = 1) -> float:
    """Bytes of a pass over so many rows."""
    return self.count * self.bytes_each + rows * self.row_bytes


def decode_ceiling(weights: Weights, bandwidth: float) -> float:
  """Most tokens a second of plain decoding at batch 1, bound by memory.

  bandwidth / bytes of a pass.

  >>> [round(decode_ceiling(Weights(70e9), tb * 1e12)) for tb in (1, 2, 3)]
  [7, 14, 21]

  Args:
    weights: of the model.
    bandwidth: bytes a second.
  """
  _check_above_zero(bandwidth=bandwidth)
  return bandwidth / weights.bytes_read()


def intensity(weights: Weights, tokens: int, rows: int = 1) -> float:
  """Operations a byte of a pass: its arithmetic intensity.

  2 tokens count / (count bytes_each + rows row_bytes).

  >>> intensity(Weights(11e9), 1), intensity(Weights(11e9), 8)
  (1.0, 8.0)

  Args:
    weights: of the model.
    tokens: of all rows together.
    rows: of the batch.

  Returns:
    To be held against `Chip.ridge`.
  """
  _check_counts(tokens=tokens, rows=rows)
  return 2 * tokens * weights.count / weights.bytes_read(rows)


def seconds(chip: Chip, weights: Weights, tokens: int, rows: int = 1) -> float:
  """Least time of a pass.

  max(operations / peak, bytes / bandwidth).

  >>> chip = Chip(275e12, 1.2e12)
  >>> [f"{1e3 * seconds(chip, Weights(11e9), n):.1f} ms" for n in (1, 8, 512)]
  ['18.3 ms', '18.3 ms', '41.0 ms']

  Args:
    chip: its speeds.
    weights: of the model.
    tokens: of all rows together.
    rows: of the batch.
  """
  _check_counts(tokens=tokens, rows=rows)
  return max(
      2 * tokens * weights.count / chip.operations,
      weights.bytes_read(rows) / chip.bandwidth,
  )


def costs(
    chip: Chip, target: Weights, draft: Weights, gamma: int, rows: int = 1
) -> tuple[float, float]:
  """c and v of Theorem 3.8, as the chip allows them.

  >>> chip, target, draft = Chip(275e12, 1.2e12), Weights(11e9), Weights(77e6)
  >>> [round(x, 3) for x in costs(chip, target, draft, 7)]
  [0.007, 1.0]
  >>> [round(x, 3) for x in costs(chip, target, draft, 7, rows=64)]
  [0.007, 2.234]

  Args:
    chip: its speeds.
    target: weights of the target.
    draft: weights of the draft.
    gamma: drafted tokens a round.
    rows: of the batch.

  Returns:
    Time of a draft step, and of the verify step (gamma + 1 tokens a row), each
    over that of a target step (1 token a row).
  """
  if not theory.is_whole(gamma, 0):
    raise ValueError(f"gamma: must be a whole number, 0 or more, got {gamma}")
  step = seconds(chip, target, rows, rows)
  verify = seconds(chip, target, rows * (gamma + 1), rows)
  return seconds(chip, draft, rows, rows) / step, verify / step


def speedup(
    chip: Chip,
    target: Weights,
    draft: Weights,
    alpha: float,
    gamma: int,
    rows: int = 1,
) -> float:
  """Speed-up of a batch: Theorem 3.8 with the c and v of `costs`.

  It stays that of one row while rows (gamma + 1) tokens keep under the ridge,
  and then falls, at a given gamma to below 1.

  >>> chip, target, draft = Chip(275e12, 1.2e12), Weights(11e9), Weights(77e6)
  >>> gain = lambda rows: speedup(chip, target, draft, 0.75, 7, rows)
  >>> [round(gain(rows), 2) for rows in (1, 16, 64, 256)]
  [3.43, 3.43, 1.58, 0.45]

  Args:
    chip: its speeds.
    target: weights of the target.
    draft: weights of the draft.
    alpha: acceptance rate.
    gamma: drafted tokens a round.
    rows: of the batch.
  """
  c, verify_cost = costs(chip, target, draft, gamma, rows)
  return theory.speedup(alpha, gamma, c, verify_cost)


def best_gamma(
    chip: Chip,
    target: Weights,
    draft: Weights,
    alpha: float,
    rows: int = 1,
    most: int = 64,
) -> int:
  """The gamma of the largest `speedup`, each with a v of its own, by a scan.

  >>> chip, target, draft = Chip(275e12, 1.2e12), Weights(11e9), Weights(77e6)
  >>> [best_gamma(chip, target, draft, 0.75, rows) for rows in (1, 64, 256)]
  [12, 3, 0]

  Args:
    chip: its speeds.
    target: weights of the target.
    draft: weights of the draft.
    alpha: acceptance rate.
    rows: of the batch.
    most: the longest draft considered.

  Returns:
    The smallest of the best, or 0 where none is faster than plain decoding.
  """
  _check_counts(most=most)
  # A gain within rounding is none.
  gains = [1 + 1e-12]
  for gamma in range(1, most + 1):
    gains.append(speedup(chip, target, draft, alpha, gamma, rows))
  return gains.index(max(gains))


def _check_above_zero(**values: float) -> None:
  for name, value in values.items():
    if not 0 < value < math.inf:
      raise ValueError(f"{name}: must be above 0, got {value}")


def _check_counts(**values: int) -> None:
  for name, value in values.items():
    if not theory.is_whole(value, 1):
      raise ValueError(
          f"{name}: must be a whole number, 1 or more, got {value}"
      )


# One chip each, in bfloat16, as their maker has it:
# cloud.google.com/tpu/docs/v4, and there v5e, v5p and v6e.
TPUS = {
    "v4": Chip(275e12, 1.2e12, 32 * 2**30),
    "v5e": Chip(197e12, 819e9, 16e9),
    "v5p": Chip(459e12, 2765e9, 95e9),
    "v6e": Chip(918e12, 1638e9, 32e9),
}
