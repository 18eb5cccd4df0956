"""Ends of texts: EOS, budgets, finished and blank rows, the cache's last slot.

The target counts 0 1 2 3 ..., so the n-th new token is n; drafts are right
just as often as a script says.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import lookup
from specjax.drafters import mixed
from specjax.drafters import model as model_drafter
from specjax.drafters import suffix
from specjax.drafters import suffix_dynamic
from specjax.drafters import switch
from specjax.verify import token
from specjax.verify import tree as tree_rule
from tests import mocks

Loop = loop_lib.Loop
ModelDrafter = model_drafter.ModelDrafter
Settings = sampling.Settings
TokenRule = token.TokenRule

quick_compiles = mocks.quick_compiles
TARGET = mocks.TableModel(24)
TABLE = mocks.counting_table(24)
NEVER, START = 22, 0

GAMMA = 3
SCRIPTS = [(k,) * 4 for k in range(GAMMA + 1)] + [(3, 0, 2, 1), (0, 3, 1, 2)]
PLACES = [*range(1, GAMMA + 3), None]
BUDGETS = [*range(1, GAMMA + 4), 11]
GRID = list(itertools.product(SCRIPTS, PLACES, BUDGETS))


@dataclasses.dataclass
class Expected:
  """What a row must come to, worked out one token at a time."""

  text: tuple
  ended: bool
  rounds: int
  drafted: int
  judged: np.ndarray
  accepted: np.ndarray


def expected(script, place, budget):
  """One row: drafts of round r are right `script[r]` times, then wrong."""
  text, ended, rounds, drafted = [], False, 0, 0
  judged, accepted = np.zeros((2, GAMMA), int)
  while len(text) < budget and not ended:
    count = min(GAMMA, budget - len(text) - 1)
    right = script[min(rounds, len(script) - 1)]
    rounds += 1
    drafted += count
    for i in range(count + 1):
      text.append(len(text) + 1)
      ended = text[-1] == place
      if i < count:
        judged[i] += 1
        accepted[i] += i < right
      if ended or i == right:
        break
  return Expected(tuple(text), ended, rounds, drafted, judged, accepted)


def eos_of(place, row):
  """An EOS set that holds `place`; rows differ in size and order.

  In some it is the token that the text begins with, too.
  """
  here = () if place is None else (place,)
  return [here, (*here, START), (NEVER, *here)][row % 3]


@functools.cache
def grid_state():
  """Every script with every place of EOS and every budget, in one batch."""
  settings = [
      Settings(eos=eos_of(place, i)) for i, (_, place, _) in enumerate(GRID)
  ]
  batch = requests_lib.make_batch(
      mocks.requests(settings, [budget for *_, budget in GRID]),
      vocabulary=24,
      seed=0,
  )
  text_BS = jnp.broadcast_to(jnp.arange(20), (len(GRID), 20))
  script_BR = jnp.asarray([script for script, *_ in GRID])
  loop = Loop(TARGET, mocks.ScriptedDrafter(GAMMA, (-1,)), TokenRule())
  return mocks.decode(loop, TABLE, (text_BS, script_BR), batch, max(BUDGETS))


def test_eos_and_budgets_at_every_place_of_a_block():
  """huggingface/transformers#47912, #47195, ikawrakow/ik_llama.cpp#2358.

  transformers#8161: the token it begins with ends no text, and is none of it.
  """
  for got, case in zip(mocks.texts(grid_state()), GRID, strict=True):
    assert got == expected(*case).text, case


COPIES = {
    "lookup": (lookup.LookupDrafter(gamma=GAMMA), ()),
    "suffix": (suffix.SuffixDrafter(gamma=GAMMA, reach=8, offset=3.0), None),
    "suffix tree": (
        suffix_dynamic.make(gamma=GAMMA, nodes=GAMMA, reach=8, offset=3.0),
        None,
    ),
    "mixed": (
        mixed.MixedDrafter(
            copies=lookup.LookupDrafter(gamma=GAMMA), switch=switch.Switch()
        ),
        mixed.MixedParams(
            (),
            None,
            switch.Costs(jnp.zeros(()), jnp.zeros(()), jnp.ones(3)),
        ),
    ),
}


@pytest.mark.parametrize("drafter, params", COPIES.values(), ids=COPIES)
def test_eos_and_budgets_at_every_place_of_a_copied_block(drafter, params):
  """huggingface/transformers#47912, #47195: all that is copied is right."""
  assert drafter.widths == (1, 2, 4)
  model, grid = mocks.TableModel(24, reach=1), [*itertools.product(
      PLACES, BUDGETS
  )]
  table = 20.0 * jax.nn.one_hot(jnp.arange(25) % 12, 24)
  batch = requests_lib.make_batch(
      mocks.requests(
          [Settings(eos=eos_of(place, i)) for i, (place, _) in enumerate(grid)],
          [budget for _, budget in grid],
          prompts=[(*range(12), 0)],
      ),
      vocabulary=24,
      seed=0,
  )
  rule = tree_rule.TreeRule() if drafter.trees else TokenRule()
  loop = Loop(model, drafter, rule)
  state = mocks.decode(loop, table, params, batch, max(BUDGETS))
  want = [expected((GAMMA,), *case) for case in grid]
  assert mocks.texts(state) == [row.text for row in want]
  tallies = jax.device_get(state.tallies)
  assert tallies.rounds_B.tolist() == [row.rounds for row in want]
  assert tallies.drafted_B.tolist() == [row.drafted for row in want]
  np.testing.assert_array_equal(
      tallies.accepted_BG, [row.accepted for row in want]
  )


def test_nothing_lies_behind_the_end():
  tokens_BS, length_B = jax.device_get(
      (grid_state().tokens_BS, grid_state().length_B)
  )
  assert np.max(length_B) == tokens_BS.shape[1]
  behind_BS = np.arange(tokens_BS.shape[1]) >= length_B[:, None]
  assert not np.any(tokens_BS[behind_BS])


def test_reason_of_the_end():
  """sgl-project/sglang#31599: an EOS behind the budget is not seen."""
  ended_B = np.asarray(grid_state().ended_B)
  assert ended_B.tolist() == [expected(*case).ended for case in GRID]
  for ended, (_, place, budget) in zip(ended_B, GRID):
    assert ended == (place is not None and place <= budget)
  assert np.all(grid_state().done_B)


def test_tallies_count_what_was_emitted():
  """sgl-project/sglang#11572, #39826: as far as was emitted, and no further.

  Neither cut positions nor ended rows count.
  """
  tallies = jax.device_get(grid_state().tallies)
  want = [expected(*case) for case in GRID]
  assert tallies.rounds_B.tolist() == [row.rounds for row in want]
  assert tallies.drafted_B.tolist() == [row.drafted for row in want]
  np.testing.assert_array_equal(tallies.judged_BG, [r.judged for r in want])
  np.testing.assert_array_equal(
      tallies.accepted_BG, [row.accepted for row in want]
  )


def test_drafter_hears_what_was_emitted():
  """`observe` is told the tokens after the cut, and what stood before them."""
  state = jax.device_get(grid_state().replace(key_B=None))
  column_S = np.arange(state.tokens_BS.shape[1])
  new_BS = (column_S >= 1) & (column_S < state.length_B[:, None])
  np.testing.assert_array_equal(
      state.drafter.heard_BS, np.where(new_BS, column_S, -1)
  )
  # The hidden state of token t is t + 1.
  np.testing.assert_array_equal(
      state.drafter.before_BS, np.where(new_BS, column_S, -1)
  )


@functools.cache
def stepped(ids=range(6), rows=None):
  """States of rows that end at different times, before and after each round.

  Drafts come from a model that is often wrong.
  """
  settings = [
      Settings(eos=(1, NEVER)),
      Settings(eos=(4,)),
      Settings(eos=()),
      Settings(temperature=1.0, eos=(2,)),
      Settings(eos=(5,)),
      Settings(temperature=1.0, top_k=3, eos=(4,)),
  ]
  requests = mocks.requests(settings, [9, 9, 9, 9, 5, 7])
  batch = requests_lib.make_batch(
      [requests[i] for i in ids], vocabulary=24, seed=0, rows=rows
  )
  loop = Loop(
      TARGET,
      ModelDrafter(TARGET, GAMMA),
      TokenRule(trace=True),
      log_probs=True,
      trace=True,
  )
  tables = TABLE + 3 * mocks.random_table(TARGET, 1), mocks.counting_table(
      24, noise=4.0, seed=2
  )
  states = [loop.prefill(*tables, batch, 9)]
  while not np.all(states[-1].done_B):
    states.append(mocks.one_round(loop, *tables, states[-1]))
    assert len(states) < 12
  return states


def row_leaves(state, row):
  """All that the state holds of a row."""
  state = state.replace(key_B=jax.random.key_data(state.key_B))
  leaves = jax.tree_util.tree_leaves_with_path(state)
  return {
      jax.tree_util.keystr(path): np.asarray(leaf)[row]
      for path, leaf in leaves
      if "suppressed" not in jax.tree_util.keystr(path)
  }


def test_finished_rows_are_frozen():
  """mistralai/mistral-inference#270: nothing of a row changes."""
  states = stepped()
  ends = []
  for row in range(6):
    end = next(i for i, state in enumerate(states) if state.done_B[row])
    ends.append(end)
    want = row_leaves(states[end], row)
    assert len(want) > 20
    for state in states[end + 1 :]:
      for name, value in row_leaves(state, row).items():
        np.testing.assert_array_equal(value, want[name], err_msg=name)
  assert len(set(ends)) > 2 and max(ends) == len(states) - 1
  moved = row_leaves(states[0], 2), row_leaves(states[1], 2)
  assert any(np.any(moved[0][name] != moved[1][name]) for name in moved[0])


def test_blank_rows_do_not_count():
  """Rows that only fill a batch emit nothing and disturb nobody."""
  whole = stepped()
  states = stepped(ids=(0, 1, 3, 5), rows=6)
  for row, original in enumerate((0, 1, 3, 5)):
    got = row_leaves(states[-1], row)
    want = row_leaves(whole[-1], original)
    # The batches' EOS sets may be padded to different widths.
    for name in got.keys() - {".sampling.eos_BE"}:
      np.testing.assert_array_equal(got[name], want[name], err_msg=name)
  final = states[-1]
  assert final.done_B.tolist() == [True] * 6
  assert final.length_B[4:].tolist() == final.prompt_B[4:].tolist() == [1, 1]
  assert final.ended_B[4:].tolist() == [False, False]
  assert not any(
      np.any(leaf[4:]) for leaf in jax.tree.leaves(final.tallies)
  )
  assert not np.any(final.cache.value[0][4:])


def test_last_slots_of_the_cache():
  """jax-ml/jax#9083: a block at the end is not shifted back."""
  prompts = [(0, 1, 2, 3, 4), (0, 1)]
  requests = mocks.requests(Settings(eos=()), 7, prompts=prompts)
  batch = requests_lib.make_batch(requests, vocabulary=24, seed=0)
  loop = Loop(TARGET, ModelDrafter(TARGET, 4), TokenRule())
  state = mocks.decode(loop, TABLE, TABLE, batch, 7)
  assert mocks.texts(state) == [tuple(range(5, 12)), tuple(range(2, 9))]
  assert state.cache.slots == 5 + 7 + 4 + 1
  for cache in (state.cache, state.drafter.cache):
    for row, length in enumerate(state.length_B.tolist()):
      # The draft model never read the last accepted token.
      known = length - 2
      want = np.arange(1, known + 1)
      for part in (jnp.swapaxes(cache.key[0], 2, 3), cache.value[0]):
        np.testing.assert_array_equal(part[row, 0, :known, 0], want)
