"""The token rule: each drafted token is judged on its own, in order.

Leviathan et al. 2022 (arXiv:2211.17192), Algorithm 1 and, for lenience,
Appendix A.5. Node i is judged by row i of the target's laws; the next token
comes from row `accepted`.
"""

import dataclasses

import jax
import jax.numpy as jnp

from specjax import checks
from specjax import errors
from specjax import sampling
from specjax.verify import proposal as proposals

Kind = proposals.Kind
Purpose = sampling.Purpose

_KINDS = frozenset({Kind.NONE, Kind.CHAIN, Kind.POINT, Kind.MIXED})
_DRAWN = frozenset({Kind.CHAIN, Kind.MIXED})
_RESIDUALS = ("exact", "lenient")


@dataclasses.dataclass(frozen=True)
class TokenRule:
  """Accepts x when u * beta * q(x) < p(x), u uniform in [0, 1).

  After a rejection the next token is drawn from norm(max(0, p - q)), or p
  where that has no mass; after full acceptance from the target's last row.
  With beta = 1 the output law is the target's. With beta < 1 no token comes
  out with more than p(x) / beta. Greedy rows accept x = argmax p at beta = 1,
  else p(x) >= beta * max p before top-k and top-p (the paper prints the
  comparison the other way round), and emit argmax p on rejection.

  Attributes:
    lenience: beta, in (0, 1].
    residual: "exact" is max(0, p - q), "lenient" is max(0, p - beta q); the
      paper leaves it open, and "exact" is never farther from p.
    overlap: also report sum min(p, q), which builds [B, N, V].
    trace: also report p, q and the coins.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  lenience: float = 1.0
  residual: str = "exact"
  overlap: bool = False
  trace: bool = False

  def __post_init__(self):
    errors.require(
        checks.is_number(self.lenience) and 0 < self.lenience <= 1,
        "lenience",
        "give a number in (0, 1]",
        self.lenience,
    )
    errors.require(
        self.residual in _RESIDUALS,
        "residual",
        f"give one of {', '.join(_RESIDUALS)}",
        self.residual,
    )
    for field in ("overlap", "trace"):
      value = getattr(self, field)
      errors.require(
          isinstance(value, bool), field, "give True or False", value
      )

  def __call__(
      self,
      target: sampling.Law,
      proposal: proposals.Proposal,
      key_B: jax.Array,
  ) -> proposals.Verdict:
    """Judges one round.

    Args:
      target: leading [B, N + 1]; row i follows the text and nodes before i.
      proposal: N nodes.
      key_B: the rows' keys of this round.

    Raises:
      TypeError: the rule is not exact for this kind of proposal.
      ValueError: shapes, widths or the law do not go with the kind.
    """
    _check(target, proposal)
    coin_BG = _coins(key_B, proposal.tokens_BN.shape[1])
    accepted_B, evaluated_BG, p_BG, q_BG = self.judge(
        target, proposal, coin_BG
    )
    node_G = jnp.arange(coin_BG.shape[1], dtype=jnp.int32)
    trace = proposals.Trace(p_BG, q_BG, jnp.where(evaluated_BG, coin_BG, 0.0))
    return proposals.Verdict(
        accepted_B=accepted_B,
        path_BG=jnp.where(node_G < accepted_B[:, None], node_G, -1),
        next_token_B=self._next_token(target, proposal, accepted_B, key_B),
        evaluated_BG=evaluated_BG,
        overlap_BG=self._overlap(target, proposal, evaluated_BG),
        trace=trace if self.trace else None,
    )

  def judge(self, target, proposal, coin_BG):
    """Decides with given coins.

    Args:
      target: leading [B, N + 1].
      proposal: N nodes.
      coin_BG: one uniform number in [0, 1) a node.

    Returns:
      accepted_B, evaluated_BG, and p_BG and q_BG of the drafted tokens, which
      are 0 where no position was judged.
    """
    tokens_BN = proposal.tokens_BN
    # The target has one row more; its last row judges nothing.
    tokens_BT = jnp.pad(tokens_BN, ((0, 0), (0, 1)))
    first_N = lambda array_BT: array_BT[:, :-1]
    p_BN = first_N(target.prob(tokens_BT))
    q_BN = jnp.ones_like(p_BN)
    if proposal.kind in _DRAWN:
      q_BN = _mixed(proposal, q_BN, proposal.law.prob(tokens_BN))
    accept_BN = jnp.where(
        first_N(target.greedy),
        self.accepts_greedy(p_BN, first_N(target.gap(tokens_BT))),
        self.accepts(coin_BG, p_BN, q_BN),
    )
    node_N = jnp.arange(tokens_BN.shape[1])
    accept_BN &= node_N < proposal.count_B[:, None]
    accepted_B = jnp.sum(jnp.cumprod(accept_BN, axis=1), axis=1)
    accepted_B = accepted_B.astype(jnp.int32)
    evaluated_BN = node_N < jnp.minimum(
        accepted_B + 1, proposal.count_B
    )[:, None]
    judged = lambda array_BN: jnp.where(evaluated_BN, array_BN, 0.0)
    return accepted_B, evaluated_BN, judged(p_BN), judged(q_BN)

  def accepts(self, coin, p, q):
    """The test of sampled rows; no division, and never true where p is 0."""
    return coin * self.lenience * q < p

  def accepts_greedy(self, p, gap):
    """The test of greedy rows; `gap` is log p(x) - max log p, unfiltered."""
    # p >= max p would also take the second of two equal maxima.
    return p > 0 if self.lenience == 1 else jnp.exp(gap) >= self.lenience

  def next_weights(self, target, proposal, accepted_B):
    """Log-weights of the token after the accepted ones, log_weights_BV.

    The residual in rows where a node was rejected, else the target's law.
    It is made for that one row only. Not normalised.
    """
    log_p_BV = target.row(accepted_B).log_dense()
    if proposal.kind is Kind.NONE:
      return log_p_BV
    node_B = jnp.minimum(accepted_B, proposal.tokens_BN.shape[1] - 1)
    residual_BV = _without_drafted(proposal, node_B, log_p_BV)
    if proposal.kind in _DRAWN:
      scale = self.lenience if self.residual == "lenient" else 1.0
      q_BV = proposal.law.row(node_B).dense()
      drawn_BV = jnp.log(jnp.maximum(0.0, jnp.exp(log_p_BV) - scale * q_BV))
      residual_BV = _mixed(proposal, residual_BV, drawn_BV, node_B)
    has_mass_B = jnp.any(residual_BV > -jnp.inf, axis=-1)
    corrected_B = (accepted_B < proposal.count_B) & has_mass_B
    return jnp.where(corrected_B[:, None], residual_BV, log_p_BV)

  def _next_token(self, target, proposal, accepted_B, key_B):
    """Draws the next token; greedy rows take the argmax without a draw."""
    at_B1 = accepted_B[:, None]
    take = lambda field_BT: jnp.take_along_axis(field_BT, at_B1, 1)[:, 0]
    best_B, greedy_B = take(target.best), take(target.greedy)
    rejected_B = accepted_B < proposal.count_B
    purpose_B = jnp.where(rejected_B, Purpose.RESIDUAL, Purpose.EXTRA)

    def sampled():
      weights_BV = self.next_weights(target, proposal, accepted_B)
      draw_key_B = sampling.fold(key_B, purpose_B, accepted_B)
      return sampling.draw(draw_key_B, weights_BV, best_B)

    token_B = jax.lax.cond(jnp.all(greedy_B), lambda: best_B, sampled)
    return jnp.where(greedy_B, best_B, token_B)

  def _overlap(self, target, proposal, evaluated_BG):
    """sum min(p, q) at judged positions."""
    if not self.overlap or proposal.kind is Kind.NONE:
      return jnp.zeros(evaluated_BG.shape, jnp.float32)
    tokens_BT = jnp.pad(proposal.tokens_BN, ((0, 0), (0, 1)))
    overlap_BG = target.prob(tokens_BT)[:, :-1]
    if proposal.kind in _DRAWN:
      p_BNV = target.dense()[:, :-1]
      drawn_BG = jnp.sum(jnp.minimum(p_BNV, proposal.law.dense()), axis=-1)
      overlap_BG = _mixed(proposal, overlap_BG, drawn_BG)
    return jnp.where(evaluated_BG, overlap_BG, 0.0)


def _mixed(proposal, point, drawn, node_B=None):
  """`point` where nodes are point masses, else `drawn`.

  Args:
    proposal: a sampled chain, or mixed.
    point: [B, N], or of one node a row [B, V].
    drawn: likewise.
    node_B: that node.
  """
  if proposal.kind is Kind.CHAIN:
    return drawn
  is_point = proposal.point_BN
  if node_B is not None:
    is_point = jnp.take_along_axis(is_point, node_B[:, None], axis=1)
  return jnp.where(is_point, point, drawn)


def _without_drafted(proposal, node_B, log_p_BV):
  """log_p_BV without the token of one node a row."""
  token_B1 = jnp.take_along_axis(proposal.tokens_BN, node_B[:, None], axis=1)
  drafted_BV = jnp.arange(log_p_BV.shape[1]) == token_B1
  return jnp.where(drafted_BV, -jnp.inf, log_p_BV)


def _coins(key_B, nodes: int):
  """coin_BG in [0, 1), one key a node."""

  def coin_of(node):
    coin_key_B = sampling.fold(key_B, Purpose.COIN, node)
    return jax.vmap(jax.random.uniform)(coin_key_B)

  return jax.vmap(coin_of, out_axes=1)(jnp.arange(nodes))


def _check(target, proposal) -> None:
  """Refuses what the rule would judge wrongly, before anything is traced."""
  kind, law = proposal.kind, proposal.law
  if kind not in _KINDS:
    raise TypeError(f"kind: the token rule is not exact for {kind!r}")
  batch, nodes = proposal.tokens_BN.shape
  if kind is Kind.NONE and nodes:
    raise ValueError(f"tokens_BN: {nodes} nodes in a proposal of none")
  if kind is not Kind.NONE and not nodes:
    raise ValueError("kind: give Kind.NONE where nothing is drafted")
  if (law is None) == (kind in _DRAWN):
    raise ValueError(
        "law: a sampled chain needs the law it was drawn from; a point mass "
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
  if law is not None and law.best.shape != (batch, nodes):
    raise ValueError(f"law: laws {law.best.shape}, want {(batch, nodes)}")
  if law is not None and law.width != target.width:
    raise ValueError(
        f"law: {law.width} tokens wide, the target {target.width}; bring the "
        "draft's logits to the target's width with sampling.fit_width"
    )
