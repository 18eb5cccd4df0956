"""The arithmetic of speculative decoding: pure functions of plain numbers."""


def expected_tokens(alpha: float, gamma: int) -> float:
  """Tokens a round with i.i.d. acceptance (arXiv 2211.17192, Eq. 1).

  E[tokens] = (1 - alpha^(gamma + 1)) / (1 - alpha).

  >>> round(expected_tokens(0.8, 5), 2)
  3.69
  >>> expected_tokens(1.0, 5)
  6.0

  Args:
    alpha: acceptance rate in [0, 1].
    gamma: drafted tokens a round.

  Raises:
    ValueError: alpha or gamma is out of range.
  """
  if not 0 <= alpha <= 1:
    raise ValueError(f"alpha: must lie in [0, 1], got {alpha}")
  if gamma < 0:
    raise ValueError(f"gamma: must be 0 or more, got {gamma}")
  return float(sum(alpha**i for i in range(gamma + 1)))


def speedup(
    alpha: float, gamma: int, c: float, verify_cost: float = 1.0
) -> float:
  """Speed-up over plain decoding (Theorem 3.8; there verify_cost is 1).

  E[tokens] / (gamma c + v).

  >>> round(speedup(0.75, 7, 0.02), 2)
  3.16

  Args:
    alpha: acceptance rate.
    gamma: drafted tokens a round.
    c: time of a draft step over that of a one-token target step.
    verify_cost: v, time of the verify step (gamma + 1 tokens) over the same.
  """
  return expected_tokens(alpha, gamma) / (gamma * c + verify_cost)
