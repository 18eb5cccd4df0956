"""The arithmetic of speculative decoding: pure functions of plain numbers.

Symbols of Leviathan, Kalman, Matias (arXiv 2211.17192): alpha, the mean chance
that a draft is accepted; gamma, drafted tokens a round; c, time of a draft
step over that of a target step. The paper takes the verify step, a target step
over gamma + 1 tokens, to cost as much as one over 1 token; here it costs v of
those, `verify_cost`. An array that ends in G has a place for each draft of a
round, one in T for each number of tokens it may give (T = G + 1).

Every function raises ValueError, in one line that names the argument, for what
is out of its range. What two laws say about alpha is in overlap.py, what a chip
allows in roofline.py; docs/theory.md puts them to work.
"""

import math
import numbers

import numpy as np

_RANGES = {
    "alpha": ("lie in [0, 1]", lambda x: 0 <= x <= 1),
    "c": ("be 0 or more", lambda x: 0 <= x < math.inf),
    "c_hat": ("be 0 or more", lambda x: 0 <= x < math.inf),
    "verify_cost": ("be above 0", lambda x: 0 < x < math.inf),
    "want": ("be above 0", lambda x: 0 < x < math.inf),
    "tokens": ("be above 0", lambda x: 0 < x < math.inf),
    "gamma": ("be a whole number, 0 or more", lambda x: is_whole(x, 0)),
    "length": ("be a whole number, 1 or more", lambda x: is_whole(x, 1)),
    "most": ("be a whole number, 1 or more", lambda x: is_whole(x, 1)),
}


def expected_tokens(alpha: float, gamma: int) -> float:
  """Tokens a round with i.i.d. acceptance (Eq. 1).

  E[tokens] = (1 - alpha^(gamma + 1)) / (1 - alpha).

  >>> round(expected_tokens(0.8, 5), 2)
  3.69
  >>> expected_tokens(1.0, 5)
  6.0

  Args:
    alpha: acceptance rate in [0, 1].
    gamma: drafted tokens a round, 0 or more.

  Returns:
    The mean, from 1 to gamma + 1.
  """
  _check(alpha=alpha, gamma=gamma)
  if alpha in (0, 1):
    return float(1 + alpha * gamma)
  # 1 - alpha^n without the digits that a difference from 1 would lose.
  return math.expm1((gamma + 1) * math.log(alpha)) / (alpha - 1)


def token_distribution(alpha, gamma: int) -> np.ndarray:
  """Chance of each number of tokens that a round can give.

  P(n + 1 tokens) = alpha^n (1 - alpha) for n < gamma, alpha^gamma for n = gamma
  (the capped geometric law behind Eq. 1); with a rate for each position, the
  product of the first n, times 1 minus the next.

  >>> token_distribution(0.5, 2)
  array([0.5 , 0.25, 0.25])
  >>> token_distribution([0.9, 0.5], 2).round(2)
  array([0.1 , 0.45, 0.45])

  Args:
    alpha: acceptance rate, or alpha_G: the rate at each draft position, given
      that the drafts before it were accepted.
    gamma: drafted tokens a round.

  Returns:
    law_T, T = gamma + 1; place n is the chance of n + 1 tokens.
  """
  _check(gamma=gamma)
  alpha_G = np.asarray(alpha, np.float64)
  if not np.all((alpha_G >= 0) & (alpha_G <= 1)):
    raise ValueError(f"alpha: must lie in [0, 1], got {alpha}")
  if alpha_G.ndim and alpha_G.shape != (gamma,):
    raise ValueError(
        f"alpha: must be one rate or gamma = {gamma} of them, got shape"
        f" {alpha_G.shape}"
    )
  reached_T = np.cumprod([1.0, *np.broadcast_to(alpha_G, (gamma,))])
  return reached_T - np.append(reached_T[1:], 0.0)


def expected_rounds(alpha: float, gamma: int, length: int) -> float:
  """Rounds that a text of a given length takes, with i.i.d. acceptance.

  R(n) = 1 + sum_k P(k tokens) R(n - k), and 0 from n = 0 down. More than n over
  Eq. 1: the last round gives more than the text has left.

  >>> expected_rounds(1.0, 3, 9)
  3.0
  >>> round(8 / expected_rounds(0.8, 5, 8), 2)
  2.95

  Args:
    alpha: acceptance rate in [0, 1].
    gamma: drafted tokens a round, 0 or more.
    length: tokens of the text, 1 or more.

  Returns:
    The mean, from length / (gamma + 1) to length.
  """
  _check(alpha=alpha, gamma=gamma, length=length)
  law_T = token_distribution(alpha, gamma)
  # Its first places are of n = -gamma to 0.
  rounds_N = np.zeros(gamma + 1 + length)
  for n in range(gamma + 1, len(rounds_N)):
    rounds_N[n] = 1 + law_T @ rounds_N[n - gamma - 1 : n][::-1]
  return float(rounds_N[-1])


def accepted_share(alpha: float, gamma: int) -> float:
  """Accepted over all drafted tokens, which is not alpha.

  (E[tokens] - 1) / gamma: drafts after the first rejection are drafted, but
  not judged.

  >>> round(accepted_share(0.75, 7), 2)
  0.37

  Args:
    alpha: acceptance rate in [0, 1].
    gamma: drafted tokens a round, 1 or more.

  Returns:
    The share, at most alpha.
  """
  _check(alpha=alpha, gamma=gamma)
  if not gamma:
    raise ValueError("gamma: must be 1 or more, got 0")
  return (expected_tokens(alpha, gamma) - 1) / gamma


def speedup(
    alpha: float, gamma: int, c: float, verify_cost: float = 1.0
) -> float:
  """Speed-up over plain decoding (Theorem 3.8; there verify_cost is 1).

  E[tokens] / (gamma c + v).

  >>> round(speedup(0.75, 7, 0.02), 2)
  3.16
  >>> round(speedup(0.75, 7, 0.02, verify_cost=2.0), 2)
  1.68

  Args:
    alpha: acceptance rate in [0, 1].
    gamma: drafted tokens a round.
    c: time of a draft step over that of a one-token target step, 0 or more.
    verify_cost: v, time of the verify step (gamma + 1 tokens) over the same.

  Returns:
    Time of plain decoding over that of speculative decoding.
  """
  _check(c=c, verify_cost=verify_cost)
  return expected_tokens(alpha, gamma) / (gamma * c + verify_cost)


def operations(alpha: float, gamma: int, c_hat: float = 0.0) -> float:
  """Operations a token, over those of plain decoding (Theorem 3.11).

  (gamma c_hat + gamma + 1) / E[tokens].

  >>> round(operations(0.8, 5), 2)
  1.63

  Args:
    alpha: acceptance rate in [0, 1].
    gamma: drafted tokens a round.
    c_hat: operations of a draft step over those of a target step on one token;
      0 is what the paper's Table 1 prints.

  Returns:
    The factor, 1 or more.
  """
  _check(c_hat=c_hat)
  return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def improves(alpha: float, c: float) -> bool:
  """Whether some gamma makes decoding faster at v = 1 (Corollary 3.9).

  alpha > c.

  >>> improves(0.2, 0.1), improves(0.1, 0.2)
  (True, False)

  Args:
    alpha: acceptance rate in [0, 1].
    c: time of a draft step over that of a target step.
  """
  _check(alpha=alpha, c=c)
  return alpha > c


def least_improvement(
    alpha: float, c: float, verify_cost: float = 1.0
) -> float:
  """What the best gamma gains at least: the speed-up at gamma 1 (Cor. 3.9).

  (1 + alpha) / (c + v).

  >>> round(least_improvement(0.8, 0.05), 2)
  1.71

  Args:
    alpha: acceptance rate in [0, 1].
    c: time of a draft step over that of a target step.
    verify_cost: v; 1 in the paper.
  """
  return speedup(alpha, 1, c, verify_cost)


def break_even_verify_cost(alpha: float, c: float) -> float:
  """The verify cost below which some gamma makes decoding faster.

  max over gamma >= 1 of E[tokens] - gamma c: the i-th draft is worth its time
  while alpha^i > c. Above 1 just where Corollary 3.9 holds.

  >>> round(break_even_verify_cost(0.8, 0.05), 2)
  4.13
  >>> round(break_even_verify_cost(0.1, 0.2), 2)
  0.9

  Args:
    alpha: acceptance rate in [0, 1].
    c: time of a draft step over that of a target step.

  Returns:
    The bound on v; infinite where every draft is accepted and c < 1, negative
    where a draft takes longer than the tokens of gamma 1 are worth.
  """
  if not improves(alpha, c):
    return 1 + alpha - c
  if alpha == 1:
    return math.inf
  if c == 0:
    return 1 / (1 - alpha)
  gamma = max(1, math.ceil(math.log(c) / math.log(alpha)) - 1)
  return expected_tokens(alpha, gamma) - gamma * c


def best_gamma(
    alpha: float, c: float, verify_cost: float = 1.0, most: int = 64
) -> int:
  """The gamma of the largest speed-up, by a scan.

  argmax over 1 <= gamma <= most of E[tokens] / (gamma c + v).

  >>> best_gamma(0.8, 0.05), best_gamma(0.9, 0.1), best_gamma(0.1, 0.2)
  (8, 10, 0)

  Args:
    alpha: acceptance rate in [0, 1].
    c: time of a draft step over that of a target step.
    verify_cost: v, taken as the same at every gamma.
    most: the longest draft considered; where c is 0, longer is never worse.

  Returns:
    The smallest of the best, or 0 where none is faster than plain decoding.
  """
  _check(alpha=alpha, c=c, verify_cost=verify_cost, most=most)
  # A gain within rounding is none.
  speedups = [1 + 1e-12]
  speedups += [
      speedup(alpha, gamma, c, verify_cost) for gamma in range(1, most + 1)
  ]
  return int(np.argmax(speedups))


def alpha_for_tokens(tokens: float, gamma: int) -> float | None:
  """The acceptance rate that gives so many tokens a round: Eq. 1 backwards.

  >>> round(alpha_for_tokens(3.6, 7), 2)
  0.75
  >>> alpha_for_tokens(8.1, 7) is None
  True

  Args:
    tokens: wanted tokens a round.
    gamma: drafted tokens a round.

  Returns:
    The smallest rate that suffices, by bisection, or None above gamma + 1.
  """
  _check(tokens=tokens, gamma=gamma)
  if tokens > gamma + 1:
    return None
  low, high = 0.0, 1.0
  if tokens <= 1:
    return low
  while low < (middle := (low + high) / 2) < high:
    if expected_tokens(middle, gamma) < tokens:
      low = middle
    else:
      high = middle
  return high


def alpha_needed(
    want: float, gamma: int, c: float, verify_cost: float = 1.0
) -> float | None:
  """The acceptance rate that a wanted speed-up takes: Theorem 3.8 backwards.

  The largest speed-up, (gamma + 1) / (gamma c + v), is that of
  `speedup(1.0, gamma, c, verify_cost)`.

  >>> round(alpha_needed(7.45, 16, 0.05), 3)
  0.969
  >>> alpha_needed(7.45, 8, 0.05) is None
  True
  >>> round(speedup(1.0, 8, 0.05), 2)
  6.43

  Args:
    want: the speed-up.
    gamma: drafted tokens a round.
    c: time of a draft step over that of a target step.
    verify_cost: v.

  Returns:
    The smallest rate that suffices, or None where no rate does.
  """
  _check(want=want)
  if want > speedup(1.0, gamma, c, verify_cost):
    return None
  tokens = want * (gamma * c + verify_cost)
  return alpha_for_tokens(min(tokens, gamma + 1), gamma)


def oracle_tokens(alpha: float) -> float:
  """Tokens a round where gamma is just what will be accepted (section 3.5).

  E[tokens] = 1 / (1 - alpha).

  >>> round(oracle_tokens(0.8), 2)
  5.0

  Args:
    alpha: acceptance rate in [0, 1].

  Returns:
    The mean; infinite at alpha = 1.
  """
  _check(alpha=alpha)
  return 1 / (1 - alpha) if alpha < 1 else math.inf


def oracle_speedup(alpha: float, c: float, verify_cost: float = 1.0) -> float:
  """Speed-up where an oracle drafts just what will be accepted.

  E[tokens] over E[accepted] c + v, with E[accepted] = alpha / (1 - alpha):
  1 / ((1 - alpha) v + alpha c). Section 3.5 prints the tokens and "up to ~60 %"
  over the best fixed gamma; the cost is this module's reading of it.

  >>> round(oracle_speedup(0.8, 0.05), 2)
  4.17
  >>> round(oracle_speedup(0.8, 0.05) / speedup(0.8, 8, 0.05), 2)
  1.35

  Args:
    alpha: acceptance rate in [0, 1].
    c: time of a draft step over that of a target step.
    verify_cost: v.

  Returns:
    The speed-up; infinite where every draft is accepted and costs nothing.
  """
  _check(alpha=alpha, c=c, verify_cost=verify_cost)
  cost = (1 - alpha) * verify_cost + alpha * c
  return 1 / cost if cost else math.inf


def _check(**values) -> None:
  """Raises ValueError for the first that is out of its range."""
  for name, value in values.items():
    words, good = _RANGES[name]
    if not good(value):
      raise ValueError(f"{name}: must {words}, got {value}")


def is_whole(value, least: int) -> bool:
  """An integer, of Python or numpy, and no less than `least`."""
  return isinstance(value, numbers.Integral) and value >= least
