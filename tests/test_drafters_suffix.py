"""Suffix decoding against plain-Python suffix trees, and in the loop."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.decoding import side as side_lib
from specjax.drafters import suffix
from specjax.drafters import suffix_array
from specjax.settings import Settings
from specjax.verify import proposal as proposals
from specjax.verify import token
from tests import enumeration
from tests import mocks
from tests import test_drafters_lookup

SuffixDrafter = suffix.SuffixDrafter
WIDTH = test_drafters_lookup.WIDTH
context = test_drafters_lookup.context
random_texts = test_drafters_lookup.random_texts

quick_compiles = mocks.quick_compiles


class Node(dict):
  """A node of a suffix tree: token -> child, and how often it was passed."""

  count = 0


class SuffixTree:
  """Every string of some texts, up to a depth, one token an edge."""

  def __init__(self, depth: int):
    self.depth = depth
    self.root = Node()

  def add(self, text):
    """One more text."""
    for start in range(len(text)):
      node = self.root
      for token_id in text[start : start + self.depth]:
        node = node.setdefault(token_id, Node())
        node.count += 1

  def find(self, text):
    """The node of a string, or None."""
    node = self.root
    for token_id in text:
      node = node.get(token_id)
      if node is None:
        return None
    return node

  def speculate(self, text, drafter):
    """(score, path) of the best path after a text."""
    best = np.float32(0), ()
    for m in range(1, min(len(text), self.depth - 1) + 1):
      start = self.find(text[-m:])
      if start is None:
        break
      most = int(m * drafter.factor + drafter.offset + 1e-6)
      node, path, score = start, (), np.float32(0)
      while len(path) < min(drafter.gamma, most) and node:
        token_id = min(node, key=lambda t: (-node[t].count, t))
        node = node[token_id]
        chance = np.float32(node.count) / np.float32(start.count)
        if chance < np.float32(drafter.least):
          break
        path, score = (*path, token_id), score + chance
      if score >= best[0]:
        best = score, path
    return best


def reference(drafter, text, source=None, responses=()):
  """What is drafted after a text."""
  own, earlier = SuffixTree(drafter.reach), SuffixTree(drafter.reach)
  own.add(text)
  if source is not None:
    own.add(source)
  for response in responses:
    earlier.add(response)
  a, b = own.speculate(text, drafter), earlier.speculate(text, drafter)
  return b[1] if b[0] > a[0] else a[1]


@functools.partial(jax.jit, static_argnums=0)
def proposed(drafter, params, rows):
  """The proposal right after the prompt."""
  state = drafter.prefill(params, rows, prompt_width=WIDTH, slots=0)
  return drafter.propose(params, state, rows, None, 9)[0]


def drafts(drafter, rows, params=None):
  """What is proposed for each row, as tuples."""
  proposal = proposed(drafter, params, rows)
  pairs = zip(np.asarray(proposal.tokens_BN), np.asarray(proposal.count_B))
  return [tuple(tokens[:count].tolist()) for tokens, count in pairs]


def some_texts(count, longest, seed=0):
  """Of few ids and of a few more, so that some strings come often."""
  few, more = (random_texts(count, longest, n, seed) for n in (2, 5))
  return few + more


OPTIONS = {
    "as it is": dict(gamma=4, reach=8),
    "longer": dict(gamma=6, reach=7, factor=1.5, offset=2, source=False),
    "shorter": dict(gamma=3, reach=16, factor=2.0, offset=-3.5, least=0.0),
    "surer": dict(gamma=5, reach=12, offset=5, least=0.4),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_as_the_reference(options):
  """The row's own text and earlier responses, whichever has the better path."""
  drafter = SuffixDrafter(**options)
  texts = some_texts(80, WIDTH)
  sources = some_texts(80, test_drafters_lookup.SOURCE_WIDTH, seed=1)
  rows = context(texts, sources)
  if not drafter.source:
    sources = [None] * len(texts)
  empty = suffix_array.build((), 300, drafter.reach)
  own = drafts(drafter, rows, empty)
  assert own == [
      reference(drafter, text, source) for text, source in zip(texts, sources)
  ]
  assert len(set(map(len, own))) > 2
  both = []
  for seed in range(3):
    responses = some_texts(7, 19, seed)
    both.append(drafts(drafter, rows, drafter.adopt(empty, responses)))
    for text, source, draft in zip(texts, sources, both[-1]):
      assert draft == reference(drafter, text, source, responses)
  assert all(0 < sum(map(np.array_equal, own, other)) < 160 for other in both)


def test_without_earlier_responses():
  drafter = SuffixDrafter(gamma=4, reach=8)
  texts = some_texts(40, WIDTH)
  want = [reference(drafter, text) for text in texts]
  assert drafts(drafter, context(texts)) == want


def test_however_many_places_the_newest_token_has(monkeypatch):
  drafter = SuffixDrafter(gamma=4, reach=8)
  texts = random_texts(80, WIDTH, 2)
  want = [reference(drafter, text) for text in texts]
  for few in ((1, 3), (9,)):
    monkeypatch.setattr(suffix, "_FEW", few)
    propose = jax.jit(lambda rows: drafter.propose(None, (), rows, None, 9)[0])
    # One row at a time, so that each number has its turn.
    for text, path in zip(texts, want):
      proposal = propose(context([text]))
      tokens_N = np.asarray(proposal.tokens_BN)[0, : proposal.count_B[0]]
      assert tuple(tokens_N.tolist()) == path


def test_loci_follow_what_is_emitted():
  """Walked on round by round, the same as read from the prompt."""
  drafter = SuffixDrafter(gamma=4, reach=6)
  texts = random_texts(40, WIDTH, 3)
  tree = suffix_array.build(random_texts(30, 12, 3, seed=1), 400, 6)
  counts_RB = np.random.default_rng(0).integers(0, 4, (12, 40))
  length_B = np.minimum(1, [len(text) for text in texts])
  rows = context([text[:1] for text in texts])
  state = drafter.prefill(tree, rows, prompt_width=1, slots=0)
  step = jax.jit(
      lambda state, tokens_BT, count_B: drafter.observe(
          tree, state, tokens_BT, (), count_B, rows
      )
  )
  for count_B in counts_RB:
    left_B = [len(text) for text in texts] - length_B
    count_B = np.minimum(count_B, left_B)
    tokens_BT = np.full((40, 4), 1, np.int32)
    for row, text, start, count in zip(tokens_BT, texts, length_B, count_B):
      row[:count] = text[start : start + count]
    state = step(state, tokens_BT, count_B)
    length_B += count_B
  texts = [text[:length] for text, length in zip(texts, length_B)]
  want = drafter.prefill(
      tree, context(texts), prompt_width=WIDTH, slots=0
  )
  full = state.high_BM > state.low_BM
  np.testing.assert_array_equal(full, want.high_BM > want.low_BM)
  for got, other in zip(jax.tree.leaves(state), jax.tree.leaves(want)):
    np.testing.assert_array_equal(got[full], other[full])


def test_padding_is_neither_matched_nor_proposed():
  """ndif-team/nnsight#673: also where an id is that of the padding."""
  drafter = SuffixDrafter(gamma=4, reach=8, offset=4)
  tree = drafter.adopt(suffix_array.build((), 40, 8), [(7, 0), (3,), (0,)])
  rows = context([(5,), (7,), (0, 6, 3)], [(3, 1), (4, 1), (6, 1)])
  rows = rows.replace(
      tokens_BS=jnp.where(
          jnp.arange(WIDTH) < rows.length_B[:, None], rows.tokens_BS, 0
      ),
      source_BL=jnp.where(rows.source_mask_BL, rows.source_BL, 0),
  )
  # After 3 the second row's tree ends, and the third row's source knows none.
  assert drafts(drafter, rows, tree) == [(), (0,), ()]


# --- the law, and the loop --------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [Settings(temperature=1.0), Settings(temperature=0.7, top_k=2)],
    ids=["plain", "top-k"],
)
def test_output_law_is_exact(target):
  """Its paths are point masses, whatever probability they claim."""
  drafter = SuffixDrafter(gamma=2, reach=6, offset=1)
  tree = drafter.adopt(
      suffix_array.build((), 40, 6), [(1, 2, 0, 1, 2), (2, 2, 1)]
  )
  texts = test_drafters_lookup.prefixes(4, 3)
  rows = context([(1, 0, 2, 1) + text for text in texts])
  copied = dict(zip(texts, drafts(drafter, rows, tree)))
  assert {len(tokens) for tokens in copied.values()} == {1, 2}
  case = enumeration.Case(
      vocabulary=3,
      gamma=2,
      length=4,
      target=target,
      kind=proposals.Kind.POINT,
      copied=copied,
  )
  enumeration.check_exact(token.TokenRule(), case)


V = 11
MODEL = mocks.TableModel(V, reach=1)
BUDGET = 12


def cycle(next_of):
  """A table in which each id has one successor."""
  table = np.full((V + 1, V), -9.0, np.float32)
  for last in range(V):
    table[last + 1, next_of(last)] = 9.0
  return jnp.asarray(table)


def side_of(drafter, params, table):
  loop = loop_lib.Loop(MODEL, drafter, token.TokenRule())
  return side_lib.Side(loop, table, params, BUDGET)


def test_responses_are_adopted_between_requests():
  """The same text once more takes few rounds; the first side knows nothing."""
  drafter = SuffixDrafter(gamma=3, reach=16)
  first = side_of(
      drafter, suffix_array.build((), 30, 16), cycle(lambda t: (t + 1) % V)
  )
  # One of the rows is blank.
  requests = mocks.requests(Settings(eos=()), BUDGET)
  batch = requests_lib.make_batch(requests, vocabulary=V, seed=0, rows=2)
  state = first.run(first.prefill(batch))
  # Eleven tokens come before one comes again.
  assert state.tallies.rounds_B.tolist() == [BUDGET, 0]
  second = first.adopt(state)
  [response] = second.drafter_params.responses()
  assert tuple(response.tolist()) == mocks.texts(state)[0]
  again = second.run(second.prefill(batch))
  assert mocks.texts(again) == mocks.texts(state)
  # Behind 0 one token is drafted, behind 1 2 two, then three and three.
  assert again.tallies.rounds_B.tolist() == [4, 0]
  cold = first.run(first.prefill(batch))
  assert cold.tallies.rounds_B.tolist() == [BUDGET, 0]
  stubborn = dataclasses.replace(drafter, learns=False)
  unlearning = side_of(stubborn, first.drafter_params, first.target_params)
  assert unlearning.adopt(state) is unlearning


def test_the_oldest_responses_are_forgotten():
  """snowflakedb/ArcticInference#164, #61: bounded, whatever came."""
  drafter = SuffixDrafter(gamma=3, reach=8)
  tree = suffix_array.build((), 50, 8)
  sizes = [leaf.shape for leaf in jax.tree.leaves(tree)]
  kept = []
  for text in random_texts(200, 9, size=30):
    tree = drafter.adopt(tree, [text])
    kept.append(text)
    while sum(map(len, kept)) + len(kept) > 50:
      kept.pop(0)
    assert [tuple(ids.tolist()) for ids in tree.responses()] == kept
  assert sizes == [leaf.shape for leaf in jax.tree.leaves(tree)]
  assert int(tree.end) == sum(map(len, kept)) <= 50
  # All at once, and of one that is too long the end.
  everything = drafter.adopt(tree, kept * 20)
  assert int(everything.end) <= 50
  [long] = drafter.adopt(tree, [range(200)]).responses()
  assert long.tolist() == list(range(151, 200))
  drafter.adopt(tree, [(), (3,)])
  assert drafter.adopt(None, [(3,)]) is None


@pytest.mark.slow
def test_texts_after_a_thousand_responses():
  """snowflakedb/ArcticInference#164: plain ones, drafted up to the budget."""
  drafter = SuffixDrafter(gamma=3, reach=16, offset=3.0)
  tree = suffix_array.build((), 40, 16)
  texts = random_texts(1000, 9, size=V)
  for i in range(0, 1000, 50):
    tree = drafter.adopt(tree, texts[i : i + 50])
  text = tuple(range(V)) * 3
  tree = drafter.adopt(tree, [text])
  assert [tuple(ids.tolist()) for ids in tree.responses()][-1] == text
  side = side_of(drafter, tree, cycle(lambda t: (t + 1) % V))
  budgets = [1, 2, 3, 5, BUDGET]
  batch = requests_lib.make_batch(
      mocks.requests(Settings(eos=()), budgets), vocabulary=V, seed=0
  )
  state = side.prefill(batch)
  proposal, _ = side.loop.propose(tree, state)
  assert proposal.count_B.tolist() == [0, 1, 2, 3, 3]
  plain = [tuple((i + 1) % V for i in range(budget)) for budget in budgets]
  state = side.run(state)
  assert mocks.texts(state) == plain
  assert state.tallies.rounds_B.tolist() == [1, 1, 1, 2, 3]


@pytest.mark.parametrize(
    "field, options",
    [
        ("gamma", dict(gamma=0)),
        ("reach", dict(gamma=8, reach=8)),
        ("reach", dict(gamma=2, reach=1025)),
        ("factor", dict(gamma=2, factor=-1)),
        ("factor", dict(gamma=2, factor=float("nan"))),
        ("offset", dict(gamma=2, offset=float("inf"))),
        ("least", dict(gamma=2, least=1.5)),
        ("source", dict(gamma=2, source=None)),
        ("learns", dict(gamma=2, learns=1)),
    ],
)
def test_refused_options(field, options):
  with pytest.raises(errors.UserError, match=f"^{field}: give"):
    SuffixDrafter(**options)


def test_a_tree_that_is_too_shallow_is_refused():
  with pytest.raises(ValueError, match="depth 7"):
    drafts(
        SuffixDrafter(gamma=2, reach=8),
        context([(1, 2)]),
        suffix_array.build((), 9, 7),
    )


def test_static_under_jit():
  drafter = SuffixDrafter(gamma=8)
  assert hash(drafter) == hash(dataclasses.replace(drafter))
  assert drafter.widths == (1, 3, 5, 9) and drafter.reader is None
  # Longer contexts, up to gamma; the deepest have less room.
  assert drafter.budget_M[:10].tolist() == [*range(1, 9), 8, 8]
  assert drafter.budget_M[-9:].tolist() == [8, 8, 7, 6, 5, 4, 3, 2, 1]
