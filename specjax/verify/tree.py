"""Trees, node by node from the root: siblings are judged in their order.

Point masses: of siblings that were chosen, one is accepted just when a draw
from p is among them, at any temperature. Drawn siblings: recursive rejection
where each was drawn without those before it (Jeon et al., arXiv 2402.14160;
EAGLE, arXiv 2401.15077), multi-step rejection where each was drawn for itself
(SpecInfer, arXiv 2305.09781). All keep the target's law.
"""

import dataclasses

from flax import struct
import jax
import jax.numpy as jnp

from specjax.verify import proposal as proposals
from specjax.verify import rule as rule_lib

Kind = proposals.Kind


@dataclasses.dataclass(frozen=True)
class TreeRule(rule_lib.Rule):
  """Accepts the first sibling x with u * mass(r) * q(x) < r(x).

  r begins as the node's p, q as the law that its children were drawn from. A
  rejected x leaves max(0, r - mass(r) q) in r; of siblings drawn without one
  another it also leaves q, which is normalised again. Of point masses that
  is: u * mass(r) < r(x), and x leaves r. Where all are rejected, the next
  token is drawn from norm(r), or p where that has no mass; where a node has
  no children, from p. Greedy rows accept x = argmax p.

  Attributes:
    trace: also report p, q and the coins.
  """

  trace: bool = False

  name = "tree"
  kinds = frozenset(
      {Kind.CHAIN, Kind.POINT, Kind.DISTINCT, Kind.INDEPENDENT}
  )
  trees = True

  def judge(self, target, proposal, coin_BN):
    """Decides with given coins; see rule.Rule.

    `carried` is r of the last accepted node, of drawn siblings; without
    meaning where all rows are greedy.
    """
    if proposal.kind is Kind.POINT:
      return _walk_points(target, proposal, coin_BN)

    def greedy():
      judged = _walk_points(target, proposal, coin_BN)
      nothing_BV = jnp.zeros((coin_BN.shape[0], target.width), jnp.float32)
      return judged.replace(carried=nothing_BV)

    return jax.lax.cond(
        jnp.all(target.greedy),
        greedy,
        lambda: _walk_drawn(target, proposal, coin_BN),
    )

  def next_weights(self, target, proposal, judged):
    """What is left of one row's law; see rule.Rule."""
    p_BV = target.row(judged.place_B).dense()
    if proposal.kind is Kind.POINT:
      child_BN = _children(proposal, judged.place_B - 1)
      left_BV = _without(p_BV, proposal.tokens_BN, child_BN)
    else:
      left_BV = judged.carried
    return rule_lib.corrected(judged, left_BV, p_BV)


def tree_of(proposal) -> proposals.Tree:
  """The tree of a proposal, which may be a chain."""
  return proposal.tree or proposals.chain_tree(proposal.tokens_BN)


def _children(proposal, at_B):
  """child_BN: the nodes below one node a row; -1 is the root."""
  tokens_BN = proposal.tokens_BN
  counts_BN = jnp.arange(tokens_BN.shape[1]) < proposal.count_B[:, None]
  below_BN = tree_of(proposal).parent_BN == at_B[:, None]
  return below_BN & counts_BN & (tokens_BN >= 0)


def _without(p_BV, tokens_BN, taken_BN):
  """p_BV without the tokens of some nodes."""
  width = p_BV.shape[1]
  drop = lambda row_V, token_N: row_V.at[token_N].set(0.0, mode="drop")
  return jax.vmap(drop)(p_BV, jnp.where(taken_BN, tokens_BN, width))


def _first(flag_BN):
  """Whether a row has any, and which is the first."""
  return jnp.any(flag_BN, axis=1), jnp.argmax(flag_BN, axis=1)


def _at(array_BN, node_B):
  """The value at one node a row."""
  return jnp.take_along_axis(array_BN, node_B[:, None], axis=1)[:, 0]


def _walk_points(target, proposal, coin_BN) -> rule_lib.Judged:
  """The walk of point masses, and that of greedy rows, whatever the kind."""
  tokens_BN, tree = proposal.tokens_BN, tree_of(proposal)
  node_N = jnp.arange(tokens_BN.shape[1], dtype=jnp.int32)
  p_BN = jnp.exp(target.log_prob_at(tree.parent_BN + 1, tokens_BN))
  q_BN = jnp.ones_like(p_BN)
  if proposal.law is not None:
    law_BN = jnp.take_along_axis(tree.law_BT, tree.parent_BN + 1, axis=1)
    q_BN = jnp.exp(proposal.law.log_prob_at(law_BN, tokens_BN))
  # What was named twice below one node has its share only once.
  same = lambda array_BN: array_BN[:, :, None] == array_BN[:, None]
  again_BNN = same(tree.parent_BN) & same(tokens_BN)
  again_BN = jnp.any(again_BNN & (node_N < node_N[:, None]), axis=-1)
  p_BN = jnp.where(again_BN, 0.0, p_BN)

  def step(at_B, _):
    child_BN = _children(proposal, at_B)
    own_BN = jnp.where(child_BN, p_BN, 0.0)
    left_BN = jnp.maximum(0.0, 1.0 - (jnp.cumsum(own_BN, axis=1) - own_BN))
    some_B, first_B = _first(child_BN & (coin_BN * left_BN < own_BN))
    last_B = jnp.max(jnp.where(child_BN, node_N, 0), axis=1)
    node_B = jnp.where(some_B, first_B, last_B).astype(jnp.int32)
    shared_B = _at(own_BN, node_B) / jnp.maximum(_at(left_BN, node_B), 1e-30)
    decided = proposals.Trace(
        node_BG=node_B,
        p_BG=jnp.minimum(shared_B, 1.0),
        q_BG=_at(q_BN, node_B),
        coin_BG=_at(coin_BN, node_B),
    )
    at_B = jnp.where(some_B, node_B, proposals.NOWHERE)
    return at_B, (at_B, jnp.any(child_BN, axis=1), decided)

  root_B = jnp.full_like(tree.parent_BN[:, 0], -1)
  _, walked = jax.lax.scan(step, root_B, length=tree.depth)
  at_BG, evaluated_BG, trace = jax.tree.map(lambda x: x.T, walked)
  return rule_lib.Judged(
      accepted_B=jnp.sum(at_BG >= 0, axis=1, dtype=jnp.int32),
      path_BG=jnp.maximum(at_BG, -1),
      evaluated_BG=evaluated_BG,
      trace=trace,
  )


@struct.dataclass
class _Walk:
  """Where the walk of drawn siblings stands.

  Attributes:
    judged: so far.
    next_B: the node that is judged next; N where there is none.
    left_BV: r of the node whose children are judged.
    draft_BV: q likewise, not normalised.
  """

  judged: rule_lib.Judged
  next_B: jax.Array
  left_BV: jax.Array
  draft_BV: jax.Array


def _walk_drawn(target, proposal, coin_BN) -> rule_lib.Judged:
  """The walk of drawn siblings: as many steps as a row has nodes to judge."""
  tokens_BN, tree = proposal.tokens_BN, tree_of(proposal)
  rows, nodes = tokens_BN.shape
  node_N = jnp.arange(nodes, dtype=jnp.int32)
  position_G = jnp.arange(tree.depth)
  law_BT = tree.law_BT

  def laws(place_B):
    """p and q below a place."""
    draft_B = _at(law_BT, place_B)
    return target.row(place_B).dense(), proposal.law.row(draft_B).dense()

  def below(at_B, after_B):
    """The first child of a node behind another; N where there is none."""
    later_BN = _children(proposal, at_B) & (node_N > after_B[:, None])
    some_B, first_B = _first(later_BN)
    return jnp.where(some_B, first_B, nodes).astype(jnp.int32)

  def step(walk):
    judged, going_B = walk.judged, walk.next_B < nodes
    greedy_B = _at(target.greedy, judged.place_B)
    node_B = jnp.minimum(walk.next_B, nodes - 1)
    token_B, coin_B = _at(tokens_BN, node_B), _at(coin_BN, node_B)
    mass_B, share_B = jnp.sum(walk.left_BV, 1), jnp.sum(walk.draft_BV, 1)
    p_B, q_B = _at(walk.left_BV, token_B), _at(walk.draft_BV, token_B)
    accept_B = coin_B * mass_B * q_B < p_B * share_B
    accept_B = jnp.where(greedy_B, p_B > 0, accept_B) & going_B
    here_BG = going_B[:, None] & (position_G == judged.accepted_B[:, None])
    note = lambda old_BG, new_B: jnp.where(here_BG, new_B[:, None], old_BG)
    over = lambda a_B, b_B: a_B / jnp.maximum(b_B, 1e-30)
    judged = rule_lib.Judged(
        accepted_B=judged.accepted_B + accept_B,
        path_BG=note(judged.path_BG, jnp.where(accept_B, node_B, -1)),
        evaluated_BG=judged.evaluated_BG | here_BG,
        trace=proposals.Trace(
            node_BG=note(judged.trace.node_BG, node_B),
            p_BG=note(judged.trace.p_BG, over(p_B, mass_B)),
            q_BG=note(judged.trace.q_BG, over(q_B, share_B)),
            coin_BG=note(judged.trace.coin_BG, coin_B),
        ),
    )
    rejected_B1 = (going_B & ~accept_B & ~greedy_B)[:, None]
    taken_BV = over(mass_B, share_B)[:, None] * walk.draft_BV
    left_BV = jnp.where(
        rejected_B1, jnp.maximum(0.0, walk.left_BV - taken_BV), walk.left_BV
    )
    draft_BV = walk.draft_BV
    if proposal.kind is Kind.DISTINCT:
      drawn_BV = jnp.arange(target.width) == token_B[:, None]
      draft_BV = jnp.where(rejected_B1 & drawn_BV, 0.0, draft_BV)
    p_BV, q_BV = laws(judged.place_B)
    new = lambda fresh, old: jnp.where(accept_B[:, None], fresh, old)
    next_B = below(judged.place_B - 1, node_B)
    return _Walk(
        judged=judged,
        next_B=jnp.where(going_B, next_B, nodes),
        left_BV=new(p_BV, left_BV),
        draft_BV=new(q_BV, draft_BV),
    )

  root_B = jnp.zeros((rows,), jnp.int32)
  nothing_BG = jnp.zeros((rows, tree.depth), jnp.float32)
  nobody_BG = nothing_BG.astype(jnp.int32) - 1
  walk = _Walk(
      rule_lib.Judged(
          accepted_B=root_B,
          path_BG=nobody_BG,
          evaluated_BG=nothing_BG > 0,
          trace=proposals.Trace(
              nobody_BG, nothing_BG, nothing_BG, nothing_BG
          ),
      ),
      below(root_B - 1, root_B - 1),
      *laws(root_B),
  )
  walk = jax.lax.while_loop(
      lambda walk: jnp.any(walk.next_B < nodes), step, walk
  )
  return walk.judged.replace(carried=walk.left_BV)
