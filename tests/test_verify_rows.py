"""Rows, padding and tallies of a verdict; what the rule refuses."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
from specjax import sampling
from specjax.verify import proposal as proposals
from specjax.verify import token
from tests import enumeration
from tests import rounds

Kind = proposals.Kind
Proposal = proposals.Proposal
Purpose = sampling.Purpose
Settings = sampling.Settings
TokenRule = token.TokenRule


@pytest.mark.parametrize("point", [False, True], ids=["chain", "points"])
def test_lenience_one_is_the_exact_rule_bit_for_bit(point):
  """Coins 0 and the last one included; nothing of beta is left at 1."""
  settings = rounds.MIXED
  target, proposal = rounds.random_round(settings, point=point)
  rng = np.random.default_rng(1)
  coin = rng.random(proposal.tokens_BN.shape).astype(np.float32)
  coin[::7] = 0
  coin[::11] = 1 - 2.0**-24
  tokens = proposal.tokens_BN
  p = np.asarray(rounds.nodes_of(target, 3).prob(tokens))
  q = np.ones_like(p) if point else np.asarray(proposal.law.prob(tokens))
  greedy = np.asarray(target.greedy)[:, :-1]
  best = np.asarray(tokens == target.best[:, :-1])
  accept = np.where(greedy, best, coin * q < p)
  want = np.cumprod(accept, axis=1).sum(axis=1)
  results = []
  for residual in ("exact", "lenient"):
    rule = TokenRule(lenience=1.0, residual=residual)
    judged = enumeration.judge(rule, target, proposal, coin)
    np.testing.assert_array_equal(judged.accepted_B, want)
    results.append(enumeration.next_weights(rule, target, proposal, judged))
  np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("beta", "accepts"),
    [(1.0, [1, 0, 0]), (0.7, [1, 0, 0]), (0.5, [1, 1, 0]), (0.3, [1, 1, 1])],
)
def test_greedy_lenience_reads_the_unfiltered_law(beta, accepts):
  """A.5: p(x) >= beta max p; on rejection argmax p."""
  # Filters that would leave one token change nothing in a greedy row.
  settings = Settings(temperature=0.0, top_k=1, top_p=0.1)
  target, proposal = rounds.round_of([0.5, 0.3, 0.2], None, 0, settings, rows=3)
  proposal = proposal.replace(tokens_BN=jnp.arange(3)[:, None])
  rule = TokenRule(lenience=beta)
  judged = enumeration.judge(rule, target, proposal, np.zeros((3, 1)))
  np.testing.assert_array_equal(judged.accepted_B, accepts)
  np.testing.assert_array_equal(
      rounds.corrected(target, proposal, rule), [1, 0, 0]
  )


def test_equal_maxima_go_to_the_first():
  target, proposal = rounds.round_of([0.4, 0.4, 0.2], None, 1, rounds.GREEDY)
  coin = np.zeros((1, 1))
  judged = enumeration.judge(TokenRule(), target, proposal, coin)
  assert judged.accepted_B == 0
  np.testing.assert_array_equal(rounds.corrected(target, proposal), [1, 0, 0])


def test_padding_is_never_looked_at():
  """NaN laws and impossible ids beyond count_B change nothing."""
  target, proposal = rounds.random_round(rounds.MIXED)
  count_B = np.arange(len(rounds.MIXED), dtype=np.int32) % 4
  proposal = proposal.replace(count_B=count_B)
  padded = np.arange(3) >= count_B[:, None]
  spoilt = proposal.replace(
      tokens_BN=np.where(padded, np.int32(10**6), proposal.tokens_BN)
  )

  def nan(x, where):
    where = where.reshape(where.shape + (1,) * (x.ndim - 2))
    return np.where(where, np.float32("nan"), x) if x.dtype == "f" else x

  spoilt = spoilt.replace(
      law=jax.tree.map(lambda x: nan(x, padded), proposal.law)
  )
  beyond = np.arange(4) > count_B[:, None]
  spoilt_target = jax.tree.map(lambda x: nan(x, beyond), target)
  key_B = jax.random.split(rounds.key(), len(rounds.MIXED))
  want = enumeration.verify(rounds.RULE, target, proposal, key_B)
  got = enumeration.verify(rounds.RULE, spoilt_target, spoilt, key_B)
  jax.tree.map(np.testing.assert_array_equal, want, got)
  assert np.all(np.asarray(got.evaluated_BG) <= ~padded)


def test_verdict_agrees_with_itself():
  target, proposal = rounds.random_round(rounds.MIXED)
  key_B = jax.random.split(rounds.key(), len(rounds.MIXED))
  verdict = enumeration.verify(rounds.RULE, target, proposal, key_B)
  verdict = jax.tree.map(np.asarray, verdict)
  judged = np.minimum(verdict.accepted_B + 1, 3)
  node = np.arange(3)
  np.testing.assert_array_equal(
      verdict.evaluated_BG, node < judged[:, None]
  )
  np.testing.assert_array_equal(
      verdict.path_BG, np.where(node < verdict.accepted_B[:, None], node, -1)
  )
  p = np.asarray(enumeration.dense(target))[:, :-1]
  q = np.asarray(enumeration.dense(proposal.law))
  overlap = np.where(verdict.evaluated_BG, np.minimum(p, q).sum(-1), 0)
  np.testing.assert_allclose(verdict.overlap_BG, overlap, atol=1e-6)
  drafted = np.asarray(proposal.tokens_BN)[..., None]
  for traced, law in ((verdict.trace.p_BG, p), (verdict.trace.q_BG, q)):
    want = np.take_along_axis(law, drafted, -1)[..., 0]
    want = np.where(verdict.evaluated_BG, want, 0)
    np.testing.assert_allclose(traced, want, atol=1e-6)
  greedy_B = np.all(target.greedy, axis=1)
  coin_BG = verdict.trace.coin_BG
  assert np.any(greedy_B) and not np.any(coin_BG[greedy_B])
  coins = coin_BG[~greedy_B][verdict.evaluated_BG[~greedy_B]]
  assert coins.max() < 1 and len(np.unique(coins)) == coins.size
  assert len(np.unique(verdict.accepted_B)) > 2


def test_overlap_of_a_point_is_its_probability():
  target, proposal = rounds.random_round(rounds.MIXED, point=True)
  key_B = jax.random.split(rounds.key(), len(rounds.MIXED))
  verdict = enumeration.verify(rounds.RULE, target, proposal, key_B)
  np.testing.assert_array_equal(verdict.overlap_BG, verdict.trace.p_BG)
  assert np.any((verdict.overlap_BG > 0) & (verdict.overlap_BG < 1))


def test_rows_do_not_depend_on_their_company():
  """A row beside copies of itself gives what it gives beside others."""
  target, proposal = rounds.random_round(rounds.MIXED)
  key_B = jax.random.split(rounds.key(3), len(rounds.MIXED))
  together = enumeration.verify(rounds.RULE, target, proposal, key_B)
  for row in range(5):
    index = np.full(len(rounds.MIXED), row)
    copies = lambda tree: jax.tree.map(lambda x: x[index], tree)
    got = enumeration.verify(
        rounds.RULE, copies(target), copies(proposal), copies(key_B)
    )
    jax.tree.map(np.testing.assert_array_equal, got, copies(together))


def test_nothing_drafted_is_plain_decoding():
  """Kind.NONE draws from the target's only row."""
  settings = rounds.MIXED
  target, _ = rounds.random_round(settings, nodes=0)
  rows = len(settings)
  empty = Proposal(
      jnp.zeros((rows, 0), jnp.int32), jnp.zeros(rows, int), None, Kind.NONE
  )
  key_B = jax.random.split(rounds.key(), rows)
  verdict = enumeration.verify(rounds.RULE, target, empty, key_B)
  draw = lambda law, key_B: law.row(jnp.zeros(rows, int)).draw(
      key_B, Purpose.EXTRA
  )
  drawn = enumeration.quick(draw)(target, key_B)
  np.testing.assert_array_equal(verdict.next_token_B, drawn)
  assert verdict.path_BG.shape == verdict.trace.p_BG.shape == (rows, 0)
  assert not np.any(verdict.accepted_B)


def test_works_under_vmap():
  target, proposal = rounds.random_round(rounds.MIXED)
  key_B = jax.random.split(rounds.key(), len(rounds.MIXED))
  add = lambda tree: jax.tree.map(lambda x: x[:, None], tree)
  vmapped = enumeration.quick(jax.vmap(lambda *inputs: rounds.RULE(*inputs)))
  got = vmapped(add(target), add(proposal), key_B[:, None])
  want = enumeration.verify(rounds.RULE, target, proposal, key_B)
  jax.tree.map(np.testing.assert_array_equal, got, add(want))


@pytest.mark.parametrize("overlap", [False, True])
def test_dense_laws_are_built_for_overlap_alone(overlap):
  target, proposal = rounds.random_round([rounds.PLAIN] * 2, nodes=4)
  rule = TokenRule(overlap=overlap)
  program = jax.make_jaxpr(lambda *inputs: rule(*inputs))(
      target, proposal, jax.random.split(rounds.key(), 2)
  )
  made = re.findall(r":f32\[2,[45],11\] = (\w+)", str(program))
  assert bool(made) == overlap, made


@pytest.mark.parametrize(
    "arguments",
    [
        dict(lenience=0.0),
        dict(lenience=-0.5),
        dict(lenience=1.01),
        dict(lenience=float("nan")),
        dict(lenience="1"),
        dict(lenience=None),
        dict(lenience=True),
        dict(residual="other"),
        dict(residual=None),
        dict(residual=["exact"]),
        dict(overlap=None),
        dict(trace="no"),
    ],
    ids=repr,
)
def test_wrong_values_are_refused(arguments):
  (field,) = arguments
  with pytest.raises(errors.UserError, match=f"^{field}: give "):
    TokenRule(**arguments)


@pytest.mark.parametrize("settings", [rounds.PLAIN, rounds.GREEDY])
def test_draft_law_without_any_token(settings):
  """q is 0, the overlap 0, and what comes next is drawn from p alone."""
  p = [0.0, 0.6, 0.4]
  target, proposal = rounds.round_of(p, [1.0, 0.0, 0.0], 0, settings, rows=2)
  nothing = enumeration.laws(np.full((2, 1, 3), -np.inf, np.float32), settings)
  proposal = proposal.replace(law=nothing)
  key_B = jax.random.split(rounds.key(), 2)
  verdict = enumeration.verify(rounds.RULE, target, proposal, key_B)
  for zero in (verdict.accepted_B, verdict.overlap_BG, verdict.trace.q_BG):
    np.testing.assert_array_equal(zero, np.zeros_like(zero))
  assert np.all(verdict.evaluated_BG) and not np.any(verdict.trace.p_BG)
  want = p if settings is rounds.PLAIN else [0, 1, 0]
  np.testing.assert_allclose(
      rounds.corrected(target, proposal), want, rtol=1e-6
  )


def _none_with_nodes(target, proposal):
  return target, proposal.replace(kind=Kind.NONE, law=None)


def _no_nodes(target, proposal):
  del proposal
  rows = target.best.shape[0]
  return rounds.nodes_of(target, 1), Proposal(
      jnp.zeros((rows, 0), jnp.int32), jnp.zeros(rows, int), None, Kind.POINT
  )


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda t, p: (t, p.replace(kind="siblings")), TypeError),
        (lambda t, p: (t, p.replace(law=None)), ValueError),
        (lambda t, p: (t, p.replace(kind=Kind.POINT)), ValueError),
        (_none_with_nodes, ValueError),
        (_no_nodes, ValueError),
        (lambda t, p: (rounds.nodes_of(t, 3), p), ValueError),
        (
            lambda t, p: (t, p.replace(law=rounds.nodes_of(p.law, 2))),
            ValueError,
        ),
    ],
    ids=[
        "unknown kind", "chain without law", "point with law",
        "nodes of nothing", "points of nothing", "short target", "short law",
    ],
)
def test_kinds_it_is_not_exact_for_are_refused(spoil, error):
  target, proposal = spoil(*rounds.random_round([rounds.PLAIN] * 2))
  with pytest.raises(error):
    enumeration.verify(
        TokenRule(), target, proposal, jax.random.split(rounds.key(), 2)
    )
