"""Suffix decoding's trees of drafts (arXiv 2411.04975), not only their paths.

A worked row: after the newest tokens there came `a b`, `a c`, `a b`, `d`. Of
these four places three go on with `a`, two with `a b`, one with `d` and one
with `a c`. A tree of three nodes is `a`, `a b` and `d`, the shallower of two
that came as often; 3/4 + 2/4 + 1/4 tokens of it are expected to be accepted.
"""

import dataclasses
from typing import ClassVar

from flax import struct
import jax
import jax.numpy as jnp

from specjax import checks
from specjax import errors
from specjax import topology as topology_lib
from specjax.drafters import copies
from specjax.drafters import suffix
from specjax.drafters import suffix_own
from specjax.drafters import suffix_walk
from specjax.drafters import worthiest
from specjax.verify import proposal as proposals

NOTHING = copies.NOTHING
# So many places of one context are looked at in the tree of earlier responses.
_PLACES = 64
# Contexts are told apart by where they came: so many of them are tried.
_CONTEXTS = 8


@struct.dataclass
class Branches:
  """What a tree of counts would draft.

  Attributes:
    tokens_BN: ids, a parent first; -1 from where there are no more nodes.
    parent_BN: the node above each; -1 is the root.
    score_B: the sum of the nodes' probabilities: how many tokens are expected
      to be accepted.
  """

  tokens_BN: jax.Array
  parent_BN: jax.Array
  score_B: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuffixTreeDrafter(suffix.SuffixDrafter):
  """Drafts trees where SuffixDrafter drafts paths; all of it holds here, too.

  Behind a context a tree grows by the token that came most often of all that
  stand right below its nodes, up to `nodes`. Of several it is the shallowest,
  and of those the one whose path has the smaller ids. A path's least
  probability and its longest length are those of every path of the tree; none
  is longer than what a row may still emit. The tree with the highest score is
  drafted.

  A tree has as many nodes as a path behind the same context could have tokens
  (factor, offset), but no more than `nodes`. Contexts that came at the same
  places share a tree, of the most nodes and the longest path that one of them
  may have. In each tree of counts the longest ones are tried, at
  most _CONTEXTS that came at places of their own; in that of earlier responses
  none that came more than _PLACES times. Where all did, the longest is tried,
  by as many of its places, evenly spread over their order.

  Nothing is drawn: nodes are point masses, and the tree rule keeps the
  target's law.

  Attributes:
    nodes: N, of a tree at most.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  nodes: int = 16

  trees: ClassVar[bool] = True
  # It has none that holds for every round.
  topology: ClassVar[None] = None

  def __post_init__(self):
    super().__post_init__()
    most = topology_lib.NODES
    errors.require(
        checks.is_whole(self.nodes, 1, most),
        "nodes",
        f"give a whole number from 1 to {most}, or 0 for a path",
        self.nodes,
    )
    errors.require(
        self.depth <= topology_lib.DEPTH,
        "nodes",
        f"a tree is at most {topology_lib.DEPTH} deep; give a gamma of that or"
        " less, or 0 for a path",
        self.nodes,
    )

  @property
  def depth(self) -> int:
    """G."""
    return min(self.gamma, self.nodes)

  def propose(self, params, state, context, key_B, width):
    """The best tree; growing it leaves the state as it is."""
    del key_B, width
    room_B = jnp.where(context.active_B, context.remaining_B - 1, 0)
    best = self._own_branches(context, room_B)
    if params is not None:
      other = self._earlier_branches(params, state, context, room_B)
      better_B = other.score_B > best.score_B
      choose = lambda b, a: jnp.where(
          better_B.reshape(-1, *[1] * (a.ndim - 1)), b, a
      )
      best = jax.tree.map(choose, other, best)
    proposal = proposals.Proposal(
        tokens_BN=jnp.maximum(best.tokens_BN, 0),
        count_B=jnp.sum(best.tokens_BN >= 0, axis=1, dtype=jnp.int32),
        law=None,
        kind=self.kind,
        tree=proposals.Tree(best.parent_BN, self.depth),
    )
    return proposal, state

  def _own_branches(self, context, room_B) -> Branches:
    """The best tree of each row's own text."""

    def of(size):
      size = self._enough(size)

      def best(text_BS, newest_B, here_BS):
        follow = lambda *row: suffix_own.follow(
            *row, size, self.reach - 1, self.depth
        )
        next_BGP, length_BP = jax.vmap(follow)(text_BS, newest_B, here_BS)
        # The newest tokens themselves are one more place.
        shortest_B = jnp.ones_like(newest_B)
        return self._best(next_BGP, length_BP, shortest_B, 1, room_B)

      return best

    return self._read_own(context, of)

  def _earlier_branches(self, params, state, context, room_B) -> Branches:
    """The best tree of earlier responses."""
    back_BM = context.length_B[:, None] - jnp.arange(1, self.reach)
    newest_BM = jnp.take_along_axis(
        context.tokens_BS, jnp.maximum(back_BM, 0), axis=1
    )
    newest_BM = jnp.where(back_BM >= 0, newest_BM, NOTHING)
    size = self._enough(_PLACES)
    follow = lambda loci, newest_M: suffix_walk.follow(
        params, loci, newest_M, size, self.depth
    )
    next_BGP, length_BP, shortest_B = jax.vmap(follow)(state, newest_BM)
    return self._best(next_BGP, length_BP, shortest_B, 0, room_B)

  def _enough(self, size: int) -> int:
    """So many places, or more: with fewer no tree could have all nodes."""
    return max(size, -(-self.nodes // self.depth))

  def _best(self, next_BGP, length_BP, shortest_B, more: int, room_B):
    """The best tree behind any context.

    Args:
      next_BGP: what follows each place; places are sorted by it.
      length_BP: how many of the tokens before each place are the newest.
      shortest_B: of the contexts that are tried, how many tokens it has.
      more: how often a context came elsewhere.
      room_B: of the longest path.
    """
    best = lambda *row: self._best_of(*row, more)
    worth_BX, tokens_BX, parent_BX, count_B, score_B = jax.vmap(best)(
        next_BGP, length_BP, shortest_B, room_B
    )
    chosen_BN, parent_BN = worthiest.worthiest(
        worth_BX, parent_BX, self.nodes, count_B
    )
    tokens_BN = worthiest.take(tokens_BX, chosen_BN)
    return Branches(tokens_BN, parent_BN, score_B)

  def _best_of(self, next_GP, length_P, shortest, room, more: int):
    """The nodes of one row behind the context whose tree is the best.

    Returns:
      worth_X: how often each came, -inf where that is no node; level by level,
      and in the order of their paths. tokens_X; parent_X, places in X; how many
      the tree may have; and its score.
    """
    levels, places = next_GP.shape
    first_GP, end_GP = suffix_own.groups(next_GP)
    # Of places that go on alike the first one stands for all.
    node_GP = first_GP == jnp.arange(places)
    node_GP &= jnp.cumprod(next_GP != NOTHING, axis=0, dtype=jnp.int32) > 0
    length_C, below_C = _lengths(length_P, shortest)
    seen_CP = jnp.cumsum(length_P >= length_C[:, None], axis=1)
    seen_CP = jnp.pad(seen_CP, ((0, 0), (1, 0)))
    times_CGP = seen_CP[:, end_GP] - seen_CP[:, first_GP]
    total_C = jnp.maximum(seen_CP[:, -1] + more, 1)
    level_G1 = jnp.arange(levels)[:, None]
    among = lambda values_M: _most(values_M, length_C, below_C)
    most_C = jnp.minimum(among(self.budget_M), room)
    count_C = among(self.asked_M(self.nodes))
    good_CGP = node_GP & (level_G1 < most_C[:, None, None])
    good_CGP &= times_CGP / total_C[:, None, None] >= self.least
    times_CX = jnp.where(good_CGP, times_CGP, 0).reshape(length_C.size, -1)
    # One division of whole numbers, so that equals stay equal.
    score_C = _highest(times_CX, count_C, places) / total_C
    # Of several the longest context, which is the first.
    at = jnp.argmax(score_C)
    times_X = times_CX[at]
    above_GP = first_GP[:-1] + places * level_G1[:-1]
    parent_GP = jnp.pad(above_GP, ((1, 0), (0, 0)), constant_values=-1)
    return (
        jnp.where(times_X > 0, times_X.astype(jnp.float32), -jnp.inf),
        next_GP.reshape(-1),
        parent_GP.reshape(-1),
        count_C[at],
        score_C[at],
    )


def make(nodes: int = 0, **options) -> suffix.SuffixDrafter:
  """Drafts trees of so many nodes; 0 drafts paths.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """
  if nodes == 0:
    return suffix.SuffixDrafter(**options)
  return SuffixTreeDrafter(nodes=nodes, **options)


def _lengths(length_P, shortest):
  """The longest contexts that came at places of their own.

  Args:
    length_P: the longest that came at each place.
    shortest: shorter ones don't count.

  Returns:
    length_C, falling, and below_C: the longest context that came at more
    places than that. Both are below `shortest` where there are no more.
  """

  def step(above, _):
    shorter_P = jnp.where(length_P < above, length_P, 0)
    length = jnp.maximum(jnp.max(shorter_P), shortest - 1)
    return length, length

  above = jnp.max(length_P) + 1
  _, length_C = jax.lax.scan(step, above, length=_CONTEXTS + 1)
  return length_C[:-1], length_C[1:]


def _most(values_M, length_C, below_C):
  """The highest of what contexts of up to so many tokens, but more, have."""
  context_M = jnp.arange(1, len(values_M) + 1)
  among_CM = context_M <= length_C[:, None]
  among_CM &= context_M > below_C[:, None]
  return jnp.max(jnp.where(among_CM, values_M, 0), axis=1)


def _highest(times_CX, count_C, most: int):
  """The sum of the `count_C` highest of some whole numbers from 0 to `most`."""
  bits = most.bit_length()

  def higher(i, least_C1):
    """One more bit of the highest number that so many reach."""
    more_C1 = least_C1 + jnp.left_shift(1, bits - 1 - i)
    reach_C1 = jnp.sum(times_CX >= more_C1, axis=1, keepdims=True)
    return jnp.where(reach_C1 >= count_C[:, None], more_C1, least_C1)

  least_C1 = jax.lax.fori_loop(
      0, bits, higher, jnp.zeros_like(times_CX[:, :1])
  )
  above_CX = jnp.maximum(times_CX - least_C1, 0)
  return jnp.sum(above_CX, axis=1) + count_C * least_C1[:, 0]
