"""Rules keep the target's law, by enumeration of what hypothesis draws.

Laws, settings of both sides, gammas, counts, copies, leniences and the shapes
of trees are drawn; the laws that come out are worked out, not sampled. More
examples:

    python -m pytest -m slow tests/test_verify_properties.py
"""

import dataclasses

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from specjax.verify import block
from specjax.verify import proposal as proposals
from specjax.verify import token
from specjax.verify import tree
from tests import drawn
from tests import enumeration
from tests import rounds

Kind = proposals.Kind
TokenRule = token.TokenRule

V, LENGTH = 3, 2
# A rule is compiled for each gamma and lenience, and once for all trees: those
# have so many nodes, more with more examples, of which any number may count.
GAMMAS, LENIENCES, NODES, MORE = (1, 2, 2, 3, 4), (0.15, 0.5, 0.8), 4, 5
CHAIN, POINT = dict(), dict(argmax=True, kind=Kind.POINT)
TREE = dict(deepest=NODES)
# Rule and what it is given; a lenience stands for any.
RULES = {
    "token": (TokenRule(), CHAIN),
    "copies among drawn ones": (TokenRule(), dict(kind=Kind.MIXED)),
    "lenient": (TokenRule(lenience=0.35), CHAIN),
    "block": (block.BlockRule(), CHAIN),
    "distinct siblings": (tree.TreeRule(), TREE | dict(kind=Kind.DISTINCT)),
    "independent siblings": (
        tree.TreeRule(), TREE | dict(kind=Kind.INDEPENDENT)
    ),
    "points": (TokenRule(), POINT),
    "lenient residual": (
        TokenRule(lenience=0.35, residual="lenient"), CHAIN
    ),
    "lenient points": (TokenRule(lenience=0.6), POINT),
    "chain by the tree rule": (tree.TreeRule(), CHAIN),
    "chosen siblings": (tree.TreeRule(), TREE | POINT),
}
QUICK = list(RULES)[:6]


@st.composite
def cases(draw, given, most=NODES):
  """A case of a rule: its laws, its settings, and what is drafted.

  Trees have `most` nodes.
  """
  options = dict(given)
  if "deepest" in given:
    nodes = options["deepest"] = most
    shape = drawn.topology(draw(st.integers(0, 2**32 - 1)), nodes)
    options["tree"] = shape.parents
  else:
    nodes = options["gamma"] = draw(st.sampled_from(GAMMAS))
  prefixes = sum(V**n for n in range(LENGTH + nodes))
  laws = draw(drawn.laws())
  target = laws.target((prefixes, V))
  options["count"] = nodes
  if given.get("kind") is Kind.MIXED:
    texts = [(), *((token,) for token in range(V))]
    copy = st.lists(st.integers(0, V - 1), max_size=nodes).map(tuple)
    options["copied"] = draw(st.dictionaries(st.sampled_from(texts), copy))
  else:
    counts = (nodes, nodes, *range(nodes))
    options["count"] = draw(st.sampled_from(counts))
  return enumeration.Case(
      vocabulary=V,
      length=LENGTH,
      target=draw(drawn.filters()),
      draft=draw(drawn.filters()),
      target_logits=target,
      draft_logits=laws.draft(target.shape, target),
      **options,
  )


@st.composite
def rules(draw, rule):
  """The rule, with any lenience where it has one."""
  if rule.lossless:
    return rule
  return dataclasses.replace(rule, lenience=draw(st.sampled_from(LENIENCES)))


def check(rule, case):
  """The output law is the target's, or as near to it as is promised."""
  enumeration.outcomes.cache_clear()
  if rule.lossless:
    enumeration.check_exact(rule, case)
  elif case.target.temperature > 0 and case.target.top_p > 0:
    enumeration.check_lenient(rule, case)
  else:
    _check_lenient_greedy(rule, case)


def _check_lenient_greedy(rule, case):
  """What comes out has p(x) >= lenience max p, unfiltered, or is the argmax."""
  passes = enumeration.several_rounds(rule, case)
  p = enumeration.reference_law(case.target_logits, rounds.PLAIN)
  for n in range(LENGTH):
    p_XV = p[case.index(n, np.arange(V**n))]
    near_XV = p_XV >= rule.lenience * p_XV.max(axis=1, keepdims=True) - 1e-6
    out_XV = passes[n + 1].reshape(p_XV.shape)
    assert np.all(near_XV | (out_XV == 0))
  np.testing.assert_allclose(passes[-1].sum(), 1, atol=enumeration.TOLERANCE)


@pytest.mark.parametrize("name", QUICK)
@drawn.examples(40)
@hypothesis.given(data=st.data())
def test_rules(name, data):
  rule, given = RULES[name]
  check(data.draw(rules(rule)), data.draw(cases(given)))


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@drawn.examples(1000)
@hypothesis.given(data=st.data())
def test_rules_with_more_examples(name, data):
  rule, given = RULES[name]
  check(data.draw(rules(rule)), data.draw(cases(given, MORE)))


@pytest.mark.parametrize("rule", [rounds.PlainResidual(), rounds.Inclusive()])
def test_wrong_rules_are_found(rule):
  """In a few examples."""

  @drawn.examples(30, phases=(hypothesis.Phase.generate,))
  @hypothesis.given(case=cases(CHAIN))
  def holds(case):
    check(rule, case)

  with pytest.raises(AssertionError):
    holds()
