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
  """

  NONE = "none"
  CHAIN = "chain"
  POINT = "point"
  MIXED = "mixed"


@struct.dataclass
class Proposal:
  """A chain of drafted tokens; node i follows node i - 1.

  Attributes:
    tokens_BN: int32.
    count_B: how many nodes count; those beyond are padding. It never depends
      on the value of a token that was drawn and dropped.
    law: leading [B, N]; row i is the law that node i was really drawn from,
      in the target's vocabulary width; anything where `point_BN` is True. None
      for point masses.
    kind: a Kind, static.
    point_BN: of a mixed proposal, the nodes that are point masses; else None.
  """

  tokens_BN: jax.Array
  count_B: jax.Array
  law: sampling.Law | None
  kind: Kind = struct.field(pytree_node=False)
  point_BN: jax.Array | None = None

  def first(self, nodes: int) -> "Proposal":
    """Its first nodes, as if the others had not been proposed."""
    if nodes == self.tokens_BN.shape[1]:
      return self
    cut = lambda tree_BN: jax.tree.map(lambda x: x[:, :nodes], tree_BN)
    return Proposal(
        tokens_BN=cut(self.tokens_BN),
        count_B=jnp.minimum(self.count_B, nodes),
        law=cut(self.law) if nodes else None,
        kind=self.kind if nodes else Kind.NONE,
        point_BN=cut(self.point_BN) if nodes else None,
    )


@struct.dataclass
class Trace:
  """What each judged position was decided by; 0 where none was judged.

  Attributes:
    p_BG: the target's probability of the drafted token.
    q_BG: the draft's; 1 for point masses.
    coin_BG: the uniform number.
  """

  p_BG: jax.Array
  q_BG: jax.Array
  coin_BG: jax.Array


@struct.dataclass
class Verdict:
  """The outcome of one round.

  Attributes:
    accepted_B: int32, how many drafted tokens are accepted.
    path_BG: int32, the accepted nodes in order, -1 beyond.
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
