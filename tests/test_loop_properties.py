"""What every loop promises, on batches that hypothesis draws.

Laws, settings, prompts, budgets, EOS sets and who stands beside whom are all
drawn; gammas, trees and leniences are of a few random ones (HOW), for each of
which a program is compiled. What more examples find is looked for with

    python -m pytest -m slow tests/test_loop_properties.py
"""

import dataclasses
import functools
from typing import Any, Callable

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.decoding import loop as loop_lib
from specjax.drafters import dynamic
from specjax.drafters import eagle
from specjax.drafters import lookup
from specjax.drafters import mixed
from specjax.drafters import model as model_drafter
from specjax.drafters import ngram
from specjax.drafters import none
from specjax.drafters import simulated
from specjax.drafters import suffix_array
from specjax.drafters import suffix_dynamic
from specjax.drafters import switch
from specjax.drafters import tree as tree_drafter
from specjax.verify import block
from specjax.verify import token
from specjax.verify import tree as tree_rule
from specjax.verify import typical
from tests import drawn
from tests import mocks
from tests import rounds
from tests import test_drafters_medusa
from tests import text_laws

ModelDrafter = model_drafter.ModelDrafter
TokenRule = token.TokenRule
TreeRule = tree_rule.TreeRule

quick_compiles = mocks.quick_compiles
HOW = drawn.draftings(12)
# Of one row's texts; some thousands of rows are looked at.
ALARM = 1e-8


def _only(drafts, made, budget):
  del made, budget
  return drafts


def _nothing(drafts, made, budget):
  del drafts, made, budget
  return ()


@dataclasses.dataclass(frozen=True)
class Subject:
  """A loop to look at.

  Attributes:
    drafter: of the loop.
    rule: likewise.
    draft: the TableModel that drafts; None is one like the target.
    params: (the draft's tables, rows, the largest budget) -> the drafter's
      parameters.
    target: the model.
  """

  drafter: Any
  rule: Any
  draft: mocks.RowTables | None = None
  params: Callable = _only
  target: mocks.RowTables = mocks.RowTables(5)

  @property
  def loop(self):
    """Records all there is to record."""
    return loop_lib.Loop(
        self.target, self.drafter, self.rule, log_probs=True, trace=True
    )

  @property
  def greedy_is_exact(self):
    """Whether greedy rows are those of plain decoding."""
    return self.rule.lossless or isinstance(self.rule, typical.TypicalRule)


def subject(name, vocabulary, how: drawn.Drafting) -> Subject:
  """One of SUBJECTS."""
  made = SUBJECTS[name](vocabulary, how)
  if getattr(made.rule, "lenience", 1.0) != 1.0:
    rule = dataclasses.replace(made.rule, lenience=how.lenience)
    made = dataclasses.replace(made, rule=rule)
  return dataclasses.replace(made, target=mocks.RowTables(vocabulary))


def _model(rule, *, narrower=0, **options):
  """Drafts by a model, of a smaller vocabulary where asked."""

  def make(vocabulary, how):
    draft = mocks.RowTables(vocabulary - narrower)
    return Subject(ModelDrafter(draft, how.gamma, **options), rule, draft)

  return make


def _eagle(rule, **options):
  """Drafts by a head."""

  def make(vocabulary, how):
    draft = mocks.RowTables(vocabulary)
    head = mocks.TableHead(draft)
    return Subject(
        eagle.EagleDrafter(head, how.gamma, **options), rule, draft
    )

  return make


def _tree(source, siblings, rule):
  """Static trees of a source's drafts."""

  def make(vocabulary, how):
    made = source(vocabulary, how)
    drafter = tree_drafter.TreeDrafter(
        source=made.drafter, topology=how.tree, siblings=siblings
    )
    return dataclasses.replace(made, drafter=drafter, rule=rule)

  return make


def _dynamic(source):
  """Trees that follow the text."""

  def make(vocabulary, how):
    made = source(vocabulary, how)
    # There are no more nodes than these.
    most = 2 + 4 * (how.gamma - 1)
    drafter = dynamic.DynamicTreeDrafter(
        source=made.drafter,
        top_k=2,
        depth=how.gamma,
        nodes=min(how.tree.nodes, most),
    )
    return dataclasses.replace(
        made, drafter=drafter, rule=TreeRule(trace=True)
    )

  return make


def _mixed(vocabulary, how):
  """Copies where they pay, and a model that may stop."""
  draft = mocks.RowTables(vocabulary)
  drafter = mixed.MixedDrafter(
      copies=lookup.LookupDrafter(gamma=how.gamma),
      model=ModelDrafter(draft, how.gamma, confidence=0.4),
      switch=switch.Switch(),
  )
  costs = switch.costs(drafter.widths, c=0.1, matching=0.02, v=1.0)

  def params(drafts, made, budget):
    del made, budget
    return mixed.MixedParams((), drafts, costs)

  return Subject(drafter, TokenRule(trace=True), draft, params)


def _suffix(trees, rule):
  """Paths of what came before, or trees."""

  def make(vocabulary, how):
    earlier = np.random.default_rng(0).integers(0, vocabulary, (4, 7))

    def params(drafts, made, budget):
      del drafts, made, budget
      return suffix_array.build(earlier.tolist(), 40, 6)

    drafter = suffix_dynamic.make(
        how.tree.nodes if trees else 0, gamma=how.gamma, reach=6, offset=1.0
    )
    return Subject(drafter, rule, params=params)

  return make


def _bigram(vocabulary, how):
  """A tree of a bigram's drafts; some are of its unigram."""
  share = np.float32(1 / vocabulary)

  def params(drafts, made, budget):
    del drafts, made, budget
    return ngram.Table(
        log_unigram_V=jnp.full((vocabulary,), np.log(share)),
        log_backoff_V=jnp.full((vocabulary,), -1.0).at[1].set(0.0),
        start_V=jnp.zeros(vocabulary, jnp.int32),
        count_V=jnp.full((vocabulary,), 2).at[1].set(0),
        successor_E=jnp.array([1, 2, 0, 0]),
        log_prob_E=jnp.log(jnp.array([0.5, 0.3, 1.0, 1.0])),
        longest=2,
    )

  drafter = tree_drafter.TreeDrafter(
      source=ngram.NgramDrafter(ngram.BIGRAM, 1),
      topology=how.tree,
      siblings="independent",
  )
  return Subject(drafter, TreeRule(trace=True), params=params)


def _medusa(vocabulary, how):
  shape = how.tree.depth, vocabulary + 1, vocabulary
  numbers = np.random.default_rng(0).normal(size=shape)
  heads = test_drafters_medusa.TableHeads(how.tree.depth, vocabulary)

  def params(drafts, made, budget):
    del drafts, made, budget
    return test_drafters_medusa.medusa.MedusaParams(
        jnp.asarray(numbers, jnp.float32), ()
    )

  drafter = test_drafters_medusa.drafter_of(heads, topology=how.tree)
  return Subject(drafter, TreeRule(trace=True), params=params)


def _simulated(vocabulary, how):
  target = mocks.RowTables(vocabulary)

  def params(drafts, made, budget):
    del drafts
    texts = {
        row.request.id: row.request.prompt + greedy(target, row)
        for row in made
    }
    replay = simulated.replay(texts, 0.7)
    # One shape for all batches.
    rows = ROWS - len(texts)
    missing = SHAPE["prompt"] + budget - replay.text_RS.shape[1]
    return replay.replace(
        id_R=jnp.pad(replay.id_R, (0, rows), mode="edge"),
        text_RS=jnp.pad(replay.text_RS, ((0, rows), (0, missing))),
        end_R=jnp.pad(replay.end_R, (0, rows)),
    )

  drafter = simulated.SimulatedDrafter(how.gamma)
  return Subject(drafter, TokenRule(trace=True), params=params)


SUBJECTS = {
    "narrower": _model(TokenRule(trace=True), narrower=2, temperature=0.7),
    "lenient": _model(
        TokenRule(lenience=0.4, residual="lenient", trace=True)
    ),
    "block": _model(block.BlockRule(trace=True)),
    "distinct": _tree(_model(None), "distinct", TreeRule(trace=True)),
    "dynamic": _dynamic(_model(None)),
    "mixed": _mixed,
    "plain": lambda vocabulary, how: Subject(
        none.NoDrafter(), TokenRule(trace=True), params=_nothing
    ),
    "model": _model(TokenRule(overlap=True, trace=True)),
    "argmax": _model(TokenRule(trace=True), argmax=True),
    "cold": _model(TokenRule(trace=True), temperature=0.0),
    "cut": _model(TokenRule(trace=True), top_p=0.8),
    "sure": _model(TokenRule(trace=True), confidence=0.3),
    "sure block": _model(block.BlockRule(trace=True), confidence=0.3),
    "chain by the tree rule": _model(TreeRule(trace=True)),
    "top": _tree(_model(None), "top", TreeRule(trace=True)),
    "cold distinct": _tree(
        _model(None, temperature=0.0), "distinct", TreeRule(trace=True)
    ),
    "independent": _tree(
        _model(None, top_k=2), "independent", TreeRule(trace=True)
    ),
    "typical": _tree(
        _model(None), "distinct", typical.TypicalRule(trace=True)
    ),
    "eagle": _eagle(TokenRule(trace=True)),
    "eagle block": _eagle(block.BlockRule(trace=True), temperature=0.7),
    "eagle tree": _tree(_eagle(None), "distinct", TreeRule(trace=True)),
    "eagle dynamic": _dynamic(_eagle(None)),
    "lookup": lambda vocabulary, how: Subject(
        lookup.LookupDrafter(gamma=how.gamma),
        TokenRule(trace=True),
        params=_nothing,
    ),
    "suffix": _suffix(False, TokenRule(trace=True)),
    "suffix tree": _suffix(True, TreeRule(trace=True)),
    "bigram": _bigram,
    "medusa": _medusa,
    "simulated": _simulated,
}
QUICK = (
    "narrower",
    "lenient",
    "block",
    "distinct",
    "mixed",
    "eagle dynamic",
)
ROWS = 8
SHAPE = dict(most=ROWS, prompt=4, budget=8)


@functools.cache
def _subjects(name, vocabulary, how):
  """The same object each time: it is what programs are kept by."""
  made = subject(name, vocabulary, how)
  return made, made.loop


def few(name):
  """Ways to draft that are looked at in every run: two, others by the name."""
  at = 2 * list(SUBJECTS).index(name) % len(HOW)
  return HOW[at : at + 2]


def greedy(target, row):
  """A row's text as plain greedy decoding has it."""
  request, (table, _) = row.request, row.tables(target, target)
  return text_laws.greedy_text(
      target, table, request.settings, request.prompt, request.max_new_tokens
  )


def on_host(state):
  """Without what keys say."""
  return jax.device_get(state.replace(key_B=None))


def decoded(name, how, made):
  """The finished state of a batch, each of whose rounds is looked at."""
  own, loop = _subjects(name, 5, how)
  batch = drawn.batch(
      made, rows=ROWS, prompt=SHAPE["prompt"], vocabulary=own.target.vocabulary
  )
  target, drafts = drawn.stacked(
      made, own.target, own.draft or own.target, rows=ROWS
  )
  params = target, own.params(drafts, made, SHAPE["budget"])
  state = loop.prefill(*params, batch, SHAPE["budget"])
  before = on_host(state)
  check_caches(own, before)
  while not np.all(before.done_B):
    state = mocks.one_round(loop, *params, state)
    after = on_host(state)
    check_round(own, before, after)
    check_caches(own, after)
    before = after
  return before


def check_round(own, before, after):
  """Who emits how much, and what is counted."""
  going_B = ~before.done_B
  emitted_B = after.length_B - before.length_B
  more = lambda name: getattr(after.tallies, name) - getattr(
      before.tallies, name
  )
  judged_BG, accepted_BG = more("judged_BG"), more("accepted_BG")
  accepted_B = accepted_BG.sum(axis=1)
  np.testing.assert_array_equal(more("rounds_B"), going_B)
  np.testing.assert_array_equal(emitted_B > 0, going_B)
  # Emitted is accepted and one more, but where the text's end cuts that off.
  cut_B = accepted_B + going_B - emitted_B
  assert np.all((cut_B == 0) | (cut_B == 1) & after.done_B)
  assert np.all(after.length_B <= after.limit_B)
  # First ones first, and at most one is judged that is not accepted.
  for flag_BG in (judged_BG, accepted_BG):
    assert np.all((flag_BG == 0) | (flag_BG == 1))
    assert np.all(np.diff(flag_BG, axis=1) <= 0)
  spare_B = judged_BG.sum(axis=1) - accepted_B
  assert np.all((spare_B == 0) | (spare_B == 1))
  most_B = np.where(going_B, own.drafter.nodes, 0)
  if not own.drafter.trees:
    room_B = before.limit_B - before.length_B - 1
    most_B = np.where(going_B, np.minimum(most_B, room_B), 0)
  drafted_B = more("drafted_B")
  assert np.all((drafted_B >= 0) & (drafted_B <= most_B))
  np.testing.assert_array_equal(
      more("empty_B"), going_B & (drafted_B == 0)
  )
  assert np.all(judged_BG.sum(axis=1) <= drafted_B)


def check_caches(own, state):
  """As a fresh reading of the text would leave them.

  A TableModel writes a token's place and number, so that is known.
  """
  check_cache(own.target, state.cache, state, state.length_B - 1)
  # A draft model still has the two newest tokens to read.
  source, known_B = state.drafter, state.length_B - 2
  if isinstance(source, mixed.MixedState):
    known_B = np.minimum(source.known_B, state.length_B - 1)
    source = source.model
  source = getattr(source, "source", source)
  if isinstance(source, model_drafter.ModelState):
    check_cache(own.draft, source.cache, state, known_B)
  if isinstance(source, eagle.EagleState):
    check_heard(own.draft, source, state)


def check_cache(model, cache, state, known_B, first=0):
  """The first `known` slots of each row; slot 0 has token `first`."""
  slots = cache.slots
  there_BS = np.arange(slots) < known_B[:, None]
  tokens_BS = np.zeros(there_BS.shape, int)
  text_BS = state.tokens_BS[:, first:][:, :slots]
  tokens_BS[:, : text_BS.shape[1]] = text_BS
  value_BS = np.minimum(tokens_BS, model.vocabulary - 1) + 1
  key_BS = np.broadcast_to(np.arange(slots) + 1, there_BS.shape)
  np.testing.assert_array_equal(
      cache.key[0][:, 0, 0][there_BS], key_BS[there_BS]
  )
  np.testing.assert_array_equal(
      cache.value[0][:, 0, :, 0][there_BS], value_BS[there_BS]
  )


def check_heard(model, heard, state):
  """A head has all pairs, with the target's states and none of its own."""
  check_cache(model, heard.cache, state, state.length_B - 1, first=1)
  for row, length in enumerate(state.length_B):
    text = state.tokens_BS[row, :length]
    np.testing.assert_array_equal(
        heard.cache.value[0][row, 0, : length - 1, 1], text[:-1] + 1
    )
    if length > 1:
      assert heard.hidden_BD[row, 0] == model.code(text[-2:])


def check_row(own, state, i, row):
  """A finished row: its end, what its settings ask, its law, its trace."""
  request, settings = row.request, row.request.settings
  start, end = int(state.prompt_B[i]), int(state.length_B[i])
  assert tuple(state.tokens_BS[i, :start]) == request.prompt
  assert not np.any(state.tokens_BS[i, end:])
  text = tuple(state.tokens_BS[i, start:end].tolist())
  ends = [token in settings.eos for token in text]
  assert not any(ends[:-1])
  assert ends[-1] == state.ended_B[i]
  assert ends[-1] or len(text) == request.max_new_tokens
  assert not set(text) & set(settings.suppressed)
  assert not any(ends[: settings.min_new_tokens])
  assert settings.forced_first in (None, text[0])
  assert text == told(state, i)
  table, _ = row.tables(own.target, own.target)
  sampled = settings.temperature > 0 and settings.top_p > 0
  if not sampled and own.greedy_is_exact:
    assert text == greedy(own.target, row)
  if sampled or own.greedy_is_exact:
    chances = [
        text_laws.next_law(
            own.target, table, settings, request.prompt + text[:n], n
        )[token]
        for n, token in enumerate(text)
    ]
    assert min(chances) > 0
    np.testing.assert_allclose(
        state.log_probs.law_BS[i, start:end],
        np.log(chances),
        rtol=1e-5,
        atol=1e-5,
    )


def told(state, i):
  """A row's text as its trace has it."""
  text, trace = (), state.trace
  for n in range(state.tallies.rounds_B[i]):
    accepted, last = trace.accepted_BR[i, n], int(trace.next_BR[i, n])
    text += tuple(trace.draft_BRG[i, n, :accepted].tolist())
    text += (last,) if last >= 0 else ()
  return text


def check_promises(name, how, made: drawn.Companies):
  """All of the above, and that rows don't depend on who is beside them."""
  own, _ = _subjects(name, 5, how)
  states = [decoded(name, how, rows) for rows in (made.first, made.second)]
  for state, rows in zip(states, (made.first, made.second)):
    for i, row in enumerate(rows):
      check_row(own, state, i, row)
    blank = slice(len(rows), None)
    np.testing.assert_array_equal(
        state.length_B[blank], state.prompt_B[blank]
    )
    assert not any(
        np.any(leaf[blank]) for leaf in jax.tree.leaves(state.tallies)
    )
  first, second = states
  for i, j in made.both:
    np.testing.assert_array_equal(first.tokens_BS[i], second.tokens_BS[j])
    for one, other in zip(
        jax.tree.leaves((first.tallies, first.log_probs)),
        jax.tree.leaves((second.tallies, second.log_probs)),
    ):
      np.testing.assert_allclose(one[i], other[j], rtol=1e-6)


@pytest.mark.parametrize("name", QUICK)
@drawn.examples(6)
@hypothesis.given(made=drawn.companies(5, **SHAPE), which=st.integers(0, 1))
def test_promises(name, made, which):
  check_promises(name, few(name)[which], made)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
@drawn.examples(150)
@hypothesis.given(
    made=drawn.companies(5, **SHAPE), how=st.sampled_from(HOW)
)
def test_promises_with_more_examples(name, made, how):
  check_promises(name, how, made)


CASES, COPIES, LENGTH = 6, 2000, 4
LAWS = st.tuples(
    drawn.some_ids(3), st.integers(0, 2**32 - 1)
).flatmap(
    lambda shared: st.tuples(
        drawn.rows(
            3, shared[0], least=CASES, most=CASES, prompt=3, budget=LENGTH
        ),
        st.just(shared[1]),
    )
)


def check_laws(name, how, made, seed, rule=None):
  """The texts of each row, and of all together, have the target's law."""
  own, loop = _subjects(name, 3, how)
  if rule is not None:
    loop = dataclasses.replace(loop, rule=rule)
  loop = dataclasses.replace(loop, log_probs=False, trace=False)
  batch = drawn.batch(
      made, rows=CASES, prompt=3, vocabulary=3, copies=COPIES, seed=seed
  )
  target, drafts = drawn.stacked(
      made, own.target, own.draft or own.target, rows=CASES
  )
  state = mocks.decode(
      loop, target, own.params(drafts, made, LENGTH), batch, LENGTH
  )
  texts, both = mocks.texts(state), np.zeros(2)
  for i, row in enumerate(made):
    request, (table, _) = row.request, row.tables(own.target, own.target)
    law = text_laws.text_law(
        own.target,
        table,
        request.settings,
        request.prompt,
        request.max_new_tokens,
    )
    misfit = text_laws.chi_square(texts[i * COPIES : (i + 1) * COPIES], law)
    assert text_laws.tail(*misfit) > ALARM, row
    both += misfit
  assert text_laws.tail(*both) > ALARM


@pytest.mark.parametrize(
    "name", [pytest.param("narrower", marks=pytest.mark.slow), "mixed"]
)
@drawn.examples(10)
@hypothesis.given(made=LAWS, which=st.integers(0, 1))
def test_laws(name, made, which):
  check_laws(name, few(name)[which], *made)


# Replays are of greedy rows only.
_LOSSY = ("lenient", "typical")
_DRAWN = [name for name in SUBJECTS if name not in (*_LOSSY, "simulated")]


@pytest.mark.slow
@pytest.mark.parametrize("name", _DRAWN)
@drawn.examples(60)
@hypothesis.given(made=LAWS, how=st.sampled_from(HOW))
def test_laws_with_more_examples(name, made, how):
  check_laws(name, how, *made)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*_LOSSY, "plain residual"])
def test_lossy_rules_are_found(name):
  """The same check, where the law is another."""
  rule = rounds.PlainResidual() if name == "plain residual" else None

  @drawn.examples(10, phases=(hypothesis.Phase.generate,))
  @hypothesis.given(made=LAWS, how=st.sampled_from(HOW))
  def holds(made, how):
    check_laws("model" if rule else name, how, *made, rule)

  with pytest.raises(AssertionError):
    holds()
