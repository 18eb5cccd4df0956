"""The loop's texts follow the target's law over several rounds.

Tens of thousands of rows with ids of their own are compared with the exactly
enumerated law of 5 tokens. Loops whose noise serves twice fail the same check.
"""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.decoding import loop as loop_lib
from specjax.drafters import model as model_drafter
from specjax.drafters import none
from specjax.verify import block
from specjax.verify import token
from tests import mocks
from tests import text_laws

Loop = loop_lib.Loop
ModelDrafter = model_drafter.ModelDrafter
Purpose = sampling.Purpose
Settings = sampling.Settings
TokenRule = token.TokenRule

quick_compiles = mocks.quick_compiles
TARGET = mocks.TableModel(3)
TABLE = mocks.random_table(TARGET, 0)
LENGTH = 5
# In standard deviations of chi-square; both ends leave room.
RIGHT, WRONG = 5, 15

PLAIN = Settings(temperature=1.0, eos=())
MIXED = [
    PLAIN,
    Settings(temperature=1.0, eos=(2,)),
    Settings(temperature=0.7, top_k=2, eos=()),
    Settings(temperature=1.3, top_p=0.8, eos=(0,)),
    Settings(temperature=0.0, eos=()),
    Settings(temperature=1.0, eos=(2, 0), min_new_tokens=3),
    Settings(temperature=1.0, eos=(), forced_first=1),
]


def draft(vocabulary=3, gamma=3, seed=1, **options):
  """A drafter and its table."""
  model = mocks.TableModel(vocabulary)
  return (
      ModelDrafter(model, gamma, **options),
      mocks.random_table(model, seed),
  )


def worst(loop, table, settings, *, rows, **options):
  """The largest misfit of any of the settings' laws."""
  state = decoded(loop, table, settings, rows=rows, **options)
  return misfit_of(state, settings, rows)


def decoded(loop, table, settings, *, rows, change=lambda batch: batch):
  """The finished state of `rows` rows of each of the settings."""
  batch = mocks.copies(
      mocks.requests(settings, LENGTH), rows, vocabulary=3, seed=0
  )
  return mocks.decode(loop, TABLE, table, change(batch), LENGTH)


def misfit_of(state, settings, rows):
  """The largest misfit of any of the settings' laws."""
  texts = mocks.texts(state)
  misfits = []
  for i, row_settings in enumerate(settings):
    law = text_laws.text_law(
        TARGET, np.asarray(TABLE), row_settings, (0,), LENGTH
    )
    misfits.append(text_laws.misfit(texts[i * rows : (i + 1) * rows], law))
  return max(misfits)


@pytest.mark.parametrize(
    "drafter, table",
    [
        draft(),
        draft(argmax=True, vocabulary=4),
        draft(gamma=2, vocabulary=2, temperature=0.5, top_p=0.9),
        (none.NoDrafter(), ()),
    ],
    ids=["chain", "argmax of a wider one", "narrower and colder", "plain"],
)
def test_settings_side_by_side(drafter, table):
  """Also huggingface/transformers#32867, #47932 in the loop."""
  loop = Loop(TARGET, drafter, TokenRule())
  assert worst(loop, table, MIXED, rows=4000) < RIGHT


# What a draft of one id may not say: ever, or at the beginning of a text.
NOTHING_TO_SAY = {
    "suppressed": [
        Settings(temperature=1.0, eos=(), suppressed=(0,)),
        Settings(temperature=0.7, top_k=2, eos=(), suppressed=(0,)),
        Settings(temperature=1.3, top_p=0.8, eos=(2,), suppressed=(0,)),
        Settings(temperature=0.0, eos=(), suppressed=(0,)),
    ],
    "too early": [
        Settings(temperature=1.0, eos=(0,), min_new_tokens=3),
        Settings(temperature=1.0, eos=(0,), min_new_tokens=5),
        Settings(temperature=1.0, eos=(0,), min_new_tokens=2, forced_first=1),
        Settings(temperature=0.0, eos=(0,), min_new_tokens=2),
    ],
}


@pytest.mark.parametrize(
    "settings", NOTHING_TO_SAY.values(), ids=NOTHING_TO_SAY
)
@pytest.mark.parametrize("argmax", [False, True], ids=["chain", "argmax"])
def test_a_draft_of_which_every_id_is_forbidden(settings, argmax):
  """The target's law comes out; q and the overlap are 0, never NaN."""
  drafter, table = draft(vocabulary=1, argmax=argmax)
  rule = TokenRule(overlap=True, trace=True)
  loop = Loop(TARGET, drafter, rule, log_probs=True, trace=True)
  state = decoded(loop, table, settings, rows=2000)
  assert misfit_of(state, settings, 2000) < RIGHT
  for leaf in jax.tree.leaves((state.trace, state.tallies, state.log_probs)):
    assert np.all(np.isfinite(leaf))
  if settings[0].suppressed:
    assert not np.any(state.tallies.overlap_BG)
    assert not np.any(state.tallies.accepted_BG)
    assert argmax or not np.any(state.trace.q_BRG)


class _SameKeyEachRound(Loop):
  """The round is not folded in (sgl-project/sglang-jax#940)."""

  def round(self, target_params, drafter_params, state):
    rounds_B = state.tallies.rounds_B
    first = state.tallies.replace(rounds_B=jnp.zeros_like(rounds_B))
    state = super().round(
        target_params, drafter_params, state.replace(tallies=first)
    )
    return state.replace(
        tallies=state.tallies.replace(
            rounds_B=rounds_B + state.tallies.rounds_B
        )
    )


class _DraftKeyForAll(Loop):
  """The draft's noise draws the residual (local-inference-lab/vllm#205)."""

  def round(self, *args):
    fold = sampling.fold
    shared = lambda key_B, purpose, node=0: fold(
        key_B, jnp.where(jnp.equal(purpose, Purpose.COIN), purpose, 0), node
    )
    with mock.patch.object(sampling, "fold", shared):
      return super().round(*args)


class _ByPosition(_SameKeyEachRound):
  """Noise is folded by the place in the text, not by round and node."""

  def round(self, target_params, drafter_params, state):
    fold = sampling.fold
    placed = lambda key_B, purpose, node=0: fold(
        key_B, purpose, state.length_B + node
    )
    with mock.patch.object(sampling, "fold", placed):
      return super().round(target_params, drafter_params, state)


@pytest.mark.parametrize("faulty", [_SameKeyEachRound, _DraftKeyForAll])
def test_reused_noise_is_caught(faulty):
  drafter, table = draft()
  misfit = worst(
      faulty(TARGET, drafter, TokenRule()), table, [PLAIN], rows=20_000
  )
  assert misfit > WRONG


def test_rows_that_share_a_key_are_caught():
  drafter, table = draft()
  share = lambda batch: batch.replace(
      key_B=jnp.broadcast_to(batch.key_B[:1], batch.key_B.shape)
  )
  loop = Loop(TARGET, drafter, TokenRule())
  assert worst(loop, table, MIXED, rows=4000, change=share) > WRONG


@pytest.mark.parametrize("loop_class", [Loop, _ByPosition])
def test_dropped_noise_never_comes_back(loop_class):
  """Folding by position biases block verification.

  Unlike the token rule it looks at drafts behind one that it drops, so it is
  only exact where their noise never comes back.
  """
  drafter, table = draft()
  loop = loop_class(TARGET, drafter, block.BlockRule())
  misfit = worst(loop, table, [PLAIN], rows=40_000)
  assert misfit > WRONG if loop_class is _ByPosition else misfit < RIGHT
