"""The loop with trees: laws, node logits, caches, edges, reports."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
from specjax import sampling
from specjax import topology as topology_lib
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.decoding import state as state_lib
from specjax.drafters import model as model_drafter
from specjax.drafters import ngram
from specjax.drafters import none
from specjax.drafters import tree as tree_drafter
from specjax.models import cache as cache_lib
from specjax.models import reading
from specjax.verify import proposal as proposals
from specjax.verify import token
from specjax.verify import tree as tree_rule
from specjax.verify import typical
from tests import drawn as drawing
from tests import enumeration
from tests import mocks
from tests import test_loop_law
from tests import text_laws

Loop = loop_lib.Loop
ModelDrafter = model_drafter.ModelDrafter
Settings = sampling.Settings
TreeDrafter = tree_drafter.TreeDrafter
TreeRule = tree_rule.TreeRule

quick_compiles = mocks.quick_compiles
KINDS = tuple(tree_drafter.SIBLINGS)
PATHS = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 1, 0))
TREE = topology_lib.Topology(PATHS)
GREEDY = Settings(temperature=0.0, eos=())


def drafter_of(source, topology=TREE, siblings="top"):
  return TreeDrafter(source=source, topology=topology, siblings=siblings)


@pytest.mark.parametrize(
    "siblings",
    [
        pytest.param(kind, marks=[pytest.mark.slow] * (kind == "independent"))
        for kind in KINDS
    ],
)
def test_settings_side_by_side(siblings):
  """The target's law over several rounds; greedy rows among sampled ones."""
  source = ModelDrafter(mocks.TableModel(3), 1)
  table = mocks.random_table(source.module, 1)
  loop = Loop(
      test_loop_law.TARGET, drafter_of(source, siblings=siblings), TreeRule()
  )
  settings = test_loop_law.MIXED
  misfit = test_loop_law.worst(loop, table, settings, rows=4000)
  assert misfit < test_loop_law.RIGHT


@pytest.mark.parametrize("siblings", KINDS)
@pytest.mark.slow
def test_a_narrower_and_colder_draft(siblings):
  """Of two ids, one often cut: siblings that stand for no token."""
  source = ModelDrafter(mocks.TableModel(2), 1, temperature=0.5, top_p=0.9)
  table = mocks.random_table(source.module, 1)
  loop = Loop(
      test_loop_law.TARGET, drafter_of(source, siblings=siblings), TreeRule()
  )
  settings = test_loop_law.MIXED
  misfit = test_loop_law.worst(loop, table, settings, rows=3000)
  assert misfit < test_loop_law.RIGHT


def test_the_lossy_rule_is_seen():
  """And the check is strong enough to see it."""
  source = ModelDrafter(mocks.TableModel(3), 1)
  table = mocks.random_table(source.module, 1)
  loop = Loop(
      test_loop_law.TARGET, drafter_of(source), typical.TypicalRule()
  )
  misfit = test_loop_law.worst(
      loop, table, [test_loop_law.PLAIN], rows=4000
  )
  assert misfit > test_loop_law.WRONG


MODELS = {
    "t5": mocks.tiny_t5,
    "llama": functools.partial(mocks.tiny_decoder, "llama"),
    "gpt2": functools.partial(mocks.tiny_decoder, "gpt2"),
}
PROMPTS = ((0,),), ((3, 5, 1, 2), (4, 4, 2))


@functools.cache
def prompted(kind):
  """A model, its params and a batch that goes with it."""
  module, params = MODELS[kind]()
  is_t5 = kind == "t5"
  requests = mocks.requests(
      GREEDY,
      9,
      prompts=((0,),) * 2 if is_t5 else ((3, 5, 1, 2), (4, 4, 2)),
      sources=mocks.SOURCES[:2] if is_t5 else (None,),
  )
  batch = mocks.copies(requests, 1, vocabulary=29, seed=0)
  return module, params, batch


@functools.partial(jax.jit, static_argnums=0)
def scored(loop, params, state, proposal):
  """Logits of one pass of the target."""
  return loop.score(params, state, proposal)[1]


def read(kind, tokens_BN, shape):
  """Logits of one pass over a tree, behind each row's prompt."""
  module, params, batch = prompted(kind)
  loop = Loop(module, none.NoDrafter(), TreeRule())
  state = loop.prefill(params, (), batch, 9)
  # Stale numbers in every slot that is not the prompt's.
  slots = state.cache.slots + tokens_BN.shape[1]
  stale = jax.tree.map(np.array, module.empty_cache(2, slots))

  def grow(old, new):
    new[...] = 3.0
    new[tuple(map(slice, old.shape))] = old
    return jnp.asarray(new)

  state = state.replace(cache=jax.tree.map(grow, state.cache, stale))
  count_B = jnp.full((2,), tokens_BN.shape[1], jnp.int32)
  proposal = proposals.Proposal(
      tokens_BN, count_B, None, proposals.Kind.POINT, tree=shape
  )
  return np.asarray(scored(loop, params, state, proposal))


@pytest.mark.parametrize("kind", MODELS)
def test_node_logits_are_those_of_the_path_as_a_chain(kind):
  """PaddlePaddle/FastDeploy#3514; to 1e-5, and siblings bit for bit."""
  rng = np.random.default_rng(0)
  random = [each.parents for each in drawing.topologies(2, 6, 3)]
  for parents in ((-1, -1, 0, 0, 1, 3), *random):
    shape = proposals.Tree(jnp.tile(jnp.array(parents), (2, 1)), 3)
    tokens_BN = jnp.asarray(rng.integers(3, 29, (2, 6)), jnp.int32)
    logits = read(kind, tokens_BN, shape)
    paths = [enumeration.path_to(parents, node) for node in range(6)]
    leaves = [path for path in paths if path[-1] not in parents]
    for path in leaves:
      chain = read(kind, tokens_BN[:, jnp.array(path)], None)
      places = [0, *(node + 1 for node in path)]
      np.testing.assert_allclose(logits[:, places], chain, atol=1e-5)
    # Node 0 changes, and so do those below it; others do not.
    other = read(kind, tokens_BN.at[:, 0].add(-1), shape)
    np.testing.assert_array_equal(logits[:, 0], other[:, 0])
    for node, path in enumerate(paths):
      one, two = logits[:, node + 1], other[:, node + 1]
      if 0 in path:
        assert np.all(np.any(one != two, axis=-1))
      else:
        np.testing.assert_array_equal(one, two)


@functools.partial(jax.jit, static_argnums=(0, 5))
def fresh_cache(module, params, tokens_BS, length_B, memory, slots):
  """What reading a text at once makes."""
  cache, _ = reading.read_prompt(
      module,
      params,
      tokens_BS,
      length_B,
      memory,
      width=tokens_BS.shape[1],
      slots=slots,
  )
  return cache


def check_cache(module, params, state, cache, known_B, memory):
  """The first `known` slots hold what a fresh reading of the text would."""
  fresh = fresh_cache(
      module, params, state.tokens_BS, known_B + 1, memory, cache.slots
  )
  there_BS = np.arange(cache.slots) < np.asarray(known_B)[:, None]
  for got, want, axis in (
      *((a, b, 3) for a, b in zip(cache.key, fresh.key)),
      *((a, b, 2) for a, b in zip(cache.value, fresh.value)),
  ):
    rows = lambda x: np.moveaxis(np.asarray(x), axis, 1)[there_BS]
    np.testing.assert_allclose(rows(got), rows(want), atol=1e-5)


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_caches_equal_a_fresh_reading_after_each_round(kind):
  """The target's, and the draft's but for the two newest tokens."""
  module, params, batch = prompted(kind)
  draft = mocks.blurred(params, 1, 0.3)
  loop = Loop(module, drafter_of(ModelDrafter(module, 1)), TreeRule())
  state = loop.prefill(params, draft, batch, 9)
  branched = 0
  while not np.all(state.done_B):
    before = state.length_B
    state = mocks.one_round(loop, params, draft, state)
    length_B = jnp.where(state.done_B, 1, state.length_B)
    check_cache(
        module, params, state, state.cache, length_B - 1, state.memory
    )
    own = state.drafter.source
    known_B = jnp.maximum(length_B - 2, 0)
    check_cache(module, draft, state, own.cache, known_B, own.memory)
    branched += int(jnp.max(state.length_B - before)) > 1
  assert branched
  plain = Loop(module, none.NoDrafter(), TreeRule())
  want = mocks.decode(plain, params, (), batch, 9)
  assert mocks.texts(state) == mocks.texts(want)
  assert np.all(state.tallies.rounds_B < want.tallies.rounds_B)


def counting(topology, budget, eos=(), trace=False):
  """0 1 2 3 ..., drafted by the target itself; the finished state."""
  model = mocks.TableModel(40)
  table = mocks.counting_table(40, noise=0.1)
  loop = Loop(
      model,
      drafter_of(ModelDrafter(model, 1), topology),
      TreeRule(trace=trace),
      log_probs=True,
      trace=trace,
  )
  settings = Settings(temperature=0.0, eos=eos)
  batch = mocks.copies(
      mocks.requests(settings, budget), 1, vocabulary=40, seed=0
  )
  return mocks.decode(loop, table, table, batch, max(budget))


@pytest.mark.parametrize("topology", [TREE, topology_lib.chain(3)])
def test_a_draft_that_is_the_target_is_always_accepted(topology):
  """Along first children, wherever in the tree those stand."""
  deepest = 2 if topology is TREE else 3
  state = counting(topology, [12, 1, 2, 5])
  for text, rounds, budget in zip(
      mocks.texts(state), state.tallies.rounds_B, [12, 1, 2, 5]
  ):
    assert text == tuple(range(1, budget + 1))
    assert rounds == -(-budget // (deepest + 1))
  np.testing.assert_array_equal(state.log_probs.law_BS, 0)


@pytest.mark.parametrize("place", range(1, 6))
def test_an_end_inside_a_path(place):
  """Nothing behind it, whichever node it was."""
  state = counting(TREE, [12], eos=(place,))
  assert mocks.texts(state) == [tuple(range(1, place + 1))]
  assert np.all(state.ended_B)


def test_a_trace_names_nodes():
  state = counting(TREE, [6], trace=True)
  np.testing.assert_array_equal(state.trace.node_BRG[0, 0, :2], [0, 3])
  np.testing.assert_array_equal(state.trace.draft_BRG[0, 0, :2], [1, 2])
  assert np.all(state.tallies.drafted_B == 7 * state.tallies.rounds_B)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Hearing(TreeDrafter):
  """Also notes what `observe` is told; the target's newest digit is tapped."""

  taps = (-1,)

  def prefill(self, params, context, *, prompt_width, slots):
    state = super().prefill(
        params, context, prompt_width=prompt_width, slots=slots
    )
    empty_BS = jnp.full(context.tokens_BS.shape, -1.0, jnp.float32)
    return state, empty_BS

  def propose(self, params, state, context, key_B, width):
    proposal, own = super().propose(params, state[0], context, key_B, width)
    return proposal, (own, state[1])

  def observe(self, params, state, tokens_BT, features, count_B, context):
    own = super().observe(
        params, state[0], tokens_BT, features, count_B, context
    )
    return own, state_lib.write_rows(
        state[1], features[0][..., 0], context.length_B, count_B
    )


def test_features_are_those_before_each_emitted_token():
  model = mocks.TableModel(5)
  tables = [mocks.random_table(model, seed) for seed in (0, 1)]
  drafter = _Hearing(source=ModelDrafter(model, 1), topology=TREE)
  batch = mocks.copies(
      mocks.requests(Settings(temperature=1.0, eos=()), 12),
      8,
      vocabulary=5,
      seed=0,
  )
  state = mocks.decode(Loop(model, drafter, TreeRule()), *tables, batch, 12)
  assert np.any(state.tallies.accepted_BG[:, 1])
  np.testing.assert_array_equal(
      state.drafter[1][:, 1:], state.tokens_BS[:, :-1] + 1
  )


def test_ngrams_are_a_source_too():
  """A bigram's tree, its siblings the likeliest successors."""
  table = ngram.Table(
      log_unigram_V=jnp.log(jnp.array([0.1, 0.2, 0.3, 0.4])),
      log_backoff_V=jnp.full((4,), -1.0),
      start_V=jnp.zeros(4, jnp.int32),
      count_V=jnp.array([2, 0, 0, 0]),
      successor_E=jnp.array([1, 2, 0, 0]),
      log_prob_E=jnp.log(jnp.array([0.5, 0.4, 1.0, 1.0])),
      longest=2,
  )
  model = mocks.TableModel(4)
  loop = Loop(
      model, drafter_of(ngram.NgramDrafter(ngram.BIGRAM, 1)), TreeRule()
  )
  batch = mocks.copies(mocks.requests(GREEDY, 3), 1, vocabulary=4, seed=0)
  target = mocks.random_table(model, 0)
  state = loop.prefill(target, table, batch, 3)
  proposal, _ = jax.jit(loop.propose)(table, state)
  # After 0 come 1, 2, and by the unigram 3; after those 3, then 2.
  np.testing.assert_array_equal(proposal.tokens_BN, [[1, 2, 3, 3, 2, 3, 3]])
  plain = Loop(model, none.NoDrafter(), TreeRule())
  want = mocks.decode(plain, target, (), batch, 3)
  assert mocks.texts(loop.run(target, table, state)) == mocks.texts(want)


DRAWN = mocks.TableModel(3)
SETTINGS = [
    Settings(temperature=1.0, eos=()),
    Settings(temperature=0.7, top_k=2, eos=(1,)),
    Settings(temperature=1.3, top_p=0.8, eos=(0,)),
    Settings(temperature=0.0, eos=(2,)),
]


@functools.cache
def drawn(ids=tuple(range(24))):
  """Rows whose siblings are drawn, of all settings, on the host."""
  loop = Loop(
      DRAWN,
      drafter_of(ModelDrafter(DRAWN, 1), siblings="distinct"),
      TreeRule(),
      log_probs=True,
  )
  requests = mocks.requests(
      [SETTINGS[i % 4] for i in ids], [1 + i % 9 for i in ids], ids=ids
  )
  batch = requests_lib.make_batch(requests, vocabulary=3, seed=0)
  tables = [mocks.random_table(DRAWN, seed) for seed in (0, 1)]
  state = mocks.decode(loop, *tables, batch, 9)
  return jax.device_get(state.replace(key_B=None))


def test_log_probs_along_a_path():
  """ggml-org/llama.cpp#27972: those of the nodes that were taken."""
  state, table = drawn(), np.asarray(mocks.random_table(DRAWN, 0))
  for row, text in enumerate(mocks.texts(state)):
    for i, token_id in enumerate(text):
      before = (0, *text[:i])
      p_V = text_laws.next_law(DRAWN, table, SETTINGS[row % 4], before, i)
      raw_V = table[DRAWN.code(before)]
      want = np.log(p_V[token_id]), raw_V[token_id] - np.log(
          np.sum(np.exp(raw_V))
      )
      got = [
          buffer_BS[row, 1 + i]
          for buffer_BS in (state.log_probs.law_BS, state.log_probs.model_BS)
      ]
      np.testing.assert_allclose(got, want, atol=1e-5)


def test_tallies_of_random_paths():
  """sgl-project/sglang#11572: accepted is what was judged, and came out."""
  state, tallies = drawn(), drawn().tallies
  emitted_B = state.length_B - state.prompt_B
  # A cut in a round's drafts leaves its extra token out.
  cut_B = tallies.accepted_BG.sum(axis=1) + tallies.rounds_B - emitted_B
  assert set(cut_B.tolist()) == {0, 1}
  assert np.all(tallies.accepted_BG <= tallies.judged_BG)
  assert np.all(tallies.judged_BG[:, 1:] <= tallies.accepted_BG[:, :-1])
  assert np.all(tallies.judged_BG <= tallies.rounds_B[:, None])


def test_rows_of_trees_wherever_they_stand():
  """vllm-project/vllm#6038, #10863."""
  texts = mocks.texts(drawn())
  order = np.random.default_rng(0).permutation(len(texts)).tolist()
  assert mocks.texts(drawn(tuple(order))) == [texts[i] for i in order]


def test_chains_move_nothing():
  """No gather is compiled for them."""
  model = mocks.TableModel(3)
  table = mocks.random_table(model, 0)
  batch = mocks.copies(mocks.requests(GREEDY, 4), 1, vocabulary=3, seed=0)
  loop = Loop(model, ModelDrafter(model, 2), token.TokenRule())
  state = loop.prefill(table, table, batch, 4)
  moves = lambda loop, state: mock.patch.object(
      cache_lib, "keep_path", wraps=cache_lib.keep_path
  )
  with moves(loop, state) as moved:
    jax.eval_shape(loop.round, table, table, state)
  assert not moved.called
  shaped = Loop(model, drafter_of(ModelDrafter(model, 1)), TreeRule())
  state = shaped.prefill(table, table, batch, 4)
  with moves(shaped, state) as moved:
    jax.eval_shape(shaped.round, table, table, state)
  assert moved.call_count == 2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (dict(siblings="other"), "siblings"),
        (dict(source=ModelDrafter(None, 1, argmax=True)), "argmax"),
        (
            dict(siblings="distinct", topology=topology_lib.Topology(((1,),))),
            "tree",
        ),
    ],
    ids=["siblings", "argmax", "a rank left out"],
)
def test_wrong_values_are_refused(options, field):
  made = dict(source=ModelDrafter(None, 1), topology=TREE) | options
  with pytest.raises(errors.UserError, match=f"^{field}: "):
    TreeDrafter(**made)
