"""Simulated drafts: right at the prescribed rate, and nothing else.

Some hundred means may be 5 standard errors off, and chi-squares (of 1 to 48
degrees of freedom) 14 standard deviations: with other seeds a right program
would fail about once in 10,000 runs.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafts as drafts_lib
from specjax import errors
from specjax import theory
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import model as model_drafter
from specjax.drafters import simulated
from specjax.settings import Settings
from specjax.verify import token
from tests import mocks
from tests import test_loop_law
from tests import text_laws

BOUND, CHI_BOUND = 5, 14
V = 7
TARGET = mocks.TableModel(V)
TABLE = mocks.random_table(TARGET, 3)
RULE = token.TokenRule(trace=True)
GREEDY = Settings(eos=())

quick_compiles = mocks.quick_compiles


def decode(drafter, params, requests, *, copies=1, budget=40, trace=False):
  """The finished state of `copies` rows of each request."""
  loop = loop_lib.Loop(TARGET, drafter, RULE, trace=trace)
  batch = mocks.copies(requests, copies, vocabulary=V, seed=0)
  batch = mocks.widen_eos(batch, 2)
  return mocks.decode(loop, TABLE, params, batch, budget)


def plain_texts(requests):
  """Request id -> prompt and plain decoding's new tokens."""
  table, texts = np.asarray(TABLE), {}
  for request in requests:
    texts[request.id] = request.prompt + text_laws.greedy_text(
        TARGET, table, request.settings, request.prompt, request.max_new_tokens
    )
  return texts


def simulate(requests, gamma, alpha, **options):
  """The finished state with simulated drafts, and the texts they replay."""
  texts = plain_texts(requests)
  drafter = simulated.SimulatedDrafter(gamma)
  params = simulated.replay(texts, alpha)
  return decode(drafter, params, requests, **options), texts


def deviation(values, mean):
  """Mean of values over `mean`, in standard errors; 0 / 0 is none."""
  error = np.std(values) / np.sqrt(len(values))
  off = np.mean(values) - mean
  return 0.0 if abs(off) < 1e-9 else off / error


# --- the rate ---------------------------------------------------------------


@pytest.mark.parametrize("gamma", (1, 4, 7))
@pytest.mark.parametrize("alpha", (0.0, 0.2, 0.5, 0.8, 0.95, 1.0))
def test_tokens_a_round_follow_equation_1(alpha, gamma):
  """arXiv 2211.17192, Eq. 1: rounds that neither EOS nor budget could cut.

  A round begins or not by what came before it, so the mean over rounds that
  begin early enough is that of one round (Wald).
  """
  budget, rows = 64, 300
  requests = mocks.requests(GREEDY, budget)
  state, _ = simulate(
      requests, gamma, alpha, copies=rows, budget=budget, trace=True
  )
  accepted_BR = np.asarray(state.trace.accepted_BR)
  rounds_B1 = np.asarray(state.tallies.rounds_B)[:, None]
  tokens_BR = accepted_BR + (np.asarray(state.trace.next_BR) >= 0)
  begun_BR = np.cumsum(tokens_BR, axis=1) - tokens_BR
  whole_BR = begun_BR <= budget - (gamma + 1)
  whole_BR &= np.arange(budget) < rounds_B1
  tokens = tokens_BR[whole_BR]
  assert len(tokens) >= 7 * rows
  expected = theory.expected_tokens(alpha, gamma)
  assert abs(deviation(tokens, expected)) < BOUND
  judged_G = np.asarray(state.tallies.judged_BG).sum(axis=0)
  accepted_G = np.asarray(state.tallies.accepted_BG).sum(axis=0)
  error_G = np.sqrt(judged_G * alpha * (1 - alpha)) + 1e-9
  assert np.all(np.abs(accepted_G - alpha * judged_G) < BOUND * error_G)


@pytest.mark.parametrize("alpha", (0.3, 0.8))
def test_nodes_and_rounds_are_independent(alpha):
  """Patterns of right and wrong over three nodes, then over three rounds."""
  rows = 20_000
  key_B = jax.vmap(jax.random.key)(jnp.arange(rows))
  right_BN = jnp.full((rows, 3), 4)
  draw = jax.jit(simulated.corrupt, static_argnums=3)
  same = lambda tokens_BN: np.asarray(tokens_BN == right_BN)
  rounds = [
      jax.vmap(jax.random.fold_in, (0, None))(key_B, i) for i in range(3)
  ]
  by_node = same(draw(key_B, right_BN, alpha, V))
  by_round = np.stack(
      [same(draw(keys, right_BN, alpha, V))[:, 0] for keys in rounds], axis=1
  )
  chance = {True: alpha, False: 1 - alpha}
  law = {
      pattern: np.prod([chance[x] for x in pattern])
      for pattern in itertools.product((True, False), repeat=3)
  }
  for pattern_BN in (by_node, by_round):
    patterns = list(map(tuple, pattern_BN.tolist()))
    assert text_laws.misfit(patterns, law) < CHI_BOUND


@pytest.mark.parametrize("alpha", (0.0, 0.6))
@pytest.mark.parametrize("width", (2, 3, 50))
def test_wrong_ids_are_any_other_ones(width, alpha):
  """Never the right one, all others alike; alpha 1 leaves all right."""
  rows = 4000
  key_B = jax.vmap(jax.random.key)(jnp.arange(rows))
  right_BN = jnp.arange(rows)[:, None] % width + jnp.zeros((1, 4), jnp.int32)
  drafted_BN = np.asarray(simulated.corrupt(key_B, right_BN, alpha, width))
  wrong_BN = drafted_BN != right_BN
  assert alpha or np.all(wrong_BN)
  assert np.all((drafted_BN >= 0) & (drafted_BN < width))
  steps = (drafted_BN - np.asarray(right_BN)) % width
  law = {(step,): 1 / (width - 1) for step in range(1, width)}
  texts = [(step,) for step in steps[wrong_BN].tolist()]
  assert text_laws.misfit(texts, law) < CHI_BOUND
  whole_BN = simulated.corrupt(key_B, right_BN, 1.0, width)
  np.testing.assert_array_equal(whole_BN, right_BN)


# --- what comes out ---------------------------------------------------------


MIXED = mocks.requests(
    [GREEDY, Settings(eos=(4,)), Settings(eos=(2, 5)), GREEDY],
    [40, 40, 40, 9],
    prompts=[(0,), (3, 1), (6,), (2, 2, 5)],
    ids=[7, 2**32 - 1, 0, 11],
)


@pytest.mark.parametrize("alpha", (0.0, 0.6, 1.0))
def test_texts_are_plain_decodings(alpha):
  """Rows of prompts, lengths, EOS sets and budgets of their own."""
  state, texts = simulate(MIXED, 5, alpha)
  got = mocks.texts(state)
  assert got == [texts[row.id][len(row.prompt) :] for row in MIXED]
  length_B = np.array(list(map(len, got)))
  assert len(set(length_B)) == len(MIXED)
  tallies = state.tallies
  if alpha == 1:
    # gamma + 1 tokens a round, as far as there are any.
    np.testing.assert_array_equal(tallies.rounds_B, -(-length_B // 6))
    np.testing.assert_array_equal(tallies.judged_BG, tallies.accepted_BG)


def test_nothing_is_judged_past_the_end():
  """A text of three tokens, EOS included: three drafts, all accepted."""
  text = text_laws.greedy_text(TARGET, np.asarray(TABLE), GREEDY, (0,), 3)
  assert text[2] not in text[:2]
  [request] = mocks.requests(Settings(eos=(text[2],)), 40)
  state, _ = simulate([request], 7, 1.0)
  assert mocks.texts(state) == [text]
  tallies = jax.tree.map(lambda x: x[0].tolist(), state.tallies)
  assert tallies.judged_BG == tallies.accepted_BG == [1, 1, 1, 0, 0, 0, 0]
  assert (tallies.drafted_B, tallies.rounds_B) == (3, 1)


def test_rows_are_independent():
  """A row's drafts are the same alone, and in another place."""

  def outcome(requests):
    batch = requests_lib.make_batch(requests, vocabulary=V, seed=5)
    batch = mocks.widen_eos(batch, 2)
    loop = loop_lib.Loop(TARGET, simulated.SimulatedDrafter(3), RULE)
    params = simulated.replay(plain_texts(MIXED), 0.7)
    tallies = mocks.decode(loop, TABLE, params, batch, 40).tallies
    return {
        request.id: jax.tree.map(lambda x: x[i].tolist(), tallies)
        for i, request in enumerate(requests)
    }

  together = outcome(MIXED)
  assert outcome(MIXED[::-1]) == together
  for request in MIXED[:2]:
    assert outcome([request])[request.id] == together[request.id]


def test_nothing_to_replay():
  """Sampled rows and unknown ids draft nothing, and follow their laws."""
  sampled = Settings(temperature=1.0, eos=())
  greedy_row, sampled_row, unknown_row = mocks.requests(
      [GREEDY, sampled, GREEDY], test_loop_law.LENGTH
  )
  rows, model = 4000, test_loop_law.TARGET
  table = np.asarray(test_loop_law.TABLE)
  text = text_laws.greedy_text(model, table, GREEDY, (0,), 5)
  params = simulated.replay({0: (0, *text), 1: (0, *text)}, 1.0)
  loop = loop_lib.Loop(model, simulated.SimulatedDrafter(2), RULE)
  batch = mocks.copies(
      [greedy_row, sampled_row, unknown_row], rows, vocabulary=3, seed=0
  )
  state = mocks.decode(loop, test_loop_law.TABLE, params, batch, 5)
  got = mocks.texts(state)
  assert set(got[:rows] + got[2 * rows :]) == {text}
  law = text_laws.text_law(model, table, sampled, (0,), 5)
  assert text_laws.misfit(got[rows : 2 * rows], law) < test_loop_law.RIGHT
  drafted_B = np.asarray(state.tallies.drafted_B)
  assert np.all(drafted_B[:rows] > 0) and not np.any(drafted_B[rows:])


def test_a_row_that_leaves_its_text_drafts_no_more():
  """As after a near tie: the target's own tokens come, one a round."""
  [request] = mocks.requests(GREEDY, 12)
  [text] = plain_texts([request]).values()
  wrong = (text[4] + 1) % V
  params = simulated.replay({0: text[:4] + (wrong,) + text[5:]}, 1.0)
  state = decode(simulated.SimulatedDrafter(7), params, [request])
  assert (0, *mocks.texts(state)[0]) == text
  # Three right ones and the wrong one, then nothing.
  assert state.tallies.rounds_B.tolist() == [1 + (12 - 4)]
  assert state.tallies.judged_BG.tolist() == [[1, 1, 1, 1, 0, 0, 0]]
  assert state.tallies.accepted_BG.tolist() == [[1, 1, 1, 0, 0, 0, 0]]


def test_shorter_buffers_than_texts():
  """A budget below that of the plain run, and one above it."""
  [long_row] = mocks.requests(GREEDY, 40)
  texts = plain_texts([long_row])
  for budget in (5, 64):
    request = dataclasses.replace(long_row, max_new_tokens=budget)
    state = decode(
        simulated.SimulatedDrafter(4),
        simulated.replay(texts, 1.0),
        [request],
        budget=budget,
    )
    [text] = mocks.texts(state)
    assert text[:40] == texts[0][1:][:budget] and len(text) == budget
    # 40 tokens in 8 rounds; none to replay after them.
    assert int(state.tallies.rounds_B[0]) == {5: 1, 64: 8 + 24}[budget]


@pytest.mark.parametrize("gamma", (0, 2.5, True, None, 2000))
def test_refused_gamma(gamma):
  with pytest.raises(errors.UserError, match="^gamma: give"):
    simulated.SimulatedDrafter(gamma)


@pytest.mark.parametrize(
    "field, options",
    (
        ("alpha", dict(alpha=1.5)),
        ("alpha", dict(alpha=-0.1)),
        ("alpha", dict(alpha=float("nan"))),
        ("alpha", dict(alpha=None)),
        ("texts", dict(texts={})),
    ),
)
def test_refused_rates(field, options):
  good = dict(texts={0: (0, 3, 1)}, gamma=2, alpha=0.5)
  with pytest.raises(errors.UserError, match=f"^{field}: give"):
    drafts_lib.draft_simulated(**(good | options))


def test_static_under_jit():
  """One program serves every alpha."""
  drafter = simulated.SimulatedDrafter(4)
  assert hash(drafter) == hash(dataclasses.replace(drafter))
  assert drafter.nodes == drafter.depth == 4
  params = [simulated.replay({0: (0, 1)}, alpha) for alpha in (0.2, 0.9)]
  assert jax.tree.structure(params[0]) == jax.tree.structure(params[1])
  assert drafter.reader == simulated.SimulatedDrafter(9).reader


def test_a_source_is_stepped_and_put_aside():
  """Texts and tallies are those without it; its own steps are taken."""
  request = mocks.requests(GREEDY, [9])[0]
  texts = plain_texts([request])
  module, source_params = mocks.tiny_decoder("llama", vocabulary=V)
  source = model_drafter.ModelDrafter(module, 3)
  alone = decode(
      simulated.SimulatedDrafter(3), simulated.replay(texts, 0.6), [request]
  )
  paced = decode(
      simulated.SimulatedDrafter(3, source),
      simulated.replay(texts, 0.6, source_params),
      [request],
  )
  assert mocks.texts(paced) == mocks.texts(alone)
  jax.tree.map(np.testing.assert_array_equal, paced.tallies, alone.tallies)
  # The places that it read, of its own drafts where it was put aside.
  length = int(paced.length_B[0]) - 1
  for key_BHSK in paced.drafter.source.cache.key:
    read_BHSK = np.asarray(key_BHSK)[:, :, : length - 1]
    assert np.all(np.any(read_BHSK != 0, axis=-1))
