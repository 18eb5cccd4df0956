"""Rounds with laws of the caller's choice, and rules that are wrong."""

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.verify import proposal as proposals
from specjax.verify import rule as rule_lib
from specjax.verify import token
from tests import enumeration

Kind = proposals.Kind
Proposal = proposals.Proposal
Settings = sampling.Settings
TokenRule = token.TokenRule

PLAIN = Settings(temperature=1.0)
GREEDY = Settings(temperature=0.0)
# An argmax draft, reported as the point mass that it is, or by its soft law.
POINT = dict(argmax=True, kind=Kind.POINT)
SOFT_ARGMAX = dict(argmax=True, kind=Kind.CHAIN)


def case_of(p, q, **kwargs):
  """A case of one drafted token whose laws are p and q at every prefix."""
  prefixes = sum(len(p) ** n for n in range(2))
  log = lambda law: np.tile(np.log(np.float32(law)), (prefixes, 1))
  return enumeration.Case(
      vocabulary=len(p),
      gamma=1,
      length=1,
      target_logits=log(p),
      draft_logits=log(q),
      **kwargs,
  )


def round_of(p, q, drafted, settings=PLAIN, rows=1):
  """Laws p and q for `rows` rows of one drafted token."""
  log = lambda law: jnp.log(jnp.float32(law))
  law = lambda weights, n: enumeration.laws(
      jnp.broadcast_to(log(weights), (rows, n, len(p))), settings
  )
  proposal = Proposal(
      tokens_BN=np.full((rows, 1), drafted, np.int32),
      count_B=np.ones(rows, np.int32),
      law=None if q is None else law(q, 1),
      kind=Kind.POINT if q is None else Kind.CHAIN,
  )
  return law(p, 2), proposal


def corrected(target, proposal, rule=TokenRule()):
  """Law of the next token of row 0 after its first node was rejected."""
  rows, nodes = proposal.tokens_BN.shape
  nothing_BN, zeros_BN = np.zeros((rows, nodes), bool), np.zeros((rows, nodes))
  judged = rule_lib.prefix(
      nothing_BN, proposal.count_B, zeros_BN, zeros_BN, zeros_BN
  )
  weights = enumeration.next_weights(rule, target, proposal, judged)
  return np.asarray(weights[0])


def key(seed=0):
  return jax.random.key(seed)


def nodes_of(law, count):
  """Laws of the first `count` places."""
  return jax.tree.map(lambda field: field[:, :count], law)


def random_round(settings, nodes=3, size=11, seed=0, point=False):
  """Random laws and random drafted tokens, one row for each Settings."""
  rng = np.random.default_rng(seed)
  rows = len(settings)
  law = lambda n: enumeration.laws(
      rng.normal(scale=1.5, size=(rows, n, size)).astype(np.float32), settings
  )
  return law(nodes + 1), Proposal(
      tokens_BN=rng.integers(0, size, (rows, nodes), np.int32),
      count_B=np.full(rows, nodes, np.int32),
      law=None if point or not nodes else law(nodes),
      kind=Kind.POINT if point else Kind.CHAIN,
  )


MIXED = [
    GREEDY,
    PLAIN,
    Settings(temperature=0.7, top_k=4),
    Settings(temperature=1.3, top_p=0.6),
    GREEDY,
] * 30
RULE = TokenRule(overlap=True, trace=True)


# Each is a fault that was reported somewhere.


class SoftmaxedResidual(TokenRule):
  """Puts max(0, p - q) through a softmax."""

  def next_weights(self, target, proposal, judged):
    weights_BV = super().next_weights(target, proposal, judged)
    last = proposal.tokens_BN.shape[1] - 1
    p_BV = target.row(judged.accepted_B).dense()
    q_BV = proposal.law.row(jnp.minimum(judged.accepted_B, last)).dense()
    soft_BV = jnp.exp(jnp.maximum(p_BV - q_BV, 0))
    return jnp.where(judged.rejected_B[:, None], soft_BV, weights_BV)


class Inclusive(TokenRule):
  """Accepts when u q <= p."""

  def accepts(self, coin, p, q):
    return coin * self.lenience * q <= p


class IgnoresPadding(TokenRule):
  """Judges every node, whatever count_B says."""

  def judge(self, target, proposal, coin_BN):
    full_B = jnp.full_like(proposal.count_B, proposal.tokens_BN.shape[1])
    return super().judge(target, proposal.replace(count_B=full_B), coin_BN)


class PlainResidual(TokenRule):
  """Draws the corrected token from p."""

  def next_weights(self, target, proposal, judged):
    return target.row(judged.accepted_B).dense()
