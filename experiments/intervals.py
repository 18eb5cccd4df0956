"""95 % intervals of shares that are counted over whole texts.

Places of one text are not independent, texts are: the error of a ratio of two
sums over texts, to first order (Cochran, Sampling Techniques, section 6.3). R
is for the texts.
"""

import dataclasses
from typing import Sequence

import numpy as np

_Z = 1.96


@dataclasses.dataclass(frozen=True)
class Share:
  """sum(sum_R) / sum(count_R).

  >>> share = Share([1, 2, 3], [2, 4, 6])
  >>> share.mean, share.half_width
  (0.5, 0.0)

  Attributes:
    sum_R: what each text adds to the upper sum.
    count_R: likewise to the lower one.
  """

  sum_R: Sequence[float]
  count_R: Sequence[float]

  @property
  def mean(self) -> float:
    """The share."""
    return float(np.sum(self.sum_R) / np.sum(self.count_R))

  @property
  def half_width(self) -> float | None:
    """Of its interval; None where fewer than two texts count."""
    return self._half_width(self._influence_R)

  @property
  def _influence_R(self) -> np.ndarray:
    """How far each text moves the share, to first order."""
    sum_R, count_R = np.asarray(self.sum_R), np.asarray(self.count_R)
    return (sum_R - self.mean * count_R) / count_R.sum()

  def __sub__(self, other: "Share") -> tuple[float, float | None]:
    """The difference of two shares of the same texts, and its half width."""
    moved_R = self._influence_R - other._influence_R
    return self.mean - other.mean, self._half_width(moved_R)

  def _half_width(self, influence_R: np.ndarray) -> float | None:
    texts = np.count_nonzero(self.count_R)
    if texts < 2:
      return None
    error = np.sqrt(texts / (texts - 1) * np.sum(influence_R**2))
    return _Z * float(error)
