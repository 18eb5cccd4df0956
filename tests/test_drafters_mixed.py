"""Mixed drafts: copied where something matches, drawn or none elsewhere."""

import dataclasses
from typing import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import lookup
from specjax.drafters import mixed
from specjax.drafters import model as model_drafter
from specjax.drafters import suffix
from specjax.drafters import suffix_array
from specjax.drafters import suffix_dynamic
from specjax.drafters import switch as switch_lib
from specjax.settings import Settings
from specjax.verify import proposal as proposals
from specjax.verify import token
from tests import enumeration
from tests import mocks
from tests import rounds
from tests import test_drafters_lookup
from tests import test_drafters_switch
from tests import test_loop_law

Kind = proposals.Kind
Loop = loop_lib.Loop
MixedDrafter = mixed.MixedDrafter
MixedParams = mixed.MixedParams
Switch = switch_lib.Switch
TokenRule = token.TokenRule

quick_compiles = mocks.quick_compiles
TARGET = test_loop_law.TARGET
LOOKUP = lookup.LookupDrafter(gamma=3)
MODEL = model_drafter.ModelDrafter(mocks.TableModel(3), 2)
DRAFT = mocks.random_table(MODEL.module, 1)


costs = test_drafters_switch.costs


# --- the law ----------------------------------------------------------------


@pytest.mark.parametrize(
    "target, draft",
    [
        (Settings(temperature=1.0), Settings(temperature=1.0)),
        (Settings(temperature=0.7, top_k=2), Settings(temperature=1.3)),
    ],
    ids=["plain", "top-k"],
)
def test_output_law_is_exact(target, draft):
  """Point masses at some prefixes, drawn tokens at others, over rounds."""
  drafter = lookup.LookupDrafter(gamma=2, min_n=2)
  copied = test_drafters_lookup.copied_everywhere(drafter, (1, 0, 2, 1), 4, 3)
  copied = {text: tokens for text, tokens in copied.items() if tokens}
  assert 10 < len(copied) < 30
  case = enumeration.Case(
      vocabulary=3,
      gamma=2,
      length=4,
      target=target,
      draft=draft,
      kind=Kind.MIXED,
      copied=copied,
  )
  enumeration.check_exact(TokenRule(), case)


MIXTURES = {
    "with a model": (
        MixedDrafter(copies=lookup.LookupDrafter(gamma=1), model=MODEL),
        MixedParams((), DRAFT, None),
    ),
    "a model and a switch": (
        MixedDrafter(
            copies=lookup.LookupDrafter(gamma=2),
            model=MODEL,
            switch=Switch(credit=0.4, share=0.1, margin=0.0),
        ),
        MixedParams(
            (), DRAFT, costs(1.0, 1.15, 1.35, draft=0.05, matching=0.02)
        ),
    ),
    "suffixes, argmax and a switch": (
        MixedDrafter(
            copies=suffix.SuffixDrafter(gamma=2, reach=4, offset=1),
            model=dataclasses.replace(MODEL, argmax=True),
            switch=Switch(credit=0.5, share=0.1),
        ),
        MixedParams(
            suffix_array.build([(1, 2, 0, 1, 2), (2, 2, 1)], 20, 4),
            DRAFT,
            costs(1.0, 1.3, 1.6, draft=0.1, matching=0.05),
        ),
    ),
}


@pytest.mark.parametrize("drafter, params", MIXTURES.values(), ids=MIXTURES)
def test_texts_follow_the_targets_law(drafter, params):
  """In the loop, for settings side by side; wherever a row stands."""
  settings, rows = test_loop_law.MIXED, 2000
  loop = Loop(TARGET, drafter, TokenRule(overlap=True, trace=True), trace=True)
  state = test_loop_law.decoded(loop, params, settings, rows=rows)
  assert test_loop_law.misfit_of(state, settings, rows) < test_loop_law.RIGHT
  q_BRG = np.asarray(state.trace.q_BRG)
  drawn = np.any((q_BRG > 0) & (q_BRG < 1))
  assert drawn == (drafter.kind is Kind.MIXED) and np.any(q_BRG == 1)
  for leaf in jax.tree.leaves((state.trace, state.tallies)):
    assert np.all(np.isfinite(leaf))
  order = np.random.default_rng(0).permutation(len(settings) * rows)
  shuffle = lambda batch: jax.tree.map(
      lambda x: x[order] if x.shape[0] == len(order) else x, batch
  )
  other = test_loop_law.decoded(
      loop, params, settings, rows=rows, change=shuffle
  )
  np.testing.assert_array_equal(
      other.tokens_BS, np.asarray(state.tokens_BS)[order]
  )
  np.testing.assert_array_equal(
      other.tallies.drafted_B, np.asarray(state.tallies.drafted_B)[order]
  )


def test_the_rule_judges_each_node_by_its_own_kind():
  """As a proposal of points and one of drawn tokens, side by side."""
  rule = TokenRule(overlap=True, trace=True)
  settings = [rounds.PLAIN, Settings(temperature=0.7, top_k=4)] * 40
  target, drawn = rounds.random_round(settings)
  point_B = np.arange(len(settings)) % 4 < 2
  key_B = jax.vmap(jax.random.key)(np.arange(len(settings)))
  judge = lambda proposal: enumeration.verify(rule, target, proposal, key_B)
  both = judge(
      drawn.replace(
          kind=Kind.MIXED,
          point_BN=np.repeat(point_B[:, None], 3, axis=1),
      )
  )
  apart = judge(drawn.replace(kind=Kind.POINT, law=None)), judge(drawn)
  for got, point, chain in zip(*map(jax.tree.leaves, (both, *apart))):
    wide_B = point_B.reshape(-1, *[1] * (got.ndim - 1))
    np.testing.assert_array_equal(got, np.where(wide_B, point, chain))


@pytest.mark.parametrize(
    "kind, change",
    [
        (Kind.MIXED, dict(point_BN=None)),
        (Kind.MIXED, dict(law=None)),
        (Kind.CHAIN, {}),
    ],
)
def test_half_a_mixture_is_refused(kind, change):
  target, proposal = rounds.random_round([rounds.PLAIN])
  whole = proposal.replace(kind=kind, point_BN=np.zeros((1, 3), bool))
  with pytest.raises(ValueError, match="point_BN:|law:"):
    TokenRule()(target, whole.replace(**change), None)


# --- the draft model's cache ------------------------------------------------


LONG = mocks.TableModel(3, reach=5)
LONG_TABLE = mocks.random_table(LONG, 4)


def test_the_draft_model_reads_what_was_copied():
  """mlc-ai/mlc-llm#2285: its drafts are those of a cache that lacks nothing.

  Of a draft that is the target none is rejected, whatever the rounds before
  had copied.
  """
  drafter = MixedDrafter(
      copies=lookup.LookupDrafter(gamma=3, min_n=2, max_n=2),
      model=model_drafter.ModelDrafter(LONG, 2),
  )
  batch = requests_lib.make_batch(
      mocks.requests(
          Settings(temperature=1.0, eos=()),
          40,
          prompts=[(0,), (1, 1), (2,), (0, 2, 0)] * 2,
      ),
      vocabulary=3,
      seed=0,
  )
  loop = Loop(LONG, drafter, TokenRule(trace=True), trace=True, narrow=False)
  params = MixedParams((), LONG_TABLE, None)
  state = mocks.decode(loop, LONG_TABLE, params, batch, 40)
  p_BRG, q_BRG = np.asarray(state.trace.p_BRG), np.asarray(state.trace.q_BRG)
  judged_BRG = np.asarray(state.trace.draft_BRG) >= 0
  accepted_BR = np.asarray(state.trace.accepted_BR)
  accepted_BRG = np.arange(3) < accepted_BR[..., None]
  drawn_BRG = judged_BRG & (q_BRG < 1)
  copied_BRG = judged_BRG & (q_BRG == 1)
  assert np.sum(drawn_BRG) > 40 and np.all(accepted_BRG[drawn_BRG])
  np.testing.assert_allclose(p_BRG[drawn_BRG], q_BRG[drawn_BRG], rtol=1e-5)
  assert 0 < np.mean(accepted_BRG[copied_BRG]) < 1
  # Several tokens are copied right before some are drawn.
  several_BR = np.sum(copied_BRG & accepted_BRG, axis=2) > 1
  drew_BR = np.any(drawn_BRG, axis=2)
  assert np.any(several_BR[:, :-1] & drew_BR[:, 1:])


# --- the switch -------------------------------------------------------------


# 0 1 2 ... 8 0 1 ...: what stood behind the same token is right.
NINE = mocks.TableModel(9)


def nine_table():
  table = jnp.full((100, 9), -9.0)
  for last in range(9):
    for before in (-1, *range(9)):
      row = (before + 1) * 10 + last + 1
      table = table.at[row, (last + 1) % 9].set(9.0)
  return table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted(lookup.LookupDrafter):
  """Says each time that it looks for a match."""

  heard: Callable[[], None]

  def match(self, params, state, context):
    """As it is."""
    jax.debug.callback(self.heard)
    return super().match(params, state, context)


def test_only_what_pays_is_drafted_in_the_loop():
  """And where nothing can pay nothing is looked for."""
  table = nine_table()
  batch = requests_lib.make_batch(
      mocks.requests(
          Settings(eos=()),
          40,
          prompts=[(0,), (2, 1, 4, 3, 6, 5, 8, 7, 1, 0, 3, 2, 5, 4, 7, 6)],
      ),
      vocabulary=9,
      seed=0,
  )
  looked = []
  copies = Counted(gamma=1, latest=True, heard=lambda: looked.append(1))
  drafter = MixedDrafter(copies=copies, switch=Switch())
  loop = Loop(NINE, drafter, TokenRule())

  def decoded(v, matching=0.0):
    own = costs(1.0, v, matching=matching)
    state = mocks.decode(loop, table, MixedParams((), None, own), batch, 40)
    jax.block_until_ready(state)
    jax.effects_barrier()
    times = len(looked)
    looked.clear()
    rounds_B = np.asarray(state.tallies.rounds_B)
    return state, np.asarray(state.tallies.drafted_B), rounds_B, times

  free, free_B, free_rounds_B, free_times = decoded(1.0)
  some, some_B, some_rounds_B, _ = decoded(1.4, 0.01)
  none, none_B, none_rounds_B, times = decoded(1.8)
  assert mocks.texts(free) == mocks.texts(some) == mocks.texts(none)
  # Copies of single tokens are wrong at first; all longer ones are right.
  assert some_B[0] > 10 and 0 < some_B[1] < free_B[1]
  assert np.all(some_rounds_B < 32)
  assert free_times >= np.max(free_rounds_B) - 1
  assert none_B.tolist() == [0, 0] and none_rounds_B.tolist() == [40, 40]
  assert times == 0


# --- options ----------------------------------------------------------------


def test_shapes_of_a_mixture():
  drafter = MixedDrafter(
      copies=lookup.LookupDrafter(gamma=8),
      model=dataclasses.replace(MODEL, gamma=3),
  )
  assert drafter.nodes == drafter.depth == 8 and drafter.reader is None
  assert drafter.widths == (1, 3, 4, 5, 9) and drafter.kind is Kind.MIXED
  assert hash(drafter) == hash(dataclasses.replace(drafter))
  assert MixedDrafter(copies=LOOKUP).kind is Kind.POINT
  assert not drafter.learns
  learning = MixedDrafter(copies=suffix.SuffixDrafter(gamma=2))
  assert learning.learns
  with pytest.raises(errors.UserError, match="^copies: only chains are mixed"):
    MixedDrafter(copies=suffix_dynamic.make(gamma=2, nodes=3))
