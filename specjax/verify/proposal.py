"""What a drafter hands to a verifier, and what the verifier answers."""

import enum

from flax import struct
import jax
import jax.numpy as jnp

from specjax import sampling


class Kind(enum.Enum):
  """How the drafted tokens came about; decides which rule is exact for them.

  NONE: nothing is drafted (N = 0).
  CHAIN: node i was drawn from row i of `law`, given the nodes before it.
  POINT: node i is a function of the text before it (an argmax, a lookup): a
    law with all its mass on one token, so there is no `law` to report.
  MIXED: node i is one or the other, as `point_BN` says. Which of them must be
    known before anything is drawn.
  DISTINCT: the children of a node were drawn from its row of `law`, in their
    order, each without those before it.
  INDEPENDENT: the children of a node were drawn from its row of `law`, each
    for itself; some may be the same.
  """

  NONE = "none"
  CHAIN = "chain"
  POINT = "point"
  MIXED = "mixed"
  DISTINCT = "distinct"
  INDEPENDENT = "independent"


# Kinds whose tokens were drawn from a law, and with it.
DRAWN = frozenset(
    {Kind.CHAIN, Kind.MIXED, Kind.DISTINCT, Kind.INDEPENDENT}
)


@struct.dataclass
class Tree:
  """Which node follows which.

  In what has a place for each of T = N + 1 tokens the newest token of the
  text, the root, comes first and node i at place i + 1.

  Attributes:
    parent_BN: int32; -1 is the root. A parent precedes its children.
    depth: G, nodes of the longest path.
  """

  parent_BN: jax.Array
  depth: int = struct.field(pytree_node=False)

  @property
  def sees_BTT(self) -> jax.Array:
    """Which places each place sees: itself and those it descends from."""
    parent_BT = jnp.pad(self.parent_BN + 1, ((0, 0), (1, 0)))
    place_T = jnp.arange(parent_BT.shape[1])
    up_BT = jnp.broadcast_to(place_T, parent_BT.shape)
    sees_BTT = up_BT[..., None] == place_T
    for _ in range(self.depth):
      up_BT = jnp.take_along_axis(parent_BT, up_BT, axis=1)
      sees_BTT |= up_BT[..., None] == place_T
    return sees_BTT

  @property
  def law_BT(self) -> jax.Array:
    """Which row of a proposal's law each place's children were drawn from."""
    places = self.parent_BN.shape[1] + 1
    has_BT = jnp.any(
        self.parent_BN[:, None] + 1 == jnp.arange(places)[:, None], axis=-1
    )
    return jnp.maximum(jnp.cumsum(has_BT, axis=1, dtype=jnp.int32) - 1, 0)

  def follow(self, tokens_BN, text_BG) -> jax.Array:
    """path_BG of the nodes that spell a text; -1 from where there are none."""
    at_B, path = jnp.full_like(tokens_BN[:, 0], -1), []
    for i in range(text_BG.shape[1]):
      here_BN = (self.parent_BN == at_B[:, None]) & (
          tokens_BN == text_BG[:, i, None]
      )
      at_B = jnp.where(jnp.any(here_BN, 1), jnp.argmax(here_BN, 1), NOWHERE)
      path.append(jnp.maximum(at_B, -1))
    return jnp.stack(path, axis=1).astype(jnp.int32)


# No node's parent: where a walk down a tree has ended.
NOWHERE = -2


def chain_tree(tokens_BN) -> Tree:
  """A chain as a tree."""
  nodes = tokens_BN.shape[1]
  parent_N = jnp.arange(nodes, dtype=jnp.int32) - 1
  return Tree(jnp.broadcast_to(parent_N, tokens_BN.shape), nodes)


@struct.dataclass
class Proposal:
  """Drafted tokens: a chain, where node i follows node i - 1, or a tree.

  Attributes:
    tokens_BN: int32. A negative one is of no token: where siblings were to
      differ, and the law had no more.
    count_B: how many nodes count; those beyond are padding. It never depends
      on the value of a token that was drawn and dropped.
    law: what nodes were really drawn from, in the target's vocabulary width;
      None for point masses. It has a row for each place that has children,
      in order: of a chain, row i is of node i. Anything where `point_BN` is
      True.
    kind: a Kind, static.
    point_BN: of a mixed proposal, the nodes that are point masses; else None.
    tree: None is a chain.
  """

  tokens_BN: jax.Array
  count_B: jax.Array
  law: sampling.Law | None
  kind: Kind = struct.field(pytree_node=False)
  point_BN: jax.Array | None = None
  tree: Tree | None = None

  @property
  def depth(self) -> int:
    """G, nodes of the longest path."""
    return self.tokens_BN.shape[1] if self.tree is None else self.tree.depth

  def first(self, nodes: int) -> "Proposal":
    """The first nodes, as if the others had not been proposed.

    Of a tree that has a law this is not for.
    """
    if nodes == self.tokens_BN.shape[1]:
      return self
    cut = lambda tree_BN: jax.tree.map(lambda x: x[:, :nodes], tree_BN)
    tree = self.tree
    if tree is not None:
      tree = Tree(cut(tree.parent_BN), min(tree.depth, nodes))
    return Proposal(
        tokens_BN=cut(self.tokens_BN),
        count_B=jnp.minimum(self.count_B, nodes),
        law=cut(self.law) if nodes else None,
        kind=self.kind if nodes else Kind.NONE,
        point_BN=cut(self.point_BN) if nodes else None,
        tree=tree if nodes else None,
    )


@struct.dataclass
class Trace:
  """What decided each judged position; 0 where none was judged.

  Attributes:
    node_BG: the node that was judged last: of several siblings the accepted
      one, or the last that was rejected.
    p_BG: what it was judged by in the end: the target's probability of its
      token, once its rejected siblings have had their share.
    q_BG: the draft's likewise; 1 for point masses.
    coin_BG: the uniform number, 0 in greedy rows.
  """

  node_BG: jax.Array
  p_BG: jax.Array
  q_BG: jax.Array
  coin_BG: jax.Array


@struct.dataclass
class Verdict:
  """The outcome of one round.

  Attributes:
    accepted_B: int32, how many drafted tokens are accepted.
    path_BG: int32, the accepted nodes in order, -1 beyond. Rising.
    next_token_B: int32, the corrected token after a rejection, else the extra.
    evaluated_BG: bool, was this position judged.
    overlap_BG: sum of min(p, q) at judged positions; 0 unless asked for.
    trace: a Trace, or None unless asked for.
  """

  accepted_B: jax.Array
  path_BG: jax.Array
  next_token_B: jax.Array
  evaluated_BG: jax.Array
  overlap_BG: jax.Array
  trace: Trace | None
