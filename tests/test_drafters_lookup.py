"""Prompt lookup: what it finds, and what comes out of the loop."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.drafters import base
from specjax.drafters import lookup
from specjax.settings import Settings
from specjax.verify import proposal as proposals
from specjax.verify import token
from tests import enumeration
from tests import mocks
from tests import test_loop_law

LookupDrafter = lookup.LookupDrafter
quick_compiles = mocks.quick_compiles
# Buffers of the tests.
WIDTH, SOURCE_WIDTH = 24, 10


def context(texts, sources=None, width=WIDTH) -> base.Context:
  """Rows that hold these texts; whatever lies behind them is no part."""
  rng = np.random.default_rng(len(texts))

  def padded(rows, columns):
    out = rng.integers(0, 3, (len(rows), columns), np.int32)
    for row, ids in zip(out, rows):
      row[: len(ids)] = ids
    return jnp.asarray(out)

  length_B = jnp.asarray([len(text) for text in texts], jnp.int32)
  source_BL = mask_BL = None
  if sources is not None:
    end_B1 = np.array([[len(source)] for source in sources])
    source_BL = padded(sources, SOURCE_WIDTH)
    mask_BL = jnp.asarray(np.arange(SOURCE_WIDTH) < end_B1)
  return base.Context(
      id_B=jnp.arange(len(texts), dtype=jnp.uint32),
      tokens_BS=padded(texts, width),
      length_B=length_B,
      prompt_B=jnp.ones_like(length_B),
      source_BL=source_BL,
      source_mask_BL=mask_BL,
      memory=None,
      sampling=None,
      remaining_B=width - length_B,
      active_B=length_B > 0,
  )


@functools.partial(jax.jit, static_argnums=0)
def proposed(drafter, params, state, rows):
  """The proposal for a context."""
  return drafter.propose(params, state, rows, None, 9)[0]


def drafts(drafter, rows, params=(), state=()):
  """What is proposed for each row, as tuples."""
  proposal = proposed(drafter, params, state, rows)
  assert proposal.kind is proposals.Kind.POINT and proposal.law is None
  pairs = zip(np.asarray(proposal.tokens_BN), np.asarray(proposal.count_B))
  return [tuple(tokens[:count].tolist()) for tokens, count in pairs]


def reference(drafter, text, source=None):
  """The same in Python, one n-gram after the other."""
  texts = [text] if source is None else [source, text]
  for n in range(drafter.max_n, drafter.min_n - 1, -1):
    newest = text[-n:] if n <= len(text) else None
    found = [
        rest[: drafter.gamma]
        for where in texts
        for end in range(n, len(where) + (where is not text))
        if where[end - n : end] == newest
        for rest in [where[end:]]
    ]
    if found:
      return found[-1 if drafter.latest else 0]
  return ()


def random_texts(count, longest, size=3, seed=0):
  rng = np.random.default_rng(seed)
  return [
      tuple(rng.integers(0, size, rng.integers(1, longest + 1)).tolist())
      for _ in range(count)
  ]


OPTIONS = {
    "as it is": dict(gamma=4),
    "latest": dict(gamma=4, latest=True),
    "no single tokens": dict(gamma=1, min_n=2, max_n=4),
    "one length": dict(gamma=30, min_n=2, max_n=2, latest=True),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_as_the_reference(options):
  """Random texts of few ids, so that many n-grams come back."""
  drafter = LookupDrafter(**options)
  texts = random_texts(300, WIDTH)
  got = drafts(drafter, context(texts))
  assert got == [reference(drafter, text) for text in texts]
  assert {len(row) for row in got} >= {0, 1}
  sources = random_texts(300, SOURCE_WIDTH, seed=1)
  got = drafts(drafter, context(texts, sources))
  assert got == [
      reference(drafter, text, source)
      for text, source in zip(texts, sources)
  ]
  without = dataclasses.replace(drafter, source=False)
  got = drafts(without, context(texts, sources))
  assert got == [reference(without, text) for text in texts]


def test_longest_first_then_by_place():
  text = (5, 1, 2, 6, 1, 2, 7, 3, 2, 8, 1, 2)
  first = drafts(LookupDrafter(gamma=2), context([text]))
  last = drafts(LookupDrafter(gamma=2, latest=True), context([text]))
  single = drafts(LookupDrafter(gamma=2, max_n=1, latest=True), context([text]))
  assert (first, last, single) == ([(6, 1)], [(7, 3)], [(8, 1)])


def test_nothing_to_copy():
  """Short texts, no match, and a match at the very end of the source."""
  texts = [(4,), (4, 5), (4, 5, 6, 7), (4, 8)]
  got = drafts(LookupDrafter(gamma=3), context(texts, [(1,)] * 3 + [(7, 8)]))
  assert got == [()] * 4


def test_what_follows_may_be_short():
  """Up to the newest token, which a text of one id repeats."""
  assert drafts(LookupDrafter(gamma=5), context([(7, 7, 7)])) == [(7,)]
  assert drafts(LookupDrafter(gamma=5), context([(1, 2, 1)])) == [(2, 1)]


def test_padding_is_neither_matched_nor_proposed():
  """ndif-team/nnsight#673: also where an id is that of the padding."""
  zeros = context(
      [(0,), (5, 0), (0, 5, 6), (0, 0)], [(3, 1), (4, 1), (6, 1), (2, 1)]
  )
  zeros = zeros.replace(
      tokens_BS=jnp.where(
          jnp.arange(WIDTH) < zeros.length_B[:, None], zeros.tokens_BS, 0
      ),
      source_BL=jnp.where(zeros.source_mask_BL, zeros.source_BL, 0),
  )
  for latest in (False, True):
    drafter = LookupDrafter(gamma=4, latest=latest)
    assert drafts(drafter, zeros) == [(), (), (1,), (0,)]


def test_a_match_does_not_run_over_two_texts():
  """The source's end and the text's beginning are no neighbours."""
  rows = context([(3, 4, 2, 3, 4)], [(7, 2)])
  drafter = LookupDrafter(gamma=3, min_n=3, max_n=3)
  assert drafts(drafter, rows) == [()]


def prefixes(length, size):
  """Every text that is shorter."""
  return [
      text
      for n in range(length)
      for text in itertools.product(range(size), repeat=n)
  ]


def copied_everywhere(drafter, prompt, length, size):
  """Prefix -> what is proposed there, for every prefix below a length."""
  texts = prefixes(length, size)
  rows = context([prompt + text for text in texts])
  return dict(zip(texts, drafts(drafter, rows)))


@pytest.mark.parametrize(
    "target",
    [
        Settings(temperature=1.0, eos=()),
        Settings(temperature=0.7, top_k=2, eos=()),
        Settings(eos=()),
    ],
    ids=["plain", "top-k", "greedy"],
)
def test_output_law_is_exact(target):
  """huggingface/transformers#32867, openvino.genai#2331: over rounds."""
  drafter = LookupDrafter(gamma=2)
  copied = copied_everywhere(drafter, (1, 0, 2, 1), 4, 3)
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


def test_texts_follow_the_targets_law():
  """In the loop, for settings side by side."""
  loop = loop_lib.Loop(
      test_loop_law.TARGET, LookupDrafter(gamma=3), token.TokenRule()
  )
  misfit = test_loop_law.worst(loop, (), test_loop_law.MIXED, rows=2000)
  assert misfit < test_loop_law.RIGHT


def test_rounds_without_drafts_are_counted():
  """sgl-project/sglang#11572: neither drafted nor judged, but rounds."""
  model, budget = mocks.TableModel(9), 8
  # 0 1 2 ... 8 8 8: nothing to copy but at the end.
  table = mocks.counting_table(9)
  table = table.at[model.code((7, 8)), 8].set(20.0)
  batch = requests_lib.make_batch(
      mocks.requests(Settings(eos=()), [budget, budget + 6]),
      vocabulary=9,
      seed=0,
  )
  loop = loop_lib.Loop(model, LookupDrafter(gamma=2), token.TokenRule())
  state = mocks.decode(loop, table, (), batch, budget + 6)
  eights = (1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8)
  assert mocks.texts(state) == [eights[:budget], eights]
  tallies = jax.device_get(state.tallies)
  # From two 8s on one more is drafted; the last round has no room for it.
  assert tallies.rounds_B.tolist() == [8, 9 + 2 + 1]
  assert tallies.empty_B.tolist() == [8, 9 + 1]
  assert tallies.drafted_B.tolist() == [0, 2]
  assert tallies.accepted_BG.tolist() == [[0, 0], [2, 0]]


@pytest.mark.parametrize(
    "field, options",
    [
        ("gamma", dict(gamma=0)),
        ("min_n", dict(gamma=2, min_n=0)),
        ("min_n", dict(gamma=2, min_n=None)),
        ("max_n", dict(gamma=2, max_n=65)),
        ("max_n", dict(gamma=2, min_n=4, max_n=3)),
        ("latest", dict(gamma=2, latest=1)),
        ("source", dict(gamma=2, source="yes")),
    ],
)
def test_refused_options(field, options):
  with pytest.raises(errors.UserError, match=f"^{field}: give"):
    LookupDrafter(**options)


def test_static_under_jit():
  drafter = LookupDrafter(gamma=8)
  assert hash(drafter) == hash(dataclasses.replace(drafter))
  assert drafter.nodes == drafter.depth == 8 and drafter.taps == ()
  assert drafter.widths == (1, 3, 5, 9)
  assert LookupDrafter(gamma=1).widths == (1, 2)
