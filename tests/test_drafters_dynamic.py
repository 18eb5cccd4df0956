"""Trees whose shape follows the text: shapes, laws, caches."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
from specjax import sampling
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import dynamic
from specjax.drafters import model as model_drafter
from specjax.drafters import none
from specjax.verify import proposal as proposals
from specjax.verify import tree as tree_rule
from tests import enumeration
from tests import mocks
from tests import test_loop_law
from tests import test_loop_tree

DynamicTreeDrafter = dynamic.DynamicTreeDrafter
Loop = loop_lib.Loop
ModelDrafter = model_drafter.ModelDrafter
Settings = sampling.Settings
TreeRule = tree_rule.TreeRule

quick_compiles = mocks.quick_compiles
PLAIN = Settings(temperature=1.0, eos=())
TOP_2 = Settings(temperature=0.7, top_k=2, eos=())
GREEDY = Settings(temperature=0.0, eos=())


def drafter_of(source, top_k=2, depth=3, nodes=4):
  return DynamicTreeDrafter(
      source=source, top_k=top_k, depth=depth, nodes=nodes
  )


def proposed(drafter, table, texts, settings, vocabulary):
  """tokens_BN and parent_BN behind each of some texts.

  As many count as stand for tokens, which are the first ones.
  """
  requests = mocks.requests(settings, 9, prompts=texts)
  batch = requests_lib.make_batch(requests, vocabulary=vocabulary, seed=0)
  loop = Loop(mocks.TableModel(vocabulary), drafter, TreeRule())
  target = mocks.random_table(loop.target, 0)
  state = loop.prefill(target, table, batch, 9)
  proposal, _ = jax.jit(loop.propose)(table, state)
  counts_BN = np.arange(drafter.nodes) < np.asarray(proposal.count_B)[:, None]
  np.testing.assert_array_equal(proposal.tokens_BN >= 0, counts_BN)
  return np.asarray(proposal.tokens_BN), np.asarray(proposal.tree.parent_BN)


def worthiest(law, text, top_k, depth, nodes):
  """Paths of the best tree, found the slow way; `law` of a text is [V]."""
  known, frontier = [], [((), 1.0)]
  for _ in range(depth):
    children = [
        ((*path, token), worth * law(text + path)[token])
        for path, worth in frontier
        for token in np.argsort(-law(text + path), kind="stable")[:top_k]
    ]
    known += children
    frontier = sorted(children, key=lambda child: -child[1])[:top_k]
  best = sorted(known, key=lambda child: -child[1])[:nodes]
  return {tuple(map(int, path)) for path, worth in best if worth > 0}


@pytest.mark.parametrize(
    ("top_k", "depth", "nodes"), [(2, 4, 6), (3, 3, 12), (4, 1, 3)]
)
def test_shapes(top_k, depth, nodes):
  """Those of a slow search, whatever stands before."""
  source = ModelDrafter(mocks.TableModel(5), 1)
  table = mocks.random_table(source.module, 1, scale=2.5)
  texts = [(0,), (1, 2), (4, 4, 1), (3, 0)]
  settings = [PLAIN, GREEDY, TOP_2, PLAIN]
  tokens_BN, parent_BN = proposed(
      drafter_of(source, top_k, depth, nodes), table, texts, settings, 5
  )
  shapes = set()
  for row, text in enumerate(texts):
    # Greedy rows too are drafted for by how likely tokens are.
    how = PLAIN if settings[row] is GREEDY else settings[row]
    law = lambda text, how=how: enumeration.reference_law(
        table[source.module.code(text)], how
    )
    paths = [
        tuple(tokens_BN[row, i] for i in enumeration.path_to(parents, node))
        for parents in [parent_BN[row]]
        for node in range(nodes)
    ]
    got = {tuple(map(int, path)) for path in paths if min(path) >= 0}
    assert got == worthiest(law, text, top_k, depth, nodes)
    assert np.all(parent_BN[row] < np.arange(nodes))
    shapes.add(tuple(parent_BN[row].tolist()))
  assert depth == 1 or len(shapes) > 1


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_rows_have_trees_of_their_own(kind):
  """PaddlePaddle/FastDeploy#3514: nodes are read as their paths are."""
  parent_BN = np.array([[-1, -1, 0, 0, 1, 3], [-1, 0, 1, 1, 0, -1]])
  rng = np.random.default_rng(0)
  tokens_BN = rng.integers(3, 29, (2, 6)).astype(np.int32)
  logits = test_loop_tree.read(
      kind, jnp.asarray(tokens_BN), proposals.Tree(jnp.asarray(parent_BN), 3)
  )
  for nodes in ((5, 3), (5, 2), (2, 4), (4, 1)):
    index_BT = np.array(list(map(enumeration.path_to, parent_BN, nodes)))
    chain = test_loop_tree.read(
        kind, jnp.asarray(np.take_along_axis(tokens_BN, index_BT, 1)), None
    )
    for row in range(2):
      np.testing.assert_allclose(
          logits[row, index_BT[row] + 1], chain[row, 1:], atol=1e-5
      )


LENGTH, NODES = 3, 4


@functools.cache
def case(draft=PLAIN, target=PLAIN, vocabulary=3):
  """An enumeration's case, drafted for by the drafter itself."""
  reach = LENGTH + NODES
  model = mocks.TableModel(vocabulary, reach)
  source = ModelDrafter(model, 1)
  table = mocks.random_table(model, 5)
  prefixes = [
      text
      for n in range(LENGTH)
      for text in itertools.product(range(vocabulary), repeat=n)
  ]
  tokens_BN, parent_BN = proposed(
      drafter_of(source, nodes=NODES),
      table,
      [(0, *text) for text in prefixes],
      draft,
      vocabulary,
  )
  shapes = {
      text: (tuple(tokens.tolist()), tuple(parents.tolist()))
      for text, tokens, parents in zip(prefixes, tokens_BN, parent_BN)
  }
  assert len({parents for _, parents in shapes.values()}) > 1
  return enumeration.Case(
      vocabulary=vocabulary,
      length=LENGTH,
      tree=tuple(range(-1, NODES - 1)),
      target=target,
      kind=proposals.Kind.POINT,
      shapes=shapes,
  )


@pytest.mark.parametrize(
    ("draft", "target"),
    [
        (PLAIN, PLAIN),
        (TOP_2, Settings(temperature=1.3, top_p=0.8)),
    ],
    ids=["plain", "filters"],
)
def test_the_targets_law_by_enumeration(draft, target):
  """SafeAILab/EAGLE#110, #183, #221: one round, and several."""
  enumeration.check_exact(TreeRule(), case(draft, target))


class _SoftRule(TreeRule):
  """Judges chosen children by how likely the draft took them to be."""

  def judge(self, target, proposal, coin_BN):
    return super().judge(target, proposal, 0.5 * coin_BN)


def test_a_rule_with_a_soft_q_is_caught():
  with pytest.raises(AssertionError):
    enumeration.check_exact(_SoftRule(), case())


def test_settings_side_by_side():
  """The loop's texts have the target's law, over several rounds."""
  source = ModelDrafter(mocks.TableModel(3), 1)
  table = mocks.random_table(source.module, 1)
  loop = Loop(test_loop_law.TARGET, drafter_of(source), TreeRule())
  misfit = test_loop_law.worst(loop, table, test_loop_law.MIXED, rows=3000)
  assert misfit < test_loop_law.RIGHT


def test_caches_equal_a_fresh_reading_after_each_round():
  """The target's, and the draft's but for the two newest tokens."""
  module, params, batch = test_loop_tree.prompted("llama")
  draft = mocks.blurred(params, 1, 0.3)
  drafter = drafter_of(ModelDrafter(module, 1), 3, 3, 6)
  loop = Loop(module, drafter, TreeRule())
  state = loop.prefill(params, draft, batch, 9)
  branched = 0
  while not np.all(state.done_B):
    before = state.length_B
    state = mocks.one_round(loop, params, draft, state)
    length_B = np.where(state.done_B, 1, state.length_B)
    test_loop_tree.check_cache(
        module, params, state, state.cache, length_B - 1, state.memory
    )
    own = state.drafter.source
    known_B = np.maximum(length_B - 2, 0)
    test_loop_tree.check_cache(
        module, draft, state, own.cache, known_B, own.memory
    )
    branched += int(np.max(state.length_B - before)) > 2
  assert branched
  plain = Loop(module, none.NoDrafter(), TreeRule())
  want = mocks.decode(plain, params, (), batch, 9)
  assert mocks.texts(state) == mocks.texts(want)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (dict(source=ModelDrafter(None, 1, argmax=True)), "argmax"),
        (dict(top_k=0), "top_k"),
        (dict(depth=65), "depth"),
        (dict(nodes=11), "nodes"),
    ],
    ids=["argmax", "top_k", "depth", "nodes"],
)
def test_wrong_values_are_refused(options, field):
  made = dict(source=ModelDrafter(None, 1)) | options
  with pytest.raises(errors.UserError, match=f"^{field}: "):
    drafter_of(**made)
