"""What the loop is compiled to, and how often."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax import topology
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import dynamic
from specjax.drafters import eagle as eagle_drafter
from specjax.drafters import lookup
from specjax.drafters import medusa as medusa_drafter
from specjax.drafters import mixed
from specjax.drafters import model as model_drafter
from specjax.drafters import ngram
from specjax.drafters import none
from specjax.drafters import simulated
from specjax.drafters import suffix
from specjax.drafters import suffix_array
from specjax.drafters import suffix_dynamic
from specjax.drafters import switch
from specjax.drafters import tree as tree_drafter
from specjax.models import eagle
from specjax.models import medusa
from specjax.verify import block
from specjax.verify import token
from specjax.verify import tree as tree_rule
from specjax.verify import typical
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
SHAPE = topology.Topology(((0,), (1,), (0, 0)))


def tree_of(source, siblings):
  """Static trees of a source's drafts."""
  return tree_drafter.TreeDrafter(
      source=source, topology=SHAPE, siblings=siblings
  )


TREE = (
    Loop(MODEL, tree_of(DRAFTER, "distinct"), tree_rule.TreeRule()),
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
  if loop.target is not T5:
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


@pytest.mark.parametrize("until", [None, 3])
def test_no_program_has_a_bound_that_is_not_asked_for(until):
  """Streams come back after some rounds; others are not told of rounds."""
  loop, tables = PLAIN
  state = loop.prefill(*tables, next(batches(loop)), BUDGET)
  program = Loop.run.trace(loop, *tables, state, until).jaxpr
  [rounds] = [x for x in program.eqns if x.primitive.name == "while"]
  asked = [x.primitive.name for x in rounds.params["cond_jaxpr"].eqns]
  assert ("lt" in asked) == (until is not None)
  assert until is not None or asked == ["not", "reduce_or"]


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


LENIENT = TokenRule(0.5, "lenient", overlap=True, trace=True)
BIGRAMS = ngram.Table(
    log_unigram_V=jnp.full((VOCABULARY,), -2.0),
    log_backoff_V=jnp.full((VOCABULARY,), -1.0),
    start_V=jnp.zeros(VOCABULARY, jnp.int32),
    count_V=jnp.full((VOCABULARY,), 2),
    successor_E=jnp.array([1, 2, 0, 0]),
    log_prob_E=jnp.log(jnp.array([0.5, 0.4, 1.0, 1.0])),
    longest=2,
)


def medusa_loop():
  """Trees of random heads of a random Llama, judged as Medusa does."""
  target, params = mocks.tiny_decoder("llama", vocabulary=VOCABULARY)
  heads = medusa.Medusa(medusa.MedusaConfig(16, VOCABULARY, 2))
  own = heads.init(
      jax.random.key(0), jnp.zeros((1, 1, 16)), method="everything"
  )
  drafter = medusa_drafter.MedusaDrafter(
      heads=heads, target=target, topology=SHAPE, gamma=2
  )
  loop = Loop(target, drafter, typical.TypicalRule())
  return loop, (params, medusa.MedusaParams(own, params))


def eagle_loop():
  """Trees of a random head of the same."""
  target, params = mocks.tiny_decoder("llama", vocabulary=VOCABULARY)
  model = eagle.of(target)
  own = jax.jit(model.init)(jax.random.key(0))
  source = eagle_drafter.EagleDrafter(model, 2)
  loop = Loop(target, tree_of(source, "independent"), tree_rule.TreeRule())
  return loop, (params, model.params(own, params))


# All sources of drafts, all shapes and all rules, in few programs.
SORTS = {
    "plain": lambda: PLAIN,
    "drafts": lambda: SPECULATIVE,
    "encoder and decoder": lambda: T5_PAIR,
    "block": lambda: BLOCK,
    "tree": lambda: TREE,
    "mixed": lambda: MIXED,
    "sure and lenient": lambda: (
        Loop(
            MODEL,
            model_drafter.ModelDrafter(MODEL, 3, confidence=0.3),
            LENIENT,
            log_probs=True,
            trace=True,
        ),
        (TABLE, DRAFT),
    ),
    "lookup and lenient": lambda: (
        Loop(MODEL, lookup.LookupDrafter(gamma=2), LENIENT),
        (TABLE, ()),
    ),
    "trees of suffixes": lambda: (
        Loop(
            MODEL,
            suffix_dynamic.SuffixTreeDrafter(gamma=2, reach=4, nodes=3),
            tree_rule.TreeRule(),
        ),
        (TABLE, suffix_array.build([[1, 2, 3, 1, 2, 4]], 20, 4)),
    ),
    "suffix": lambda: (
        Loop(MODEL, suffix.SuffixDrafter(gamma=2, reach=4), TokenRule()),
        (TABLE, suffix_array.build([[1, 2, 3, 1, 2, 4]], 20, 4)),
    ),
    "bigram": lambda: (
        Loop(
            MODEL,
            tree_of(ngram.NgramDrafter(ngram.BIGRAM, 1), "top"),
            tree_rule.TreeRule(trace=True),
            trace=True,
        ),
        (TABLE, BIGRAMS),
    ),
    "simulated": lambda: (
        Loop(MODEL, simulated.SimulatedDrafter(2), TokenRule()),
        (TABLE, simulated.replay({0: (0, 1, 2, 3), 1: (3, 1)}, 0.5)),
    ),
    "dynamic": lambda: (
        Loop(
            MODEL,
            dynamic.DynamicTreeDrafter(
                source=DRAFTER, top_k=2, depth=2, nodes=4
            ),
            tree_rule.TreeRule(),
        ),
        (TABLE, DRAFT),
    ),
    "medusa and typical": medusa_loop,
    "eagle": eagle_loop,
}


@pytest.mark.parametrize("sort", SORTS)
def test_keys_serve_once_and_nothing_is_nan(sort):
  """sgl-project/sglang-jax#940: no key serves twice, and nothing is NaN."""
  loop, tables = SORTS[sort]()
  for batch in batches(loop):
    with jax.debug_key_reuse(True), jax.debug_nans(True):
      state = mocks.decode(loop, *tables, batch, BUDGET)
    assert np.all(state.done_B)


def test_every_source_and_every_rule_is_of_a_sort():
  """What is added to the package is added here, too."""
  loops = [make()[0] for make in SORTS.values()]
  sources = [loop.drafter for loop in loops]
  sources += [getattr(drafter, "source", None) for drafter in sources]
  folder = pathlib.Path(none.__file__).parent
  known = {type(drafter).__name__ for drafter in sources}
  known |= {type(loop.rule).__name__ for loop in loops}
  for room, ending in ((folder, "Drafter"), (folder.parent / "verify", "Rule")):
    for path in room.glob("*.py"):
      names = re.findall(rf"^class (\w+{ending})\b", path.read_text(), re.M)
      assert set(names) <= known, path


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
