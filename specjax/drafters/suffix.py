"""Suffix decoding: drafts are what followed the same tokens most often.

Oliaro et al. (arXiv 2411.04975), whose code is Snowflake's ArcticInference. A
tree over earlier responses and one over the row's own text count what followed
what. The paper's trees of candidates are not drafted, only their best path.
"""

import dataclasses

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks
from specjax import errors
from specjax.drafters import copies
from specjax.drafters import suffix_array

NOTHING = copies.NOTHING
# Of a tree's longest strings.
_LONGEST = 1024
# Of the newest token's earlier places: few are looked at in a quick program.
_FEW = (8, 64, 512)


@struct.dataclass
class Loci:
  """Where a row's newest tokens stand in the tree of earlier responses.

  Entry m - 1 is the interval of the newest m tokens; empty where they never
  came.
  """

  low_BM: jax.Array
  high_BM: jax.Array


@struct.dataclass
class Paths:
  """What follows each of M contexts.

  Attributes:
    tokens_MG: the path; no meaning from its end on.
    count_M: its length.
    score_M: the sum of its tokens' probabilities: how many are expected to be
      accepted.
  """

  tokens_MG: jax.Array
  count_M: jax.Array
  score_M: jax.Array

  def best(self):
    """tokens_G, count, score of the best, of several that of the longest m."""
    last = self.score_M.shape[0] - 1
    at = last - jnp.argmax(self.score_M[::-1])
    return self.tokens_MG[at], self.count_M[at], self.score_M[at]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuffixDrafter(copies.Copies):
  """Drafts the likeliest path of two suffix trees.

  For each m below `reach` the newest m tokens are a context. Where they came
  before, a path follows them: each of its tokens is the child that came most
  often, of several the smallest id. It ends before a token of which

    count(context + path) / count(context) < least,

  before it is longer than min(gamma, factor * m + offset), and where context
  and path are `reach` tokens. The path with the highest score is drafted, ties to the longer
  context, and to the row's own tree.

  A row's own tree is over its prompt and output, the newest tokens among them,
  and where asked over an encoder's source. It is never built: the newest
  token's earlier places, sorted by what follows, are all of it that is read.

  `params` is a suffix_array.SuffixArray of earlier responses, or None.

  Attributes:
    gamma: tokens a round at most; below `reach`.
    reach: tokens of the trees' longest strings.
    factor: more tokens are drafted behind a longer context.
    offset: so many more, or fewer.
    least: the path's probability, at least.
    source: an encoder's source is part of the row's own text.
    learns: finished responses are taken into the tree of earlier ones.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  gamma: int
  reach: int = 64
  factor: float = 1.0
  offset: float = 0.0
  least: float = 0.1
  source: bool = True
  learns: bool = True

  def __post_init__(self):
    super().__post_init__()
    low = self.gamma + 1
    errors.require(
        checks.is_whole(self.reach, low, _LONGEST),
        "reach",
        f"give a whole number from {low} (gamma + 1) to {_LONGEST}",
        self.reach,
    )
    for field, least, most in (
        ("factor", 0, 1024), ("offset", -1024, 1024), ("least", 0, 1)
    ):
      value = getattr(self, field)
      errors.require(
          checks.is_number(value) and least <= value <= most,
          field,
          f"give a number from {least} to {most}",
          value,
      )
    for field in ("source", "learns"):
      value = getattr(self, field)
      errors.require(
          isinstance(value, bool), field, "give True or False", value
      )

  @property
  def budget_M(self) -> np.ndarray:
    """The longest path behind each context."""
    context_M = np.arange(1, self.reach)
    asked_M = np.floor(context_M * self.factor + self.offset + 1e-6)
    most_M = np.minimum(self.gamma, self.reach - context_M)
    return np.clip(asked_M, 0, most_M).astype(np.int32)

  def adopt(self, params, responses):
    """The tree with these responses, newest last, in the place of the oldest.

    Args:
      params: a SuffixArray or None.
      responses: ids.
    """
    if params is None:
      return None
    return suffix_array.build(
        [*params.responses(), *responses], params.capacity, params.depth
    )

  def prefill(self, params, context, *, prompt_width, slots):
    """Walks the prompts through the tree of earlier responses.

    Raises:
      ValueError: the tree is too shallow.
    """
    del slots
    if params is None:
      return ()
    if params.depth < self.reach:
      raise ValueError(
          f"params: a tree of depth {params.depth}, want {self.reach}"
      )
    nothing_BM = jnp.zeros((context.length_B.size, self.reach - 1), jnp.int32)
    # What stands further back is no part of any context.
    steps = min(prompt_width, self.reach - 1)
    index_BT = context.length_B[:, None] - steps + jnp.arange(steps)
    tokens_BT = jnp.take_along_axis(
        context.tokens_BS, jnp.maximum(index_BT, 0), axis=1
    )
    tokens_BT = jnp.where(index_BT >= 0, tokens_BT, NOTHING)
    return _walk(
        params,
        Loci(nothing_BM, nothing_BM),
        tokens_BT,
        jnp.full_like(context.length_B, steps),
    )

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """Walks on with what was emitted."""
    del features, context
    return state if params is None else _walk(
        params, state, tokens_BT, count_B
    )

  def propose(self, params, state, context, key_B, width):
    """The best path of either tree."""
    del key_B, width
    tokens_BN, count_B, score_B = self._own(context)
    if params is not None:
      paths = jax.vmap(self._earlier, in_axes=(None, 0))
      other_BN, other_B, other_score_B = jax.vmap(Paths.best)(
          paths(params, state)
      )
      better_B = other_score_B > score_B
      tokens_BN = jnp.where(better_B[:, None], other_BN, tokens_BN)
      count_B = jnp.where(better_B, other_B, count_B)
    return self.proposal(tokens_BN, count_B), state

  def _own(self, context):
    """The best path of each row's own tree: tokens_BN, count_B, score_B."""
    text_BS, newest_B = copies.own_text(context, self.source)
    columns = text_BS.shape[1]
    newest_B1 = jnp.take_along_axis(text_BS, newest_B[:, None], axis=1)
    before_BS = jnp.arange(columns) < newest_B[:, None]
    here_BS = (text_BS == newest_B1) & before_BS & context.active_B[:, None]
    most = jnp.max(jnp.sum(here_BS, axis=1))
    sizes = [size for size in _FEW if size < columns] + [columns]

    def best(size):
      paths = lambda *row: self._own_paths(*row, size).best()
      return lambda: jax.vmap(paths)(text_BS, newest_B, here_BS)

    return jax.lax.switch(
        jnp.searchsorted(jnp.asarray(sizes), most), [*map(best, sizes)]
    )

  def _own_paths(self, text_S, newest, here_S, size: int) -> Paths:
    """Of one row's own tree.

    Args:
      text_S: from copies.own_text.
      newest: place of the newest token.
      here_S: its earlier places.
      size: as many of them at least.
    """
    contexts, gamma = self.reach - 1, self.gamma
    columns = text_S.shape[0]
    # So that one may read over both ends.
    text = jnp.pad(text_S, (contexts, gamma + 1), constant_values=NOTHING)
    (place_P,) = jnp.nonzero(here_S, size=size, fill_value=columns)
    back_M = contexts - jnp.arange(contexts)
    newest_M = text[newest + back_M]
    alike_PM = text[place_P[:, None] + back_M] == newest_M
    alike_PM &= newest_M != NOTHING
    length_P = jnp.sum(jnp.cumprod(alike_PM, axis=1, dtype=jnp.int32), axis=1)
    next_PG = text[place_P[:, None] + contexts + 1 + jnp.arange(gamma)]
    *next_GP, length_P = jax.lax.sort(
        [*next_PG.T, length_P], num_keys=gamma
    )
    next_GP = jnp.stack(next_GP)
    # Places that go on alike for g tokens stand side by side.
    changes_GP = next_GP[:, 1:] != next_GP[:, :-1]
    changes_GP = jax.lax.cummax(changes_GP.astype(jnp.int32), axis=0) > 0
    index_P = jnp.arange(size)
    first_GP = jnp.pad(jnp.where(changes_GP, index_P[1:], 0), ((0, 0), (1, 0)))
    first_GP = jax.lax.cummax(first_GP, axis=1)
    end_GP = jnp.pad(
        jnp.where(changes_GP, index_P[1:], size),
        ((0, 0), (0, 1)),
        constant_values=size,
    )
    end_GP = jax.lax.cummin(end_GP, axis=1, reverse=True)
    # Before each place: how many come behind the newest m tokens.
    context_M1 = jnp.arange(1, contexts + 1)[:, None]
    seen_MP = jnp.pad(
        jnp.cumsum(length_P >= context_M1, axis=1), ((0, 0), (1, 0))
    )
    # The newest tokens themselves are one more place.
    total_M = seen_MP[:, -1] + 1

    def step(span, xs):
      low_M1, high_M1 = span
      next_P, first_P, end_P = xs
      times_MP = seen_MP[:, end_P] - seen_MP[:, first_P]
      inside_MP = (index_P >= low_M1) & (index_P < high_M1)
      inside_MP &= next_P != NOTHING
      times_MP = jnp.where(inside_MP, times_MP, 0)
      most_M1 = jnp.max(times_MP, axis=1, keepdims=True)
      at_M1 = jnp.min(
          jnp.where(times_MP == most_M1, index_P, size - 1),
          axis=1,
          keepdims=True,
      )
      span = first_P[at_M1], end_P[at_M1]
      return span, (next_P[at_M1[:, 0]], most_M1[:, 0])

    start_M1 = jnp.zeros((contexts, 1), jnp.int32)
    _, (tokens_GM, times_GM) = jax.lax.scan(
        step, (start_M1, start_M1 + size), (next_GP, first_GP, end_GP)
    )
    return self._paths(tokens_GM, times_GM, total_M)

  def _earlier(self, tree: suffix_array.SuffixArray, loci: Loci) -> Paths:
    """Of one row's contexts in the tree of earlier responses."""
    context_M = jnp.arange(1, self.reach)

    def step(span, i):
      low_M, high_M = span
      shared_M = context_M + i
      left_M = tree.shared_E[low_M] >= tree.shared_E[high_M]
      node_M = jnp.where(left_M, low_M, high_M - 1)
      # Else all go on alike.
      forks_M = (high_M - low_M > 1) & (tree.fork_E[node_M] == shared_M)
      low_M = jnp.where(forks_M, tree.low_E[node_M], low_M)
      high_M = jnp.where(forks_M, tree.high_E[node_M], high_M)
      next_M = tree.tokens_E[tree.order_E[low_M] + shared_M]
      times_M = jnp.where(next_M == NOTHING, 0, high_M - low_M)
      return (low_M, high_M), (next_M, times_M)

    _, (tokens_GM, times_GM) = jax.lax.scan(
        step, (loci.low_BM, loci.high_BM), jnp.arange(self.gamma)
    )
    return self._paths(tokens_GM, times_GM, loci.high_BM - loci.low_BM)

  def _paths(self, tokens_GM, times_GM, total_M) -> Paths:
    """Paths from their tokens, and how often each of M comes that far."""
    chance_GM = times_GM / jnp.maximum(total_M, 1).astype(jnp.float32)
    node_G1 = jnp.arange(self.gamma)[:, None]
    good_GM = (times_GM > 0) & (chance_GM >= self.least)
    good_GM &= node_G1 < self.budget_M
    good_GM = jnp.cumprod(good_GM, axis=0, dtype=jnp.int32)
    # In order, as the reference adds them up.
    score_M, _ = jax.lax.scan(
        lambda score_M, more_M: (score_M + more_M, None),
        jnp.zeros(chance_GM.shape[1]),
        chance_GM * good_GM,
    )
    return Paths(tokens_GM.T, jnp.sum(good_GM, axis=0), score_M)


def _walk(tree, loci: Loci, tokens_BT, count_B) -> Loci:
  """The loci after the first `count` of T more tokens a row."""

  def step(i, loci):
    token_B = jax.lax.dynamic_index_in_dim(tokens_BT, i, 1, keepdims=False)
    moved = jax.vmap(_narrowed, in_axes=(None, 0, 0))(tree, loci, token_B)
    more_B1 = i < count_B[:, None]
    return jax.tree.map(
        lambda new, old: jnp.where(more_B1, new, old), moved, loci
    )

  return jax.lax.fori_loop(0, jnp.max(count_B), step, loci)


def _narrowed(tree: suffix_array.SuffixArray, loci: Loci, token) -> Loci:
  """One row's loci after one more token: each context is longer by it."""
  # Of no tokens, of the newest one, ...; the longest drops out.
  behind = lambda first, bound_M: jnp.concatenate(
      [jnp.full_like(bound_M[:1], first), bound_M[:-1]]
  )
  low_M, high_M = behind(0, loci.low_BM), behind(tree.end, loci.high_BM)
  depth_M = jnp.arange(low_M.size)

  def first_of(token, low_M):
    """The first place in [low, high) whose next token is not below."""

    def halve(_, span):
      left_M, right_M = span
      middle_M = (left_M + right_M) // 2
      next_M = tree.tokens_E[tree.order_E[middle_M] + depth_M]
      below_M = (left_M < right_M) & (next_M < token)
      return (
          jnp.where(below_M, middle_M + 1, left_M),
          jnp.where(below_M, right_M, middle_M),
      )

    steps = tree.capacity.bit_length()
    return jax.lax.fori_loop(0, steps, halve, (low_M, high_M))[0]

  low_M = first_of(token, low_M)
  after_M = first_of(token + 1, low_M)
  return Loci(low_M, jnp.where(token == NOTHING, low_M, after_M))
