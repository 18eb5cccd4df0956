"""Figures of public fault reports, the faulty rule beside the right one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.verify import block
from specjax.verify import proposal as proposals
from specjax.verify import token
from tests import enumeration
from tests import rounds

Kind = proposals.Kind
Proposal = proposals.Proposal
Purpose = sampling.Purpose
Settings = sampling.Settings
TokenRule = token.TokenRule

TOP_2 = Settings(temperature=1.0, top_k=2)


def test_argmax_draft_is_a_point_mass():
  """huggingface/transformers#32867, jaymody/speculative-sampling#3."""
  p, q = [0.6, 0.4], [0.7, 0.3]
  right = rounds.case_of(p, q, **rounds.POINT)
  first = enumeration.several_rounds(TokenRule(), right)[1]
  np.testing.assert_allclose(first, p, atol=1e-6)
  bound = enumeration.Round(TokenRule(), right).boundaries()
  np.testing.assert_allclose(bound[0, 0], 0.6, atol=1e-6)
  faulty = rounds.case_of(p, q, **rounds.SOFT_ARGMAX)
  first = enumeration.several_rounds(TokenRule(), faulty)[1]
  np.testing.assert_allclose(first, [0.857, 0.143], atol=1e-3)


@pytest.mark.parametrize(
    "filtered",
    # A top-p of just .8 would hang on how .5 + .3 rounds.
    [TOP_2, Settings(temperature=0.5), Settings(temperature=1.0, top_p=0.7)],
    ids=["top-k", "temperature", "top-p"],
)
def test_q_is_the_law_that_was_drawn_from(filtered):
  """huggingface/transformers#47932, z-lab/dflash#74.

  ohdearquant/lattice#974: the draft's temperature is in it, too.
  """
  p = [0.5, 0.3, 0.2]
  right = rounds.case_of(p, p, draft=filtered)
  first = enumeration.several_rounds(TokenRule(), right)[1]
  np.testing.assert_allclose(first, p, atol=1e-6)
  faulty = rounds.case_of(p, p, draft=filtered, reported=rounds.PLAIN)
  first = enumeration.several_rounds(TokenRule(), faulty)[1]
  # The reported law always accepts, so the draft's own law comes out.
  np.testing.assert_allclose(first, faulty.q[0], atol=1e-6)
  if filtered.temperature == 1:
    np.testing.assert_allclose(first, [0.625, 0.375, 0], atol=1e-6)


def test_residual_is_divided_by_its_sum():
  """huggingface/transformers#28508."""
  p = [0.5, 0.3, 0.2]
  case = rounds.case_of(p, [0.1, 0.6, 0.3])
  first = enumeration.several_rounds(TokenRule(), case)[1]
  np.testing.assert_allclose(first, p, atol=1e-6)
  first = enumeration.several_rounds(rounds.SoftmaxedResidual(), case)[1]
  np.testing.assert_allclose(first, [0.271, 0.415, 0.315], atol=1e-3)


def test_equal_laws_never_reject_nor_draw_from_nothing():
  """huggingface/transformers#28508, where p == q gave 0 / 0."""
  p = [0.2, 0.5, 0.3]
  for drafted in range(3):
    target, proposal = rounds.round_of(p, p, drafted)
    highest = jnp.full((1, 1), 1 - 2.0**-24)
    judged = enumeration.judge(TokenRule(), target, proposal, highest)
    assert judged.accepted_B == 1
    np.testing.assert_allclose(rounds.corrected(target, proposal), p, rtol=1e-5)


def test_point_that_holds_all_mass_falls_back_to_p():
  """A residual without mass is p, even where rounding brought it about."""
  target, proposal = rounds.round_of([0.0, 1.0, 0.0], None, 1)
  np.testing.assert_array_equal(rounds.corrected(target, proposal), [0, 1, 0])


@pytest.mark.parametrize("beta", [1.0, 0.5, 0.1])
def test_a_filtered_token_is_rejected_at_coin_zero(beta):
  """sgl-project/sglang#35771."""
  target, proposal = rounds.round_of([0.5, 0.5, 0.0], [0.4, 0.3, 0.3], 2)
  coin = jnp.zeros((1, 1))
  accepted = lambda rule: enumeration.judge(
      rule, target, proposal, coin
  ).accepted_B
  assert accepted(TokenRule(lenience=beta)) == 0
  assert accepted(block.BlockRule()) == 0
  assert accepted(rounds.Inclusive(lenience=beta)) == 1


def test_a_rejected_point_leaves_the_rest():
  """apple/ml-recurrent-drafter#6, second case; P(1) was 0 there."""
  p = [0.51, 0.49]
  case = rounds.case_of(p, p, **rounds.POINT)
  first = enumeration.several_rounds(TokenRule(), case)[1]
  np.testing.assert_allclose(first, p, atol=1e-6)


@functools.lru_cache
def _program(fold):
  """Draft, verify, first token; compiled anew for another `sampling.fold`."""
  del fold

  @jax.jit
  def run(target, law, key_B):
    rows = key_B.shape[0]
    spread = lambda law: jax.tree.map(lambda x: jnp.repeat(x, rows, 0), law)
    target, law = spread(target), spread(law)
    drafted_B = law.row(jnp.zeros(rows, int)).draw(key_B, Purpose.DRAFT)
    proposal = Proposal(
        drafted_B[:, None], jnp.ones(rows, int), law, Kind.CHAIN
    )
    verdict = TokenRule()(target, proposal, key_B)
    return jnp.where(
        verdict.accepted_B == 1, drafted_B, verdict.next_token_B
    )

  return run


def _first_tokens(p_logits, q_logits, rows=200_000):
  """Frequencies of the first emitted token, drafts really drawn."""
  one = lambda logits, n: enumeration.laws(
      jnp.broadcast_to(logits, (1, n, len(logits))), rounds.PLAIN
  )
  key_B = jax.random.split(rounds.key(), rows)
  run = _program(sampling.fold)
  first_B = run(one(p_logits, 2), one(q_logits, 1), key_B)
  return np.bincount(np.asarray(first_B), minlength=len(p_logits)) / rows


def test_bfloat16_logits_feed_draw_ratio_and_residual_alike():
  """deepseek-ai/DeepSpec#31; all three round to 40."""
  q_logits = jnp.asarray([40.12, 40.0, 39.9, -jnp.inf], jnp.bfloat16)
  p_logits = jnp.asarray([39.2, 40.3, 39.9, -jnp.inf])
  law = enumeration.laws(q_logits[None], rounds.PLAIN)
  np.testing.assert_allclose(enumeration.dense(law)[0, :3], 1 / 3, rtol=1e-6)
  got = _first_tokens(p_logits, q_logits)
  want = enumeration.reference_law(p_logits, rounds.PLAIN)
  assert abs(got - want).sum() / 2 < 0.005


def test_draws_are_from_the_logits_that_judge():
  """deepseek-ai/DeepSpec#31; drawn from what all three round to, it shows."""
  q_logits = jnp.asarray([40.12, 40.0, 39.9, -jnp.inf])
  p_logits = jnp.asarray([39.2, 40.3, 39.9, -jnp.inf])
  law = enumeration.laws(q_logits[None], rounds.PLAIN)
  assert np.ptp(np.asarray(enumeration.dense(law))[0, :3]) > 0.05
  got = _first_tokens(p_logits, q_logits)
  want = enumeration.reference_law(p_logits, rounds.PLAIN)
  assert abs(got - want).sum() / 2 < 0.005



REUSE = (
    np.log(np.float32([0.4, 0.3, 0.2, 0.1])),
    np.log(np.float32([0.1, 0.25, 0.15, 0.5])),
)


def _check_frequencies(got):
  np.testing.assert_allclose(got, [0.4, 0.3, 0.2, 0.1], atol=0.003)


def test_draws_are_independent():
  """local-inference-lab/vllm#205."""
  _check_frequencies(_first_tokens(*REUSE))


def test_a_reused_key_is_caught(monkeypatch):
  """As local-inference-lab/vllm#205, which favours the runner-up."""
  honest = sampling.fold

  def reused(key_B, purpose, node=0):
    is_coin = isinstance(purpose, Purpose) and purpose is Purpose.COIN
    return honest(key_B, purpose if is_coin else Purpose.DRAFT, node)

  monkeypatch.setattr(sampling, "fold", reused)
  with pytest.raises(AssertionError):
    _check_frequencies(_first_tokens(*REUSE))


def _uniform_text(keys, count=16, size=11, gamma=3):
  """All tokens of a uniform pair, which accepts every draft."""
  rows = keys.shape[0]

  def one(law, round_):
    key_B = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, round_)
    first = law.row(jnp.zeros(rows, jnp.int32))
    draw = lambda i: first.draw(key_B, Purpose.DRAFT, i)
    drafted_BN = jax.lax.map(draw, jnp.arange(gamma)).T
    drafts = rounds.nodes_of(law, gamma)
    proposal = Proposal(
        drafted_BN, jnp.full(rows, gamma), drafts, Kind.CHAIN
    )
    verdict = TokenRule()(law, proposal, key_B)
    last_B1 = verdict.next_token_B[:, None]
    return law, jnp.append(drafted_BN, last_B1, axis=1)

  law = enumeration.laws(np.zeros((rows, gamma + 1, size)), rounds.PLAIN)
  run = enumeration.quick(
      lambda law: jax.lax.scan(one, law, jnp.arange(count))[1]
  )
  return np.asarray(run(law)).transpose(1, 0, 2).reshape(rows, -1)


def test_keys_move_on_between_rounds():
  """sgl-project/sglang-jax#940; per row vllm-project/vllm#6038."""
  keys = jnp.stack([jax.random.key(seed) for seed in (5, 6, 5)])
  with jax.debug_key_reuse(True):
    text = _uniform_text(keys)
  equal = np.mean(text[:, 1:] == text[:, :-1], axis=1)
  assert np.all(equal < 0.35)
  np.testing.assert_array_equal(text[0], text[2])
  assert not np.array_equal(text[0], text[1])


@pytest.mark.parametrize(("wide", "narrow"), [(48, 40), (40, 48)])
def test_widths_that_differ(wide, narrow):
  """vllm-project/vllm#7252; 37 shared ids, padded to 40 and 48."""
  target, proposal = rounds.random_round([rounds.PLAIN], nodes=1, size=wide)
  _, other = rounds.random_round([rounds.PLAIN], nodes=1, size=narrow)
  with pytest.raises(ValueError, match="fit_width"):
    TokenRule()(target, proposal.replace(law=other.law), rounds.key()[None])
  logits = sampling.fit_width(other.law.logits, wide)
  law = enumeration.laws(logits, rounds.PLAIN)
  q = np.asarray(enumeration.dense(law))[0, 0]
  np.testing.assert_allclose(q.sum(), 1, rtol=1e-5)
  assert not np.any(q[narrow:])
  residual = rounds.corrected(target, proposal.replace(law=law))
  p = np.asarray(enumeration.dense(target))[0, 0]
  np.testing.assert_allclose(residual, np.maximum(p - q, 0), atol=1e-6)


@pytest.mark.parametrize("drafted", [45, 40, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize(
    "settings", [rounds.PLAIN, rounds.GREEDY], ids=["T1", "T0"]
)
def test_an_id_the_target_lacks_is_rejected_not_clamped(drafted, settings):
  """ggml-org/llama.cpp#3812; id 45 for a target 40 wide."""
  p = np.full(40, 0.2 / 39)
  p[39] = 0.8
  target, proposal = rounds.round_of(p, None, drafted, settings)
  coin = jnp.zeros((1, 1))
  for beta in (1.0, 0.1):
    rule = TokenRule(lenience=beta)
    judged = enumeration.judge(rule, target, proposal, coin)
    assert judged.accepted_B == 0 and judged.evaluated_BG
    assert judged.trace.p_BG == 0
    np.testing.assert_allclose(
        rounds.corrected(target, proposal, rule),
        enumeration.dense(target)[0, 0],
        rtol=1e-6,
    )


def test_log_probabilities_are_of_the_processed_law():
  """ggml-org/llama.cpp#27972; ln .658 at T = .5, not ln .5 nor 0."""
  p, cold = [0.5, 0.3, 0.2], Settings(temperature=0.5)
  target, proposal = rounds.round_of(p, p, 0, cold)
  judged = enumeration.judge(
      TokenRule(), target, proposal, np.zeros((1, 1))
  )
  np.testing.assert_allclose(np.log(judged.trace.p_BG), -0.419, atol=1e-3)
  for position in (0, 1):
    law = target.row(jnp.full(1, position))
    np.testing.assert_allclose(
        law.log_prob(jnp.zeros(1, int)), -0.419, atol=1e-3
    )
