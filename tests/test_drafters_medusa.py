"""Medusa's drafts in the loop: whose state, which place, whose law."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
from specjax import sampling
from specjax import topology as topology_lib
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import medusa as medusa_drafter
from specjax.drafters import none
from specjax.models import cache as cache_lib
from specjax.models import medusa
from specjax.verify import token
from specjax.verify import tree as tree_rule
from specjax.verify import typical
from tests import mocks
from tests import test_loop_law

Loop = loop_lib.Loop
Settings = sampling.Settings

quick_compiles = mocks.quick_compiles
TREE = topology_lib.Topology(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0)))
GREEDY = Settings(eos=(2,))


@dataclasses.dataclass(frozen=True)
class TableHeads:
  """Heads whose logits are rows of tables, [M, V + 1, V], by the state."""

  heads: int
  vocabulary: int

  dtype = jnp.float32
  carried = None

  @property
  def config(self):
    return medusa.MedusaConfig(1, self.vocabulary, self.heads, own=True)

  def apply(self, params, x, head=None, method=None):
    if method == "logits":
      return params[head][x[..., 0].astype(jnp.int32)]
    return jnp.repeat(x[..., None, :], self.heads, axis=-2)


def drafter_of(heads, target=None, gamma=2, topology=None):
  return medusa_drafter.MedusaDrafter(
      heads=heads, target=target, gamma=gamma, topology=topology
  )


def rule_of(topology, **options):
  kind = token.TokenRule if topology is None else tree_rule.TreeRule
  return kind(**options)


def counting_heads(heads, vocabulary):
  """Head m of a state whose token is x says x + 1 + m."""
  table = np.zeros((heads, vocabulary + 1, vocabulary), np.float32)
  for m in range(heads):
    for state in range(1, vocabulary + 1):
      # A TableModel's state is its token's number and 1.
      said = state - 1 + 2 + m
      if said < vocabulary:
        table[m, state, said] = 5
  params = medusa.MedusaParams(jnp.asarray(table), ())
  return TableHeads(heads, vocabulary), params


@pytest.mark.parametrize("topology", [None, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("prompt", [(0,), (0, 1, 2)])
def test_heads_speak_of_what_follows_the_newest_token(topology, prompt):
  """0 1 2 3 ...: all is accepted, from the second round on or the first."""
  model = mocks.TableModel(40)
  heads, params = counting_heads(3, 40)
  loop = Loop(
      model, drafter_of(heads, topology=topology), rule_of(topology)
  )
  budgets = [12, 1, 2, 6]
  batch = mocks.copies(
      mocks.requests(
          Settings(temperature=0.0, eos=()), budgets, prompts=(prompt,)
      ),
      1,
      vocabulary=40,
      seed=0,
  )
  table = mocks.counting_table(40)
  state = mocks.decode(loop, table, params, batch, max(budgets))
  # A prompt of one token has no state: its first round is a plain one.
  lone = len(prompt) == 1
  for row, budget in enumerate(budgets):
    first = prompt[-1] + 1
    assert mocks.texts(state)[row] == tuple(range(first, first + budget))
    assert state.tallies.rounds_B[row] == lone + -(-(budget - lone) // 3)
    assert state.tallies.empty_B[row] >= lone


def test_an_end_inside_the_drafts():
  model = mocks.TableModel(40)
  heads, params = counting_heads(3, 40)
  loop = Loop(model, drafter_of(heads, gamma=3), token.TokenRule())
  requests = mocks.requests(
      [Settings(temperature=0.0, eos=(end,)) for end in range(1, 9)], 12
  )
  batch = mocks.copies(requests, 1, vocabulary=40, seed=0)
  state = mocks.decode(loop, mocks.counting_table(40), params, batch, 12)
  want = [tuple(range(1, end + 1)) for end in range(1, 9)]
  assert mocks.texts(state) == want and np.all(state.ended_B)


def random_heads(heads=2, seed=1):
  rng = np.random.default_rng(seed)
  table = rng.normal(scale=1.5, size=(heads, 4, 3))
  params = medusa.MedusaParams(jnp.asarray(table, jnp.float32), ())
  return TableHeads(heads, 3), params


@pytest.mark.parametrize("topology", [None, TREE], ids=["chain", "tree"])
def test_the_law_is_the_targets(topology):
  """Greedy rows among sampled ones, over several rounds."""
  heads, params = random_heads()
  drafter = drafter_of(heads, topology=topology)
  loop = Loop(test_loop_law.TARGET, drafter, rule_of(topology))
  misfit = test_loop_law.worst(
      loop, params, test_loop_law.MIXED, rows=4000
  )
  assert misfit < test_loop_law.RIGHT


def test_the_lossy_rule_is_seen():
  heads, params = random_heads()
  drafter = drafter_of(heads, topology=TREE)
  loop = Loop(test_loop_law.TARGET, drafter, typical.TypicalRule())
  misfit = test_loop_law.worst(
      loop, params, [test_loop_law.PLAIN], rows=4000
  )
  assert misfit > test_loop_law.WRONG


MODELS = {
    "t5": mocks.tiny_t5,
    "llama": functools.partial(mocks.tiny_decoder, "llama"),
}


@functools.cache
def lively(kind, own):
  """A target, heads that say something, and what the drafter reads."""
  target, params = MODELS[kind]()
  config = medusa.MedusaConfig(16, 29, heads=3, blocks=2, own=own)
  heads = medusa.Medusa(config)
  made = heads.init(
      jax.random.key(0), jnp.zeros((1, 1, 16)), method="everything"
  )
  rng = np.random.default_rng(0)
  made = jax.tree.map(
      lambda x: jnp.asarray(rng.normal(scale=0.3, size=x.shape), x.dtype), made
  )
  return target, params, heads, medusa.MedusaParams(made, params)


def batch_of(kind, ids, budget=14):
  is_t5 = kind == "t5"
  prompts = ((3, 5, 1, 4), (4, 4, 6), (7,), (9, 8, 3, 3, 6))
  batch = requests_lib.make_batch(
      mocks.requests(
          GREEDY,
          budget,
          prompts=((0,),) if is_t5 else [prompts[i] for i in ids],
          sources=[mocks.SOURCES[i] for i in ids] if is_t5 else (None,),
          ids=ids,
      ),
      vocabulary=29,
      seed=0,
      width=8 if is_t5 else None,
      prompt_width=None if is_t5 else 8,
  )
  return mocks.widen_eos(batch, 1)


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("kind", MODELS)
def test_greedy_is_plain_decoding_and_rows_stand_alone(kind, own):
  target, params, heads, read = lively(kind, own)
  topology = None if own else TREE
  drafter = drafter_of(heads, target, gamma=3, topology=topology)
  loop = Loop(target, drafter, rule_of(topology))
  batch = batch_of(kind, [0, 1, 2, 3])
  state = mocks.decode(loop, params, read, batch, 14)
  plain = dataclasses.replace(loop, drafter=none.NoDrafter())
  want = mocks.texts(mocks.decode(plain, params, (), batch, 14))
  assert mocks.texts(state) == want
  assert np.sum(state.tallies.drafted_B) > 0
  other = mocks.decode(loop, params, read, batch_of(kind, [3, 2, 0, 1]), 14)
  assert mocks.texts(other) == [want[i] for i in (3, 2, 0, 1)]


def test_the_state_is_that_before_the_newest_token():
  """Through prompts, rounds and cuts: as one pass over the text has it."""
  target, params, heads, read = lively("llama", False)
  drafter = drafter_of(heads, target, gamma=3)
  loop = Loop(target, drafter, token.TokenRule())
  state = loop.prefill(params, read, batch_of("llama", [0, 1, 2, 3]), 14)
  def whole(tokens_BS):
    query = cache_lib.whole_query(tokens_BS)
    return target.apply(params, query, None, taps=(-1,), method="decode")[2][0]

  whole = jax.jit(whole)
  for _ in range(3):
    known_B = np.asarray(state.drafter.known_B)
    hidden_BSD = np.asarray(whole(state.tokens_BS))
    for row in np.flatnonzero(known_B & ~np.asarray(state.done_B)):
      np.testing.assert_allclose(
          state.drafter.state_BD[row],
          hidden_BSD[row, int(state.length_B[row]) - 2],
          atol=1e-4,
      )
    assert known_B.tolist()[:2] == [True, True]
    state = mocks.one_round(loop, params, read, state)
  assert np.all(state.drafter.known_B)


def test_heads_begin_as_the_targets_own_output():
  config = medusa.MedusaConfig(8, 11, heads=2, blocks=2)
  heads = medusa.Medusa(config)
  x_BTD = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 8)))
  params = heads.init(jax.random.key(0), x_BTD, method="everything")
  states_BTMD = heads.apply(params, x_BTD)
  for m in range(2):
    np.testing.assert_allclose(states_BTMD[:, :, m], x_BTD, atol=1e-6)
  # Of several blocks each has weights of its own.
  names = sorted(params["params"])
  assert names == ["later_layers_0_0", "later_layers_0_1", "layers_0"]


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(gamma=3), "^gamma: give 2 or less"),
        (dict(topology=topology_lib.chain(3)), "^tree: give 2 or less"),
        (dict(gamma=0), "^gamma: give a whole number"),
    ],
)
def test_more_places_than_heads_are_refused(options, words):
  """FasterDecoding/Medusa#63: 63 nodes of 3 heads."""
  heads, _ = random_heads()
  with pytest.raises(errors.UserError, match=words):
    drafter_of(heads, **options)
