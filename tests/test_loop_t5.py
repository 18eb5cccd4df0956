"""The loop with tiny random T5s, in float32.

Speculative decoding is compared with plain decoding, and both with one
teacher-forced pass that knows no cache.
"""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest

from specjax import sampling
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import model as model_drafter
from specjax.drafters import none
from specjax.models import reading
from specjax.verify import token
from tests import enumeration
from tests import mocks

Loop = loop_lib.Loop
ModelDrafter = model_drafter.ModelDrafter
Settings = sampling.Settings
TokenRule = token.TokenRule

quick_compiles = mocks.quick_compiles
VOCABULARY = 29
WIDTH = 8
BUDGET = 20
TOLERANCE = 5e-5
MODULE, PARAMS = mocks.tiny_t5()
NARROW, NARROW_PARAMS = mocks.tiny_t5(seed=5, vocabulary=23, layers=1)
WIDE, WIDE_PARAMS = mocks.tiny_t5(seed=6, vocabulary=37, layers=1)

GREEDY = Settings(eos=(2,))
WARM = [Settings(temperature=1.0, eos=(2,)), Settings(0.7, top_k=5, eos=(2,))]
PLAIN = Loop(MODULE, none.NoDrafter(), TokenRule(), log_probs=True)


def make_batch(settings, *, ids=None, budget=BUDGET, **kwargs):
  """Rows with sources of unequal lengths; row i has the source of its id."""
  ids = list(ids or range(4))
  sources = [mocks.SOURCES[i % 4] for i in ids]
  if isinstance(settings, list):
    settings = [settings[i % len(settings)] for i in ids]
  batch = requests_lib.make_batch(
      mocks.requests(settings, budget, sources=sources, ids=ids, **kwargs),
      vocabulary=VOCABULARY,
      seed=3,
      width=WIDTH,
  )
  return mocks.widen_eos(batch, 1)


@functools.partial(jax.jit, static_argnums=0)
def full_pass(module, params, source_BL, mask_BL, tokens_BS):
  """Teacher-forced logits, without a cache."""
  return module.apply(params, source_BL, mask_BL, tokens_BS)


def full_logits(state, params, module=MODULE):
  """logits_BSV: row s follows the first s + 1 tokens."""
  return np.asarray(
      full_pass(
          module,
          params,
          state.source_BL,
          state.source_mask_BL,
          state.tokens_BS,
      )
  )


@functools.partial(jax.jit, static_argnums=(0, 6))
def fresh_cache(module, params, source_BL, mask_BL, tokens_BS, length_B, slots):
  """What a prefill of all committed tokens but the last one writes."""
  cache, _ = reading.read_prompt(
      module,
      params,
      tokens_BS,
      length_B,
      reading.encode(module, params, source_BL, mask_BL),
      width=tokens_BS.shape[1],
      slots=slots,
  )
  return cache


def check_cache(cache, state, module, params):
  """The invariant: keys and values of the first n - 1 positions."""
  fresh = fresh_cache(
      module,
      params,
      state.source_BL,
      state.source_mask_BL,
      state.tokens_BS,
      state.length_B,
      cache.slots,
  )
  known_BS = np.arange(cache.slots) < np.asarray(state.length_B)[:, None] - 1
  for part, slots in (("key", 3), ("value", 2)):
    # [B, H, ...] -> what is known, [., H, K].
    known = lambda each: np.moveaxis(each, slots, 1)[known_BS]
    pairs = zip(getattr(cache, part), getattr(fresh, part), strict=True)
    for got, want in pairs:
      np.testing.assert_allclose(
          known(got), known(want), rtol=0, atol=TOLERANCE
      )


def check_greedy(state, params, rows=None):
  """Each new token is the argmax of the pass without a cache."""
  best_BS = np.argmax(full_logits(state, params), axis=-1)
  start_B = np.asarray(state.prompt_B)
  texts = mocks.texts(state)
  for row in rows or range(len(texts)):
    start = start_B[row] - 1
    want = best_BS[row, start : start + len(texts[row])]
    np.testing.assert_array_equal(texts[row], want)


# One pair with everything reported; most tests below share its compilation.


@functools.cache
def pair(gamma=4):
  """A loop of two models that often agree, and the draft's parameters."""
  loop = Loop(
      MODULE,
      ModelDrafter(MODULE, gamma),
      TokenRule(overlap=True, trace=True),
      log_probs=True,
      trace=True,
  )
  return loop, mocks.blurred(PARAMS, 1, 0.2)


def decode(batch, *, target=PARAMS, draft=None):
  loop, draft_params = pair()
  return mocks.decode(loop, target, draft or draft_params, batch, BUDGET)


@pytest.mark.parametrize("seed, blur", [(0, 0.1), (1, 0.3), (2, 1.0)])
def test_greedy_is_plain_decoding(seed, blur):
  _, target = mocks.tiny_t5(seed)
  state = decode(
      make_batch(GREEDY), target=target, draft=mocks.blurred(target, 9, blur)
  )
  plain = mocks.decode(PLAIN, target, (), make_batch(GREEDY), BUDGET)
  assert mocks.texts(state) == mocks.texts(plain)
  assert len(set(mocks.texts(state))) == 4
  check_greedy(plain, target)
  tallies = jax.device_get(state.tallies)
  assert 0 < np.sum(tallies.accepted_BG) < np.sum(tallies.judged_BG)
  check_cache(state.cache, state, MODULE, target)


def other_draft(width):
  return {
      "same": (MODULE, mocks.blurred(PARAMS, 1, 0.2)),
      "narrow": (NARROW, NARROW_PARAMS),
      "wide": (WIDE, WIDE_PARAMS),
  }[width]


def check_pair(gamma, rows, width):
  module, draft = other_draft(width)
  loop = Loop(MODULE, ModelDrafter(module, gamma), TokenRule())
  for ids in np.split(np.arange(4), 4 // rows):
    state = mocks.decode(
        loop, PARAMS, draft, make_batch(GREEDY, ids=ids.tolist()), BUDGET
    )
    check_greedy(state, PARAMS)
    assert np.all(state.done_B)


@pytest.mark.parametrize("gamma, width", [(1, "narrow"), (2, "wide")])
def test_drafts_of_other_vocabularies(gamma, width):
  """vllm-project/vllm#7252, vllm-project/vllm#5203."""
  check_pair(gamma, 4, width)


@pytest.mark.slow
@pytest.mark.parametrize("width", ["same", "narrow", "wide"])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("gamma", range(1, 9))
def test_every_gamma(gamma, rows, width):
  check_pair(gamma, rows, width)


MIXED = [GREEDY, WARM[0], GREEDY, WARM[1]]


def test_rows_alone_and_beside_others():
  """Also at T = 1, where the request's id fixes the noise (vllm#6038)."""
  together = decode(make_batch(MIXED))
  for row in range(4):
    alone = decode(make_batch(MIXED, ids=[row]))
    assert mocks.texts(alone)[0] == mocks.texts(together)[row]
    np.testing.assert_allclose(
        alone.log_probs.law_BS[0], together.log_probs.law_BS[row], atol=1e-4
    )
    assert alone.tallies.rounds_B[0] == together.tallies.rounds_B[row]


def test_permuted_batch():
  together = decode(make_batch(MIXED))
  order = [2, 0, 3, 1]
  permuted = decode(make_batch(MIXED, ids=order))
  texts = mocks.texts(together)
  assert mocks.texts(permuted) == [texts[i] for i in order]
  np.testing.assert_array_equal(
      permuted.trace.coin_BRG, np.asarray(together.trace.coin_BRG)[order]
  )


def test_log_probs_are_those_of_a_teacher_forced_pass():
  """ggml-org/llama.cpp#27972."""
  settings = [GREEDY, *WARM, Settings(1.0, top_p=0.6, eos=(2,))]
  batch = make_batch(settings)
  plain = mocks.decode(PLAIN, PARAMS, (), batch, BUDGET)
  for state in (decode(batch), plain):
    logits_BSV = full_logits(state, PARAMS)
    got = jax.device_get(state.log_probs)
    for row, text in enumerate(mocks.texts(state)):
      at = np.arange(len(text)), list(text)
      logits_TV = logits_BSV[row, : len(text)]
      new = slice(1, 1 + len(text))
      for buffer_BS, row_settings in (
          (got.model_BS, Settings(temperature=1.0)),
          (got.law_BS, settings[row]),
      ):
        p_TV = enumeration.reference_law(logits_TV, row_settings)
        np.testing.assert_allclose(
            buffer_BS[row, new], np.log(p_TV[at]), rtol=0, atol=1e-4
        )
        assert buffer_BS[row, 0] == 0
        assert not np.any(buffer_BS[row, new.stop :])
      assert np.all(got.model_BS[row, new] < 0)


def test_self_draft_is_always_accepted():
  """Alpha is 1, and n tokens take ceil(n / 5) rounds."""
  counts = list(range(1, BUDGET + 1))
  for four in np.split(np.array(counts), 5):
    batch = make_batch(Settings(eos=()), budget=four.tolist())
    state = decode(batch, draft=PARAMS)
    check_greedy(state, PARAMS)
    assert list(map(len, mocks.texts(state))) == four.tolist()
    tallies = jax.device_get(state.tallies)
    rounds = [math.ceil(n / 5) for n in four]
    assert tallies.rounds_B.tolist() == rounds
    np.testing.assert_array_equal(tallies.accepted_BG, tallies.judged_BG)
    np.testing.assert_array_equal(tallies.overlap_BG, tallies.judged_BG)
    assert tallies.drafted_B.tolist() == (four - rounds).tolist()
    assert np.sum(tallies.judged_BG) == np.sum(four - rounds)
  check_cache(state.cache, state, MODULE, PARAMS)


@functools.partial(jax.jit, static_argnums=0)
def proposed(drafter, params, state):
  """What the drafter would propose now, and the texts with it."""
  proposal, _ = drafter.propose(
      params, state.drafter, state.context(), state.key_B, VOCABULARY
  )
  put = lambda row, tokens, at: jax.lax.dynamic_update_slice(
      row, tokens, (at,)
  )
  tokens_BS = jax.vmap(put)(
      state.tokens_BS, proposal.tokens_BN, state.length_B
  )
  return proposal.law.logits, tokens_BS


PROMPTS = [(0,), (0, 7, 4), (0, 11), (0, 3, 9, 8, 5)]
PROMPTED = dataclasses.replace(PLAIN, drafter=ModelDrafter(MODULE, 3))


def test_caches_after_every_pattern_of_accepts():
  """mlc-ai/mlc-llm#2285, lablup/mlxcel#1002, vllm-project/vllm#9730.

  Both caches forget what was rejected, and lack nothing of what was accepted.
  """
  patterns_BR = np.array(
      [(3, 0, 2, 1, 3), (0, 3, 3, 0, 0), (1, 2, 0, 3, 2), (3, 3, 3, 3, 3)]
  )
  _, draft = pair()
  settings = [Settings(temperature=1.0, eos=()), Settings(eos=())]
  batch = make_batch(settings, budget=24, prompts=PROMPTS)
  state = PROMPTED.prefill(PARAMS, draft, batch, 24)
  for accept_B in [None, *patterns_BR.T]:
    if accept_B is not None:
      before_B = np.asarray(state.length_B)
      state = mocks.scripted_round(PROMPTED, PARAMS, draft, state, accept_B)
      assert (state.length_B - before_B).tolist() == (accept_B + 1).tolist()
    check_cache(state.cache, state, MODULE, PARAMS)
    logits_BNV, tokens_BS = proposed(PROMPTED.drafter, draft, state)
    want_BSV = full_logits(state.replace(tokens_BS=tokens_BS), draft)
    for row, length in enumerate(state.length_B.tolist()):
      np.testing.assert_allclose(
          logits_BNV[row],
          want_BSV[row, length - 1 : length + 2],
          rtol=0,
          atol=TOLERANCE,
      )


def test_decoder_prompts_of_different_lengths():
  """ndif-team/nnsight#673: each row keeps its own positions."""
  batch = make_batch([GREEDY, GREEDY, *WARM], budget=24, prompts=PROMPTS)
  _, draft = pair()
  state = mocks.decode(PROMPTED, PARAMS, draft, batch, 24)
  check_greedy(state, PARAMS, rows=[0, 1])
  check_cache(state.cache, state, MODULE, PARAMS)
  p_BSV = enumeration.reference_law(
      full_logits(state, PARAMS), Settings(temperature=1.0)
  )
  tokens_BS, got_BS = jax.device_get(
      (state.tokens_BS, state.log_probs.model_BS)
  )
  for row, (prompt, text) in enumerate(zip(PROMPTS, mocks.texts(state))):
    assert tuple(tokens_BS[row, : len(prompt)].tolist()) == prompt
    at = np.arange(len(prompt), len(prompt) + len(text))
    want = np.log(p_BSV[row, at - 1, list(text)])
    np.testing.assert_allclose(got_BS[row, at], want, rtol=0, atol=1e-4)
