"""Rounds of few drafts are scored in few tokens; nothing else changes."""

import dataclasses
import re

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import lookup
from specjax.drafters import suffix_dynamic
from specjax.verify import proposal as proposals
from specjax.verify import token
from specjax.verify import tree as tree_rule
from tests import mocks
from tests import rounds

Kind = proposals.Kind
Loop = loop_lib.Loop
Settings = sampling.Settings

quick_compiles = mocks.quick_compiles
V, GAMMA, BUDGET = 12, 4, 24
TABLE = mocks.counting_table(V)
RULE = token.TokenRule(overlap=True, trace=True)
LOOKUP = lookup.LookupDrafter(gamma=2)


class Target(mocks.TableModel):
  """Its hidden states are 1, also of tokens that don't count."""

  def decode(self, params, query, cache, memory, taps=(), newest=False):
    logits, cache, _ = super().decode(params, query, cache, memory)
    ones_BTD = jnp.ones((*query.tokens_BT.shape, 1))
    return logits, cache, (ones_BTD,) * len(taps)


TARGET = Target(V)


@struct.dataclass
class Seen:
  """Rounds of each row, and how wide each round's pass was."""

  round_B: jax.Array
  width_BR: jax.Array


@dataclasses.dataclass(frozen=True)
class CountedDrafter:
  """Right tokens of a counting target, as many as `params` says, count_BR.

  It hears a hidden state of every token that the target read.
  """

  trees: bool = False

  kind = Kind.POINT
  nodes = depth = GAMMA
  widths = (1, 3, GAMMA + 1)
  taps = (-1,)

  def prefill(self, params, context, *, prompt_width, slots):
    """Nothing seen yet."""
    del context, prompt_width, slots
    return Seen(jnp.zeros_like(params[:, 0]), jnp.zeros_like(params))

  def propose(self, params, state, context, key_B, width):
    """The next tokens of 0 1 2 3 ..."""
    del key_B
    count_B1 = jnp.take_along_axis(params, state.round_B[:, None], 1)
    tokens_BN = context.length_B[:, None] + jnp.arange(GAMMA)
    tokens_BN %= width - 1
    proposal = proposals.Proposal(
        tokens_BN,
        count_B1[:, 0],
        None,
        self.kind,
        tree=proposals.chain_tree(tokens_BN) if self.trees else None,
    )
    return proposal, state

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """Notes the width."""
    del params, tokens_BT, count_B
    width_B = jnp.sum(features[0][..., 0], axis=1).astype(jnp.int32)
    put = lambda row, i, value: row.at[i].set(value)
    return state.replace(
        round_B=state.round_B + context.active_B,
        width_BR=jax.vmap(put)(state.width_BR, state.round_B, width_B),
    )


def counted(count_BR, budget=BUDGET, trees=False):
  """The finished state of rows that draft that many tokens in their rounds."""
  count_BR = [row + [0] * (BUDGET - len(row)) for row in count_BR]
  requests = mocks.requests(
      Settings(eos=()), budget, ids=range(len(count_BR))
  )
  batch = requests_lib.make_batch(requests, vocabulary=V, seed=0)
  rule = tree_rule.TreeRule() if trees else RULE
  loop = Loop(TARGET, CountedDrafter(trees), rule)
  return mocks.decode(loop, TABLE, jnp.asarray(count_BR), batch, BUDGET)


@pytest.mark.parametrize("trees", [False, True])
def test_the_largest_count_chooses(trees):
  """A round without proposals costs a one-token step."""
  counts = [[0, 1, 0, 2, 3, 0, 0], [0, 0, 0, 1, 0, 4, 0]]
  state = counted(counts, trees=trees)
  want = [1, 3, 1, 3, 5, 5, 1]
  for row in np.asarray(state.drafter.width_BR):
    assert row[:7].tolist() == want
  assert state.tallies.drafted_B.tolist() == [6, 5]


def test_rows_that_have_ended_choose_nothing():
  """Whatever a drafter proposes for them."""
  state = counted([[4] * 9, [0] * 9], budget=[2, 9])
  want = [3] + 8 * [1]
  assert np.asarray(state.drafter.width_BR)[1, :9].tolist() == want


SETTINGS = [
    Settings(eos=(7,)),
    Settings(temperature=1.0, eos=(3,)),
    Settings(temperature=0.7, top_k=3, eos=()),
    Settings(temperature=1.3, top_p=0.8, eos=()),
]


def looked_up(**options):
  """Rows of a table that repeats itself, with drafts that are looked up."""
  prompts = [(0,), (1, 2, 3, 1), (4, 4, 4), (5, 6, 5, 6, 5)]
  batch = requests_lib.make_batch(
      mocks.requests(SETTINGS, BUDGET, prompts=prompts, ids=range(16)),
      vocabulary=V,
      seed=0,
  )
  loop = Loop(
      TARGET,
      LOOKUP,
      RULE,
      log_probs=True,
      trace=True,
      **options,
  )
  table = mocks.random_table(TARGET, 2)
  return mocks.decode(loop, table, (), batch, BUDGET)


def test_widths_change_nothing():
  """Tokens, counts, log-probabilities and traces, bit for bit."""
  got, want = looked_up(), looked_up(narrow=False)
  drafted_B = np.asarray(got.tallies.drafted_B)
  assert 0 < np.min(drafted_B) and np.max(drafted_B) < 2 * BUDGET
  for field in ("tokens_BS", "length_B", "tallies", "log_probs", "trace"):
    pair = getattr(got, field), getattr(want, field)
    for a, b in zip(*map(jax.tree.leaves, pair), strict=True):
      np.testing.assert_array_equal(a, b, err_msg=field)


def test_first_nodes_of_a_proposal():
  _, proposal = rounds.random_round([rounds.PLAIN] * 2, nodes=3)
  assert proposal.first(3) is proposal
  cut = proposal.first(2)
  np.testing.assert_array_equal(cut.tokens_BN, proposal.tokens_BN[:, :2])
  assert cut.count_B.tolist() == [2, 2] and cut.kind is Kind.CHAIN
  assert cut.law.best.shape == (2, 2)
  parent_BN = jnp.array([[-1, -1, 1], [-1, 0, 1]])
  whole = proposal.replace(tree=proposals.Tree(parent_BN, 3))
  assert whole.first(3) is whole and whole.first(0).tree is None
  tree = whole.first(2).tree
  assert tree.parent_BN.tolist() == [[-1, -1], [-1, 0]] and tree.depth == 2
  none = proposal.first(0)
  assert none.kind is Kind.NONE and none.law is None
  assert none.tokens_BN.shape == (2, 0) and none.count_B.tolist() == [0, 0]


class _Branches(Loop):
  """The widths are branches, each of which writes the cache."""

  def _pass(self, params, state, proposal):
    widths = self.drafter.widths
    chosen = jnp.searchsorted(
        jnp.asarray(widths), jnp.max(proposal.count_B) + 1
    )
    branches = [
        lambda cache, width=width: self._judged(
            params, state, cache, proposal.first(width - 1)
        )
        for width in widths
    ]
    return jax.lax.switch(chosen, branches, state.cache)


TREES = suffix_dynamic.make(gamma=2, nodes=3)


@pytest.mark.parametrize(
    "loop_class, drafter",
    [(Loop, LOOKUP), (Loop, TREES), (_Branches, LOOKUP)],
    ids=["turns", "turns of trees", "branches"],
)
def test_no_width_copies_a_cache(loop_class, drafter):
  """Widths take turns in one place; branches would copy."""
  rule = tree_rule.TreeRule() if drafter.trees else token.TokenRule()
  loop = loop_class(TARGET, drafter, rule)
  batch = requests_lib.make_batch(
      mocks.requests(Settings(), [BUDGET] * 2), vocabulary=V, seed=0
  )
  state = loop.prefill(TABLE, None, batch, BUDGET)
  text = Loop.run.lower(loop, TABLE, None, state).compile().as_text()
  copies = 0
  for leaf in jax.tree.leaves(state.cache):
    shape = ",".join(map(str, leaf.shape))
    copies += len(re.findall(rf"f32\[{shape}\][^=]* copy\(", text))
  assert copies if loop_class is _Branches else not copies
