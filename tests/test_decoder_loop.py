"""The loop with tiny decoder-only models, in float32: target and drafts.

The prompt is the text. Speculative decoding is compared with plain decoding,
and both with one pass that knows no cache.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import model as model_drafter
from specjax.drafters import none
from specjax.measure import acceptance
from specjax.measure import lossless
from specjax.sampling import Settings
from specjax.settings import stack
from specjax.verify import token
from tests import enumeration
from tests import mocks

Loop = loop_lib.Loop
ModelDrafter = model_drafter.ModelDrafter

quick_compiles = mocks.quick_compiles
V = 29
BUDGET = 18
KINDS = ("llama", "gpt2")
GREEDY = Settings(eos=(2,))
WARM = [Settings(temperature=1.0, eos=(2,)), Settings(0.7, top_k=5, eos=(2,))]
# Of one padded width; the last one is longer than a chunk of 16.
WIDTH = 64
PROMPTS = ((7, 4, 9), (11,), (3, 9, 8, 5, 4, 4, 6), tuple(range(3, 28)) * 2)


@functools.cache
def pair(kind, chunk=16):
  """A loop of two models that often agree, and their parameters."""
  module, params = mocks.tiny_decoder(kind, layers=1)
  loop = Loop(
      module,
      ModelDrafter(module, 4, chunk=chunk),
      token.TokenRule(),
      log_probs=True,
      chunk=chunk,
  )
  return loop, params, mocks.blurred(params, 1, 0.2)


def plain(loop):
  return dataclasses.replace(loop, drafter=none.NoDrafter())


def make_batch(settings, prompts=PROMPTS, *, ids=None):
  ids = list(range(len(prompts))) if ids is None else ids
  if isinstance(settings, list):
    settings = [settings[i % len(settings)] for i in ids]
  batch = requests_lib.make_batch(
      mocks.requests(
          settings, BUDGET, prompts=[prompts[i] for i in ids], ids=ids
      ),
      vocabulary=V,
      seed=3,
      prompt_width=WIDTH,
  )
  return mocks.widen_eos(batch, 1)


@functools.partial(jax.jit, static_argnums=0)
def whole_pass(module, params, tokens_BS):
  return module.apply(params, tokens_BS)


def check_greedy(state, module, params):
  """Each new token is the argmax of the pass without a cache."""
  best_BS = np.argmax(whole_pass(module, params, state.tokens_BS), axis=-1)
  for row, text in enumerate(mocks.texts(state)):
    start = int(state.prompt_B[row]) - 1
    np.testing.assert_array_equal(text, best_BS[row, start : start + len(text)])


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_plain_decoding(kind):
  loop, params, draft = pair(kind)
  batch = make_batch(GREEDY)
  state = mocks.decode(loop, params, draft, batch, BUDGET)
  alone = mocks.decode(plain(loop), params, (), batch, BUDGET)
  assert mocks.texts(state) == mocks.texts(alone)
  assert len(set(mocks.texts(state))) == 4
  check_greedy(alone, loop.target, params)
  tallies = jax.device_get(state.tallies)
  assert 0 < np.sum(tallies.accepted_BG) < np.sum(tallies.judged_BG)


@pytest.mark.parametrize("kind", KINDS)
def test_left_padded_prompts(kind):
  """ndif-team/nnsight#673: rows decode as they do alone, drafts or not."""
  loop, params, draft = pair(kind)
  short, long = (3, 9, 8), (7, 4, 9, 11, 5, 6, 4)
  ids_BP = np.array([(0,) * 4 + short, long])
  prompts = requests_lib.unpad(ids_BP, ids_BP != 0)
  assert prompts == [short, long]
  for side, drafts in ((loop, draft), (plain(loop), ())):
    run = lambda ids: mocks.texts(
        mocks.decode(
            side, params, drafts, make_batch(GREEDY, prompts, ids=ids), BUDGET
        )
    )
    together = run([0, 1, 1, 0])
    # Of the same shape: of all rows none is longer.
    assert together[0] == together[3] == run([0] * 4)[0]
    assert together[1] == together[2] == run([1] * 4)[0]


def test_padding_at_either_end():
  right = np.array([[5, 6, 0], [7, 0, 0]])
  assert requests_lib.unpad(right, right > 0) == [(5, 6), (7,)]
  # Pad ids may be anything, and a token may have the pad's id.
  mask = np.array([[0, 1, 1], [1, 1, 1]])
  assert requests_lib.unpad(right, mask) == [(6, 0), (7, 0, 0)]
  for mask in ([[0, 0, 0]], [[1, 0, 1]], [[1, 1]], [1, 1, 1]):
    with pytest.raises(errors.UserError, match="mask_BP: give"):
      requests_lib.unpad(right[:1], np.array(mask))


def test_chunks_change_nothing():
  """Of the target's cache, and of the draft's."""
  batch = make_batch(GREEDY)
  known_BS = np.arange(WIDTH) < np.asarray(batch.prompt_B)[:, None] - 1
  found = []
  for chunk in (16, 7, 128):
    loop, params, draft = pair("llama", chunk)
    state = loop.prefill(params, draft, batch, BUDGET)
    caches = [state.cache, state.drafter.cache]
    # -> [B, S, H, K].
    keys = [np.moveaxis(x, 3, 1) for each in caches for x in each.key]
    values = [np.moveaxis(x, 2, 1) for each in caches for x in each.value]
    prompts = [x[:, :WIDTH] for x in keys + values]
    found.append([x[known_BS] for x in prompts])
    assert not any(np.any(x[~known_BS]) for x in prompts)
  for other in found[1:]:
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=0, atol=2e-5),
        found[0],
        other,
    )


MIXED = [GREEDY, WARM[0], GREEDY, WARM[1]]


@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_and_rows_alone(kind):
  """The model's own law, and a row's numbers go with its request's id."""
  loop, params, draft = pair(kind)
  state = mocks.decode(loop, params, draft, make_batch(MIXED), BUDGET)
  logits_BSV = np.asarray(whole_pass(loop.target, params, state.tokens_BS))
  got_BS = np.asarray(state.log_probs.model_BS)
  for row, text in enumerate(mocks.texts(state)):
    start = int(state.prompt_B[row])
    p_TV = enumeration.reference_law(
        logits_BSV[row, start - 1 : start - 1 + len(text)],
        Settings(temperature=1.0),
    )
    want = np.log(p_TV[np.arange(len(text)), list(text)])
    np.testing.assert_allclose(
        got_BS[row, start : start + len(text)], want, rtol=0, atol=1e-4
    )
  order = [2, 0, 3, 1]
  permuted = mocks.decode(
      loop, params, draft, make_batch(MIXED, ids=order), BUDGET
  )
  texts = mocks.texts(state)
  assert mocks.texts(permuted) == [texts[i] for i in order]


@pytest.mark.parametrize("kind", KINDS)
def test_self_draft_is_always_accepted(kind):
  """mlc-ai/mlc-llm#2285: nothing is missing from the draft's cache."""
  loop, params, _ = pair(kind)
  batch = make_batch(Settings(eos=()))
  state = mocks.decode(loop, params, params, batch, BUDGET)
  check_greedy(state, loop.target, params)
  tallies = jax.device_get(state.tallies)
  np.testing.assert_array_equal(tallies.accepted_BG, tallies.judged_BG)
  assert tallies.rounds_B.tolist() == [-(-BUDGET // 5)] * 4


def single(prompt, new, settings):
  """A batch of one row and its text_BS, as acceptance takes them."""
  batch = requests_lib.make_batch(
      mocks.requests(settings, BUDGET, prompts=[prompt]),
      vocabulary=V,
      seed=0,
      prompt_width=requests_lib.padded_prompt(len(prompt)),
  )
  text = (*prompt, *new)
  width = batch.prompt_BP.shape[1] + BUDGET
  return batch, jnp.asarray([text + (0,) * (width - len(text))]), len(new)


@pytest.mark.parametrize("prompt", PROMPTS[1::2])
def test_acceptance_behind_a_prompt(prompt):
  """alpha is over the new tokens alone, whatever the prompt's padded width."""
  loop, params, draft = pair("llama")
  settings = WARM[0]
  new = (5, 9, 14, 3)
  batch, text_BS, count = single(prompt, new, settings)
  p, q = (
      np.asarray(
          jax.nn.softmax(
              whole_pass(loop.target, each, text_BS)[
                  0, len(prompt) - 1 : len(prompt) - 1 + count
              ]
          )
      )
      for each in (params, draft)
  )
  [chance_JT] = acceptance.chances(
      acceptance.Pair(loop.target, loop.target, (token.TokenRule(),)),
      params,
      draft,
      [(batch, text_BS, count)],
      stack([settings], V),
  )
  alpha, places = acceptance.alpha(chance_JT)
  assert places == 4
  assert alpha == pytest.approx(np.minimum(p, q).sum() / 4, abs=1e-5)
  best = np.sort(np.log(p[2]))
  gap = lossless.two_best_gap(loop.target, params, batch, text_BS, 2)
  assert gap == pytest.approx(best[-1] - best[-2], abs=1e-4)


def test_few_widths():
  """Prompts, too, are padded to 64, 96, ...; a start token stays alone."""
  widths = [requests_lib.padded_prompt(n) for n in (1, 2, 64, 65, 1000)]
  assert widths == [1, 64, 64, 96, 1024]
  every = {requests_lib.source_width(n) for n in range(1, 1537)}
  assert sorted(every) == [64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536]
  for n in range(64, 1537):
    assert n <= requests_lib.source_width(n) < 1.5 * n
  requests = mocks.requests(
      GREEDY, 4, prompts=[(5,) * n for n in (3, 100, 2, 99, 1)]
  )
  groups = requests_lib.groups(requests, 2, vocabulary=V, seed=0)
  assert [group.rows for group in groups] == [(4,), (0, 2), (1, 3)]
  assert [group.batch.prompt_BP.shape for group in groups] == [
      (2, 1), (2, 64), (2, 128)
  ]
