"""Earlier responses as a suffix tree in flat arrays, built on the host.

All suffixes of all responses, in the order of their first `depth` tokens: the
places of a string are an interval of that order, and it occurs as often as the
interval is long. Intervals that fork into several are the tree's inner nodes;
each is told its most frequent child (Abouelhoda et al. 2004, "Replacing suffix
trees with enhanced suffix arrays").
"""

from typing import Sequence

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from specjax.drafters import copies

NOTHING = copies.NOTHING


@struct.dataclass
class SuffixArray:
  """Up to E suffixes; entries from `end` on are never read.

  The node of an interval [low, high) is kept at `low` or at `high - 1`,
  whichever shares more with what lies beyond: no two are kept at one place.

  Attributes:
    tokens_E: the responses, oldest first, NOTHING behind each and at the end.
    order_E: where the suffixes begin, in their order.
    shared_E: how many tokens, `depth` at most, a suffix shares with the one
      before it; -1 for the first, and for one more at `end`.
    fork_E: of a node, how many tokens all its suffixes share; `depth` where
      there is no node.
    low_E, high_E: of a node, the interval of its most frequent child, of
      several the one with the smallest id; empty where all suffixes end.
    end: how many suffixes there are.
    depth: static; suffixes are not told apart beyond.
  """

  tokens_E: jax.Array
  order_E: jax.Array
  shared_E: jax.Array
  fork_E: jax.Array
  low_E: jax.Array
  high_E: jax.Array
  end: jax.Array
  depth: int = struct.field(pytree_node=False)

  @property
  def capacity(self) -> int:
    """E."""
    return self.order_E.shape[0]

  def responses(self) -> list[np.ndarray]:
    """What it was built of, oldest first."""
    tokens_E = np.asarray(self.tokens_E)
    parts = np.split(tokens_E, np.flatnonzero(tokens_E == NOTHING))
    texts = [part[part != NOTHING] for part in parts]
    return [text for text in texts if len(text)]


def build(
    responses: Sequence[Sequence[int]], capacity: int, depth: int
) -> SuffixArray:
  """The tree of the newest responses.

  Args:
    responses: ids, oldest first; empty ones do not count.
    capacity: E; a response takes its length and one more. The oldest are left
      out where there are more; of one that is too long the end counts.
    depth: of the tree.
  """
  tokens = _newest(responses, capacity)
  order = _order(tokens, depth)
  read = np.pad(tokens, (0, depth), constant_values=NOTHING)
  shared = _shared(read, order, depth)
  fork, low, high = _nodes(read, order, shared, depth)

  def padded(values, size=capacity, fill=0):
    values = np.pad(values, (0, size - len(values)), constant_values=fill)
    return jnp.asarray(values, jnp.int32)

  return SuffixArray(
      tokens_E=padded(tokens, capacity + depth, NOTHING),
      order_E=padded(order),
      shared_E=padded(shared, capacity + 1),
      fork_E=padded(fork),
      low_E=padded(low),
      high_E=padded(high),
      end=jnp.int32(len(order)),
      depth=depth,
  )


def _newest(responses, capacity: int) -> np.ndarray:
  """The newest responses that fit, each with NOTHING behind it."""
  parts, left = [], capacity
  for ids in reversed(responses):
    ids = np.asarray(ids, np.int32)[-(capacity - 1) :]
    if len(ids):
      left -= len(ids) + 1
      if left < 0:
        break
      parts += [[NOTHING], ids]
  return np.concatenate([*reversed(parts), []]).astype(np.int32)


def _order(tokens: np.ndarray, depth: int) -> np.ndarray:
  """Where suffixes begin, sorted by their first `depth` tokens or more.

  By prefix doubling (Manber and Myers 1990): ranks by the first k tokens give
  those by the first 2k.
  """
  size = len(tokens)
  if not size:
    return np.zeros(0, np.int64)
  ends = np.flatnonzero(tokens == NOTHING)
  place = np.arange(size)
  length = ends[np.searchsorted(ends, place)] - place
  rank = tokens.astype(np.int64) + 1
  done = 1
  while done < depth:
    # A suffix that has ended comes first, whatever stands behind it.
    after = np.zeros(size, np.int64)
    longer = place[length > done]
    after[longer] = rank[longer + done]
    _, rank = np.unique(rank * (after.max() + 1) + after, return_inverse=True)
    done *= 2
  order = np.argsort(rank, kind="stable")
  return order[tokens[order] != NOTHING]


def _shared(read: np.ndarray, order: np.ndarray, depth: int) -> np.ndarray:
  """shared_E as far as there are suffixes, and one more."""
  shared = np.zeros(len(order) + 1, np.int64)
  shared[[0, -1]] = -1
  alike = np.arange(1, len(order))
  for d in range(depth):
    here, before = read[order[alike] + d], read[order[alike - 1] + d]
    alike = alike[(here == before) & (here != NOTHING)]
    shared[alike] += 1
  return shared


def _nodes(read, order, shared, depth: int):
  """fork_E, low_E and high_E as far as there are suffixes."""
  fork = np.full(len(order), depth)
  low, high = np.zeros((2, len(order)), np.int64)
  for d in np.unique(shared[1:-1]):
    # What shares d tokens with a neighbour; a child shares one token more.
    member = np.flatnonzero((shared[:-1] >= d) | (shared[1:] >= d))
    begin = member[shared[member] <= d]
    end = member[shared[member + 1] <= d] + 1
    times = np.where(read[order[begin] + d] == NOTHING, 0, end - begin)
    # Children of one node stand side by side.
    first = np.flatnonzero(shared[begin] < d)
    last = np.append(first[1:], len(begin)) - 1
    most = np.maximum.reduceat(times, first)
    node = np.repeat(np.arange(len(first)), last - first + 1)
    best = np.flatnonzero(times == most[node])
    best = best[np.unique(node[best], return_index=True)[1]]
    left, right = begin[first], end[last]
    place = np.where(shared[left] >= shared[right], left, right - 1)
    forks = (last > first) & (d < depth)
    fork[place[forks]] = d
    low[place[forks]] = begin[best[forks]]
    high[place[forks]] = (begin[best] + most)[forks]
  return fork, low, high
