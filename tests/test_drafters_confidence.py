"""Drafts that end where the draft model is no longer sure."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
from specjax import sampling
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import mixed
from specjax.drafters import lookup
from specjax.drafters import model as model_drafter
from specjax.settings import Settings
from specjax.verify import token
from tests import mocks
from tests import test_loop_law

Loop = loop_lib.Loop
ModelDrafter = model_drafter.ModelDrafter
TokenRule = token.TokenRule

quick_compiles = mocks.quick_compiles
TARGET = test_loop_law.TARGET


@pytest.mark.parametrize("argmax", [False, True], ids=["drawn", "argmax"])
def test_texts_follow_the_targets_law(argmax):
  """For settings side by side, alone or beside others, in any order."""
  settings, rows = test_loop_law.MIXED, 1000
  drafter, table = test_loop_law.draft(gamma=4, argmax=argmax, confidence=0.3)
  loop = Loop(TARGET, drafter, TokenRule())
  state = test_loop_law.decoded(loop, table, settings, rows=rows)
  assert test_loop_law.misfit_of(state, settings, rows) < test_loop_law.RIGHT
  drafted = np.asarray(state.tallies.judged_BG).sum(axis=0)
  assert np.all(np.diff(drafted) < 0) and drafted[-1] > 0
  order = np.random.default_rng(0).permutation(len(settings) * rows)
  shuffle = lambda batch: jax.tree.map(
      lambda x: x[order] if x.shape[0] == len(order) else x, batch
  )
  other = test_loop_law.decoded(
      loop, table, settings, rows=rows, change=shuffle
  )
  for name in ("tokens_BS", "tallies"):
    for got, want in zip(
        jax.tree.leaves(getattr(other, name)),
        jax.tree.leaves(getattr(state, name)),
    ):
      np.testing.assert_array_equal(got, np.asarray(want)[order])


class Dropping(Loop):
  """Leaves out the draft whose own chance made its row stop: a bias."""

  def propose(self, drafter_params, state):
    proposal, drafter_state = super().propose(drafter_params, state)
    short_B = proposal.count_B < self.drafter.gamma
    count_B = jnp.maximum(proposal.count_B - short_B, 0)
    return proposal.replace(count_B=count_B), drafter_state


def test_a_draft_dropped_for_its_value_is_caught():
  """A stop may depend on a drawn token only where that one is judged."""
  drafter, table = test_loop_law.draft(gamma=4, confidence=0.3)
  settings = [test_loop_law.PLAIN]
  loop = Dropping(TARGET, drafter, TokenRule())
  misfit = test_loop_law.worst(loop, table, settings, rows=5000)
  assert misfit > test_loop_law.WRONG


class Sure(mocks.TableModel):
  """Says the next id with these chances: .9, .8, .5, .5, ... by position."""

  def decode(self, params, query, cache, memory, taps=(), newest=False):
    del params, memory, taps
    place_BT = query.position_BT
    chance_BT = jnp.select([place_BT == 0, place_BT == 1], [0.9, 0.8], 0.5)
    other_BT = (1 - chance_BT) / (self.vocabulary - 1)
    hot_BTV = jax.nn.one_hot(1 + jnp.zeros_like(place_BT), self.vocabulary)
    p_BTV = jnp.where(hot_BTV > 0, chance_BT[..., None], other_BT[..., None])
    logits_BTV = jnp.log(p_BTV)
    return logits_BTV[:, -1:] if newest else logits_BTV, cache, ()


def counted(confidence, remaining=20, gamma=6, temperature=0.0):
  """Drafts of one round that begins behind the start token."""
  drafter = ModelDrafter(Sure(4), gamma, confidence=confidence)
  settings = [Settings(temperature=temperature, eos=())]
  batch = requests_lib.make_batch(
      mocks.requests(settings, remaining), vocabulary=4, seed=0
  )
  loop = Loop(Sure(4), drafter, TokenRule())
  state = loop.prefill((), (), batch, remaining)
  return int(loop.propose((), state)[0].count_B[0])


@pytest.mark.parametrize(
    "confidence, count",
    # After 1, 2, 3, ... drafts they are all right with .9, .72, .36, .18, ...
    [(0.95, 1), (0.75, 2), (0.4, 3), (0.05, 6)],
)
def test_the_product_of_the_chances_counts(confidence, count):
  assert counted(confidence) == count


def test_no_more_than_the_budget_needs():
  assert counted(0.05, remaining=3) == 2


def test_the_chance_is_of_the_softmax():
  """Also in greedy rows, whose law is 1 at the argmax; 0 where none can be."""
  logits_BV = jnp.log(jnp.array([[0.2, 0.5, 0.3], [1e-9, 1e-9, 1e-9]]))
  logits_BV = logits_BV.at[1].set(-jnp.inf)
  settings = [Settings(temperature=0.0, eos=()), Settings(eos=())]
  law = sampling.make_law(
      logits_BV, sampling.stack(settings, 3), jnp.zeros(2, jnp.int32)
  )
  got_B = law.confidence(jnp.array([2, 0]))
  np.testing.assert_allclose(got_B, [0.3, 0.0], rtol=1e-6)


def test_passes_are_as_wide_as_rounds_need():
  drafter = ModelDrafter(TARGET, 7, confidence=0.2)
  assert drafter.widths == (2, 3, 4, 5, 7, 8)
  assert drafter.whole.widths == (8,) and drafter.whole.confidence == 0
  mixture = mixed.MixedDrafter(
      copies=lookup.LookupDrafter(gamma=4), model=drafter
  )
  assert mixture.whole.model == drafter.whole


@pytest.mark.parametrize("confidence", [-0.1, 1.5, "much", float("nan")])
def test_refused(confidence):
  with pytest.raises(errors.UserError, match="^confidence: give a number"):
    dataclasses.replace(ModelDrafter(TARGET, 2), confidence=confidence)
