"""Rows are independent, noise moves on, processors hold at every place."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
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
VOCABULARY = 8
MODEL = mocks.TableModel(VOCABULARY)
TABLE = mocks.random_table(MODEL, 3)
DRAFT = TABLE + 0.7 * mocks.random_table(MODEL, 4)
ROWS, BUDGET = 18, 64
PLAIN = Loop(MODEL, none.NoDrafter(), TokenRule())
SPECULATIVE = Loop(MODEL, ModelDrafter(MODEL, 5), TokenRule())

SETTINGS = [
    Settings(eos=(1,)),
    Settings(temperature=1.0, eos=(1,)),
    Settings(temperature=0.7, top_k=3, eos=(2,)),
    Settings(temperature=1.3, top_p=0.8, eos=(3,)),
]


def make_batch(settings, *, ids=None, budget=BUDGET, seed=0, **kwargs):
  """Always ROWS rows; those without a request are blank."""
  ids = list(range(ROWS) if ids is None else ids)
  rows = [settings[i % len(settings)] for i in ids]
  return requests_lib.make_batch(
      mocks.requests(rows, budget, ids=ids, **kwargs),
      vocabulary=VOCABULARY,
      seed=seed,
      rows=ROWS,
  )


def decode(batch, loop=SPECULATIVE, target=TABLE, draft=DRAFT):
  draft = () if loop is PLAIN else draft
  return mocks.texts(mocks.decode(loop, target, draft, batch, BUDGET))


def test_neighbours_are_seldom_equal():
  """sgl-project/sglang-jax#940: a uniform model repeats 1 in 8."""
  uniform = jnp.zeros_like(TABLE)
  batch = make_batch([Settings(temperature=1.0, eos=())])
  for loop in (PLAIN, SPECULATIVE):
    texts = np.array(decode(batch, loop, uniform, DRAFT))
    assert texts.shape == (ROWS, BUDGET)
    equal = np.mean(texts[:, 1:] == texts[:, :-1])
    # 1,134 pairs: 4 standard deviations.
    assert abs(equal - 1 / 8) < 0.04
    assert len(set(map(tuple, texts))) == ROWS


@pytest.mark.parametrize("loop", [PLAIN, SPECULATIVE], ids=["plain", "drafts"])
def test_seeds(loop):
  first = decode(make_batch(SETTINGS), loop)
  assert decode(make_batch(SETTINGS), loop) == first
  other = decode(make_batch(SETTINGS, seed=1), loop)
  for i, (text, changed) in enumerate(zip(first, other)):
    # Texts of a few tokens may well be equal.
    if not i % 4 or len(text) > 6:
      assert (text == changed) == (i % 4 == 0)


@pytest.mark.parametrize("loop", [PLAIN, SPECULATIVE], ids=["plain", "drafts"])
def test_ids_fix_the_text_wherever_the_row_stands(loop):
  """Alone, beside others, elsewhere in the batch (vllm#6038, #10863)."""
  together = decode(make_batch(SETTINGS), loop)
  order = np.random.default_rng(0).permutation(ROWS).tolist()
  assert decode(make_batch(SETTINGS, ids=order), loop) == [
      together[i] for i in order
  ]
  for i in range(5):
    alone = decode(make_batch(SETTINGS, ids=[i]), loop)
    assert alone == [together[i]] + [()] * (ROWS - 1)


def test_equal_requests_differ_by_their_ids():
  texts = decode(make_batch([Settings(temperature=1.0, eos=())]))
  assert len(set(texts)) == ROWS


def test_prompts_side_by_side():
  """ndif-team/nnsight#673, unslothai/unsloth#3699.

  The first token follows each row's own prompt.
  """
  prompts = [(0,), (4, 2, 6), (5, 3), (2, 2, 7, 1)] * 5
  settings = Settings(eos=())
  batch = make_batch([settings], prompts=prompts[:ROWS], budget=12)
  want = [
      text_laws.greedy_text(MODEL, np.asarray(TABLE), settings, prompt, 12)
      for prompt in prompts[:ROWS]
  ]
  state = mocks.decode(SPECULATIVE, TABLE, DRAFT, batch, 12)
  assert mocks.texts(state) == want


FIRST_ROWS = list(itertools.product(range(9), (None, 3)))


@pytest.mark.parametrize("suppressed", [(), (4, 6)])
@pytest.mark.parametrize("draft", ["self", "other"])
def test_processors_at_every_place_of_a_block(draft, suppressed):
  """Minimum lengths below and above gamma + 1, with a forced first token."""
  eager = TABLE.at[:, 1].add(20.0)
  settings = [
      Settings(
          eos=(1,),
          min_new_tokens=minimum,
          forced_first=first,
          suppressed=suppressed,
      )
      for minimum, first in FIRST_ROWS
  ]
  want = [
      text_laws.greedy_text(MODEL, np.asarray(eager), row, (0,), BUDGET)
      for row in settings
  ]
  lengths = [max(minimum, first is not None) for minimum, first in FIRST_ROWS]
  assert [len(text) - 1 for text in want] == lengths
  batch = make_batch(settings)
  params = eager if draft == "self" else DRAFT
  assert decode(batch, PLAIN, eager) == want
  assert decode(batch, SPECULATIVE, eager, params) == want


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_outside_the_target_are_rejected(temperature):
  """vllm-project/vllm#7252: 45 is not taken for 39."""
  target = mocks.TableModel(40)
  table = jnp.full((41**2, 40), -9.0).at[:, 39].set(9.0)
  settings = Settings(temperature=temperature, eos=())
  batch = requests_lib.make_batch(
      mocks.requests(settings, 7), vocabulary=40, seed=0
  )
  loop = Loop(target, mocks.ScriptedDrafter(3), TokenRule())
  script = jnp.full((1, 8), 45), jnp.full((1, 8), 3)
  state = mocks.decode(loop, table, script, batch, 7)
  assert mocks.texts(state) == [(39,) * 7]
  assert not np.any(state.tallies.accepted_BG)
  assert state.tallies.judged_BG.tolist() == [[6, 0, 0]]


def test_sources_for_all_or_none():
  mixed = mocks.requests(Settings(), 4, sources=[None, (3, 1)])
  with pytest.raises(errors.UserError, match="source"):
    requests_lib.make_batch(mixed, vocabulary=8, seed=0)


def test_source_must_fit_the_width():
  long = mocks.requests(Settings(), 4, sources=[(3,) * 9])
  with pytest.raises(errors.UserError, match="source: 9 tokens"):
    requests_lib.make_batch(long, vocabulary=8, seed=0, width=8)


GOOD = dict(
    id=0, source=None, prompt=(0,), settings=Settings(), max_new_tokens=1
)


@pytest.mark.parametrize(
    "change",
    [
        dict(max_new_tokens=0),
        dict(max_new_tokens=2**31),
        dict(max_new_tokens=1.0),
        dict(max_new_tokens=True),
        dict(max_new_tokens=None),
        dict(prompt=()),
        dict(prompt=None),
        dict(prompt="0"),
        dict(prompt=0),
        dict(prompt=(-1,)),
        dict(prompt=(2**31,)),
        dict(prompt=(0.0,)),
        dict(prompt=np.zeros((2, 2), int)),
        dict(source=()),
        dict(source=[]),
        dict(source="text"),
        dict(source=(3, None)),
        dict(source=(-3,)),
        dict(id=-1),
        dict(id=2**32),
        dict(id=None),
        dict(id="a"),
        dict(settings=None),
        dict(settings={}),
    ],
    ids=repr,
)
def test_requests_without_work_are_refused(change):
  (field,) = change
  requests_lib.Request(**GOOD)
  with pytest.raises(errors.UserError, match=f"^{field}: ") as caught:
    requests_lib.Request(**{**GOOD, **change})
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "field, change",
    [
        ("requests", dict(requests=[])),
        ("rows", dict(rows=1)),
        ("rows", dict(rows=0)),
        ("rows", dict(rows=-1)),
        ("rows", dict(rows=2.0)),
        ("seed", dict(seed=-1)),
        # Jax would take these two for 0 and for 1.
        ("seed", dict(seed=2**32)),
        ("seed", dict(seed=True)),
        ("seed", dict(seed=None)),
        ("seed", dict(seed=10**20)),
        ("source", dict(width=0)),
        ("source", dict(width=1)),
        ("source", dict(vocabulary=4)),
        ("prompt", dict(vocabulary=1)),
        ("eos", dict(vocabulary=5)),
    ],
)
def test_batches_that_cannot_be_are_refused(field, change):
  settings = Settings(eos=(5,))
  good = dict(
      requests=mocks.requests(
          settings, 4, prompts=[(0,), (1,)], sources=[(3, 4), (2,)]
      ),
      vocabulary=8,
      seed=0,
  )
  assert requests_lib.make_batch(**good).prompt_B.shape == (2,)
  with pytest.raises(errors.UserError, match=f"^{field}: "):
    requests_lib.make_batch(**{**good, **change})


def test_bound_below_a_rows_own_budget():
  """It would cut that row short."""
  batch = requests_lib.make_batch(
      mocks.requests(Settings(eos=()), [3, 5]), vocabulary=8, seed=0
  )
  for budget in (4, 0):
    with pytest.raises(errors.UserError, match="^budget: give 5 or more"):
      PLAIN.prefill(TABLE, (), batch, budget)
  state = mocks.decode(PLAIN, TABLE, (), batch, 5)
  assert [len(text) for text in mocks.texts(state)] == [3, 5]
