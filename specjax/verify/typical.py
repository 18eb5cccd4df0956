"""Typical acceptance: lossy, drafts need only be likely enough.

Medusa (Cai et al., arXiv 2401.10774, section 2.3.1). The output law is not
the target's, but for greedy rows.
"""

import dataclasses

import jax
import jax.numpy as jnp

from specjax import checks
from specjax import errors
from specjax.verify import proposal as proposals
from specjax.verify import rule as rule_lib
from specjax.verify import tree as tree_lib

Kind = proposals.Kind


@dataclasses.dataclass(frozen=True)
class TypicalRule(rule_lib.Rule):
  """Accepts x where p(x) > min(epsilon, delta exp(-H(p))), H the entropy.

  The longest path counts of which all nodes are accepted, of several the
  likeliest. The next token is drawn from the target's law behind it. Nothing
  is drawn to decide, so a trace has the threshold in the coin's place, and 1
  for q.

  Attributes:
    epsilon: in (0, 1].
    delta: above 0; Medusa takes about the root of epsilon.
    trace: also report p and the thresholds.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  epsilon: float = 0.09
  delta: float = 0.3
  trace: bool = False

  name = "typical"
  kinds = frozenset(Kind) - {Kind.NONE}
  trees = True
  lossless = False

  def __post_init__(self):
    super().__post_init__()
    for field in ("epsilon", "delta"):
      value = getattr(self, field)
      errors.require(
          checks.is_number(value) and 0 < value <= 1,
          field,
          "give a number in (0, 1]",
          value,
      )

  def judge(self, target, proposal, coin_BN):
    """Decides; see rule.Rule. Coins play no part."""
    del coin_BN
    tokens_BN, tree = proposal.tokens_BN, tree_lib.tree_of(proposal)
    batch, nodes = tokens_BN.shape
    counts_BN = jnp.arange(nodes) < proposal.count_B[:, None]
    counts_BN &= tokens_BN >= 0
    log_p_BN = target.log_prob_at(tree.parent_BN + 1, tokens_BN)
    bound_BT = jnp.minimum(
        self.epsilon, self.delta * jnp.exp(-_entropy(target))
    )
    bound_BN = jnp.take_along_axis(bound_BT, tree.parent_BN + 1, axis=1)
    fits_BN = counts_BN & (jnp.exp(log_p_BN) > bound_BN)
    # The root always fits.
    pad = lambda array_BN, fill: jnp.pad(
        array_BN, ((0, 0), (1, 0)), constant_values=fill
    )
    sees_BTT = tree.sees_BTT
    whole_BT = jnp.all(~sees_BTT | pad(fits_BN, True)[:, None], axis=-1)
    depth_BT = jnp.sum(sees_BTT, axis=-1) - 1
    likely_BN = jnp.where(fits_BN, log_p_BN, 0.0)
    chance_BT = jnp.sum(
        jnp.where(sees_BTT, pad(likely_BN, 0.0)[:, None], 0.0), axis=-1
    )
    accepted_B = jnp.max(jnp.where(whole_BT, depth_BT, 0), axis=1)
    longest_BT = whole_BT & (depth_BT == accepted_B[:, None])
    place_B = jnp.argmax(jnp.where(longest_BT, chance_BT, -jnp.inf), axis=1)
    own_BT = jnp.take_along_axis(sees_BTT, place_B[:, None, None], 1)[:, 0]
    # The place that the path has at each depth, the root at depth 0.
    depth_G = jnp.arange(tree.depth + 1)[:, None]
    on_BGT = own_BT[:, None] & (depth_BT[:, None] == depth_G)
    path_BG = jnp.where(
        jnp.any(on_BGT, axis=-1), jnp.argmax(on_BGT, axis=-1) - 1, -2
    )
    above_BGN = tree.parent_BN[:, None] == path_BG[:, :-1, None]
    child_BGN = above_BGN & counts_BN[:, None]
    first_BG = jnp.argmax(child_BGN, axis=-1)
    path_BG = jnp.maximum(path_BG[:, 1:], -1)
    node_BG = jnp.where(path_BG >= 0, path_BG, first_BG).astype(jnp.int32)
    take = lambda array_BN: jnp.take_along_axis(array_BN, node_BG, axis=1)
    return rule_lib.Judged(
        accepted_B=accepted_B.astype(jnp.int32),
        path_BG=path_BG.astype(jnp.int32),
        evaluated_BG=jnp.any(child_BGN, axis=-1),
        trace=proposals.Trace(
            node_BG=node_BG,
            p_BG=take(jnp.exp(log_p_BN)),
            q_BG=jnp.ones((batch, tree.depth), jnp.float32),
            coin_BG=take(bound_BN),
        ),
    )

  def next_weights(self, target, proposal, judged):
    """All of the target's law; see rule.Rule."""
    del proposal
    return target.row(judged.place_B).dense()


def _entropy(target):
  """H of every row, [B, T]; one row at a time, which is dense."""

  def of(i):
    log_p_BV = jax.tree.map(lambda field: field[:, i], target).log_dense()
    p_BV = jnp.exp(log_p_BV)
    return -jnp.sum(jnp.where(p_BV > 0, p_BV * log_p_BV, 0.0), axis=-1)

  entropy_TB = jax.lax.map(of, jnp.arange(target.best.shape[1]))
  return entropy_TB.T
