"""Published figures, brute force and properties of the formulas."""

import doctest
import itertools
import math

import numpy as np
import pytest

from experiments import document
from experiments import intervals
from experiments import paper
from experiments import results
from specjax import overlap
from specjax import roofline
from specjax import theory
from specjax.measure import gap

ALPHAS = (0.0, 0.1, 0.5, 0.9, 0.999, 1.0)
# Shown with two decimals, or with one.
TWO, ONE = 0.005 + 1e-9, 0.05 + 1e-9


def reproduced(name, column, formula, tolerance):
  """Asserts that a formula gives a column of a published table."""
  rows = paper.rows(name)
  assert rows
  for row in rows:
    assert formula(row) == pytest.approx(row[column], abs=tolerance), row


def by_theorem(row):
  return theory.speedup(row["alpha"], row["gamma"], row.get("c", 0))


def best_speedup(alpha, c):
  return theory.speedup(alpha, theory.best_gamma(alpha, c), c)


@pytest.mark.parametrize(
    "module", (theory, overlap, roofline, paper, intervals, gap)
)
def test_doctests(module):
  found = doctest.testmod(module)
  assert found.attempted and not found.failed


def test_lines_of_the_document():
  """The second part reads results/, where those are made."""
  text = document.FILE.read_text("utf-8")
  if not (results.COMMITTED / "figures.json").is_file():
    text, _, _ = text.partition("\n# Part two")
  test = doctest.DocTestParser().get_doctest(text, {}, "theory.md", None, 0)
  found = doctest.DocTestRunner().run(test)
  assert found.attempted > 40 and not found.failed


# Published figures that follow.


def test_table_1():
  reproduced("table1", "speedup", by_theorem, TWO)
  factor = lambda row: theory.operations(row["alpha"], row["gamma"])
  reproduced("table1", "operations", factor, TWO)


def test_table_1_takes_drafts_as_free():
  """What the first row would be with drafts as dear as the target."""
  assert theory.operations(0.6, 2, c_hat=1) == pytest.approx(2.55, abs=TWO)


def test_table_4_expected():
  reproduced("table2_and_4", "expected_speedup", by_theorem, 0.07)
  large = [
      round(by_theorem(row), 2)
      for row in paper.rows("table2_and_4")
      if (row["draft"], row["temperature"]) == ("t5-large", 1)
  ]
  assert large == [1.93, 1.54]


def test_table_4_expected_is_what_rounding_allows():
  """alpha and c have two decimals; some alpha and c within give each figure."""
  for row in paper.rows("table2_and_4"):
    alpha, gamma, c = row["alpha"], row["gamma"], row["c"]
    low = theory.speedup(alpha - 0.005, gamma, c + 0.005)
    high = theory.speedup(alpha + 0.005, gamma, c - 0.005)
    assert low <= row["expected_speedup"] + ONE, row
    assert high >= row["expected_speedup"] - ONE, row


def test_table_4_measured_does_not_follow():
  """Off by up to 0.8 both ways, so the formula can't be what was measured."""
  rows = paper.rows("table2_and_4")
  gaps = [row["measured_speedup"] - by_theorem(row) for row in rows]
  assert min(gaps) == pytest.approx(-0.80, abs=TWO)
  assert max(gaps) == pytest.approx(0.70, abs=TWO)


def test_lenient_argmax():
  reproduced("table5_argmax", "speedup", by_theorem, ONE)


def test_bigrams():
  reproduced("bigram_speedup", "speedup", by_theorem, TWO)


def test_expected_tokens_grid():
  tokens = lambda row: theory.expected_tokens(row["alpha"], row["gamma"])
  reproduced("expected_tokens", "tokens", tokens, TWO)


def test_speedup_grids():
  reproduced("speedup_at_c_0.1", "speedup", by_theorem, TWO)
  reproduced("speedup_at_gamma_8", "speedup", by_theorem, TWO)
  assert theory.best_gamma(0.9, 0.1) == 10


def test_alpha_needed_for_745():
  for row in paper.rows("alpha_needed"):
    rate = theory.alpha_needed(row["speedup"], row["gamma"], row["c"])
    if row["alpha"] is None:
      assert rate is None
    else:
      assert rate == pytest.approx(row["alpha"], abs=0.0005)
  largest = [round(theory.speedup(1.0, gamma, 0.05), 2) for gamma in (4, 8)]
  assert largest == [4.17, 6.43]


def test_memory_bound_decoding():
  reproduced(
      "memory_bound_decode",
      "tokens_per_second",
      lambda row: round(
          roofline.decode_ceiling(
              roofline.Weights(row["parameters"], row["bytes_each"]),
              row["bandwidth"],
          )
      ),
      0,
  )


def test_oracle_gamma_gains_up_to_60_percent():
  [row] = paper.rows("adaptive_gamma")
  gains = [
      theory.oracle_speedup(alpha, c) / best_speedup(alpha, c) - 1
      for alpha in (0.5, 0.6, 0.7, 0.8, 0.9)
      for c in (0.02, 0.05, 0.1)
  ]
  assert 0.05 < min(gains)
  assert max(gains) == pytest.approx(row["most_gain"], abs=0.07)


# And those that do not.


def test_table_5_speedups_do_not_follow():
  """The best gamma stays below, also where rounding helps most."""
  alphas = {
      row["lenience"]: row["alpha"]
      for row in paper.rows("table5")
      if row["draft"] == "t5-small"
  }
  rows = paper.rows("table5_speedup")
  assert [row["lenience"] for row in rows] == list(alphas)
  for row in rows:
    alpha = alphas[row["lenience"]]
    speedup = best_speedup(alpha, row["c"])
    assert speedup == pytest.approx(row["theorem_3_8"], abs=TWO)
    assert speedup < row["speedup"] - 0.1
    luckiest = best_speedup(alpha + 0.005, row["c"] - 0.0005)
    assert luckiest < row["speedup"] - 0.05


def test_accepted_over_drafted_is_not_alpha():
  assert theory.accepted_share(0.75, 7) == pytest.approx(0.37, abs=TWO)


# Brute force.


def laws(seed, size=3):
  rng = np.random.default_rng(seed)
  return rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))


def accept_chance(p, q, lenience=1.0):
  """Chance that a token of the draft is accepted, token by token."""
  return np.minimum(1.0, p / (lenience * q))


@pytest.mark.parametrize("seed", range(3))
def test_distribution_by_enumeration_of_drafts(seed):
  """Every draft and every outcome of its judgement, at gamma 4."""
  p, q = laws(seed)
  gamma = 4
  chance = accept_chance(p, q)
  law = np.zeros(gamma + 1)
  for draft in itertools.product(range(3), repeat=gamma):
    drawn = math.prod(q[x] for x in draft)
    for n in range(gamma + 1):
      first = math.prod(chance[x] for x in draft[:n])
      stop = 1 - chance[draft[n]] if n < gamma else 1
      law[n] += drawn * first * stop
  alpha = float(overlap.acceptance(p, q))
  np.testing.assert_allclose(
      theory.token_distribution(alpha, gamma), law, atol=1e-12
  )
  mean = law @ np.arange(1, gamma + 2)
  assert theory.expected_tokens(alpha, gamma) == pytest.approx(mean)
  assert theory.accepted_share(alpha, gamma) == pytest.approx(
      (mean - 1) / gamma
  )


def test_distribution_with_a_rate_for_each_position():
  rates = (0.9, 0.2, 0.7)
  law = np.zeros(4)
  for accepted in itertools.product((True, False), repeat=3):
    chance = math.prod(
        rate if yes else 1 - rate for rate, yes in zip(rates, accepted)
    )
    law[[*accepted, False].index(False)] += chance
  np.testing.assert_allclose(theory.token_distribution(rates, 3), law)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("gamma", (0, 1, 7, 40))
def test_distribution_goes_with_its_mean(alpha, gamma):
  law = theory.token_distribution(alpha, gamma)
  assert law.shape == (gamma + 1,) and law.min() >= 0
  assert law.sum() == pytest.approx(1)
  mean = law @ np.arange(1, gamma + 2)
  assert theory.expected_tokens(alpha, gamma) == pytest.approx(mean)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_expected_tokens_is_the_sum_of_powers(alpha):
  for gamma in (0, 1, 5, 300):
    wanted = math.fsum(alpha**i for i in range(gamma + 1))
    assert theory.expected_tokens(alpha, gamma) == pytest.approx(wanted, 1e-12)


def test_expected_tokens_close_to_1():
  """1 - alpha^n would have lost all its digits here."""
  assert theory.expected_tokens(1 - 1e-14, 9) == pytest.approx(10, 1e-12)


@pytest.mark.parametrize("alpha, c, v", [(0.8, 0.05, 1.0), (0.6, 0.3, 2.0)])
def test_oracle_by_summation(alpha, c, v):
  """The oracle drafts n tokens where n will be accepted."""
  n = np.arange(400)
  chance = (1 - alpha) * alpha**n
  tokens, cost = chance @ (n + 1), chance @ (n * c + v)
  assert theory.oracle_tokens(alpha) == pytest.approx(tokens)
  assert theory.oracle_speedup(alpha, c, v) == pytest.approx(tokens / cost)


@pytest.mark.parametrize("alpha", (0.3, 0.6, 0.9))
@pytest.mark.parametrize("c", (0.0, 0.02, 0.2))
def test_oracle_beats_every_gamma(alpha, c):
  most = max(theory.speedup(alpha, gamma, c) for gamma in range(1, 200))
  assert theory.oracle_speedup(alpha, c) > most - 1e-12


def test_oracle_at_the_ends():
  assert theory.oracle_tokens(1.0) == math.inf
  assert theory.oracle_speedup(1.0, 0.0) == math.inf
  assert theory.oracle_speedup(1.0, 0.25) == 4.0
  assert theory.oracle_speedup(0.0, 0.25) == 1.0


@pytest.mark.parametrize("lenience", (1.0, 0.7, 0.3))
@pytest.mark.parametrize("seed", range(3))
def test_lenience_by_enumeration(seed, lenience):
  """Acceptance, and how far the next token's law moves for it."""
  p, q = laws(seed, size=5)
  accepted = q * accept_chance(p, q, lenience)
  alpha = float(overlap.acceptance(p, q, lenience))
  assert alpha == pytest.approx(accepted.sum())
  residual = np.maximum(0.0, p - q)
  law = accepted + (1 - alpha) * residual / residual.sum()
  moved = alpha - float(overlap.acceptance(p, q))
  assert float(overlap.total_variation(law, p)) == pytest.approx(moved)
  assert np.all(law <= p / lenience + 1e-12)
  assert (moved > 0.01) == (lenience < 1)


def test_acceptance_is_one_minus_the_distance():
  rng = np.random.default_rng(0)
  p_BV, q_BV = rng.dirichlet(np.ones(6), size=(2, 4))
  np.testing.assert_allclose(
      overlap.acceptance(p_BV, q_BV),
      1 - overlap.total_variation(p_BV, q_BV),
  )
  assert overlap.acceptance(p_BV, q_BV).shape == (4,)
  np.testing.assert_allclose(overlap.acceptance(p_BV, p_BV), 1)


def test_acceptance_of_a_point_mass_is_its_probability():
  p = np.array([0.5, 0.3, 0.2])
  chances = overlap.acceptance(p, np.eye(3))
  np.testing.assert_allclose(chances, p)
  chances = overlap.acceptance(p, np.eye(3), lenience=0.4)
  np.testing.assert_allclose(chances, [1.0, 0.75, 0.5])


def test_greedy_acceptance():
  p_V = [0.4, 0.4, 0.2]
  greedy = lambda x, lenience: float(
      overlap.acceptance_greedy(p_V, np.eye(3)[x], lenience)
  )
  # Of two equal maxima plain decoding takes the first.
  assert [greedy(x, 1.0) for x in range(3)] == [1.0, 0.0, 0.0]
  assert [greedy(x, 0.6) for x in range(3)] == [1.0, 1.0, 0.0]
  assert [greedy(x, 0.5) for x in range(3)] == [1.0, 1.0, 1.0]
  assert overlap.acceptance_greedy([p_V] * 2, np.eye(3)[:2]).tolist() == [1, 0]


# Properties.


@pytest.mark.parametrize("alpha", (0.05, 0.3, 0.6, 0.9))
@pytest.mark.parametrize("c", (0.01, 0.1, 0.5))
def test_corollary_3_9(alpha, c):
  """Some gamma is faster just where alpha > c; gamma 1 bounds by how much."""
  most = max(theory.speedup(alpha, gamma, c) for gamma in range(1, 400))
  assert theory.improves(alpha, c) == (most > 1)
  assert most >= theory.least_improvement(alpha, c)
  if theory.improves(alpha, c):
    assert theory.least_improvement(alpha, c) > 1
    assert theory.least_improvement(alpha, c) == pytest.approx(
        (1 + alpha) / (1 + c)
    )


@pytest.mark.parametrize("alpha", (0.05, 0.3, 0.6, 0.9))
@pytest.mark.parametrize("c", (0.01, 0.1, 0.5))
def test_break_even_by_a_scan(alpha, c):
  fastest = lambda v: max(
      theory.speedup(alpha, gamma, c, v) for gamma in range(1, 400)
  )
  bound = theory.break_even_verify_cost(alpha, c)
  assert fastest(bound * 1.001) < 1 < fastest(bound * 0.999)
  assert (bound > 1) == (alpha > c)


def test_break_even_at_the_ends():
  assert theory.break_even_verify_cost(1.0, 0.5) == math.inf
  assert theory.break_even_verify_cost(1.0, 1.0) == 1.0
  assert theory.break_even_verify_cost(0.75, 0.0) == 4.0
  assert theory.break_even_verify_cost(0.0, 0.0) == 1.0
  assert theory.break_even_verify_cost(0.5, 2.0) == -0.5


def test_no_gamma_is_best_where_plain_decoding_is():
  for alpha in (0.1, 0.2, 0.3, 0.6, 0.7, 1.0):
    assert theory.best_gamma(alpha, alpha) == 0
  assert theory.best_gamma(0.5, 0.05, verify_cost=3.0) == 0
  assert theory.best_gamma(0.9, 0.05, verify_cost=3.0) > 0
  assert theory.best_gamma(0.9, 0.0, most=12) == 12


@pytest.mark.parametrize("gamma", (1, 4, 16))
@pytest.mark.parametrize("v", (0.9, 1.0, 2.5))
def test_alpha_needed_and_back(gamma, v):
  for alpha in (0.05, 0.5, 0.95, 1.0):
    want = theory.speedup(alpha, gamma, 0.07, v)
    rate = theory.alpha_needed(want, gamma, 0.07, v)
    assert rate == pytest.approx(alpha, abs=1e-9)
  largest = theory.speedup(1.0, gamma, 0.07, v)
  assert theory.alpha_needed(largest * 1.0001, gamma, 0.07, v) is None
  assert theory.alpha_needed(1e-3, gamma, 0.07, v) == 0.0


def test_verify_cost_takes_the_place_of_1():
  assert theory.speedup(0.8, 5, 0.1, 2.0) == pytest.approx(
      theory.expected_tokens(0.8, 5) / (5 * 0.1 + 2.0)
  )
  assert theory.speedup(0.8, 0, 0.1, 1.0) == 1.0


# Rooflines.

CHIP = roofline.Chip(operations=200e12, bandwidth=1e12)
TARGET = roofline.Weights(10e9)
DRAFT = roofline.Weights(0.5e9)


def test_a_pass_is_bound_by_memory_up_to_the_ridge():
  one = roofline.seconds(CHIP, TARGET, 1)
  assert one == pytest.approx(20e9 / 1e12)
  at_ridge = int(CHIP.ridge)
  assert roofline.intensity(TARGET, at_ridge) == pytest.approx(CHIP.ridge)
  assert roofline.seconds(CHIP, TARGET, at_ridge) == pytest.approx(one)
  twice = roofline.seconds(CHIP, TARGET, 2 * at_ridge)
  assert twice == pytest.approx(2 * one)
  assert 1 / one == pytest.approx(roofline.decode_ceiling(TARGET, 1e12))


def test_costs_are_ratios_of_bytes_under_the_ridge():
  assert roofline.costs(CHIP, TARGET, DRAFT, 4) == pytest.approx((0.05, 1.0))
  assert roofline.costs(CHIP, TARGET, DRAFT, 4, rows=100) == pytest.approx(
      (0.05, 2.5)
  )


def test_gain_stays_and_then_falls_with_the_batch():
  gain = lambda rows: roofline.speedup(CHIP, TARGET, DRAFT, 0.8, 4, rows)
  alone = theory.speedup(0.8, 4, 0.05)
  # 40 rows of 5 tokens are the 200 that the ridge allows.
  assert [gain(rows) for rows in (1, 40)] == pytest.approx([alone, alone])
  gains = [gain(rows) for rows in (40, 41, 80, 160, 200, 400)]
  assert gains == sorted(gains, reverse=True)
  assert gains[0] > gains[1] and gains[-1] < 1
  # In the end every drafted token costs what a token costs.
  assert gains[-1] == pytest.approx(theory.speedup(0.8, 4, 0.05, 5.0))


def test_keys_and_values_keep_a_batch_at_the_memory():
  """What each row reads besides the weights is not shared, so v stays low."""
  long = roofline.Weights(10e9, row_bytes=1e9)
  assert long.bytes_read(3) == 23e9
  _, v = roofline.costs(CHIP, TARGET, DRAFT, 4, rows=80)
  _, v_long = roofline.costs(CHIP, long, DRAFT, 4, rows=80)
  assert (v, v_long) == (2.0, 1.0)


# Errors.


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: theory.expected_tokens(1.1, 2), "alpha"),
        (lambda: theory.expected_tokens(math.nan, 2), "alpha"),
        (lambda: theory.expected_tokens(0.5, -1), "gamma"),
        (lambda: theory.expected_tokens(0.5, 2.0), "gamma"),
        (lambda: theory.token_distribution([0.5, 2.0], 2), "alpha"),
        (lambda: theory.token_distribution([0.5] * 3, 2), "alpha"),
        (lambda: theory.token_distribution(0.5, -1), "gamma"),
        (lambda: theory.accepted_share(0.5, 0), "gamma"),
        (lambda: theory.speedup(0.5, 2, -0.1), "c"),
        (lambda: theory.speedup(0.5, 2, math.inf), "c"),
        (lambda: theory.speedup(0.5, 2, 0.1, 0.0), "verify_cost"),
        (lambda: theory.operations(0.5, 2, -1), "c_hat"),
        (lambda: theory.improves(2, 0.1), "alpha"),
        (lambda: theory.best_gamma(0.5, 0.1, most=0), "most"),
        (lambda: theory.alpha_for_tokens(0, 2), "tokens"),
        (lambda: theory.alpha_needed(0, 2, 0.1), "want"),
        (lambda: theory.oracle_tokens(-1), "alpha"),
        (lambda: theory.oracle_speedup(0.5, -1), "c"),
        (lambda: overlap.acceptance([0.5, 0.6], [0.5, 0.5]), "p_V"),
        (lambda: overlap.acceptance([0.5, 0.5], [1.5, -0.5]), "q_V"),
        (lambda: overlap.acceptance([0.5, 0.5], [0.5, 0.5], 0), "lenience"),
        (lambda: overlap.acceptance_greedy([1.0], [1.0], 2), "lenience"),
        (lambda: overlap.total_variation(0.5, [1.0]), "p_V"),
        (lambda: roofline.Chip(0, 1), "operations"),
        (lambda: roofline.Chip(1, math.nan), "bandwidth"),
        (lambda: roofline.Weights(-1), "count"),
        (lambda: roofline.Weights(1, row_bytes=-1), "row_bytes"),
        (lambda: roofline.intensity(TARGET, 0), "tokens"),
        (lambda: roofline.seconds(CHIP, TARGET, 1, 1.5), "rows"),
        (lambda: roofline.costs(CHIP, TARGET, DRAFT, -1), "gamma"),
        (lambda: roofline.decode_ceiling(TARGET, 0), "bandwidth"),
    ],
)
def test_errors_name_the_argument(call, name):
  with pytest.raises(ValueError, match=f"^{name}: must ") as caught:
    call()
  assert "\n" not in str(caught.value)


def test_rounds_of_a_text_by_enumeration():
  """Every course that rounds can take, each with its chance."""

  def mean(left, alpha, gamma):
    if left <= 0:
      return 0.0
    law_T = theory.token_distribution(alpha, gamma)
    return 1 + sum(
        chance * mean(left - tokens, alpha, gamma)
        for tokens, chance in enumerate(law_T, 1)
    )

  of = [(0.0, 3, 4), (0.6, 2, 7), (0.8, 5, 8), (1.0, 2, 6)]
  for alpha, gamma, tokens in of:
    made = theory.expected_rounds(alpha, gamma, tokens)
    assert made == pytest.approx(mean(tokens, alpha, gamma))
  for length in (0, 2.5):
    with pytest.raises(ValueError, match="length: must be a whole number"):
      theory.expected_rounds(0.5, 2, length)
  # Of a long text hardly anything is cut.
  made = 4000 / theory.expected_rounds(0.7, 4, 4000)
  assert made == pytest.approx(theory.expected_tokens(0.7, 4), rel=1e-3)
