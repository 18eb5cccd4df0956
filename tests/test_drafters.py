"""Sources of drafts on their own: they report the law they drew from."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
from specjax import sampling
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import model as model_drafter
from specjax.drafters import none
from specjax.verify import proposal as proposals
from specjax.verify import token
from tests import enumeration
from tests import mocks
from tests import text_laws

Kind = proposals.Kind
Loop = loop_lib.Loop
ModelDrafter = model_drafter.ModelDrafter
Settings = sampling.Settings

quick_compiles = mocks.quick_compiles
TARGET = mocks.TableModel(3)
DRAFT = mocks.TableModel(3)
TABLE = mocks.random_table(DRAFT, 1)
GAMMA, ROWS = 2, 3000
PROMPTS = [(0,), (1, 2), (2, 0, 1)]


@functools.partial(jax.jit, static_argnums=(0, 3))
def propose(drafter, params, batch, width):
  """The first proposal of a batch, and the drafter's states."""
  loop = Loop(TARGET, drafter, token.TokenRule())
  state = loop.prefill(jnp.zeros((16, 3)), params, batch, 4)
  proposal, after = drafter.propose(
      params, state.drafter, state.context(), state.key_B, width
  )
  return proposal, state.drafter, after


def make_batch(settings, width):
  """ROWS rows of each prompt."""
  requests = mocks.requests(settings, 4, prompts=PROMPTS)
  batch = mocks.copies(requests, ROWS, vocabulary=width, seed=0)
  return mocks.widen_eos(batch, 1)


def drafted(drafter, params, settings, width=3):
  """Proposals for ROWS rows of each prompt."""
  return propose(drafter, params, make_batch(settings, width), width)[0]


def check_law(proposal, settings, model, table):
  """Tokens follow the settings' law, and `law` is just that law."""
  tokens_BN = np.asarray(proposal.tokens_BN)
  dense_BNV = np.asarray(proposal.law.dense())
  width = model.vocabulary
  for i, prompt in enumerate(PROMPTS):
    own = slice(i * ROWS, (i + 1) * ROWS)
    texts = list(map(tuple, tokens_BN[own].tolist()))
    law = text_laws.text_law(model, np.asarray(table), settings, prompt, GAMMA)
    assert text_laws.misfit(texts, law) < 5
    for text in law:
      row = own.start + texts.index(text) if text in texts else None
      for node in range(GAMMA if row is not None else 0):
        want = text_laws.next_law(
            model, np.asarray(table), settings, prompt + text[:node], node
        )
        np.testing.assert_allclose(
            dense_BNV[row, node, :width], want, atol=1e-5
        )
    assert not np.any(dense_BNV[..., width:])


OPTIONS = {
    "the row's own": {},
    "its own": dict(temperature=0.5, top_k=2, top_p=0.9),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_law_is_what_was_drawn_from(options):
  """huggingface/transformers#47932: one array draws and reports."""
  row = Settings(temperature=1.0, eos=())
  proposal = drafted(ModelDrafter(DRAFT, GAMMA, **options), TABLE, row)
  assert proposal.kind is Kind.CHAIN
  assert np.all(proposal.count_B == GAMMA)
  check_law(proposal, dataclasses.replace(row, **options), DRAFT, TABLE)


def test_greedy_rows_stay_greedy():
  """A drafter's own temperature is for sampled rows."""
  settings = Settings(eos=())
  drafter = ModelDrafter(DRAFT, GAMMA, **OPTIONS["its own"])
  proposal = drafted(drafter, TABLE, settings)
  check_law(proposal, settings, DRAFT, TABLE)


def test_argmax_is_a_point_mass():
  """huggingface/transformers#32867: no law is claimed."""
  drafter = ModelDrafter(DRAFT, GAMMA, argmax=True)
  assert drafter.kind is Kind.POINT
  proposal = drafted(drafter, TABLE, Settings(temperature=1.0, eos=()))
  assert proposal.kind is Kind.POINT and proposal.law is None
  for i, prompt in enumerate(PROMPTS):
    want = text_laws.greedy_text(
        DRAFT, np.asarray(TABLE), Settings(eos=()), prompt, GAMMA
    )
    own_RN = np.asarray(proposal.tokens_BN)[i * ROWS : (i + 1) * ROWS]
    assert np.all(own_RN == want)


def test_processors_are_part_of_the_law():
  """Drafts keep to minimum lengths, forced and suppressed tokens."""
  settings = Settings(
      temperature=1.0, eos=(1,), min_new_tokens=2, forced_first=2
  )
  proposal = drafted(ModelDrafter(DRAFT, GAMMA), TABLE, settings)
  check_law(proposal, settings, DRAFT, TABLE)
  assert np.all(proposal.tokens_BN[:, 0] == 2)
  assert not np.any(proposal.tokens_BN == 1)


def test_narrower_vocabulary():
  """vllm-project/vllm#7252: ids that the draft lacks have probability 0."""
  settings = Settings(temperature=1.0, eos=())
  proposal = drafted(ModelDrafter(DRAFT, GAMMA), TABLE, settings, width=5)
  assert proposal.law.width == 5
  check_law(proposal, settings, DRAFT, TABLE)


def test_wider_vocabulary():
  """vllm-project/vllm#7252: surplus ids are renormalised away."""
  wide = mocks.TableModel(5)
  table = mocks.random_table(wide, 2)
  settings = Settings(temperature=1.0, eos=())
  proposal = drafted(ModelDrafter(wide, GAMMA), table, settings)
  assert proposal.law.width == 3 and np.all(proposal.tokens_BN < 3)
  q_BV = np.asarray(proposal.law.dense())[:, 0]
  for i, prompt in enumerate(PROMPTS):
    logits_V = np.asarray(table)[wide.code(prompt), :3]
    want = enumeration.reference_law(logits_V, settings)
    np.testing.assert_allclose(q_BV[i * ROWS], want, atol=1e-5)


def test_every_id_is_forbidden():
  """q is 0 where nothing could be drawn, and such nodes do not count."""
  narrow = mocks.TableModel(1)
  settings = Settings(temperature=1.0, eos=(0,), min_new_tokens=1)
  proposal = drafted(
      ModelDrafter(narrow, GAMMA), mocks.random_table(narrow, 1), settings
  )
  np.testing.assert_array_equal(proposal.count_B, 0)
  dense_BNV = np.asarray(proposal.law.dense())
  assert not np.any(dense_BNV[:, 0])
  np.testing.assert_array_equal(dense_BNV[:, 1, 0], 1)
  assert np.all((proposal.tokens_BN >= 0) & (proposal.tokens_BN < 3))


def test_top_k_of_more_than_there_are():
  """Also what no int32 holds; the same law as without it."""
  settings = Settings(temperature=1.0, eos=())
  proposals_of = lambda **options: drafted(
      ModelDrafter(DRAFT, GAMMA, **options), TABLE, settings
  )
  want, got = proposals_of(), proposals_of(top_k=10**12)
  np.testing.assert_array_equal(got.tokens_BN, want.tokens_BN)


def test_rows_that_ended_leave_no_trace():
  batch = make_batch(Settings(eos=()), 3)
  ended_B = np.arange(len(batch.prompt_B)) % 3 == 0
  budget_B = jnp.asarray(np.where(ended_B, 0, 4), jnp.int32)
  batch = batch.replace(budget_B=budget_B)
  _, before, after = propose(ModelDrafter(DRAFT, GAMMA), TABLE, batch, 3)
  for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after)):
    changed_B = np.any(old != new, axis=(1, 2, 3))
    np.testing.assert_array_equal(changed_B, ~ended_B)


@pytest.mark.parametrize(
    "field, options",
    [
        ("gamma", dict(gamma=0)),
        ("gamma", dict(gamma=-1)),
        ("gamma", dict(gamma=2.5)),
        ("gamma", dict(gamma=True)),
        ("gamma", dict(gamma=None)),
        ("gamma", dict(gamma="3")),
        ("gamma", dict(gamma=10**10)),
        ("argmax", dict(gamma=2, argmax="no")),
        ("temperature", dict(gamma=2, temperature=float("nan"))),
        ("top_k", dict(gamma=2, top_k=True)),
        ("top_p", dict(gamma=2, top_p=float("inf"))),
        ("temperature", dict(gamma=2, temperature=-1.0)),
        ("top_k", dict(gamma=2, top_k=-1)),
        ("top_p", dict(gamma=2, top_p=1.5)),
    ],
)
def test_options_without_a_law_are_refused(field, options):
  with pytest.raises(errors.UserError, match=f"^{field}: give"):
    ModelDrafter(DRAFT, **options)


@pytest.mark.parametrize(
    "drafter, nodes", [(ModelDrafter(DRAFT, 4), 4), (none.NoDrafter(), 0)]
)
def test_drafters_are_static_under_jit(drafter, nodes):
  assert hash(drafter) == hash(dataclasses.replace(drafter))
  assert drafter == dataclasses.replace(drafter)
  assert drafter.nodes == drafter.depth == nodes


def test_no_drafts():
  batch = make_batch(Settings(eos=()), 3)
  proposal, before, after = propose(none.NoDrafter(), (), batch, 3)
  assert proposal.tokens_BN.shape == (3 * ROWS, 0) and proposal.law is None
  assert proposal.kind is Kind.NONE and before == after == ()
  assert not np.any(proposal.count_B)


def test_rows_beyond_the_draft_models_positions_get_no_drafts():
  """Of a row of 6 the second draft would be read at 7, of positions 0 to 6."""
  module = mocks.TableModel(3)
  drafter = ModelDrafter(module, 3, positions=7)
  loop = Loop(TARGET, drafter, token.TokenRule())
  requests = mocks.requests(Settings(eos=()), 9, prompts=[(0,), (1, 2)])
  batch = requests_lib.make_batch(requests, vocabulary=3, seed=0)
  state = loop.prefill(jnp.zeros((16, 3)), TABLE, batch, 9)
  for length, want in ((5, 3), (6, 0)):
    now = state.replace(length_B=jnp.full_like(state.length_B, length))
    got = drafter.propose(TABLE, now.drafter, now.context(), now.key_B, 3)[0]
    assert got.count_B.tolist() == [want] * 2
