"""What two laws say about acceptance: pure functions of numpy arrays.

p is the target's law, q the law that drafts are drawn from; of Leviathan,
Kalman, Matias (arXiv 2211.17192). Every function raises ValueError, in one
line that names the argument, where something is no law or out of its range.
"""

import numpy as np


def total_variation(p_V, q_V) -> np.ndarray:
  """Distance of two laws; the paper's D_LK.

  sum_x |p(x) - q(x)| / 2.

  >>> float(total_variation([0.5, 0.5], [0.75, 0.25]))
  0.25

  Args:
    p_V: a law, [..., V].
    q_V: likewise.

  Returns:
    In [0, 1], [...].
  """
  return np.abs(_law("p_V", p_V) - _law("q_V", q_V)).sum(-1) / 2


def acceptance(p_V, q_V, lenience: float = 1.0) -> np.ndarray:
  """Chance that a draft drawn from q is accepted (section A.5 where l < 1).

  sum_x min(p(x) / l, q(x)). At l = 1 that is 1 - total_variation(p, q), the
  paper's beta; its mean over contexts is alpha (Table 3). With l < 1 the next
  token's law leaves p: by a total variation of just what acceptance gains,
  where the residual stays norm(max(0, p - q)).

  >>> float(acceptance([0.5, 0.5], [0.75, 0.25]))
  0.75
  >>> float(acceptance([0.5, 0.5], [0.75, 0.25], lenience=0.8))
  0.875

  Args:
    p_V: law of the target, [..., V].
    q_V: law that the draft was drawn from, [..., V]; a point mass for argmax
      drafts and look-ups.
    lenience: l, in (0, 1].

  Returns:
    In [0, 1], [...].
  """
  _check(lenience)
  p_V, q_V = _law("p_V", p_V), _law("q_V", q_V)
  # Sums of float32 laws end a few millionths above 1.
  return np.minimum(1.0, np.minimum(p_V / lenience, q_V).sum(-1))


def acceptance_greedy(p_V, q_V, lenience: float = 1.0) -> np.ndarray:
  """Whether the draft's argmax x is accepted at temperature 0 (section A.5).

  At l = 1 where x is the argmax of p; at l < 1 where p(x) >= l max p, which
  the paper prints the other way round. The laws are those before the argmax.

  >>> p_V, q_V = [0.5, 0.4, 0.1], [0.2, 0.7, 0.1]
  >>> float(acceptance_greedy(p_V, q_V))
  0.0
  >>> float(acceptance_greedy(p_V, q_V, lenience=0.8))
  1.0

  Args:
    p_V: law of the target at temperature 1, [..., V].
    q_V: law of the draft, [..., V].
    lenience: l, in (0, 1].

  Returns:
    1.0 or 0.0, [...].
  """
  _check(lenience)
  p_V, q_V = np.broadcast_arrays(_law("p_V", p_V), _law("q_V", q_V))
  best = q_V.argmax(-1)
  if lenience == 1:
    # p(x) >= max p would also take the second of two equal maxima.
    return np.asarray(best == p_V.argmax(-1), np.float64)
  p = np.take_along_axis(p_V, best[..., None], -1)[..., 0]
  return np.asarray(p >= lenience * p_V.max(-1), np.float64)


def _check(lenience: float) -> None:
  if not 0 < lenience <= 1:
    raise ValueError(f"lenience: must lie in (0, 1], got {lenience}")


def _law(name: str, law_V) -> np.ndarray:
  """As float64; raises ValueError for what is no law."""
  law_V = np.asarray(law_V, np.float64)
  sums = law_V.sum(-1) if law_V.ndim else np.zeros(())
  if not (np.all(law_V >= 0) and np.allclose(sums, 1, atol=1e-4)):
    raise ValueError(
        f"{name}: must be 0 or more and sum to 1, got sums {sums.tolist()}"
    )
  return law_V
