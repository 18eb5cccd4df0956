"""What rules share: coins, the next token, and what they refuse."""

from typing import Any, ClassVar

from flax import struct
import jax
import jax.numpy as jnp

from specjax import errors
from specjax import sampling
from specjax.verify import proposal as proposals

Kind = proposals.Kind
Purpose = sampling.Purpose


@struct.dataclass
class Judged:
  """What became of a proposal, before the next token is drawn.

  Attributes:
    accepted_B, path_BG, evaluated_BG: as a Verdict has them.
    trace: what decided each position.
    carried: what else the rule's own `next_weights` needs.
  """

  accepted_B: jax.Array
  path_BG: jax.Array
  evaluated_BG: jax.Array
  trace: proposals.Trace
  carried: Any = None

  @property
  def place_B(self) -> jax.Array:
    """Row of the target's laws that the next token follows from."""
    return jnp.max(self.path_BG, axis=1, initial=-1) + 1

  @property
  def rejected_B(self) -> jax.Array:
    """Whether there was something behind the accepted nodes to reject."""
    return jnp.sum(self.evaluated_BG, axis=1) > self.accepted_B


class Rule:
  """A rule adds `judge` and `next_weights`, and says what it is for.

  Attributes:
    name: in reports and messages.
    kinds: of proposals that it judges, beside none at all.
    trees: whether it judges trees; else chains only.
    lossless: whether the output law is the target's.
    trace: also report what decided each position.
  """

  name: ClassVar[str]
  kinds: ClassVar[frozenset[Kind]]
  trees: ClassVar[bool] = False
  lossless: bool = True
  trace: bool

  def __post_init__(self):
    for field in ("overlap", "trace"):
      value = getattr(self, field, False)
      errors.require(
          isinstance(value, bool), field, "give True or False", value
      )

  def judge(self, target, proposal, coin_BN) -> Judged:
    """Decides with given coins.

    Args:
      target: leading [B, N + 1].
      proposal: N nodes.
      coin_BN: one uniform number in [0, 1) a node.
    """
    raise NotImplementedError

  def next_weights(self, target, proposal, judged: Judged):
    """Weights of the token after the accepted ones, weights_BV, 0 or more.

    What is left of the target's law where something was rejected behind them,
    else all of it. Not normalised.
    """
    raise NotImplementedError

  def __call__(
      self,
      target: sampling.Law,
      proposal: proposals.Proposal,
      key_B: jax.Array,
  ) -> proposals.Verdict:
    """Judges one round.

    Args:
      target: leading [B, N + 1]; row 0 follows the text, row i + 1 node i.
      proposal: N nodes.
      key_B: the rows' keys of this round.

    Raises:
      TypeError: the rule is not for this kind of proposal.
      ValueError: shapes, widths or the law do not go with the kind.
    """
    self._check(target, proposal)
    if proposal.kind is Kind.NONE:
      judged = _nothing(proposal.count_B)
    else:
      coin_BN = coins(key_B, proposal.tokens_BN, target)
      judged = self.judge(target, proposal, coin_BN)
    blank = lambda array_BG: jnp.where(
        judged.evaluated_BG, array_BG, jnp.zeros_like(array_BG)
    )
    return proposals.Verdict(
        accepted_B=judged.accepted_B,
        path_BG=judged.path_BG,
        next_token_B=self._next_token(target, proposal, judged, key_B),
        evaluated_BG=judged.evaluated_BG,
        overlap_BG=self._overlap(target, proposal, judged.evaluated_BG),
        trace=jax.tree.map(blank, judged.trace) if self.trace else None,
    )

  def _next_token(self, target, proposal, judged, key_B):
    """Draws the next token; greedy rows take the argmax without a draw."""
    place_B = judged.place_B
    take = lambda field_BT: jnp.take_along_axis(
        field_BT, place_B[:, None], axis=1
    )[:, 0]
    best_B, greedy_B = take(target.best), take(target.greedy)
    purpose_B = jnp.where(
        judged.rejected_B, Purpose.RESIDUAL, Purpose.EXTRA
    )

    def sampled():
      if proposal.kind is Kind.NONE:
        weights_BV = target.row(place_B).dense()
      else:
        weights_BV = self.next_weights(target, proposal, judged)
      draw_key_B = sampling.fold(key_B, purpose_B, place_B)
      return sampling.draw(draw_key_B, weights_BV, best_B)

    token_B = jax.lax.cond(jnp.all(greedy_B), lambda: best_B, sampled)
    return jnp.where(greedy_B, best_B, token_B)

  def _overlap(self, target, proposal, evaluated_BG):
    """sum min(p, q) at judged positions, where a rule reports it."""
    del target, proposal
    return jnp.zeros(evaluated_BG.shape, jnp.float32)

  def _check(self, target, proposal) -> None:
    """Refuses what would be judged wrongly, before anything is traced."""
    kind = proposal.kind
    if kind is not Kind.NONE and kind not in self.kinds:
      raise TypeError(f"kind: the {self.name} rule is not for {kind!r}")
    if proposal.tree is not None and not self.trees:
      raise TypeError(f"tree: the {self.name} rule judges chains only")
    _check_shapes(target, proposal)


def corrected(judged: Judged, residual_BV, p_BV):
  """The residual where a node was rejected and mass is left, else p."""
  has_mass_B = jnp.any(residual_BV > 0, axis=-1)
  use_B1 = (judged.rejected_B & has_mass_B)[:, None]
  return jnp.where(use_B1, residual_BV, p_BV)


def prefix(accept_BN, count_B, p_BN, q_BN, coin_BN) -> Judged:
  """A chain of which as many are accepted as its first ones that may be.

  Args:
    accept_BN: whether each would be, for itself.
    count_B: how many count.
    p_BN, q_BN, coin_BN: what decided that.
  """
  node_N = jnp.arange(accept_BN.shape[1], dtype=jnp.int32)
  accept_BN = accept_BN & (node_N < count_B[:, None])
  accepted_B = jnp.sum(
      jnp.cumprod(accept_BN, axis=1), axis=1, dtype=jnp.int32
  )
  return Judged(
      accepted_B=accepted_B,
      path_BG=jnp.where(node_N < accepted_B[:, None], node_N, -1),
      evaluated_BG=node_N < jnp.minimum(accepted_B + 1, count_B)[:, None],
      trace=proposals.Trace(
          jnp.broadcast_to(node_N, accept_BN.shape), p_BN, q_BN, coin_BN
      ),
  )


def coins(key_B, tokens_BN, target):
  """coin_BN in [0, 1), one key a node; 0 in greedy rows, which need none."""
  greedy_B = jnp.all(target.greedy, axis=1)
  none_BN = jnp.zeros(tokens_BN.shape, jnp.float32)

  def coin_of(node):
    coin_key_B = sampling.fold(key_B, Purpose.COIN, node)
    return jax.vmap(jax.random.uniform)(coin_key_B)

  def tossed():
    nodes = jnp.arange(tokens_BN.shape[1])
    coin_BN = jax.vmap(coin_of, out_axes=1)(nodes)
    return jnp.where(greedy_B[:, None], none_BN, coin_BN)

  return jax.lax.cond(jnp.all(greedy_B), lambda: none_BN, tossed)


def _nothing(count_B) -> Judged:
  """Of a proposal without nodes."""
  empty_BG = jnp.zeros((*count_B.shape, 0), jnp.float32)
  path_BG = empty_BG.astype(jnp.int32)
  return Judged(
      accepted_B=jnp.zeros_like(count_B, jnp.int32),
      path_BG=path_BG,
      evaluated_BG=empty_BG.astype(bool),
      trace=proposals.Trace(path_BG, empty_BG, empty_BG, empty_BG),
  )


def _check_shapes(target, proposal) -> None:
  """Refuses shapes and laws that do not go with the kind."""
  kind, law = proposal.kind, proposal.law
  batch, nodes = proposal.tokens_BN.shape
  if kind is Kind.NONE and nodes:
    raise ValueError(f"tokens_BN: {nodes} nodes in a proposal of none")
  if kind is not Kind.NONE and not nodes:
    raise ValueError("kind: give Kind.NONE where nothing is drafted")
  if (law is None) == (kind in proposals.DRAWN):
    raise ValueError(
        "law: drawn tokens need the law they were drawn from; a point mass "
        "has none"
    )
  if (proposal.point_BN is None) == (kind is Kind.MIXED):
    raise ValueError(
        "point_BN: a mixed proposal needs to say which nodes are point masses;"
        " no other has it"
    )
  if target.best.shape != (batch, nodes + 1):
    raise ValueError(
        f"target: laws {target.best.shape}, want {(batch, nodes + 1)}"
    )
  if law is None:
    return
  # How many places of a tree have children is for its drafter to know.
  rows = nodes if proposal.tree is None else law.best.shape[1]
  if law.best.shape != (batch, rows):
    raise ValueError(f"law: laws {law.best.shape}, want {(batch, rows)}")
  if law.width != target.width:
    raise ValueError(
        f"law: {law.width} tokens wide, the target {target.width}; bring the "
        "draft's logits to the target's width with sampling.fit_width"
    )
