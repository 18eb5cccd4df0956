"""Unigram and bigram drafts: their laws, and what comes out of the loop."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
from specjax.data import ngrams
from specjax.decoding import loop as loop_lib
from specjax.drafters import ngram
from specjax.settings import Settings
from specjax.verify import proposal as proposals
from specjax.verify import token
from tests import enumeration
from tests import mocks
from tests import test_drafters
from tests import test_loop_law
from tests import text_laws

Kind = proposals.Kind
NgramDrafter = ngram.NgramDrafter
UNIGRAM, BIGRAM = ngram.UNIGRAM, ngram.BIGRAM
PLAIN = Settings(temperature=1.0, eos=())

quick_compiles = mocks.quick_compiles


def make_table(size, pairs, seed=0):
  """Counted from random rows of uneven ids; some pairs are not listed."""
  rng = np.random.default_rng(seed)
  p_VV = rng.dirichlet(np.full(size, 0.5), size)
  rows, last = [], 0
  for _ in range(60):
    last = int(rng.choice(size, p=p_VV[last]))
    rows.append(last)
  table = ngrams.smooth(ngrams.count([rows], 0, size), "", pairs=pairs)
  assert len(table.successor_E) == pairs
  return table.on_device()


TABLE = make_table(3, 5)


def as_model(order, table):
  """The same laws as a mock model of one token's reach, and its table."""
  size = table.log_unigram_V.shape[0]
  look = table.bigram if order == BIGRAM else table.unigram
  logits_VV = np.asarray(look(jnp.arange(size)))
  return mocks.TableModel(size, 1), np.vstack([logits_VV[:1], logits_VV])


@pytest.mark.parametrize("order", (UNIGRAM, BIGRAM))
@pytest.mark.parametrize(
    "options", test_drafters.OPTIONS.values(), ids=test_drafters.OPTIONS
)
def test_law_is_what_was_drawn_from(order, options):
  """The context is the newest token: committed, or drafted before."""
  drafter = NgramDrafter(order, test_drafters.GAMMA, **options)
  proposal = test_drafters.drafted(drafter, TABLE, PLAIN)
  assert proposal.kind is Kind.CHAIN
  assert np.all(proposal.count_B == test_drafters.GAMMA)
  test_drafters.check_law(
      proposal, dataclasses.replace(PLAIN, **options), *as_model(order, TABLE)
  )


@pytest.mark.parametrize("order", (UNIGRAM, BIGRAM))
def test_argmax_is_a_point_mass(order):
  """huggingface/transformers#32867: no law is claimed."""
  drafter = NgramDrafter(order, test_drafters.GAMMA, argmax=True)
  proposal = test_drafters.drafted(drafter, TABLE, PLAIN)
  assert proposal.kind is drafter.kind is Kind.POINT and proposal.law is None
  model, table = as_model(order, TABLE)
  for i, prompt in enumerate(test_drafters.PROMPTS):
    want = text_laws.greedy_text(
        model, table, Settings(eos=()), prompt, test_drafters.GAMMA
    )
    own = slice(i * test_drafters.ROWS, (i + 1) * test_drafters.ROWS)
    assert np.all(np.asarray(proposal.tokens_BN)[own] == want)


def test_processors_and_widths():
  """vllm-project/vllm#7252: of another width; forced and early tokens."""
  settings = Settings(
      temperature=1.0, eos=(1,), min_new_tokens=2, forced_first=2
  )
  drafter = NgramDrafter(BIGRAM, test_drafters.GAMMA)
  proposal = test_drafters.drafted(drafter, TABLE, settings, width=5)
  assert proposal.law.width == 5
  test_drafters.check_law(proposal, settings, *as_model(BIGRAM, TABLE))
  wide = make_table(5, 9)
  proposal = test_drafters.drafted(drafter, wide, PLAIN)
  assert proposal.law.width == 3 and np.all(proposal.tokens_BN < 3)


@pytest.mark.parametrize("order", (UNIGRAM, BIGRAM))
@pytest.mark.parametrize("argmax", (False, True), ids=("chain", "argmax"))
@pytest.mark.parametrize(
    "target",
    (PLAIN, Settings(temperature=0.7, top_k=2, eos=())),
    ids=("plain", "top-k"),
)
def test_output_law_is_exact(order, argmax, target):
  """By enumeration of drafts and coins, with the drafter's own logits."""
  drafter = NgramDrafter(order, 2, argmax=argmax)
  length = 3
  prefixes = [
      value % 3 if n else 0
      for n in range(length + drafter.gamma)
      for value in range(3**n)
  ]
  text_BS = jnp.array([[*prefixes, 0]])
  case = enumeration.Case(
      vocabulary=3,
      gamma=drafter.gamma,
      length=length,
      target=target,
      draft=target,
      kind=drafter.kind,
      argmax=argmax,
      draft_logits=np.asarray(drafter.reader.along(TABLE, text_BS, 3))[0],
  )
  enumeration.check_exact(token.TokenRule(), case)


@pytest.mark.parametrize(
    "drafter, table",
    [
        (NgramDrafter(BIGRAM, 3), make_table(2, 3)),
        (NgramDrafter(UNIGRAM, 2, temperature=0.5, top_p=0.9), TABLE),
        (NgramDrafter(BIGRAM, 2, argmax=True), make_table(4, 9)),
    ],
    ids=["narrower bigram", "colder unigram", "argmax of a wider one"],
)
def test_texts_follow_the_targets_law(drafter, table):
  """Over several rounds, for settings side by side, greedy ones too."""
  loop = loop_lib.Loop(test_loop_law.TARGET, drafter, token.TokenRule())
  misfit = test_loop_law.worst(loop, table, test_loop_law.MIXED, rows=2000)
  assert misfit < test_loop_law.RIGHT


def test_along():
  """The laws of a text's places are those that its drafts are drawn from."""
  text_BS = jnp.array([[0, 2, 1, 1], [1, 0, 2, 7]])
  for order in (UNIGRAM, BIGRAM):
    model, table = as_model(order, TABLE)
    got_BTV = NgramDrafter(order, 4).reader.along(TABLE, text_BS, 3)
    for row, text in enumerate(text_BS.tolist()):
      for place in range(3):
        want_V = table[model.code(text[: place + 1])]
        np.testing.assert_allclose(got_BTV[row, place], want_V, rtol=1e-6)


def test_one_reader_for_every_gamma():
  """What is compiled for alpha serves all of them."""
  readers = {NgramDrafter(BIGRAM, gamma).reader for gamma in (1, 4, 9)}
  assert len(readers) == 1


@pytest.mark.parametrize(
    "field, options",
    [
        ("order", dict(order=3, gamma=2)),
        ("order", dict(order="bigram", gamma=2)),
        ("gamma", dict(order=2, gamma=0)),
        ("argmax", dict(order=2, gamma=2, argmax=1)),
        ("top_p", dict(order=2, gamma=2, top_p=1.5)),
    ],
)
def test_refused_options(field, options):
  with pytest.raises(errors.UserError, match=f"^{field}: give"):
    NgramDrafter(**options)


def test_static_under_jit():
  drafter = NgramDrafter(BIGRAM, 4, top_k=3)
  assert hash(drafter) == hash(dataclasses.replace(drafter))
  assert drafter.nodes == drafter.depth == 4 and drafter.taps == ()
