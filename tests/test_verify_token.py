"""The token rule keeps the target's law, and wrong rules are caught.

By enumeration: every draft, every region of the coins.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.verify import token
from tests import enumeration
from tests import rounds

Case = enumeration.Case
Settings = sampling.Settings
TokenRule = token.TokenRule

EXACT_CASES = {
    "plain": Case(length=4),
    "cold": Case(target=Settings(temperature=0.5), draft=rounds.PLAIN),
    "cold both": Case(
        target=Settings(temperature=0.5), draft=Settings(temperature=0.5)
    ),
    "hot": Case(target=Settings(temperature=2.0), draft=rounds.PLAIN),
    "top-k": Case(
        target=Settings(temperature=1.0, top_k=2),
        draft=Settings(temperature=1.0, top_k=2),
    ),
    "top-k of the target": Case(target=Settings(temperature=1.0, top_k=2)),
    "top-p": Case(
        target=Settings(temperature=1.0, top_p=0.7),
        draft=Settings(temperature=1.0, top_p=0.7),
    ),
    "all filters": Case(
        target=Settings(temperature=0.8, top_k=3, top_p=0.8),
        draft=Settings(temperature=1.3, top_k=2, top_p=0.9),
    ),
    "draft with its own filters": Case(
        draft=Settings(temperature=0.5, top_k=2)
    ),
    "argmax draft": Case(**rounds.POINT),
    "argmax draft, top-k": Case(
        target=Settings(temperature=0.7, top_k=3), **rounds.POINT
    ),
    "greedy draft as a chain": Case(draft=rounds.GREEDY),
    "greedy target, sampled draft": Case(target=rounds.GREEDY),
    "greedy target, argmax draft": Case(target=rounds.GREEDY, **rounds.POINT),
    "padding": Case(count=1, length=4),
    "padding of points": Case(count=2, **rounds.POINT),
    "nothing counts": Case(count=0),
    "narrow draft": Case(draft_width=3),
    "wide draft": Case(draft_width=6, draft=Settings(0.8, top_k=3)),
    "two tokens": Case(vocabulary=2, gamma=3, length=5),
    "three tokens": Case(vocabulary=3, gamma=2, length=5, seed=1),
    "short": Case(vocabulary=3, gamma=1, length=5, seed=2),
}


@pytest.mark.parametrize("name", EXACT_CASES)
def test_output_law_is_the_targets(name):
  """One round and several; widths as in vllm-project/vllm#7252."""
  enumeration.check_exact(TokenRule(), EXACT_CASES[name])


def test_draft_unlike_the_target():
  """A draft that almost always names the target's least likely token."""
  rows = len(enumeration.table(0, 4, 6))
  target = np.tile(np.float32([3, 1, 0, -4]), (rows, 1))
  draft = np.tile(np.float32([-6, -2, 0, 5]), (rows, 1))
  case = Case(target_logits=target, draft_logits=draft)
  enumeration.check_exact(TokenRule(), case)


@pytest.mark.parametrize("residual", ["exact", "lenient"])
@pytest.mark.parametrize("beta", [0.6, 0.1])
@pytest.mark.parametrize(
    "case",
    [
        Case(target=Settings(temperature=0.7, top_k=3)),
        Case(**rounds.POINT),
    ],
    ids=["chain", "points"],
)
def test_lenience_is_bounded(case, beta, residual):
  """No token comes out with more than p(x) / beta (Leviathan et al., A.5)."""
  rule = TokenRule(lenience=beta, residual=residual)
  enumeration.check_lenient(rule, case)
  with pytest.raises(AssertionError):
    enumeration.check_exact(rule, case)


@pytest.mark.parametrize(
    ("residual", "want"), [("exact", [1, 0, 0]), ("lenient", [0.9, 0, 0.1])]
)
def test_residuals_under_lenience(residual, want):
  """max(0, p - q), which stays nearest to p, or max(0, p - beta q)."""
  p, q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.6, 0.3])
  rule = TokenRule(lenience=0.5, residual=residual)
  law = rounds.corrected(*rounds.round_of(p, q, 1), rule)
  np.testing.assert_allclose(law / law.sum(), want, atol=1e-6)
  case = rounds.case_of(p, q)
  out = enumeration.several_rounds(rule, case)[1]
  distance = np.abs(out - p).sum() / 2
  alpha = lambda beta: np.minimum(p / beta, q).sum()
  if residual == "exact":
    np.testing.assert_allclose(distance, alpha(0.5) - alpha(1), atol=1e-6)
  else:
    assert distance > alpha(0.5) - alpha(1)


def test_bound_is_checked():
  """A rule that is laxer than it says breaks the bound."""

  class Laxer(TokenRule):

    def accepts(self, coin, p, q):
      return coin * self.lenience * q < 3 * p

  with pytest.raises(AssertionError):
    enumeration.check_lenient(Laxer(lenience=0.9), Case())


def test_lenient_greedy_rows_keep_near_maxima():
  """Every token has p(x) >= beta max p on the unfiltered law, or is argmax."""
  beta = 0.4
  case = Case(target=rounds.GREEDY)
  law = enumeration.several_rounds(TokenRule(lenience=beta), case)[-1]
  unfiltered = enumeration.reference_law(case.target_logits, rounds.PLAIN)
  size, length = case.vocabulary, case.length
  others = 0
  for text in np.flatnonzero(law > 0):
    for n in range(length):
      prefix, last = divmod(text // size ** (length - 1 - n), size)
      p = unfiltered[case.index(n, prefix)]
      assert p[last] >= beta * p.max() - enumeration.TOLERANCE
      others += last != p.argmax()
  assert others
  np.testing.assert_allclose(law.sum(), 1, atol=enumeration.TOLERANCE)


TOP_2 = Settings(temperature=1.0, top_k=2)
WRONG = {
    "soft q of an argmax draft": (TokenRule(), Case(**rounds.SOFT_ARGMAX)),
    "unfiltered q": (TokenRule(), Case(draft=TOP_2, reported=rounds.PLAIN)),
    "q at another temperature": (
        TokenRule(),
        Case(draft=Settings(temperature=0.5), reported=rounds.PLAIN),
    ),
    "softmaxed residual": (rounds.SoftmaxedResidual(), Case()),
    "inclusive comparison": (rounds.Inclusive(), Case(target=TOP_2)),
    "residual is p": (rounds.PlainResidual(), Case()),
    "residual of points is p": (rounds.PlainResidual(), Case(**rounds.POINT)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_are_caught(name):
  rule, case = WRONG[name]
  with pytest.raises(AssertionError):
    enumeration.check_exact(rule, case)


def test_judging_padding_is_caught():
  """A padding node that happens to be likely would be accepted."""
  target, proposal = rounds.random_round(rounds.MIXED)
  one_B = jnp.ones(len(rounds.MIXED), jnp.int32)
  proposal = proposal.replace(
      tokens_BN=target.best[:, :3],
      law=rounds.nodes_of(target, 3),
      count_B=one_B,
  )
  coin_BG = jnp.zeros((len(rounds.MIXED), 3))
  accepted = lambda rule: enumeration.judge(
      rule, target, proposal, coin_BG
  ).accepted_B
  np.testing.assert_array_equal(accepted(TokenRule()), one_B)
  np.testing.assert_array_equal(accepted(rounds.IgnoresPadding()), 3 * one_B)
