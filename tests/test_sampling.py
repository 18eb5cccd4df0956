"""Laws against a reference that sorts; draws; programs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from tests import enumeration

Settings = sampling.Settings

FILTERS = [
    Settings(temperature=1.0),
    Settings(temperature=0.0),
    Settings(temperature=1.0, top_k=1),
    Settings(temperature=0.7, top_k=5),
    Settings(temperature=1.0, top_k=10**9),
    Settings(temperature=1.0, top_p=0.9),
    Settings(temperature=1.5, top_p=0.3),
    Settings(temperature=1.0, top_p=1e-6),
    Settings(temperature=1.0, top_p=0.0),
    Settings(temperature=0.0, top_k=3, top_p=0.5),
    Settings(temperature=1.0, top_k=20, top_p=0.8),
    Settings(temperature=2.0, top_k=7, top_p=0.99),
]


def _reference(logits, settings):
  return np.stack(
      [enumeration.reference_law(*row) for row in zip(logits, settings)]
  )


optimised = jax.jit(sampling.make_law)


def _check(logits, settings=FILTERS):
  """Compares laws of [B, T, V] logits, B rows of unlike settings."""
  law = enumeration.laws(logits, settings, optimised)
  want = _reference(logits, settings)
  got = np.asarray(enumeration.dense(law))
  # Far from 0 neighbouring float32 scores lie far apart.
  rtol = 1e-5 + 4e-7 * np.abs(logits[np.isfinite(logits)]).max()
  np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-7)
  sizeable = want > 1e-30
  assert np.all(got[sizeable] > 0) and not np.any(got[want == 0])


def _normal(seed, scale, size=37, places=8):
  rng = np.random.default_rng(seed)
  shape = (len(FILTERS), places, size)
  return rng.normal(scale=scale, size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("scale", "shift"),
    [(0.01, 0), (1, 0), (5, 0), (60, 0), (1, -1000), (5, 500), (60, -1000)],
)
def test_law_agrees_with_a_sort(scale, shift):
  """Greedy rows beside sampled ones; cuts deep below and near the peak."""
  _check(_normal(1, scale) + np.float32(shift))


def test_ties_at_the_cut_stay():
  """Few different values, 0.0 and -0.0 among them."""
  logits = np.round(_normal(2, 1.0) * 2) / 2
  logits = np.where(logits == 0, np.float32(-0.0), logits)
  logits[..., ::3] += np.float32(0.0)
  _check(logits)


def test_equal_logits_all_stay():
  law = enumeration.laws(np.full((12, 1, 37), 3, np.float32), FILTERS)
  sampled = ~law.greedy[:, 0]
  np.testing.assert_allclose(
      enumeration.dense(law)[sampled], 1 / 37, rtol=1e-6
  )


def test_impossible_tokens_stay_impossible():
  """Most logits are -inf, fewer are left than top-k asks for."""
  logits = _normal(3, 2.0)
  logits[..., 4:] = -np.inf
  _check(logits)


def test_bfloat16_logits_are_widened_once():
  """deepseek-ai/DeepSpec#31: the law is that of the rounded logits."""
  rounded = jnp.asarray(_normal(4, 3.0), jnp.bfloat16)
  law = enumeration.laws(rounded, FILTERS)
  assert law.logits.dtype == np.float32
  want = _reference(np.asarray(rounded, np.float32), FILTERS)
  np.testing.assert_allclose(
      enumeration.dense(law), want, rtol=1e-5, atol=1e-7
  )


def test_probabilities_of_single_tokens():
  """prob, log_prob, log_mass and row say what dense says."""
  logits = _normal(5, 2.0)
  law = enumeration.laws(logits, FILTERS)
  dense = np.asarray(enumeration.dense(law))
  tokens = np.random.default_rng(0).integers(-3, 40, logits.shape[:2])
  tokens[:, 0] = law.best[:, 0]
  inside = (tokens >= 0) & (tokens < 37)
  index = np.clip(tokens, 0, 36)[..., None]
  want = np.take_along_axis(dense, index, -1)[..., 0] * inside
  got = jax.jit(lambda law, tokens: law.prob(tokens))(law, tokens)
  np.testing.assert_allclose(got, want, rtol=1e-6)
  np.testing.assert_array_equal(np.asarray(got)[~inside], 0)
  kept = np.where(law.logits >= law.cut[..., None], law.logits, -np.inf)
  total = np.log(np.exp(np.float64(kept)).sum(axis=-1))
  sampled = ~law.greedy
  np.testing.assert_allclose(
      (law.peak + law.log_mass)[sampled], total[sampled], rtol=1e-5
  )
  place_B = np.arange(len(FILTERS)) % 8
  row = jax.jit(lambda law, place_B: law.row(place_B))(law, place_B)
  np.testing.assert_array_equal(
      row.logits, law.logits[np.arange(len(FILTERS)), place_B]
  )
  np.testing.assert_array_equal(
      row.cut, law.cut[np.arange(len(FILTERS)), place_B]
  )


def test_gap_is_of_the_unfiltered_law():
  logits = np.float32([[0.0, -1.0, 2.0, -3.0]] * 2)
  law = enumeration.laws(
      logits, [Settings(temperature=0.0, top_k=1), Settings(temperature=1.0)]
  )
  gap = jax.jit(lambda law, tokens: law.gap(tokens))
  np.testing.assert_array_equal(gap(law, np.int32([1, 2])), [-3, 0])
  np.testing.assert_array_equal(gap(law, np.int32([4, -1])), [-np.inf] * 2)


def test_bounds_of_top_k_and_top_p():
  """google-deepmind/gemma#789, google-deepmind/simply#42, Biohub/esm#360."""
  logits = np.log(np.float32([[0.5, 0.3, 0.15, 0.05]] * 4))
  law = enumeration.laws(
      logits,
      [
          Settings(temperature=1.0, top_k=50),
          Settings(temperature=1.0, top_k=0),
          Settings(temperature=1.0, top_p=0.0),
          Settings(temperature=1.0, top_p=0.6),
      ],
  )
  np.testing.assert_allclose(
      enumeration.dense(law),
      [[0.5, 0.3, 0.15, 0.05]] * 2 + [[1, 0, 0, 0], [0.625, 0.375, 0, 0]],
      atol=1e-6,
  )


@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_no_token_is_possible(value):
  """Probability 0 throughout, not NaN, whatever is asked of the law."""
  logits = _normal(8, 2.0)
  logits[:, 2] = value
  law = enumeration.laws(logits, FILTERS)
  dense = np.asarray(enumeration.dense(law))
  np.testing.assert_array_equal(law.possible[:, 2], False)
  assert np.all(law.possible[:, 3]) and not np.any(dense[:, 2])
  np.testing.assert_allclose(dense[:, 3].sum(axis=-1), 1, rtol=1e-5)
  tokens = np.broadcast_to(np.arange(8, dtype=np.int32), (len(FILTERS), 8))
  assert not np.any(law.prob(tokens)[:, 2])
  key_B = jax.random.split(jax.random.key(0), len(FILTERS))
  row = law.row(np.full(len(FILTERS), 2))
  drawn_B = _draw(row, key_B)
  np.testing.assert_array_equal(drawn_B, row.best)
  assert np.all((row.best >= 0) & (row.best < 37))


# Draws.


@enumeration.quick
def _draw(law, key_B):
  return law.draw(key_B, sampling.Purpose.DRAFT)


def _frequencies(law, draws, seed=0):
  """How often each token comes out of a law with one row."""
  keys = jax.random.split(jax.random.key(seed), draws)
  one = lambda law, key: law.draw(key[None], sampling.Purpose.DRAFT)[0]
  draw = jax.jit(jax.vmap(one, (None, 0)))
  tokens = np.asarray(draw(law, keys))
  assert tokens.dtype == np.int32
  return np.bincount(tokens, minlength=law.width) / draws


def test_draws_follow_the_law():
  """37 ids are six blocks of six, and one that isn't full."""
  logits = _normal(6, 1.0)[:1, 0]
  law = enumeration.laws(logits, Settings(temperature=0.8, top_k=20))
  want = np.asarray(enumeration.dense(law))[0]
  got = _frequencies(law, 200_000)
  np.testing.assert_array_equal(got > 0, want > 0)
  sigma = np.sqrt(want * (1 - want) / 200_000)
  assert np.all(np.abs(got - want) <= 4.5 * sigma)


def test_tails_are_drawn():
  """jax-ml/jax#26974, vllm-project/vllm#43150.

  4,096 tokens of e^-16.5 take 28 draws of 1e5.
  """
  logits = np.full((1, 4097), -16.5, np.float32)
  logits[0, 0] = 0
  law = enumeration.quick(sampling.make_law)(
      logits, sampling.stack([FILTERS[0]], 4097), np.zeros(1, np.int32)
  )
  hits = 100_000 * _frequencies(law, 100_000)
  assert 12 <= hits[1:].sum() <= 44


def test_noise_has_its_tails(monkeypatch):
  """The same: a block of the vocabulary is no tail, but a token in it is."""
  asked, gumbel = [], jax.random.gumbel

  def noted(*arguments, **how):
    asked.append(how)
    return gumbel(*arguments, **how)

  monkeypatch.setattr(jax.random, "gumbel", noted)
  key_B = jax.random.split(jax.random.key(0), 1)
  sampling.draw(key_B, jnp.ones((1, 9)), jnp.zeros((1,), jnp.int32))
  assert asked == [{"mode": "high"}]


def test_greedy_rows_draw_the_argmax_and_others_keep_their_cut():
  logits = _normal(7, 2.0)[:, 0]
  law = enumeration.laws(logits, FILTERS)
  dense = np.asarray(enumeration.dense(law))
  for seed in range(20):
    key_B = jax.random.split(jax.random.key(seed), len(FILTERS))
    tokens = np.asarray(_draw(law, key_B))
    np.testing.assert_array_equal(
        tokens[law.greedy], logits.argmax(axis=-1)[law.greedy]
    )
    assert np.all(dense[np.arange(len(FILTERS)), tokens] > 0)


def test_nothing_is_drawn_from_nothing():
  """huggingface/transformers#28508; a draw from NaN gave token 0."""
  weights = jnp.asarray([[jnp.nan] * 4, [0.0] * 4, [1, 1, jnp.nan, 1]])
  key_B = jax.random.split(jax.random.key(0), 3)
  fallback_B = jnp.asarray([3, 2, 1])
  tokens = enumeration.quick(sampling.draw)(key_B, weights, fallback_B)
  np.testing.assert_array_equal(tokens, [3, 2, 1])


def test_keys_differ_by_purpose_and_node():
  key_B = jax.random.split(jax.random.key(0), 2)
  data = {
      tuple(np.asarray(jax.random.key_data(key)))
      for purpose in sampling.Purpose
      for node in range(3)
      for key in sampling.fold(key_B, purpose, node)
  }
  assert len(data) == 2 * 4 * 3
  mixed = sampling.fold(key_B, jnp.asarray([2, 3]), jnp.asarray([1, 0]))
  alone = sampling.fold(key_B, sampling.Purpose.EXTRA, 0)
  assert mixed[1] == alone[1] and mixed[0] != alone[0]


# Widths and programs.


def test_width_is_fitted():
  """vllm-project/vllm#7252."""
  logits = jnp.asarray([[[1.0, 2.0, 3.0]]], jnp.bfloat16)
  assert sampling.fit_width(logits, 3) is logits or np.array_equal(
      sampling.fit_width(logits, 3), logits
  )
  wide = np.asarray(sampling.fit_width(logits, 5), np.float32)
  np.testing.assert_array_equal(wide, [[[1, 2, 3, -np.inf, -np.inf]]])
  narrow = np.asarray(sampling.fit_width(logits, 2), np.float32)
  np.testing.assert_array_equal(narrow, [[[1, 2]]])


def _program():
  return jax.make_jaxpr(sampling.make_law)(
      jnp.zeros((12, 2, 37)),
      sampling.stack(FILTERS, 37),
      jnp.zeros((12, 2), jnp.int32),
  )


def test_nothing_is_sorted():
  found = re.findall(r"= (\w*(?:sort|top_k)\w*)\[", str(_program()))
  assert not found
  sorts = str(jax.make_jaxpr(jnp.sort)(jnp.zeros(3)))
  assert re.findall(r"= (\w*(?:sort|top_k)\w*)\[", sorts)


def _unconditional(jaxpr):
  """Names of the operations that run whatever the settings are."""
  for equation in jaxpr.eqns:
    yield equation.primitive.name
    if equation.primitive.name not in ("cond", "while"):
      for value in equation.params.values():
        if hasattr(value, "jaxpr"):
          yield from _unconditional(value.jaxpr)


def test_greedy_batches_skip_the_exponentials():
  names = list(_unconditional(_program().jaxpr))
  assert "reduce_max" in names and "cond" in names
  assert not {"exp", "log", "div"} & set(names)


@pytest.mark.parametrize(
    ("shape", "new_shape"),
    [((2, 5), (2,)), ((3, 6), (3,)), ((2, 6), (2, 1)), ((2, 4, 6), (2,))],
)
def test_shapes_that_do_not_go_together_are_refused(shape, new_shape):
  settings = sampling.stack([Settings()] * 2, 6)
  with pytest.raises(ValueError, match="logits: |new_tokens: "):
    sampling.make_law(jnp.zeros(shape), settings, jnp.zeros(new_shape, int))
