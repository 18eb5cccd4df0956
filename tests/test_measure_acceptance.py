"""Acceptance figures and losslessness, against sums done by hand."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import settings as settings_lib
from specjax.data import ngrams
from specjax.decoding import requests as requests_lib
from specjax.measure import acceptance
from specjax.measure import lossless
from specjax.drafters import ngram
from specjax.drafters import simulated
from specjax.models import t5
from specjax.verify import token
from tests import tiny

V = 12
SHAPE = dataclasses.replace(tiny.SHAPE, vocab_size=V)
NARROW = dataclasses.replace(tiny.SHAPE, vocab_size=V - 2)
SAMPLED = settings_lib.Settings(temperature=0.7, top_k=5)
GREEDY = settings_lib.Settings()
OUTPUTS = [(5, 3, 7, 1), (4, 4)]
RULES = token.TokenRule(), token.TokenRule(lenience=0.5)


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
  with tiny.quick_compilation():
    yield


def make(shape, seed):
  module = t5.T5(shape)
  ids_B1 = jnp.zeros((1, 1), jnp.int32)
  init = lambda key: module.init(key, ids_B1, ids_B1 == 0, ids_B1)
  return module, jax.jit(init)(jax.random.key(seed))


@functools.partial(jax.jit, static_argnums=0)
def forward(module, params, batch, text_BS):
  """Logits of the only row."""
  return module.apply(
      params, batch.source_BL, batch.source_mask_BL, text_BS[:, :-1]
  )[0]


TARGET, TARGET_PARAMS = make(SHAPE, 0)
DRAFT, DRAFT_PARAMS = make(NARROW, 1)


def row(settings, tokens, source=(3, 9, 1)):
  """batch, text_BS (padded to 6 new tokens) and count of one row."""
  request = requests_lib.Request(0, source, (0,), settings, 6)
  batch = requests_lib.make_batch(
      [request], vocabulary=V, seed=0, width=4
  )
  text_BS = jnp.array([(0, *tokens) + (0,) * (6 - len(tokens))], jnp.int32)
  return batch, text_BS, len(tokens)


def rows(settings):
  return [row(settings, tokens) for tokens in OUTPUTS]


def law(module, params, settings, batch, text_BS):
  """Dense laws by numpy; missing ids of a narrow vocabulary get nothing."""
  logits = forward(module, params, batch, text_BS)
  logits = np.array(logits, np.float64) / (settings.temperature or 1.0)
  logits = np.pad(
      logits,
      ((0, 0), (0, V - logits.shape[1])),
      constant_values=-np.inf,
  )
  if settings.top_k:
    kth = np.sort(logits, axis=-1)[:, -settings.top_k, None]
    logits = np.where(logits >= kth, logits, -np.inf)
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  return weights / weights.sum(-1, keepdims=True)


def judged(
    settings,
    *,
    draft=(DRAFT, DRAFT_PARAMS),
    own=None,
    rules=(token.TokenRule(),),
    **fields,
):
  """alpha and places by the code under test, for each rule."""
  rows_JT = acceptance.chances(
      acceptance.Pair(TARGET, draft[0], rules, **fields),
      TARGET_PARAMS,
      draft[1],
      rows(settings),
      settings_lib.stack([own or settings], V),
  )
  return list(map(acceptance.alpha, zip(*rows_JT, strict=True)))


def measured(*arguments, **fields):
  """The same for one rule."""
  [alpha] = judged(*arguments, **fields)
  return alpha


def expected(settings, chance, own=None):
  """The mean over real places of chance(p_V, q_V)."""
  chances = []
  for batch, text_BS, count in rows(settings):
    p = law(TARGET, TARGET_PARAMS, settings, batch, text_BS)
    q = law(DRAFT, DRAFT_PARAMS, own or settings, batch, text_BS)
    chances += [chance(p[i], q[i]) for i in range(count)]
  return np.mean(chances)


def test_alpha_is_the_overlap():
  """The paper's Table 3: mean of sum min(p, q), padding not counted."""
  alpha, places = measured(SAMPLED)
  assert places == 6
  overlap = lambda p, q: np.minimum(p, q).sum()
  assert alpha == pytest.approx(expected(SAMPLED, overlap), abs=1e-5)
  assert 0.05 < alpha < 0.95


def test_alpha_of_drafts_with_settings_of_their_own():
  own = dataclasses.replace(SAMPLED, temperature=0.2, top_k=2)
  overlap = lambda p, q: np.minimum(p, q).sum()
  alpha, _ = measured(SAMPLED, own=own)
  assert alpha == pytest.approx(expected(SAMPLED, overlap, own), abs=1e-5)


def test_alpha_of_argmax_drafts():
  """A point mass overlaps by p(x), whatever the draft's soft q says."""
  alpha, _ = measured(SAMPLED, argmax=True)
  by_hand = expected(SAMPLED, lambda p, q: p[q.argmax()])
  assert alpha == pytest.approx(by_hand, abs=1e-5)


def test_alpha_with_lenience():
  for rule, (alpha, places) in zip(RULES, judged(SAMPLED, rules=RULES)):
    overlap = lambda p, q: np.minimum(p / rule.lenience, q).sum()
    assert alpha == pytest.approx(expected(SAMPLED, overlap), abs=1e-5)
    assert places == 6


def test_greedy_alpha_is_agreement():
  agree = lambda p, q: p.argmax() == q.argmax()
  lenient = lambda p, q: p[q.argmax()] >= 0.5 * p.max()
  (exact, _), (alpha, _) = judged(GREEDY, rules=RULES)
  assert exact == expected(GREEDY, agree)
  assert alpha == expected(GREEDY, lenient)


@pytest.mark.parametrize("order", (ngram.UNIGRAM, ngram.BIGRAM))
@pytest.mark.parametrize("settings", (SAMPLED, GREEDY), ids=("T", "greedy"))
def test_alpha_of_ngrams(order, settings):
  """A source without a network: its law at each place, by the counts."""
  counts = ngrams.count([(5, 3, 3, 7, 1), (4, 5, 3, 1)], 0, V - 1)
  table = ngrams.smooth(counts, "").on_device()
  law_of = table.bigram if order == ngram.BIGRAM else table.unigram
  reader = ngram.NgramDrafter(order, 3).reader
  alpha, places = measured(settings, draft=(reader, table))
  chances = []
  for batch, text_BS, count in rows(settings):
    p_TV = law(TARGET, TARGET_PARAMS, settings, batch, text_BS)
    logits_TV = np.array(law_of(text_BS[0, :count]), np.float64)
    logits_TV = np.pad(logits_TV, ((0, 0), (0, 1)), constant_values=-np.inf)
    for p, logits in zip(p_TV, logits_TV):
      if not settings.temperature:
        chances.append(p.argmax() == logits.argmax())
        continue
      q = np.exp(logits / settings.temperature)
      q = np.where(q >= np.sort(q)[-settings.top_k], q, 0)
      chances.append(np.minimum(p, q / q.sum()).sum())
  assert places == len(chances) == 6
  assert alpha == pytest.approx(np.mean(chances), abs=1e-5)


@pytest.mark.parametrize("rate", (0.0, 0.3, 0.8, 1.0))
def test_alpha_of_simulated_drafts(rate):
  """Of a greedy text the prescribed rate; of another only where they agree."""
  drawn = settings_lib.Settings(temperature=1.0)
  reader = simulated.SimulatedDrafter(3).reader


  def alpha_of(rows):
    [[chance_T]] = acceptance.chances(
        acceptance.Pair(TARGET, reader, (token.TokenRule(),)),
        TARGET_PARAMS,
        simulated.replay({0: (0, 1)}, rate),
        rows,
        settings_lib.stack([drawn], V),
    )
    return acceptance.alpha([chance_T])[0]

  text = []
  for _ in range(4):
    batch, text_BS, count = row(GREEDY, text)
    logits = forward(TARGET, TARGET_PARAMS, batch, text_BS)
    text.append(int(logits[count].argmax()))
  assert alpha_of([row(GREEDY, text)]) == pytest.approx(rate, abs=1e-6)
  text[-1] = (text[-1] + 1) % V
  wrong = (1 - rate) / (V - 1)
  want = (3 * rate + wrong) / 4
  assert alpha_of([row(GREEDY, text)]) == pytest.approx(want, abs=1e-6)


def test_self_draft():
  """A draft that is the target: exactly 1, greedy; 1 by rounding, sampled."""
  same = (TARGET, TARGET_PARAMS)
  assert measured(GREEDY, draft=same)[0] == 1.0
  assert measured(SAMPLED, draft=same)[0] == pytest.approx(1.0, abs=1e-5)
  assert measured(SAMPLED, draft=same)[0] <= 1.0


def test_by_position():
  """sgl-project/sglang#11572: rates above 1, where extra tokens counted.

  gamma 4, accepted 4, 0 and 2: six of twelve drafted, nine emitted; of the
  eight judged, each position has its own share.
  """
  judged = [(1, 1, 1, 1), (1, 0, 0, 0), (1, 1, 1, 0)]
  accepted = [(1, 1, 1, 1), (0, 0, 0, 0), (1, 1, 0, 0)]
  assert acceptance.by_position(judged, accepted) == [2 / 3, 1, 0.5, 1]
  assert acceptance.block_efficiency([5, 1, 3], [1, 1, 1]) == 3.0


def test_by_position_never_judged():
  assert acceptance.by_position([(2, 0)], [(0, 0)]) == [0.0, None]
  assert acceptance.by_position([(), ()], [(), ()]) == []


@pytest.mark.parametrize(
    "a,b,position",
    (
        ((1, 2, 3), (1, 2, 3), None),
        ((1, 2, 3), (1, 4, 3), 1),
        ((1, 2), (1, 2, 3), 2),
        ((1, 2, 3), (1, 2), 2),
        ((), (1,), 0),
    ),
)
def test_first_difference(a, b, position):
  assert lossless.first_difference(a, b) == position


@pytest.mark.parametrize("dtype", (jnp.float32, jnp.bfloat16))
def test_two_best_gap(dtype):
  """In float32 whatever the model's type."""
  batch, text_BS, _ = row(GREEDY, OUTPUTS[0])
  params = jax.tree.map(lambda leaf: leaf.astype(dtype), TARGET_PARAMS)
  whole = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
  logits = forward(TARGET, whole, batch, text_BS)
  for position in (0, 2):
    best = np.sort(np.asarray(logits[position]))[-2:]
    gap = lossless.two_best_gap(
        t5.T5(SHAPE, dtype=dtype), params, batch, text_BS, position
    )
    assert gap == pytest.approx(best[1] - best[0], abs=1e-5)


def test_near_ties():
  assert lossless.Mismatch(0, 3, 9e-5).near_tie
  assert not lossless.Mismatch(0, 3, 1.1e-4).near_tie
  bound = lossless.NEAR_TIE["bfloat16"]
  assert lossless.Mismatch(0, 3, 0.04, bound).near_tie
  assert not lossless.Mismatch(0, 3, 0.3, bound).near_tie
