"""Where a row stands in the tree of earlier responses, and what follows."""

from flax import struct
import jax
import jax.numpy as jnp

from specjax.drafters import copies
from specjax.drafters import suffix_array
from specjax.drafters import suffix_own

NOTHING = copies.NOTHING


@struct.dataclass
class Loci:
  """Of M contexts: entry m - 1 is the interval of the newest m tokens.

  It is empty where they never came.

  Attributes:
    low_BM: its first place in the order.
    high_BM: the place behind its last.
  """

  low_BM: jax.Array
  high_BM: jax.Array


def start(batch: int, contexts: int) -> Loci:
  """Before the first token."""
  nothing_BM = jnp.zeros((batch, contexts), jnp.int32)
  return Loci(nothing_BM, nothing_BM)


def walk(
    tree: suffix_array.SuffixArray, loci: Loci, tokens_BT, count_B
) -> Loci:
  """The loci after the first `count` of T more tokens a row."""

  def step(i, loci):
    token_B = jax.lax.dynamic_index_in_dim(tokens_BT, i, 1, keepdims=False)
    moved = jax.vmap(_narrowed, in_axes=(None, 0, 0))(tree, loci, token_B)
    more_B1 = i < count_B[:, None]
    return jax.tree.map(
        lambda new, old: jnp.where(more_B1, new, old), moved, loci
    )

  return jax.lax.fori_loop(0, jnp.max(count_B), step, loci)


def paths(tree: suffix_array.SuffixArray, loci: Loci, gamma: int):
  """As suffix_own.paths, of one row: tokens_GM, times_GM, total_M."""
  low_M, high_M = loci.low_BM, loci.high_BM
  context_M = jnp.arange(1, low_M.size + 1)

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
      step, (low_M, high_M), jnp.arange(gamma)
  )
  return tokens_GM, times_GM, high_M - low_M


def follow(
    tree: suffix_array.SuffixArray, loci: Loci, newest_M, size: int, gamma: int
):
  """As suffix_own.follow, of the places of one context of a row.

  The longer contexts came at some of those. It is the shortest that came
  `size` times at most; where all came more often, the longest that came at
  all, of whose places as many are taken, evenly spread over their order.

  Args:
    tree: of earlier responses.
    loci: of the row.
    newest_M: its newest tokens, the newest first.
    size: places, at most.
    gamma: tokens that follow.

  Returns:
    next_GP, length_P, and how many tokens the context has.
  """
  times_M = loci.high_BM - loci.low_BM
  too_many, some = jnp.sum(times_M > size), jnp.sum(times_M > 0)
  at = jnp.maximum(jnp.minimum(too_many, some - 1), 0)
  low, times = loci.low_BM[at], times_M[at]
  index_P = jnp.arange(size)
  # Their quotient and remainder apart: a product could be beyond 32 bits.
  wide = jnp.maximum(times, size)
  step_P = index_P * (wide // size) + index_P * (wide % size) // size
  there_P1 = (index_P < times)[:, None]
  place_P1 = (tree.order_E[low + step_P] + at + 1)[:, None]
  # What lies behind all responses is NOTHING, and so is the last entry.
  next_PG = jnp.where(
      there_P1, tree.tokens_E[place_P1 + jnp.arange(gamma)], NOTHING
  )
  back_PM = place_P1 - 1 - jnp.arange(newest_M.size)
  before_PM = tree.tokens_E[jnp.maximum(back_PM, 0)]
  before_PM = jnp.where(there_P1 & (back_PM >= 0), before_PM, NOTHING)
  return next_PG.T, suffix_own.alike(before_PM, newest_M), at + 1


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
