"""What the loop reports: tallies, log-probabilities, traces; and lenience."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import model as model_drafter
from specjax.drafters import none
from specjax.verify import token
from tests import mocks
from tests import text_laws

Loop = loop_lib.Loop
ModelDrafter = model_drafter.ModelDrafter
Settings = sampling.Settings
TokenRule = token.TokenRule

quick_compiles = mocks.quick_compiles
MODEL = mocks.TableModel(3)
TABLE = mocks.random_table(MODEL, 0)
DRAFT = TABLE + mocks.random_table(MODEL, 1)
GAMMA, BUDGET, ROWS = 3, 10, 48
PLAIN = Loop(MODEL, none.NoDrafter(), TokenRule(), log_probs=True)

SETTINGS = [
    Settings(eos=(2,)),
    Settings(temperature=1.0, eos=()),
    Settings(temperature=0.7, top_k=2, eos=(1, 2)),
    Settings(temperature=1.3, top_p=0.8, eos=(0,)),
    Settings(temperature=1.0, eos=(2,), min_new_tokens=3),
    Settings(temperature=1.0, eos=(2,), forced_first=1),
]


def make_loop(**options):
  rule = TokenRule(overlap=True, trace=True, **options)
  drafter = ModelDrafter(MODEL, GAMMA)
  return Loop(MODEL, drafter, rule, log_probs=True, trace=True)


def make_batch(settings=None):
  requests = mocks.requests(
      settings or SETTINGS, list(range(1, BUDGET + 1)), ids=range(ROWS)
  )
  batch = requests_lib.make_batch(requests, vocabulary=3, seed=0)
  return mocks.widen_eos(batch, 2)


@functools.cache
def mixed(**options):
  """Rows of all settings and budgets, on the host."""
  state = mocks.decode(make_loop(**options), TABLE, DRAFT, make_batch(), BUDGET)
  return jax.device_get(state.replace(key_B=None))


@dataclasses.dataclass
class Judged:
  """One judged draft, as the trace tells it."""

  text: tuple
  place: int
  token: int
  accepted: bool
  p: float
  q: float
  coin: float


def replay(state, row):
  """The text that the trace tells, each judged draft, and each token's kind."""
  trace = state.trace
  text, judged, kinds = (), [], []
  for r in range(state.tallies.rounds_B[row]):
    drafts = trace.draft_BRG[row, r]
    drafts = drafts[drafts >= 0].tolist()
    accepted, after = int(trace.accepted_BR[row, r]), trace.next_BR[row, r]
    for g, drafted in enumerate(drafts):
      numbers = (
          float(numbers_BRG[row, r, g])
          for numbers_BRG in (trace.p_BRG, trace.q_BRG, trace.coin_BRG)
      )
      taken = g < accepted
      context = text + tuple(drafts[:g])
      judged.append(Judged(context, g, drafted, taken, *numbers))
    text += tuple(drafts[:accepted])
    kinds += ["accepted"] * accepted
    if after >= 0:
      text += (int(after),)
      kinds.append("corrected" if accepted < len(drafts) else "extra")
  return text, judged, kinds


def law_of(table, row, text):
  settings = SETTINGS[row % len(SETTINGS)]
  return text_laws.next_law(
      MODEL, np.asarray(table), settings, (0, *text), len(text)
  )


def test_trace_tells_the_text():
  state = mixed()
  kinds = []
  for row, text in enumerate(mocks.texts(state)):
    told, judged, row_kinds = replay(state, row)
    assert told == text
    kinds += row_kinds
    rounds = state.tallies.rounds_B[row]
    assert np.all(state.trace.draft_BRG[row, rounds:] == -1)
    assert np.all(state.trace.next_BR[row, rounds:] == -1)
    for tally_BG, chosen in (
        (state.tallies.judged_BG, judged),
        (state.tallies.accepted_BG, [x for x in judged if x.accepted]),
    ):
      places = [x.place for x in chosen]
      count_G = np.bincount(places, minlength=GAMMA)
      assert tally_BG[row].tolist() == count_G.tolist()
  assert min(map(kinds.count, ("accepted", "corrected", "extra"))) > 20


def test_trace_explains_each_decision():
  """p and q are the laws' own, and coin * q < p decides."""
  state = mixed()
  for row in range(ROWS):
    overlap_G = np.zeros(GAMMA)
    for x in replay(state, row)[1]:
      p_V, q_V = law_of(TABLE, row, x.text), law_of(DRAFT, row, x.text)
      assert x.p == pytest.approx(p_V[x.token], abs=1e-5)
      assert x.q == pytest.approx(q_V[x.token], abs=1e-5)
      assert 0 <= x.coin < 1 and x.q > 0
      assert x.accepted == (np.float32(x.coin) * np.float32(x.q) < x.p)
      overlap_G[x.place] += np.minimum(p_V, q_V).sum()
    np.testing.assert_allclose(
        state.tallies.overlap_BG[row], overlap_G, atol=1e-5
    )


def test_a_trace_needs_the_rules():
  with pytest.raises(ValueError, match="^trace: "):
    Loop(MODEL, none.NoDrafter(), TokenRule(), trace=True)
  with pytest.raises(ValueError, match="^trace: "):
    dataclasses.replace(make_loop(), rule=TokenRule())


def test_coins_differ():
  """Rows, rounds and nodes have coins of their own; greedy rows have none."""
  state = mixed()
  greedy_B = state.sampling.greedy_B
  of_row = lambda row: [x.coin for x in replay(state, row)[1]]
  coins = sum((of_row(row) for row in np.flatnonzero(~greedy_B)), [])
  assert len(coins) > 100 and len(set(coins)) == len(coins)
  none = sum((of_row(row) for row in np.flatnonzero(greedy_B)), [])
  assert len(none) > 2 and set(none) == {0.0}


def test_tallies_of_random_rows():
  """sgl-project/sglang#11572: a rate of 1, one token more than accepted.

  ggml-org/llama.cpp#14104: drafts that nobody judged are not in its base.
  """
  state, tallies = mixed(), mixed().tallies
  accepted_B = tallies.accepted_BG.sum(axis=1)
  emitted_B = state.length_B - state.prompt_B
  whole_B = np.array([
      state.trace.next_BR[row, rounds - 1] >= 0
      for row, rounds in enumerate(tallies.rounds_B)
  ])
  # Only an EOS among the accepted tokens leaves the last round's extra out.
  assert np.all(whole_B | state.ended_B) and not np.all(whole_B)
  np.testing.assert_array_equal(
      emitted_B, accepted_B + tallies.rounds_B - ~whole_B
  )
  assert np.all(tallies.accepted_BG <= tallies.judged_BG)
  assert np.all(tallies.judged_BG[:, 1:] <= tallies.accepted_BG[:, :-1])
  assert np.all(tallies.judged_BG.sum(axis=1) <= tallies.drafted_B)
  assert np.all(tallies.judged_BG <= tallies.rounds_B[:, None])


def test_tallies_of_a_known_run():
  """sgl-project/sglang#11572, SafeAILab/EAGLE#146: extras are not accepted."""
  target = mocks.TableModel(24)
  settings = [Settings(eos=(9,)), Settings(eos=(10,))]
  batch = requests_lib.make_batch(
      mocks.requests(settings, 16), vocabulary=24, seed=0
  )
  loop = Loop(target, mocks.ScriptedDrafter(4), TokenRule())
  text_BS = jnp.broadcast_to(jnp.arange(20), (2, 20))
  script_BR = jnp.array([(4, 0, 2), (4, 4, 4)])
  state = mocks.decode(
      loop, mocks.counting_table(24), (text_BS, script_BR), batch, 16
  )
  tallies = state.tallies
  assert (state.length_B - state.prompt_B).tolist() == [9, 10]
  assert tallies.rounds_B.tolist() == [3, 2]
  assert tallies.drafted_B.tolist() == [12, 8]
  assert np.sum(tallies.accepted_BG, axis=1).tolist() == [6, 8]
  # Judged: four, the first, and two with the one that was dropped.
  assert tallies.judged_BG.tolist() == [[3, 2, 2, 1], [2, 2, 2, 2]]


def test_log_probs_of_every_kind_of_token():
  """ggml-org/llama.cpp#27972, vllm-project/vllm#30846: of law and model each.

  Raw -.693, law -.419 at T = .5.
  """
  table = jnp.log(jnp.tile(jnp.array([0.5, 0.3, 0.2]), (len(TABLE), 1)))
  draft = table[:, jnp.array([1, 0, 2])]
  batch = make_batch([Settings(temperature=0.5, eos=()), Settings(eos=())])
  state = mocks.decode(make_loop(), table, draft, batch, BUDGET)
  state = jax.device_get(state.replace(key_B=None))
  raw = np.log([0.5, 0.3, 0.2])
  law = np.log(np.array([0.25, 0.09, 0.04]) / 0.38)
  assert round(raw[0], 3) == -0.693 and round(law[0], 3) == -0.419
  seen = set()
  for row, text in enumerate(mocks.texts(state)):
    sampled = row % 2 == 0
    new = slice(1, 1 + len(text))
    np.testing.assert_allclose(
        state.log_probs.model_BS[row, new], raw[list(text)], atol=1e-5
    )
    np.testing.assert_allclose(
        state.log_probs.law_BS[row, new],
        law[list(text)] if sampled else np.zeros(len(text)),
        atol=1e-5,
    )
    assert sampled or text == (0,) * len(text)
    for buffer in jax.tree.leaves(state.log_probs):
      assert buffer[row, 0] == 0 and not np.any(buffer[row, new.stop :])
    if sampled:
      seen |= set(zip(replay(state, row)[2], text))
  assert {(kind, 0) for kind in ("accepted", "corrected", "extra")} <= seen


def test_log_probs_follow_the_settings():
  """With every processor and filter, drafts or none."""
  plain = mocks.decode(PLAIN, TABLE, (), make_batch(), BUDGET)
  plain = jax.device_get(plain.replace(key_B=None))
  for state in (mixed(), plain):
    for row, text in enumerate(mocks.texts(state)):
      for i, token_id in enumerate(text):
        p = law_of(TABLE, row, text[:i])[token_id]
        got = state.log_probs.law_BS[row, 1 + i]
        assert got == pytest.approx(math.log(p), abs=1e-5)
        raw_V = np.asarray(TABLE)[MODEL.code((0, *text[:i]))]
        want = raw_V[token_id] - np.log(np.sum(np.exp(raw_V)))
        got = state.log_probs.model_BS[row, 1 + i]
        assert got == pytest.approx(want, abs=1e-5)


def test_lenience_of_one_is_the_exact_rule():
  """Bit for bit, also with the residual that lenience scales."""
  exact, lenient = mixed(), mixed(lenience=1.0, residual="lenient")
  jax.tree.map(np.testing.assert_array_equal, exact, lenient)


def test_lenience_accepts_more():
  """On the draws of the first round, which are the same; never where p is 0."""
  exact, lenient = mixed(), mixed(lenience=0.4)
  more_B = lenient.trace.accepted_BR[:, 0] - exact.trace.accepted_BR[:, 0]
  # An EOS among what was accepted in addition ends the text there.
  assert np.all(more_B >= 0) and np.sum(more_B > 0) > 3
  for row in range(ROWS):
    for x in replay(lenient, row)[1]:
      greedy = SETTINGS[row % len(SETTINGS)].temperature == 0
      p_V = law_of(TABLE, row, x.text)
      if greedy:
        logits_V = np.asarray(TABLE)[MODEL.code((0, *x.text))]
        gap = logits_V[x.token] - logits_V.max()
        assert x.accepted == (math.exp(gap) >= 0.4)
      else:
        assert not x.accepted or p_V[x.token] > 0
        bar = np.float32(x.coin) * np.float32(0.4) * np.float32(x.q)
        assert x.accepted == (bar < x.p)
