"""What hypothesis draws: laws, settings and requests, many to one batch.

All of it is values in arrays of fixed shapes, so that a program is compiled
once for all examples; how much is drafted is drawn from a few ways to do so.
"""

import dataclasses
import itertools

import hypothesis
from hypothesis import strategies as st
import numpy as np

from specjax import sampling
from specjax import topology as topology_lib
from specjax.decoding import requests as requests_lib
from tests import mocks

Settings = sampling.Settings

# The same examples in every run, however long each takes; none is stored.
_FIXED = hypothesis.settings(deadline=None, derandomize=True, database=None)


def examples(count, **options):
  """Decorates a test that is to hold for so many examples."""
  return hypothesis.settings(_FIXED, max_examples=count, **options)


def topology(seed, nodes) -> topology_lib.Topology:
  """A random tree; no place has more than three children."""
  rng, paths = np.random.default_rng(seed), []
  while len(paths) < nodes:
    above = [(), *paths][rng.integers(len(paths) + 1)]
    children = sum(path[:-1] == above for path in paths)
    if children < 3:
      paths.append((*above, children))
  return topology_lib.Topology(tuple(paths))


def topologies(count, nodes, depth) -> list[topology_lib.Topology]:
  """The first random ones of so many nodes that are just so deep."""
  made = (topology(seed, nodes) for seed in itertools.count())
  return list(itertools.islice((x for x in made if x.depth == depth), count))


@dataclasses.dataclass(frozen=True)
class Drafting:
  """How much a round drafts, and how it is judged.

  Attributes:
    gamma: of chains.
    tree: of trees.
    lenience: of rules that have one.
  """

  gamma: int
  tree: topology_lib.Topology
  lenience: float


def draftings(count, seed=0) -> tuple[Drafting, ...]:
  """Random ones: gamma goes from 1 to 4, nodes of a tree from 2 to 7."""
  rng = np.random.default_rng(seed)
  return tuple(
      Drafting(
          gamma=1 + i % 4,
          tree=topology(rng.integers(2**32), 2 + i % 6),
          lenience=round(float(rng.uniform(0.1, 0.9)), 2),
      )
      for i in rng.permutation(count).tolist()
  )


@dataclasses.dataclass(frozen=True)
class Laws:
  """Random logits of a target and of its drafts.

  Attributes:
    seed: of the numbers.
    scale: of the logits; 0 makes all laws uniform.
    step: they are multiples of it, of which many are equal; 0 is none.
    kin: how the drafts' logits go with the target's.
    gaps: whether the drafts have ids that they never say.
  """

  seed: int
  scale: float
  step: float
  kin: str
  gaps: bool

  def target(self, shape):
    """Logits of the target, float32."""
    return self._logits(0, shape)

  def draft(self, shape, target=None):
    """Logits of drafts, float32; `target` where they can be kin to them."""
    logits = self._logits(1, shape)
    if target is not None and self.kin != "other":
      logits = {
          "same": target, "near": target + 0.2 * logits, "against": -target
      }[self.kin]
    if self.gaps:
      silent = self._numbers(2).random(shape) < 0.4
      # One id is left everywhere.
      silent[..., 0] = False
      logits = np.where(silent, -np.inf, logits)
    return logits.astype(np.float32)

  def _numbers(self, which):
    return np.random.default_rng((self.seed, which))

  def _logits(self, which, shape):
    logits = self.scale * self._numbers(which).normal(size=shape)
    if self.step:
      logits = np.round(logits / self.step) * self.step
    return logits.astype(np.float32)


def laws():
  """Laws, hard ones among them."""
  return st.builds(
      Laws,
      seed=st.integers(0, 2**32 - 1),
      scale=st.sampled_from((1.5, 1.5, 0.3, 6.0, 60.0, 0.0)),
      step=st.sampled_from((0.0, 0.0, 0.5, 3.0)),
      kin=st.sampled_from(("other", "other", "near", "against", "same")),
      gaps=st.booleans(),
  )


# What leaves one token is seldom, and says little. No mass of equal tokens
# comes to these top_p.
_FILTERS = dict(
    temperature=st.sampled_from((1.0, 1.0, 0.7, 1.3, 0.05, 50.0, 0.0)),
    top_k=st.sampled_from((0, 0, 0, 2, 2, 3, 99, 1)),
    top_p=st.sampled_from((1.0, 1.0, 1.0, 0.61, 0.83, 0.37, 1e-4, 0.0)),
)


def filters():
  """Settings that say no more than how to sample."""
  return st.builds(Settings, **_FILTERS)


def some_ids(vocabulary):
  """Ids without order; two such sets leave some of the vocabulary."""
  ids = st.integers(0, vocabulary - 1)
  return st.lists(ids, max_size=(vocabulary - 1) // 2, unique=True).map(tuple)


@st.composite
def settings(draw, vocabulary, suppressed):
  """Settings of a row; the suppressed ids are the batch's."""
  eos, minimum = draw(some_ids(vocabulary)), draw(st.integers(0, 5))
  banned = {*suppressed, *(eos if minimum else ())}
  allowed = [i for i in range(vocabulary) if i not in banned]
  return Settings(
      eos=eos,
      min_new_tokens=minimum,
      forced_first=draw(st.sampled_from([None, None, *allowed])),
      suppressed=suppressed,
      **{name: draw(strategy) for name, strategy in _FILTERS.items()},
  )


@dataclasses.dataclass(frozen=True)
class Row:
  """A request, and the laws that are its own."""

  request: requests_lib.Request
  laws: Laws

  def tables(self, target, draft):
    """Tables of a TableModel and of another that drafts."""
    shape = lambda model: (
        (model.vocabulary + 1) ** model.reach, model.vocabulary
    )
    own = self.laws.target(shape(target))
    kin = own if target == draft else None
    return own, self.laws.draft(shape(draft), kin)


@st.composite
def rows(
    draw, vocabulary, suppressed, *, least, most, prompt, budget, taken=()
):
  """From `least` to `most` rows with prompts and budgets up to those.

  Their requests have other ids than those that are `taken`.
  """
  count = draw(st.integers(least, most))
  number = st.integers(0, 2**32 - 1).filter(lambda i: i not in taken)
  ids = st.lists(number, min_size=count, max_size=count, unique=True)
  text = st.lists(
      st.integers(0, vocabulary - 1), min_size=1, max_size=prompt
  ).map(tuple)
  return [
      Row(
          requests_lib.Request(
              name,
              None,
              draw(text),
              draw(settings(vocabulary, suppressed)),
              draw(st.integers(1, budget)),
          ),
          draw(laws()),
      )
      for name in draw(ids)
  ]


@dataclasses.dataclass(frozen=True)
class Companies:
  """Two batches, and where those stand that are in both."""

  first: list[Row]
  second: list[Row]
  both: list[tuple[int, int]]


@st.composite
def companies(draw, vocabulary, **shape):
  """Some rows of one batch, with others, at other places."""
  most = shape["most"]
  suppressed = draw(some_ids(vocabulary))
  first = draw(rows(vocabulary, suppressed, least=1, **shape))
  kept = draw(st.permutations(range(len(first))))
  kept = kept[: draw(st.integers(1, len(first)))]
  others = rows(
      vocabulary,
      suppressed,
      least=0,
      **shape | {"most": most - len(kept)},
      taken={row.request.id for row in first},
  )
  second = [*(first[i] for i in kept), *draw(others)]
  order = draw(st.permutations(range(len(second))))
  return Companies(
      first,
      [second[i] for i in order],
      [(i, order.index(j)) for j, i in enumerate(kept)],
  )


def batch(made, *, rows, prompt, vocabulary, copies=1, seed=0):
  """A batch of rows, filled up with blank ones; `copies` of each.

  Args:
    made: the rows.
    rows: how many there are to be, before copies are made.
    prompt: width of the prompts.
    vocabulary: V.
    copies: of each, under ids of their own; 1 leaves the ids.
    seed: of the keys.
  """
  requests = [row.request for row in made]
  options = dict(
      vocabulary=vocabulary, seed=seed, rows=rows, prompt_width=prompt
  )
  if copies == 1:
    return mocks.widen_eos(requests_lib.make_batch(requests, **options), 2)
  return mocks.widen_eos(mocks.copies(requests, copies, **options), 2)


def stacked(made, target, draft, *, rows):
  """Tables of `rows` rows for RowTables; blank ones have the first one's."""
  filled = [*made, *made[:1] * (rows - len(made))]
  pairs = [row.tables(target, draft) for row in filled]
  return tuple(map(np.stack, zip(*pairs)))
