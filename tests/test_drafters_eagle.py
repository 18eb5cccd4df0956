"""EAGLE: texts, laws, caches, and what a head reads."""

import dataclasses
import functools
import itertools

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax import topology as topology_lib
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import dynamic
from specjax.drafters import eagle as eagle_drafter
from specjax.drafters import none
from specjax.drafters import tree as tree_drafter
from specjax.models import cache as cache_lib
from specjax.models import eagle
from specjax.models import listed as listed_lib
from specjax.verify import token
from specjax.verify import tree as tree_rule
from tests import drawn
from tests import enumeration
from tests import mocks
from tests import text_laws

EagleDrafter = eagle_drafter.EagleDrafter
Loop = loop_lib.Loop
Settings = sampling.Settings

quick_compiles = mocks.quick_compiles
V = 7
TARGETS = {
    "t5": lambda: mocks.tiny_t5(vocabulary=V),
    "llama": lambda: mocks.tiny_decoder("llama", vocabulary=V),
    "gpt2": lambda: mocks.tiny_decoder("gpt2", vocabulary=V),
}
PATHS = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
SOURCES = ((5, 3, 6, 1), (2, 1), (4, 4))
# The last one's first round has no hidden state to begin with.
PROMPTS = ((3, 5, 1, 2, 2, 4), (4, 4, 2), (6,))


@functools.cache
def eagle_of(kind, seed=0):
  """A target, its params, and a head of random numbers."""
  target, target_params = TARGETS[kind]()
  model = eagle.of(target)
  params = jax.jit(model.init)(jax.random.key(seed))
  return model, target_params, model.params(params, target_params)


def drafter_of(shape, model):
  """A drafter of that shape, and the rule that goes with it."""
  if shape == "chain":
    return EagleDrafter(model, 3), token.TokenRule()
  if shape == "argmax":
    return EagleDrafter(model, 3, argmax=True), token.TokenRule()
  source = EagleDrafter(model, 1, chunk=4)
  if shape == "dynamic":
    made = dynamic.DynamicTreeDrafter(
        source=source, top_k=3, depth=3, nodes=7
    )
  else:
    made = tree_drafter.TreeDrafter(
        source=source,
        topology=topology_lib.Topology(PATHS),
        siblings=shape,
    )
  return made, tree_rule.TreeRule()


def batch_of(kind, settings, budgets):
  """Three rows."""
  is_t5 = kind == "t5"
  requests = mocks.requests(
      settings,
      budgets,
      prompts=((0,),) * 3 if is_t5 else PROMPTS,
      sources=SOURCES if is_t5 else (None,),
  )
  return requests_lib.make_batch(requests, vocabulary=V, seed=0)


@functools.partial(jax.jit, static_argnums=0)
def whole(model, params, target_params, tokens_BS, memory):
  """What a head makes of whole texts: its cache, hidden_BTD."""
  query = cache_lib.whole_query(tokens_BS)
  features = model.target.apply(
      target_params, query, None, memory, taps=(eagle.TAP,), method="decode"
  )[2][0]
  return read_whole(model, params, tokens_BS, features, memory)


def read_whole(model, params, tokens_BS, features_BSD, memory):
  """The same of given features."""
  pairs = cache_lib.whole_query(tokens_BS[:, 1:])
  hidden_BTD, cache = model.read(
      params,
      pairs,
      features_BSD[:, :-1],
      None,
      model.remember(params, memory),
  )
  return cache, hidden_BTD


def check_heard(model, params, target_params, state):
  """A head has read the text with its true hidden states, and nothing else."""
  source = getattr(state.drafter, "source", state.drafter)
  cache, hidden_BTD = whole(
      model, params, target_params, state.tokens_BS, state.memory
  )
  for row, length in enumerate(np.asarray(state.length_B)):
    if state.done_B[row] or length < 2:
      continue
    np.testing.assert_allclose(
        source.hidden_BD[row], hidden_BTD[row, length - 2], atol=2e-5
    )
    for got, want in zip(
        (source.cache.key[0], jnp.swapaxes(source.cache.value[0], 2, 3)),
        (cache.key[0], jnp.swapaxes(cache.value[0], 2, 3)),
    ):
      np.testing.assert_allclose(
          got[row, ..., : length - 1], want[row, ..., : length - 1], atol=2e-5
      )


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("llama", "chain"),
        ("llama", "top"),
        ("llama", "dynamic"),
        ("t5", "dynamic"),
    ],
)
def test_greedy_texts_are_plain_ones_and_caches_are_fresh(kind, shape):
  """After each round; rows end by an EOS, or at their first token."""
  model, target_params, params = eagle_of(kind)
  drafter, rule = drafter_of(shape, model)
  settings = [Settings(eos=(1, 5)), Settings(eos=()), Settings(eos=())]
  batch = batch_of(kind, settings, [12, 1, 12])
  loop = Loop(model.target, drafter, rule)
  state = loop.prefill(target_params, params, batch, 12)
  check_heard(model, params, target_params, state)
  while not np.all(state.done_B):
    state = mocks.one_round(loop, target_params, params, state)
    check_heard(model, params, target_params, state)
  plain = Loop(model.target, none.NoDrafter(), token.TokenRule())
  want = mocks.decode(plain, target_params, (), batch, 12)
  assert mocks.texts(state) == mocks.texts(want)
  assert np.any(state.tallies.accepted_BG)
  # What has no hidden state yet is not drafted for, once.
  blank_B = np.asarray(batch.prompt_B) == 1
  if drafter.trees:
    np.testing.assert_array_equal(state.tallies.empty_B, blank_B)
  assert np.all(np.asarray(state.tallies.empty_B)[blank_B])


@functools.cache
def law_of(settings, length):
  """The law of a tiny Llama's texts behind PROMPTS[0]."""
  target, params = TARGETS["llama"]()
  texts = np.array(list(itertools.product(range(V), repeat=length - 1)))
  prompt = np.array(PROMPTS[0])
  rows = np.concatenate(
      [np.broadcast_to(prompt, (len(texts), len(prompt))), texts], axis=1
  )
  logits = jax.jit(target.apply)(params, rows.astype(np.int32))
  p = enumeration.reference_law(logits[:, len(prompt) - 1 :], settings)
  law = {}
  for text in itertools.product(range(V), repeat=length):
    row = int(np.dot(text[:-1], V ** np.arange(length - 1)[::-1]))
    chance = np.prod([p[row, i, token] for i, token in enumerate(text)])
    if chance > 0:
      law[text] = float(chance)
  return law


@pytest.mark.parametrize("shape", ["chain", "distinct"])
def test_texts_have_the_targets_law(shape):
  """Drawn tokens are judged by their true q."""
  model, target_params, params = eagle_of("llama")
  drafter, rule = drafter_of(shape, model)
  settings = Settings(temperature=0.8, top_p=0.9, eos=())
  requests = mocks.requests(settings, 4, prompts=PROMPTS[:1])
  batch = mocks.copies(requests, 4000, vocabulary=V, seed=0)
  loop = Loop(model.target, drafter, rule)
  state = mocks.decode(loop, target_params, params, batch, 4)
  assert np.any(state.tallies.accepted_BG[:, 1])
  misfit = text_laws.misfit(mocks.texts(state), law_of(settings, 4))
  assert misfit < 5


LISTED = (1, 2, 4, 6)


def listed_of(model, target_params, params):
  """The same head, choosing from a few ids."""
  kernel = listed_lib.output_kernel(
      model.target, target_params, np.array(LISTED)
  )
  return params.replace(
      listed=listed_lib.listed(LISTED, V, kernel.astype(jnp.bfloat16))
  )


@pytest.mark.parametrize("kind", TARGETS)
def test_listed_logits_are_the_targets(kind):
  """In bfloat16; all others can't be drafted."""
  model, target_params, params = eagle_of(kind)
  few = listed_of(model, target_params, params)
  width = model.target.config.d_model
  hidden_BTD = jax.random.normal(jax.random.key(3), (2, 3, width))
  want_BTV, got_BTV = (model.logits(x, hidden_BTD) for x in (params, few))
  ids_W = np.array(LISTED)
  np.testing.assert_allclose(
      got_BTV[..., ids_W], want_BTV[..., ids_W], rtol=0.02, atol=0.02
  )
  others = np.setdiff1d(np.arange(V), ids_W)
  assert np.all(got_BTV[..., others] == -np.inf)


@pytest.mark.parametrize(
    "shape",
    [
        "chain",
        pytest.param("distinct", marks=pytest.mark.slow),
        pytest.param("dynamic", marks=pytest.mark.slow),
    ],
)
def test_some_ids_change_no_law(shape):
  """arXiv 2502.14856: drafts of listed ids alone, texts of all."""
  model, target_params, params = eagle_of("llama")
  params = listed_of(model, target_params, params)
  drafter, rule = drafter_of(shape, model)
  loop = Loop(model.target, drafter, rule)
  # Greedily the texts are the plain ones.
  batch = batch_of("llama", [Settings(eos=())] * 3, [12, 3, 12])
  state = mocks.decode(loop, target_params, params, batch, 12)
  plain = Loop(model.target, none.NoDrafter(), token.TokenRule())
  want = mocks.decode(plain, target_params, (), batch, 12)
  assert mocks.texts(state) == mocks.texts(want)
  # Sampled, they have the law, in which unlisted ids are.
  settings = Settings(temperature=0.8, top_p=0.9, eos=())
  requests = mocks.requests(settings, 4, prompts=PROMPTS[:1])
  batch = mocks.copies(requests, 4000, vocabulary=V, seed=0)
  state = loop.prefill(target_params, params, batch, 4)
  proposal, _ = loop.propose(params, state)
  counted = np.arange(loop.drafter.nodes) < proposal.count_B[:, None]
  drafted = np.unique(np.asarray(proposal.tokens_BN)[counted])
  assert set(drafted) - {-1} <= set(LISTED) and len(drafted) > 1
  texts = mocks.texts(mocks.decode(loop, target_params, params, batch, 4))
  assert not {x for text in texts for x in text} <= set(LISTED)
  assert text_laws.misfit(texts, law_of(settings, 4)) < 5


@pytest.mark.parametrize("kind", TARGETS)
def test_nodes_are_read_as_their_paths_are(kind):
  """PaddlePaddle/FastDeploy#3514: as chains to 1e-5; siblings bit for bit."""
  model, target_params, params = eagle_of(kind)
  rng = np.random.default_rng(0)
  memory = None
  if kind == "t5":
    encode = lambda: model.target.apply(
        target_params,
        jnp.array([[5, 3, 1]]),
        jnp.ones((1, 3), bool),
        method="encode",
    )
    memory = jax.jit(lambda: model.remember(params, encode()))()
  start_B, on = jnp.array([3]), jnp.ones((1, 8), bool)
  cache = jax.tree.map(
      lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype),
      model.head.empty_cache(1, 20),
  )
  place_T = np.arange(8)
  read = jax.jit(
      lambda tokens_BT, hidden_BTD, sees_BTT: model.logits(
          params,
          model.read(
              params,
              cache_lib.tree_query(
                  tokens_BT, place_T, start_B, sees_BTT, 20, on
              ),
              hidden_BTD,
              cache,
              memory,
          )[0],
      )
  )
  chain = jax.jit(
      lambda tokens_BT, hidden_BTD: model.logits(
          params,
          model.read(
              params,
              cache_lib.chain_query(tokens_BT, start_B, 20, on[:, :4]),
              hidden_BTD,
              cache,
              memory,
          )[0],
      )
  )
  shapes = topology_lib.Topology(PATHS), *drawn.topologies(2, 7, 3)
  for parents in (shape.parents for shape in shapes):
    sees_BTT = tree_rule.proposals.Tree(jnp.array([parents]), 3).sees_BTT
    tokens_BT = jnp.asarray(rng.integers(0, V, (1, 8)), jnp.int32)
    hidden_BTD = jnp.asarray(rng.normal(size=(1, 8, 16)), jnp.float32)
    logits = read(tokens_BT, hidden_BTD, sees_BTT)
    paths = [enumeration.path_to(parents, node) for node in range(7)]
    for path in paths:
      places = np.array([0, *(node + 1 for node in path)])
      # What stands behind it is not seen.
      padded = np.pad(places, (0, 4 - len(places)))
      want = chain(tokens_BT[:, padded], hidden_BTD[:, padded])
      np.testing.assert_allclose(
          logits[:, places], want[:, : len(places)], atol=1e-5
      )
    # Node 0 changes, and so do those below it; others don't.
    other = read(tokens_BT.at[:, 1].add(1) % V, hidden_BTD, sees_BTT)
    np.testing.assert_array_equal(logits[:, 0], other[:, 0])
    for node, path in enumerate(paths):
      same = np.array_equal(logits[:, node + 1], other[:, node + 1])
      assert same == (0 not in path)


def memoryless():
  """A Llama of which each token follows from the one before, and its head.

  Attention adds nothing; the head looks at the token alone, and is of the same
  layer.
  """
  target, params = mocks.tiny_decoder("llama", vocabulary=29, layers=1)
  flat = dict(traverse_util.flatten_dict(params))
  out = ("params", "layers_0", "attention", "o", "kernel")
  flat[out] = jnp.zeros_like(flat[out])
  # So sure that the likeliest path is among the worthiest.
  flat["params", "lm_head", "kernel"] *= 5
  params = traverse_util.unflatten_dict(flat)
  model = eagle.of(target)
  head = dict(traverse_util.flatten_dict(model.init(jax.random.key(0))))
  head |= {path: flat[path] for path in head if path in flat}
  width = target.config.d_model
  eye = jnp.concatenate([jnp.eye(width), jnp.zeros((width, width))])
  head["params", "fc", "kernel"] = eye
  head = traverse_util.unflatten_dict(head)
  return model, params, model.params(head, params)


@pytest.mark.parametrize("shape", ["argmax", "dynamic"])
def test_a_head_that_knows_all_is_always_accepted(shape):
  """sgl-project/SpecForge#472, #473, vllm-project/vllm#47745."""
  model, target_params, params = memoryless()
  drafter, rule = drafter_of(shape, model)
  requests = mocks.requests(
      Settings(eos=()), [12, 5], prompts=((3, 8), (11, 4, 2))
  )
  batch = requests_lib.make_batch(requests, vocabulary=29, seed=0)
  loop = Loop(model.target, drafter, rule)
  state = mocks.decode(loop, target_params, params, batch, 12)
  assert state.tallies.rounds_B.tolist() == [3, 2]
  np.testing.assert_array_equal(
      state.tallies.accepted_BG, state.tallies.judged_BG
  )
  plain = Loop(model.target, none.NoDrafter(), token.TokenRule())
  want = mocks.decode(plain, target_params, (), batch, 12)
  assert mocks.texts(state) == mocks.texts(want)


def test_one_shift_between_tokens_and_hidden_states():
  """sgl-project/SpecForge#448: f_t goes with x_{t+1}, and gives x_{t+2}."""
  model, target_params, params = eagle_of("llama")
  drafter, rule = drafter_of("chain", model)
  settings = [Settings(eos=(1, 5)), Settings(eos=()), Settings(eos=())]
  batch = batch_of("llama", settings, [12, 1, 12])
  state = Loop(model.target, drafter, rule).prefill(
      target_params, params, batch, 12
  )
  prompt_BS = jnp.array([PROMPTS[0]], jnp.int32)

  @functools.partial(jax.jit, static_argnums=0)
  def read(shift):
    """The newest token's state, of pairs that stand so far apart."""
    _, _, (features_BTD,) = model.target.apply(
        target_params,
        cache_lib.whole_query(prompt_BS),
        None,
        taps=(eagle.TAP,),
        method="decode",
    )
    features_BTD = jnp.roll(features_BTD, shift - 1, axis=1)
    _, hidden_BTD = read_whole(model, params, prompt_BS, features_BTD, None)
    return hidden_BTD[0, -1]

  got_D = state.drafter.hidden_BD[0]
  np.testing.assert_allclose(got_D, read(1), atol=2e-5)
  for shift in (0, 2):
    assert np.max(np.abs(got_D - read(shift))) > 0.1


def test_embedding_and_output_matrix_are_the_targets():
  """Neither copied nor among the head's own parameters."""
  for kind in TARGETS:
    _, target_params, params = eagle_of(kind)
    for name, weights in params.target["params"].items():
      own, theirs = map(
          jax.tree.leaves, (weights, target_params["params"][name])
      )
      assert all(a is b for a, b in zip(own, theirs, strict=True))
    assert V not in {
        size for leaf in jax.tree.leaves(params.head) for size in leaf.shape
    }


def test_drafters_are_static():
  """They are arguments that programs are compiled for."""
  model, _, _ = eagle_of("llama")
  first, again = (EagleDrafter(eagle.of(model.target), 2) for _ in range(2))
  assert first == again and hash(first) == hash(again)
  assert first != dataclasses.replace(first, gamma=3)
