"""Block verification: a drawn chain is judged as a whole (arXiv 2403.10444).

It keeps the target's law as the token rule does, and accepts as many tokens or
more: a draft that looks bad for itself may be made up for by what follows.
"""

import dataclasses

import jax
import jax.numpy as jnp

from specjax.verify import proposal as proposals
from specjax.verify import rule as rule_lib


@dataclasses.dataclass(frozen=True)
class BlockRule(rule_lib.Rule):
  """Accepts the first tau drafts, tau the largest i with u_i < h_i.

  With r_0 = 1, i from 1 to gamma, laws p_i and q_i of what follows i drafts,
  and drafts x_i drawn from q_{i-1}:

    r_i = min(1, r_{i-1} p_{i-1}(x_i) / q_{i-1}(x_i))
    Z_i = sum_x max(0, r_i p_i(x) - q_i(x))
    h_i = Z_i / (Z_i + 1 - r_i) for i < gamma, h_gamma = r_gamma

  The next token is drawn from norm(max(0, r_tau p_tau - q_tau)), after full
  acceptance from p_gamma.

  Attributes:
    trace: also report p, q and the coins.
  """

  trace: bool = False

  name = "block"
  # Of a point mass the token rule already accepts as much as can be.
  kinds = frozenset({proposals.Kind.CHAIN})

  def judge(self, target, proposal, coin_BN):
    """Decides with given coins; see rule.Rule."""
    tokens_BN, count_B = proposal.tokens_BN, proposal.count_B
    p_BN = target.prob(jnp.pad(tokens_BN, ((0, 0), (0, 1))))[:, :-1]
    q_BN = proposal.law.prob(tokens_BN)
    node_N = jnp.arange(tokens_BN.shape[1], dtype=jnp.int32)
    counts_BN = node_N < count_B[:, None]
    # A token that can't have been drawn is of a node that does not count.
    ratio_BN = jnp.where(q_BN > 0, p_BN / q_BN, 0.0)
    weight_BN = _weights(jnp.where(counts_BN, ratio_BN, 0.0))
    greedy_BN = target.greedy[:, :-1]
    mass_BN = jax.lax.cond(
        jnp.all(greedy_BN),
        lambda: jnp.zeros_like(weight_BN),
        lambda: _masses(target, proposal, weight_BN),
    )
    last_BN = node_N == count_B[:, None] - 1
    whole_BN = coin_BN < weight_BN
    # u < h without a division; h is 1 where r is.
    part_BN = coin_BN * (mass_BN + 1 - weight_BN) < mass_BN
    accept_BN = jnp.where(last_BN, whole_BN, part_BN | (weight_BN >= 1))
    accepted_B = jnp.max(
        jnp.where(accept_BN & counts_BN, node_N + 1, 0), axis=1
    )
    judged = rule_lib.prefix(
        node_N < accepted_B[:, None], count_B, p_BN, q_BN, coin_BN
    )
    before_BT = jnp.pad(weight_BN, ((0, 0), (1, 0)), constant_values=1.0)
    return judged.replace(
        carried=jnp.take_along_axis(before_BT, accepted_B[:, None], axis=1)
    )

  def next_weights(self, target, proposal, judged):
    """What is left of one row's law; see rule.Rule."""
    weight_B1 = judged.carried
    p_BV = target.row(judged.accepted_B).dense()
    last = proposal.tokens_BN.shape[1] - 1
    q_BV = proposal.law.row(jnp.minimum(judged.accepted_B, last)).dense()
    left_BV = jnp.maximum(0.0, weight_B1 * p_BV - q_BV)
    return rule_lib.corrected(judged, left_BV, p_BV)


def _weights(ratio_BN):
  """r_1 to r_gamma."""

  def step(weight_B, ratio_B):
    weight_B = jnp.minimum(1.0, weight_B * ratio_B)
    return weight_B, weight_B

  _, weight_NB = jax.lax.scan(step, jnp.ones_like(ratio_BN[:, 0]), ratio_BN.T)
  return weight_NB.T


def _masses(target, proposal, weight_BN):
  """Z_1 to Z_{gamma - 1}, and a 0."""

  def mass(i):
    row = lambda law: jax.tree.map(lambda field: field[:, i], law).dense()
    left_BV = weight_BN[:, i - 1, None] * row(target) - row(proposal.law)
    return jnp.sum(jnp.maximum(0.0, left_BV), axis=-1)

  nodes = weight_BN.shape[1]
  mass_NB = jax.lax.map(mass, jnp.arange(1, nodes))
  return jnp.pad(mass_NB.T, ((0, 0), (0, 1)))
