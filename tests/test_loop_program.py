"""What the loop is compiled to, and how often."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax import topology
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import lookup
from specjax.drafters import mixed
from specjax.drafters import model as model_drafter
from specjax.drafters import none
from specjax.drafters import switch
from specjax.drafters import tree as tree_drafter
from specjax.verify import block
from specjax.verify import token
from specjax.verify import tree as tree_rule
from tests import mocks

Loop = loop_lib.Loop
Settings = sampling.Settings
TokenRule = token.TokenRule

quick_compiles = mocks.quick_compiles
VOCABULARY = 7
MODEL = mocks.TableModel(VOCABULARY)
TABLE = mocks.random_table(MODEL, 0)
DRAFT = TABLE + mocks.random_table(MODEL, 1)
DRAFTER = model_drafter.ModelDrafter(MODEL, 2)
SOURCE_WIDTH = 4
T5, T5_PARAMS = mocks.tiny_t5(vocabulary=VOCABULARY)
BUDGET, ROWS = 300, 3
PLAIN = Loop(MODEL, none.NoDrafter(), TokenRule()), (TABLE, ())
SPECULATIVE = Loop(MODEL, DRAFTER, TokenRule()), (TABLE, DRAFT)
BLOCK = Loop(MODEL, DRAFTER, block.BlockRule()), (TABLE, DRAFT)
TREE = (
    Loop(
        MODEL,
        tree_drafter.TreeDrafter(
            source=DRAFTER,
            topology=topology.Topology(((0,), (1,), (0, 0))),
            siblings="distinct",
        ),
        tree_rule.TreeRule(),
    ),
    (TABLE, DRAFT),
)
MIXED = (
    Loop(
        MODEL,
        mixed.MixedDrafter(
            copies=lookup.LookupDrafter(gamma=2),
            model=DRAFTER,
            switch=switch.Switch(),
        ),
        TokenRule(),
    ),
    (
        TABLE,
        mixed.MixedParams(
            (),
            DRAFT,
            switch.Costs(
                draft=jnp.float32(0.1),
                matching=jnp.float32(0.1),
                verify_W=jnp.array([1.0, 1.2, 1.4]),
            ),
        ),
    ),
)
T5_PLAIN = Loop(T5, none.NoDrafter(), TokenRule()), (T5_PARAMS, ())
T5_COPIES = (
    Loop(T5, lookup.LookupDrafter(gamma=1), TokenRule()),
    (T5_PARAMS, ()),
)
T5_PAIR = (
    Loop(T5, model_drafter.ModelDrafter(T5, 2), TokenRule()),
    (T5_PARAMS, mocks.blurred(T5_PARAMS, 1, 0.2)),
)
ALL = pytest.mark.parametrize(
    "loop, tables",
    [PLAIN, SPECULATIVE, T5_PLAIN, T5_PAIR, T5_COPIES],
    ids=["plain", "drafts", "t5-plain", "t5-drafts", "t5-copies"],
)


def make_batch(loop, sources, prompts, settings, budgets, seed=0):
  """The sources are for a T5; tables read none."""
  if loop.target is MODEL:
    sources = (None,)
  return requests_lib.make_batch(
      mocks.requests(settings, budgets, prompts=prompts, sources=sources),
      vocabulary=VOCABULARY,
      seed=seed,
      rows=ROWS,
      width=SOURCE_WIDTH,
  )


def batches(loop):
  """Two of one padded shape, unlike in all else."""
  yield make_batch(
      loop,
      [(5, 3, 1), (2,)],
      [(0, 1, 2), (3,)],
      [Settings(eos=(1,)), Settings(0.7, top_k=2, eos=(1,))],
      [20, 11],
  )
  yield make_batch(
      loop,
      [(4, 1), (6, 6, 2, 1), (3,)],
      [(4,), (5, 5), (2, 6, 0)],
      [
          Settings(1.0, top_p=0.5, eos=(2,)),
          Settings(min_new_tokens=4, forced_first=3, eos=(1,)),
          Settings(suppressed=(), eos=(1,)),
      ],
      [5, 300, 17],
      seed=1,
  )


@ALL
def test_one_compilation_for_a_shape(caplog, loop, tables):
  jax.clear_caches()  # Whatever other tests have compiled.
  compiled = []
  for batch in list(batches(loop)):
    caplog.clear()
    with jax.log_compiles():
      state = mocks.decode(loop, *tables, batch, BUDGET)
    assert np.all(state.done_B)
    compiled.append(
        sum("Compiling" in entry.message for entry in caplog.records)
    )
  assert compiled == [2, 0], "prefill and run, once each"


def cache_leaves(state):
  """Caches of the target and, where it has one, of the draft."""
  drafter = state.drafter
  caches = [state.cache] + ([drafter.cache] if drafter != () else [])
  return jax.tree.leaves(caches)


@ALL
def test_no_host_round_trip_and_caches_in_place(loop, tables):
  state = loop.prefill(*tables, next(batches(loop)), BUDGET)
  lowered = Loop.run.lower(loop, *tables, state)
  text = lowered.as_text()
  assert "while" in text
  for word in ("callback", "infeed", "outfeed", "host", "send", "recv"):
    assert word not in text, word
  compiled = lowered.compile()
  assert "input_output_alias" in compiled.as_text()
  leaves = cache_leaves(state)
  size = sum(leaf.nbytes for leaf in leaves)
  assert size >= 4 * len(leaves) * ROWS * BUDGET
  assert compiled.memory_analysis().alias_size_in_bytes >= size


def test_a_callback_would_be_seen():
  @jax.jit
  def faulty(x):
    jax.debug.callback(lambda y: None, x)
    return x

  assert "callback" in faulty.lower(jnp.ones(3)).as_text()


@ALL
def test_the_state_is_donated(loop, tables):
  batch = next(batches(loop))
  state = loop.prefill(*tables, batch, BUDGET)
  places = [leaf.unsafe_buffer_pointer() for leaf in cache_leaves(state)]
  final = loop.run(*tables, state)
  # Every cache is where it was: no copy, and none swapped for another.
  assert places == [
      leaf.unsafe_buffer_pointer() for leaf in cache_leaves(final)
  ]
  for leaf in cache_leaves(state) + [state.tokens_BS]:
    assert leaf.is_deleted()
  # What was not the state's stays usable.
  again = loop.run(*tables, loop.prefill(*tables, batch, BUDGET))
  np.testing.assert_array_equal(again.tokens_BS, final.tokens_BS)


@pytest.mark.parametrize(
    "loop, tables",
    [PLAIN, SPECULATIVE, BLOCK, TREE, MIXED],
    ids=["plain", "drafts", "block", "tree", "mixed"],
)
def test_keys_serve_once_and_nothing_is_nan(loop, tables):
  """sgl-project/sglang-jax#940: no key serves twice, and nothing is NaN."""
  for batch in batches(loop):
    with jax.debug_key_reuse(True), jax.debug_nans(True):
      state = mocks.decode(loop, *tables, batch, BUDGET)
    assert np.all(state.done_B)


def test_the_key_checker_checks():
  draw = jax.jit(
      lambda key: jax.random.normal(key) + jax.random.uniform(key)
  )
  with jax.debug_key_reuse(True):
    with pytest.raises(Exception, match="already consumed"):
      draw(jax.random.key(0))


@pytest.mark.parametrize("rounds", [False, True])
def test_reported_log_probs_and_traces_are_linear(rounds):
  """vllm-project/vllm#4672: twice the budget, at most 2.2 times the memory."""
  loop, tables = SPECULATIVE
  rule = TokenRule(trace=rounds)
  loop = Loop(MODEL, loop.drafter, rule, log_probs=True, trace=rounds)
  batch = make_batch(loop, (None,), [(0, 1), (3,)], [Settings()], [20, 11])

  def needed(budget):
    """Bytes of the state and of what a decoding makes beside it."""
    state = loop.prefill(*tables, batch, budget)
    text = Loop.run.lower(loop, *tables, state).compile().memory_analysis()
    return text.argument_size_in_bytes + text.temp_size_in_bytes

  assert needed(2000) < 2.2 * needed(1000)
