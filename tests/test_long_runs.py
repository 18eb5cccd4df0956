"""Many decodes in one process, long outputs, big batches.

The small ones run always; the others take some twenty minutes:

    python -m pytest -m slow tests/test_long_runs.py
"""

import dataclasses
import gc
import itertools
import pathlib

import jax
import numpy as np
import pytest

from specjax import drafts as drafts_lib
from specjax import pipeline
from specjax import topology as topology_lib
from specjax.data import tasks
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.decoding import side as side_lib
from specjax.drafters import model as model_drafter
from specjax.drafters import none
from specjax.drafters import suffix
from specjax.drafters import suffix_array
from specjax.drafters import tree as tree_drafter
from specjax.measure import timing
from specjax.settings import Settings
from specjax.verify import token
from specjax.verify import tree as tree_rule
from tests import mocks
from tests import text_laws

quick_compiles = mocks.quick_compiles
V = 7
MODEL = mocks.TableModel(V)
TABLE = mocks.random_table(MODEL, 0)
DRAFT = TABLE + 0.7 * mocks.random_table(MODEL, 1)
CHAIN = model_drafter.ModelDrafter(MODEL, 3)
TREE = tree_drafter.TreeDrafter(
    source=model_drafter.ModelDrafter(MODEL, 1),
    topology=topology_lib.Topology(((0,), (1,), (0, 0), (0, 1), (1, 0))),
    siblings="distinct",
)
SETTINGS = [
    Settings(eos=()),
    Settings(temperature=1.0, eos=()),
    Settings(temperature=0.7, top_k=3, eos=()),
    Settings(temperature=1.3, top_p=0.8, eos=()),
]
_STATM = pathlib.Path("/proc/self/statm")


def resident() -> int:
  """KiB of memory of this process; 0 where the system does not say."""
  if not _STATM.exists():
    return 0
  return int(_STATM.read_text().split()[1]) * 4


def held() -> tuple[int, int, int]:
  """Arrays on the device, objects of Python, resident KiB."""
  gc.collect()
  return len(jax.live_arrays()), len(gc.get_objects()), resident()


def check_steady(decode, *, before, count, kib):
  """`decode(i)` again and again compiles nothing and leaves nothing behind.

  Args:
    decode: of the i-th texts.
    before: calls until all is warm.
    count: calls that are looked at.
    kib: by how much the process may grow in those.
  """
  for i in range(before):
    decode(i)
  arrays, objects, memory = held()
  with timing.no_compilation():
    for i in range(before, before + count):
      decode(i)
  more_arrays, more_objects, more_memory = held()
  assert more_arrays <= arrays
  # The garbage collector's own books differ by a few.
  assert more_objects <= objects + 50
  assert more_memory <= memory + kib


def test_decodes_leave_nothing_behind():
  """Drafts that learn among them: what they know is bounded."""
  copies = suffix.SuffixDrafter(gamma=3, reach=8)
  sides = [
      side_lib.Side(
          loop_lib.Loop(MODEL, drafter, token.TokenRule()), TABLE, params, 12
      )
      for drafter, params in (
          (none.NoDrafter(), ()),
          (CHAIN, DRAFT),
          (copies, suffix_array.build([], 60, 8)),
      )
  ]
  numbers = np.random.default_rng(0)

  def decode(i):
    prompts = [tuple(numbers.integers(0, V, 1 + i % 4)) for _ in range(4)]
    requests = mocks.requests(
        [dataclasses.replace(row, eos=(i % V,)) for row in SETTINGS],
        [1 + (i + n) % 12 for n in range(4)],
        prompts=[tuple(map(int, prompt)) for prompt in prompts],
    )
    batch = requests_lib.make_batch(
        requests, vocabulary=V, seed=i, prompt_width=4
    )
    for n, side in enumerate(sides):
      state = side.run(side.prefill(batch))
      assert np.all(state.done_B)
      sides[n] = side.adopt(state)

  check_steady(decode, before=20, count=100, kib=4096)


def shipped(target, draft, **options):
  """Texts of the shipped family, and a Decoder with drafts of two kinds."""
  target = pipeline.load(target)
  copies = drafts_lib.draft_suffix(target, 4, memory=2**12)
  model = drafts_lib.draft_model(target, draft, 2)
  drafts = drafts_lib.draft_mixed(copies, model, c=0.3, matching=0.05, v=1.3)
  texts = [row.source for row in tasks.load_task("mini_ende")]
  return texts, pipeline.Decoder(target, drafts, **options)


@pytest.mark.slow
def test_ten_thousand_decodes():
  """From text to text, settings and seeds of all sorts."""
  texts, decoder = shipped("mini/small", "mini/small_distilled", batch=2)
  settings = itertools.cycle(
      [dataclasses.replace(row, eos=None) for row in SETTINGS]
  )

  def decode(i):
    pair = [texts[(2 * i + n) % len(texts)] for n in range(2)]
    results = decoder(pair, next(settings), max_new_tokens=8, seed=i)
    assert all(0 < len(result.tokens) <= 8 for result in results)

  check_steady(decode, before=1000, count=9000, kib=8192)


def make_batch(budget, rows=len(SETTINGS), seed=0):
  """Greedy and sampled rows with prompts of their own."""
  requests = mocks.requests(
      [SETTINGS[i % len(SETTINGS)] for i in range(rows)],
      budget,
      prompts=[(i % V, (i * i) % V) for i in range(rows)],
  )
  batch = requests_lib.make_batch(
      requests, vocabulary=V, seed=seed, prompt_width=4
  )
  return mocks.widen_eos(batch, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter, rule",
    [(CHAIN, token.TokenRule()), (TREE, tree_rule.TreeRule())],
    ids=["chain", "tree"],
)
def test_outputs_of_4096_tokens(drafter, rule):
  """Every token's log-probability is that of its law; caches are whole."""
  budget = 4096
  loop = loop_lib.Loop(MODEL, drafter, rule, log_probs=True)
  state = mocks.decode(loop, TABLE, DRAFT, make_batch(budget), budget)
  state, table = jax.device_get((state.replace(key_B=None), TABLE))
  for i, text in enumerate(mocks.texts(state)):
    prompt = (i % V, (i * i) % V)
    assert len(text) == budget
    laws = {}
    for n in range(budget):
      newest = (*prompt, *text[:n])[-MODEL.reach :]
      if newest not in laws:
        laws[newest] = text_laws.next_law(
            MODEL, table, SETTINGS[i], newest, n
        )
      p = laws[newest][text[n]]
      assert p > 0
      assert abs(state.log_probs.law_BS[i, 2 + n] - np.log(p)) < 1e-5
  place_S = np.arange(budget)
  np.testing.assert_array_equal(
      state.cache.key[0][:, 0, 0, :budget],
      np.broadcast_to(place_S + 1, (len(SETTINGS), budget)),
  )
  np.testing.assert_array_equal(
      state.cache.value[0][:, 0, :budget, 0], state.tokens_BS[:, :budget] + 1
  )
  assert np.all(state.tallies.rounds_B < budget)


@pytest.mark.slow
def test_4096_tokens_of_a_t5():
  """Positions far beyond the last bucket; greedy texts are plain ones."""
  module, params = mocks.tiny_t5()
  budget = 4096
  requests = mocks.requests(
      Settings(eos=()), budget, sources=mocks.SOURCES
  )
  batch = requests_lib.make_batch(requests, vocabulary=29, seed=0, width=8)
  plain = loop_lib.Loop(module, none.NoDrafter(), token.TokenRule())
  chain = model_drafter.ModelDrafter(module, 3)
  loop = loop_lib.Loop(module, chain, token.TokenRule())
  draft = mocks.blurred(params, 1, 0.1)
  want = mocks.texts(mocks.decode(plain, params, (), batch, budget))
  state = mocks.decode(loop, params, draft, batch, budget)
  assert mocks.texts(state) == want
  assert {len(text) for text in want} == {budget}
  assert np.all(state.tallies.rounds_B < budget)


def test_a_batch_of_64():
  """Rows are what they are in batches of 4."""
  loop = loop_lib.Loop(MODEL, CHAIN, token.TokenRule())
  batch = make_batch(12, rows=64)
  whole = mocks.texts(mocks.decode(loop, TABLE, DRAFT, batch, 12))
  assert len(set(whole)) > 40
  for at in range(0, 64, 4):
    part = jax.tree.map(
        lambda leaf: leaf[at : at + 4] if leaf.shape[0] == 64 else leaf, batch
    )
    state = mocks.decode(loop, TABLE, DRAFT, part, 12)
    assert mocks.texts(state) == whole[at : at + 4]


@pytest.mark.slow
def test_a_batch_of_64_of_the_shipped_family():
  """Greedy texts; those of plain decoding, too."""
  texts, decoder = shipped("mini/target", "mini/small_distilled", batch=64)
  plain = dataclasses.replace(decoder, drafts=drafts_lib.NO_DRAFTS)
  answer = lambda decoder: [
      result.tokens for result in decoder(texts[:64], max_new_tokens=48)
  ]
  want = answer(plain)
  assert answer(decoder) == want
  assert answer(dataclasses.replace(decoder, batch=8)) == want
