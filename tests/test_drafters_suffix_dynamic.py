"""Trees of what followed: against plain Python, their law, and in the loop."""

import dataclasses
import fractions
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import none
from specjax.drafters import suffix
from specjax.drafters import suffix_array
from specjax.drafters import suffix_dynamic
from specjax.settings import Settings
from specjax.verify import proposal as proposals
from specjax.verify import tree as tree_rule
from tests import enumeration
from tests import mocks
from tests import test_drafters_lookup
from tests import test_drafters_suffix
from tests import test_loop_law
from tests import test_loop_tree

Fraction = fractions.Fraction
Loop = loop_lib.Loop
SuffixTreeDrafter = suffix_dynamic.SuffixTreeDrafter
TreeRule = tree_rule.TreeRule
WIDTH = test_drafters_lookup.WIDTH
context = test_drafters_lookup.context
prefixes = test_drafters_lookup.prefixes
random_texts = test_drafters_lookup.random_texts
some_texts = test_drafters_suffix.some_texts

quick_compiles = mocks.quick_compiles


def root_of(strings):
  """The tree of what followed a context at each of its places."""
  root = test_drafters_suffix.Node()
  root.count = len(strings)
  for string in strings:
    node = root
    for token_id in string:
      node = node.setdefault(token_id, test_drafters_suffix.Node())
      node.count += 1
  return root


def grown(root, nodes, longest, least):
  """(score, paths) of the tree below a context's node, node by node.

  What is added next has the highest D = D(parent) * count / count(parent).
  """
  chances, edge = {}, {(): (root, Fraction(1))}
  while edge and len(chances) <= nodes:
    path = min(edge, key=lambda path: (-edge[path][1], len(path), path))
    node, chances[path] = edge.pop(path)
    for token_id, child in node.items():
      share = np.float32(child.count) / np.float32(root.count)
      if len(path) < longest and share >= np.float32(least):
        chance = chances[path] * Fraction(child.count, node.count)
        edge[*path, token_id] = child, chance
  del chances[()]
  return sum(chances.values()), set(chances)


def speculate(drafter, texts, text, room, own):
  """(score, paths) of the best tree after a text, of what is in some texts."""
  found = {}
  for m in range(1, min(len(text), drafter.reach - 1) + 1):
    strings = sorted(
        where[i + m : i + drafter.reach]
        for where in texts
        for i in range(len(where) - m + 1)
        if where[i : i + m] == text[-m:]
    )
    # The newest tokens themselves are no match.
    if len(strings) == own:
      break
    found[m] = strings
  most = suffix_dynamic._PLACES
  if not own and found:
    few = {m: strings for m, strings in found.items() if len(strings) <= most}
    longest = max(found)
    strings = found[longest]
    evenly = [strings[i * len(strings) // most] for i in range(most)]
    found = few or {longest: evenly}
  # Contexts that came at the same places came as often.
  alike = {}
  for m, strings in found.items():
    alike.setdefault(len(strings), []).append(m)
  best = Fraction(0), set()
  for often in sorted(sorted(alike)[: suffix_dynamic._CONTEXTS], reverse=True):
    contexts = alike[often]
    budgets = {
        m: max(0, int(m * drafter.factor + drafter.offset + 1e-6))
        for m in contexts
    }
    nodes = min(drafter.nodes, max(budgets.values()))
    longest = max(
        min(drafter.gamma, budgets[m], drafter.reach - m, room)
        for m in contexts
    )
    root = root_of(found[min(contexts)])
    made = grown(root, nodes, longest, drafter.least)
    best = made if made[0] >= best[0] else best
  return best


def reference(drafter, text, source=None, responses=(), width=WIDTH):
  """What is drafted after a text in a buffer of `width`."""
  room = width - len(text) - 1
  texts = [text] if source is None else [text, source]
  own = speculate(drafter, texts, text, room, own=True)
  earlier = speculate(drafter, list(responses), text, room, own=False)
  return earlier[1] if earlier[0] > own[0] else own[1]


def paths_of(proposal):
  """Each row's drafts, as a set of paths."""
  assert proposal.kind is proposals.Kind.POINT and proposal.law is None
  tokens_BN, parent_BN, count_B = jax.device_get(
      (proposal.tokens_BN, proposal.tree.parent_BN, proposal.count_B)
  )
  nodes = np.arange(tokens_BN.shape[1])
  padding_BN = nodes >= count_B[:, None]
  assert np.all(parent_BN < nodes)
  assert not np.any(tokens_BN[padding_BN])
  rows = []
  for tokens, parents, count in zip(tokens_BN, parent_BN, count_B):
    paths = [
        tuple(int(tokens[i]) for i in enumeration.path_to(parents, node))
        for node in range(count)
    ]
    # Level by level, and no path twice.
    assert paths == sorted(set(paths), key=lambda path: (len(path), path))
    rows.append(set(paths))
  return rows


def drafts(drafter, rows, params=None):
  """What is proposed for each row."""
  return paths_of(test_drafters_suffix.proposed(drafter, params, rows))


OPTIONS = {
    "as it is": dict(gamma=4, nodes=9, reach=8),
    "longer": dict(gamma=6, nodes=5, reach=7, factor=1.5, offset=2),
    "all there is": dict(gamma=3, nodes=40, reach=16, offset=-1, least=0.0),
    "surer": dict(gamma=5, nodes=2, reach=12, offset=5, least=0.4),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_as_the_reference(options):
  """The row's own text and earlier responses, whichever has the better tree.

  Some rows have room for few tokens more, or none.
  """
  drafter = SuffixTreeDrafter(**options)
  texts = some_texts(60, WIDTH)
  texts += texts[:3]
  sources = some_texts(60, test_drafters_lookup.SOURCE_WIDTH, seed=1)
  sources += sources[:3]
  rows = context(texts, sources)
  empty = suffix_array.build((), 300, drafter.reach)
  own = drafts(drafter, rows, empty)
  assert own == list(map(functools.partial(reference, drafter), texts, sources))
  assert len(set(map(len, own))) > 2
  branches = lambda paths: len(paths) > max(map(len, paths), default=0)
  assert any(map(branches, own))
  both = []
  for seed in range(2):
    responses = some_texts(7, 19, seed)
    both.append(drafts(drafter, rows, drafter.adopt(empty, responses)))
    for text, source, got in zip(texts, sources, both[-1]):
      assert got == reference(drafter, text, source, responses)
    assert 0 < sum(map(set.__eq__, own, both[-1])) < len(texts)
  # Equal rows have equal trees.
  assert both[0][:3] == both[0][-3:]


def test_few_places_and_few_contexts(monkeypatch):
  """Of more places some are taken, evenly; of more contexts the longest."""
  monkeypatch.setattr(suffix, "_FEW", (1, 3))
  monkeypatch.setattr(suffix_dynamic, "_PLACES", 6)
  monkeypatch.setattr(suffix_dynamic, "_CONTEXTS", 2)
  drafter = SuffixTreeDrafter(gamma=3, nodes=7, reach=6, offset=1)
  texts = some_texts(60, WIDTH)
  rows = context(texts, width=40)
  want = functools.partial(reference, drafter, width=40)
  assert drafts(drafter, rows) == list(map(want, texts))
  responses = random_texts(12, 19, 2)
  tree = suffix_array.build(responses, 300, drafter.reach)
  got = drafts(drafter, rows, tree)
  assert got == [want(text, None, responses) for text in texts]
  monkeypatch.setattr(suffix_dynamic, "_PLACES", 10**6)
  assert got != [want(text, None, responses) for text in texts]


def test_however_many_places_the_newest_token_has(monkeypatch):
  """Each number of them has a program of its own."""
  drafter = SuffixTreeDrafter(gamma=3, nodes=5, reach=8)
  texts = random_texts(40, WIDTH, 2)
  monkeypatch.setattr(suffix, "_FEW", (1, 3, 9))
  propose = jax.jit(lambda rows: drafter.propose(None, (), rows, None, 9)[0])
  for text in texts:
    assert paths_of(propose(context([text]))) == [reference(drafter, text)]


def test_the_worked_row():
  """That of the module's docstring."""
  drafter = SuffixTreeDrafter(gamma=4, nodes=3, reach=8, offset=1)
  texts = [(9, 8, 0, 1), (9, 8, 0, 2), (9, 8, 0, 1), (9, 8, 3)]
  tree = suffix_array.build(texts, 40, 8)
  [got] = drafts(drafter, context([(5, 9, 8)]), tree)
  assert got == {(0,), (0, 1), (3,)}
  # A path has the likeliest of each level only.
  path = dataclasses.replace(drafter, nodes=2)
  assert drafts(path, context([(5, 9, 8)]), tree) == [{(0,), (0, 1)}]
  # Two tokens of context: two nodes.
  few = dataclasses.replace(drafter, offset=0)
  assert drafts(few, context([(5, 9, 8)]), tree) == [{(0,), (0, 1)}]


def test_padding_is_neither_matched_nor_proposed():
  """ndif-team/nnsight#673: also where an id is that of the padding."""
  drafter = SuffixTreeDrafter(gamma=4, nodes=6, reach=8, offset=4)
  tree = drafter.adopt(
      suffix_array.build((), 40, 8), [(7, 0), (3,), (0,), (7, 6)]
  )
  rows = context([(5,), (7,), (0, 6, 3)], [(3, 1), (4, 1), (6, 1)])
  rows = rows.replace(
      tokens_BS=jnp.where(
          jnp.arange(WIDTH) < rows.length_B[:, None], rows.tokens_BS, 0
      ),
      source_BL=jnp.where(rows.source_mask_BL, rows.source_BL, 0),
  )
  assert drafts(drafter, rows, tree) == [set(), {(0,), (6,)}, set()]


# --- the law, and the loop --------------------------------------------------

RESPONSES = (1, 2, 0, 1, 2), (2, 2, 1), (1, 1, 0)
NODES = 4


@functools.cache
def case(target):
  """An enumeration's case: a tree of its own behind every text."""
  drafter = SuffixTreeDrafter(gamma=3, nodes=NODES, reach=6, offset=1)
  texts = prefixes(3, 3)
  rows = context([(1, 0, 2, 1) + text for text in texts])
  tree = suffix_array.build(RESPONSES, 40, 6)
  proposal = test_drafters_suffix.proposed(drafter, tree, rows)
  drafted = zip(proposal.tokens_BN, proposal.tree.parent_BN, proposal.count_B)
  shapes = {
      text: (tuple(tokens[:count].tolist()), tuple(parents.tolist()))
      for text, (tokens, parents, count) in zip(texts, drafted)
  }
  assert len({parents for _, parents in shapes.values()}) > 2
  assert len({len(tokens) for tokens, _ in shapes.values()}) > 1
  return enumeration.Case(
      vocabulary=3,
      length=3,
      tree=tuple(range(-1, NODES - 1)),
      target=target,
      kind=proposals.Kind.POINT,
      shapes=shapes,
  )


@pytest.mark.parametrize(
    "target",
    [Settings(temperature=1.0), Settings(temperature=0.7, top_k=2)],
    ids=["plain", "top-k"],
)
def test_the_targets_law_by_enumeration(target):
  """Nodes are point masses, whatever their counts say."""
  enumeration.check_exact(TreeRule(), case(target))


class _PaddingRule(TreeRule):
  """Takes padding for nodes."""

  def judge(self, target, proposal, coin_BN):
    count_B = jnp.full_like(proposal.count_B, NODES)
    proposal = proposal.replace(
        tokens_BN=jnp.maximum(proposal.tokens_BN, 0), count_B=count_B
    )
    return super().judge(target, proposal, coin_BN)


def test_a_rule_that_judges_padding_is_caught():
  with pytest.raises(AssertionError):
    enumeration.check_exact(_PaddingRule(), case(Settings(temperature=1.0)))


def test_settings_side_by_side(monkeypatch):
  """The loop's texts have the target's law, over rounds of all widths."""
  monkeypatch.setattr(suffix_dynamic, "_PLACES", 6)
  monkeypatch.setattr(suffix_dynamic, "_CONTEXTS", 3)
  drafter = SuffixTreeDrafter(gamma=3, nodes=5, reach=5, least=0.2)
  loop = Loop(test_loop_law.TARGET, drafter, TreeRule())
  misfit = test_loop_law.worst(
      loop,
      suffix_array.build(RESPONSES, 20, 5),
      test_loop_law.MIXED,
      rows=2000,
  )
  assert misfit < test_loop_law.RIGHT


def test_rounds_without_drafts_are_counted():
  """sgl-project/sglang#11572: neither drafted nor judged, but rounds."""
  model, budget = mocks.TableModel(9), 8
  # 0 1 2 ... 8 8 8: nothing came before but at the end.
  table = mocks.counting_table(9)
  table = table.at[model.code((7, 8)), 8].set(20.0)
  batch = requests_lib.make_batch(
      mocks.requests(Settings(eos=()), [budget, budget + 6]),
      vocabulary=9,
      seed=0,
  )
  drafter = SuffixTreeDrafter(gamma=2, nodes=4, reach=8)
  loop = Loop(model, drafter, TreeRule())
  state = mocks.decode(loop, table, None, batch, budget + 6)
  eights = (1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8)
  assert mocks.texts(state) == [eights[:budget], eights]
  tallies = jax.device_get(state.tallies)
  # Behind 8 8 one 8 is drafted, which is right, then two.
  assert tallies.drafted_B.tolist() == [0, 1 + 2]
  assert tallies.empty_B.tolist() == [8, 9]
  assert tallies.rounds_B.tolist() == [8, 9 + 2]
  assert tallies.accepted_BG.tolist() == [[0, 0], [2, 1]]


def test_an_encoder_decoder_reads_what_it_accepts():
  """Texts are plain decoding's; caches those of a fresh reading."""
  module, params, batch = test_loop_tree.prompted("t5")
  drafter = SuffixTreeDrafter(gamma=3, nodes=6, reach=8, offset=2)
  plain = Loop(module, none.NoDrafter(), TreeRule())
  want = mocks.texts(mocks.decode(plain, params, (), batch, 9))
  # What was answered, and what differs from it here and there.
  wrong = [tuple((t + i % 3) % 29 for i, t in enumerate(w)) for w in want]
  tree = suffix_array.build([*wrong, *want], 60, drafter.reach)
  loop = Loop(module, drafter, TreeRule())
  state = loop.prefill(params, tree, batch, 9)
  rounds = 0
  while not np.all(state.done_B):
    state = mocks.one_round(loop, params, tree, state)
    length_B = jnp.where(state.done_B, 1, state.length_B)
    test_loop_tree.check_cache(
        module, params, state, state.cache, length_B - 1, state.memory
    )
    rounds += 1
  assert mocks.texts(state) == want
  assert rounds < 9 and np.all(state.tallies.drafted_B > 6)


@pytest.mark.parametrize(
    "field, options",
    [
        ("gamma", dict(gamma=0)),
        ("reach", dict(gamma=8, reach=8)),
        ("nodes", dict(gamma=2, nodes=-1)),
        ("nodes", dict(gamma=2, nodes=1025)),
        ("nodes", dict(gamma=2, nodes=2.5)),
        ("nodes", dict(gamma=65, nodes=65, reach=99)),
    ],
)
def test_refused_options(field, options):
  with pytest.raises(errors.UserError, match=f"^{field}: "):
    suffix_dynamic.make(**dict(nodes=4) | options)


def test_static_under_jit():
  drafter = suffix_dynamic.make(gamma=8, nodes=16)
  assert hash(drafter) == hash(dataclasses.replace(drafter))
  assert (drafter.nodes, drafter.depth, drafter.trees) == (16, 8, True)
  assert drafter.widths == (1, 5, 9, 17) and drafter.reader is None
  # Two nodes are no deeper than two; a path is one of gamma tokens.
  assert suffix_dynamic.make(gamma=8, nodes=2).depth == 2
  path = suffix_dynamic.make(gamma=8)
  assert (path.nodes, path.depth, path.trees) == (8, 8, False)
  assert type(path) is suffix.SuffixDrafter
