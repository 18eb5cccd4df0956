"""The token rule: each drafted token is judged on its own, in order.

Leviathan et al. 2022 (arXiv:2211.17192), Algorithm 1 and, for lenience,
Appendix A.5. Node i is judged by row i of the target's laws; the next token
comes from row `accepted`.
"""

import dataclasses

import jax.numpy as jnp

from specjax import checks
from specjax import errors
from specjax.verify import proposal as proposals
from specjax.verify import rule as rule_lib

Kind = proposals.Kind

_DRAWN = proposals.DRAWN
_RESIDUALS = ("exact", "lenient")


@dataclasses.dataclass(frozen=True)
class TokenRule(rule_lib.Rule):
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

  name = "token"
  kinds = frozenset({Kind.CHAIN, Kind.POINT, Kind.MIXED})

  def __post_init__(self):
    super().__post_init__()
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

  @property
  def lossless(self) -> bool:
    """Only without lenience."""
    return self.lenience == 1

  def judge(self, target, proposal, coin_BN):
    """Decides with given coins; see rule.Rule."""
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
        self.accepts(coin_BN, p_BN, q_BN),
    )
    return rule_lib.prefix(accept_BN, proposal.count_B, p_BN, q_BN, coin_BN)

  def accepts(self, coin, p, q):
    """The test of sampled rows; no division, and never true where p is 0."""
    return coin * self.lenience * q < p

  def accepts_greedy(self, p, gap):
    """The test of greedy rows; `gap` is log p(x) - max log p, unfiltered."""
    # p >= max p would also take the second of two equal maxima.
    return p > 0 if self.lenience == 1 else jnp.exp(gap) >= self.lenience

  def next_weights(self, target, proposal, judged):
    """What is left of one row's law; see rule.Rule."""
    p_BV = target.row(judged.accepted_B).dense()
    node_B = jnp.minimum(judged.accepted_B, proposal.tokens_BN.shape[1] - 1)
    residual_BV = _without_drafted(proposal, node_B, p_BV)
    if proposal.kind in _DRAWN:
      scale = self.lenience if self.residual == "lenient" else 1.0
      q_BV = proposal.law.row(node_B).dense()
      drawn_BV = jnp.maximum(0.0, p_BV - scale * q_BV)
      residual_BV = _mixed(proposal, residual_BV, drawn_BV, node_B)
    return rule_lib.corrected(judged, residual_BV, p_BV)

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


def _without_drafted(proposal, node_B, p_BV):
  """p_BV without the token of one node a row."""
  token_B1 = jnp.take_along_axis(proposal.tokens_BN, node_B[:, None], axis=1)
  drafted_BV = jnp.arange(p_BV.shape[1]) == token_B1
  return jnp.where(drafted_BV, 0.0, p_BV)
