"""What EAGLE's heads learn, and from where."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from specjax import errors
from specjax.models import cache as cache_lib
from specjax.models import eagle
from specjax.models import reading
from specjax.training import commonest
from specjax.training import eagle as objective_lib
from specjax.training import features
from tests import mocks

Batch = features.Batch
Frozen = objective_lib.Frozen
Objective = objective_lib.Objective
quick_compiles = mocks.quick_compiles
V = 29
SHAPE = eagle.EagleConfig()
KINDS = {
    "llama": functools.partial(mocks.tiny_decoder, "llama"),
    "t5": mocks.tiny_t5,
}


@functools.cache
def batch_of(kind, rows=4, width=12):
  """Texts that a target wrote by argmax behind random prompts of 3 tokens."""
  module, params = KINDS[kind]()
  rng = np.random.default_rng(0)
  prompt = 1 if kind == "t5" else 3
  ids_BT = np.zeros((rows, width), np.int32)
  if kind != "t5":
    ids_BT[:, :prompt] = rng.integers(3, V, (rows, prompt))
  source_BL = rng.integers(1, V, (rows, 5)).astype(np.int32)
  mask_BL = np.arange(5) < np.array([5, 3, 4, 2])[:, None]
  if kind != "t5":
    source_BL = mask_BL = None

  @jax.jit
  def read(ids_BT):
    memory = reading.encode(module, params, source_BL, mask_BL)
    logits, _, (states,) = module.apply(
        params,
        cache_lib.whole_query(ids_BT),
        None,
        memory,
        taps=(-1,),
        method="decode",
    )
    return jnp.argmax(logits, axis=-1), states

  for place in range(prompt, width):
    ids_BT[:, place] = read(ids_BT)[0][:, place - 1]
  answer_BT = np.arange(width) >= prompt
  length_B = np.array([width, width - 2, width, width - 5])[:, None]
  answer_BT = answer_BT & (np.arange(width) < length_B)
  states_BTD = np.asarray(read(ids_BT)[1], jnp.bfloat16)
  number_B = np.zeros((len(ids_BT),), np.uint32)
  return Batch(ids_BT, answer_BT, states_BTD, source_BL, mask_BL, number_B)


@functools.partial(jax.jit, static_argnums=0)
def sums_of(objective, head, params, batch):
  return objective.sums(head, Frozen(params), batch)


def trained(kind, steps=150):
  """A head that has read the batch some times; losses at both ends."""
  module, params = KINDS[kind]()
  # In texts of twelve tokens noise would drown them.
  objective = Objective(SHAPE, module.config, depth=3, noise=0.0)
  batch = batch_of(kind)
  optimizer = optax.adam(1e-2)

  @jax.jit
  def step(head, state):
    loss = lambda head: (
        lambda sums: sums["loss"] / sums["tokens"]
    )(objective.sums(head, Frozen(params), batch))
    value, gradient = jax.value_and_grad(loss)(head)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(head, updates), state, value

  head = objective.init(jax.random.key(1))
  state, losses = optimizer.init(head), []
  for _ in range(steps):
    head, state, loss = step(head, state)
    losses.append(float(loss))
  return objective, params, head, losses


@pytest.mark.parametrize(
    "kind", [pytest.param("llama", marks=pytest.mark.slow), "t5"]
)
def test_a_head_learns(kind):
  """The loss falls, and drafts are accepted."""
  objective, params, head, losses = trained(kind)
  assert losses[-1] < losses[0] / 3
  batch = batch_of(kind)
  before = objective.held.means(
      sums_of(
          objective.held, objective.init(jax.random.key(1)), params, batch
      )
  )
  after = objective.held.means(sums_of(objective.held, head, params, batch))
  assert after["overlap"] > before["overlap"] + 0.2
  for m in (1, 2, 3):
    assert after[f"accepted_{m}"] > 0.8
  assert after["feature"] < before["feature"] / 2
  found_MC, known_M = objective.ranks(head, Frozen(params), batch, 3)
  np.testing.assert_allclose(
      found_MC[0, 0] / known_M[0], after["accepted_1"], atol=1e-6
  )
  assert np.all(np.sum(found_MC, axis=1) <= known_M)


@pytest.mark.parametrize("kind", KINDS)
def test_positions_are_drafted_as_when_decoding(kind):
  """sgl-project/SpecForge#472, #473, vllm-project/vllm#47745.

  From one place the head reads its own states, token by token, behind the
  text's true ones.
  """
  module, params = KINDS[kind]()
  objective = Objective(SHAPE, module.config, depth=3)
  model, batch = objective.model, batch_of(kind)
  head = objective.init(jax.random.key(2))
  pair = model.params(head, params)
  states_BTD = jnp.asarray(batch.states_BTD, jnp.float32)
  start = 4

  @jax.jit
  def drafts():
    """All places at once; and one alone, step by step."""
    whole = objective._drafts(pair, params, batch, states_BTD, 3)
    memory = objective._memory(pair, params, batch)
    cache, at, alone = model.head.empty_cache(4, 12), 0, []
    hidden_BTD = states_BTD[:, : start + 1]
    tokens_BT = jnp.asarray(batch.ids_BT[:, 1 : start + 2])
    for m in range(3):
      query = cache_lib.chain_query(
          tokens_BT, jnp.full((4,), at), 12, jnp.ones(tokens_BT.shape, bool)
      )
      hidden_BTD, cache = model.read(pair, query, hidden_BTD, cache, memory)
      hidden_BTD = hidden_BTD[:, -1:]
      alone.append(hidden_BTD[:, 0])
      at = start + 1 + m
      tokens_BT = jnp.asarray(batch.ids_BT[:, at + 1 : at + 2])
    return [hidden_BTD[:, start] for hidden_BTD, *_ in whole], alone

  for got_BD, want_BD in zip(*drafts(), strict=True):
    np.testing.assert_allclose(got_BD, want_BD, atol=1e-5)


def test_what_counts():
  """sgl-project/SpecForge#448, #885: states that answers are drafted from."""
  module, params = KINDS["llama"]()
  objective = Objective(SHAPE, module.config, noise=0.0)
  model, batch = objective.model, batch_of("llama")
  pair = model.params(objective.init(jax.random.key(1)), params)
  states_BTD = jnp.asarray(batch.states_BTD, jnp.float32)
  drafts = lambda: list(
      objective._drafts(pair, params, batch, states_BTD, 1)
  )
  ((_, label_BT, known_BT),) = jax.jit(drafts)()
  # Place t reads token t + 1, and is to give token t + 2.
  np.testing.assert_array_equal(label_BT[:, :-1], batch.ids_BT[:, 2:])
  np.testing.assert_array_equal(known_BT[:, :-1], batch.answer_BT[:, 2:])
  assert not np.any(known_BT[:, -1])
  # The first is from two places before the answer, none from past its end.
  first_B = np.argmax(np.asarray(known_BT), axis=1)
  assert first_B.tolist() == [1] * 4
  assert np.sum(known_BT) == np.sum(batch.answer_BT)
  # What is learnt from: states before and at those places, no later ones.
  loss = lambda states_BTD: objective.sums(
      pair.head, Frozen(params), batch._replace(states_BTD=states_BTD)
  )["loss"]
  gradient_BTD = jax.jit(jax.grad(loss))(states_BTD)
  moved = np.any(np.asarray(gradient_BTD) != 0, axis=-1)
  ends_B = np.array([12, 10, 12, 7])
  # The last token's own state is neither read nor wanted.
  want = np.arange(12) < ends_B[:, None] - 1
  np.testing.assert_array_equal(moved, want)


def test_only_the_head_learns():
  module, params = KINDS["llama"]()
  objective, batch = Objective(SHAPE, module.config), batch_of("llama")
  head = objective.init(jax.random.key(1))
  loss = lambda head: objective.sums(head, Frozen(params), batch)["loss"]
  gradient = jax.jit(jax.grad(loss))(head)
  for leaf in jax.tree.leaves(gradient):
    assert np.any(leaf != 0)
  sizes = {size for leaf in jax.tree.leaves(head) for size in leaf.shape}
  assert V not in sizes


def test_noise_is_of_a_texts_length():
  """arXiv 2401.15077: U(-0.1, 0.1) in texts of 512 tokens, less in longer."""
  module, _ = KINDS["llama"]()
  objective = Objective(SHAPE, module.config)
  width = 1024
  answer_BT = np.arange(width) < np.array([1024, 512, 256])[:, None]
  number_B = np.full((3,), 5, np.uint32)
  ids_BT = np.zeros((3, width), np.int32)
  batch = Batch(ids_BT, answer_BT, number_B=number_B)
  noise_BTD = np.asarray(objective._noise(batch, (3, width, 4)))
  spread_B = np.abs(noise_BTD).max(axis=(1, 2))
  np.testing.assert_allclose(spread_B, [0.05, 0.1, 0.2], rtol=0.01)
  np.testing.assert_allclose(noise_BTD.mean(), 0, atol=2e-3)
  # The same step has the same, another epoch's another.
  again = np.asarray(objective._noise(batch, (3, width, 4)))
  np.testing.assert_array_equal(noise_BTD, again)
  later = batch._replace(number_B=number_B + 1)
  assert np.all(objective._noise(later, (3, width, 4)) != noise_BTD)


def test_losses_by_hand():
  """Smooth L1 over D, and a tenth of the soft cross-entropy."""
  module, params = KINDS["llama"]()
  objective, batch = Objective(SHAPE, module.config), batch_of("llama")
  head = objective.init(jax.random.key(3))
  model = objective.model
  pair = model.params(head, params)
  states_BTD = jnp.asarray(batch.states_BTD, jnp.float32)

  @jax.jit
  def read():
    """The head along the texts, and both laws."""
    hidden_BTD, _ = model.read(
        pair,
        cache_lib.whole_query(jnp.asarray(batch.ids_BT[:, 1:])),
        states_BTD[:, :-1],
        None,
        None,
    )
    p = jax.nn.softmax(model.logits(pair, states_BTD[:, 1:]))
    log_q = jax.nn.log_softmax(model.logits(pair, hidden_BTD))
    return hidden_BTD - states_BTD[:, 1:], p, log_q

  gap, p, log_q = map(np.asarray, read())
  gap = np.abs(gap)
  smooth_BT = np.where(gap < 1, gap**2 / 2, gap - 0.5).mean(axis=-1)
  cross_BT = -np.sum(p * log_q, axis=-1)
  known_BT = np.pad(batch.answer_BT[:, 2:], ((0, 0), (0, 1)))
  sums = sums_of(objective.held, head, params, batch)
  for name, want in (
      ("feature", smooth_BT),
      ("cross_entropy", cross_BT),
      ("loss", smooth_BT + 0.1 * cross_BT),
  ):
    np.testing.assert_allclose(sums[name], (want * known_BT).sum(), rtol=1e-4)


def test_laws_of_some_places():
  """Drawn anew each time, and in the mean the sums over all."""
  module, params = KINDS["llama"]()
  objective, batch = Objective(SHAPE, module.config), batch_of("llama")
  head = objective.init(jax.random.key(3))
  some = dataclasses.replace(objective, places=5, noise=0.0)
  every = dataclasses.replace(objective, noise=0.0)
  whole = sums_of(every, head, params, batch)
  number_B = batch.number_B
  drawn = [
      sums_of(some, head, params, batch._replace(number_B=number_B + i))
      for i in range(200)
  ]
  for name in ("cross_entropy", "overlap", "loss"):
    values = np.array([sums[name] for sums in drawn])
    error = values.std() / np.sqrt(len(values))
    assert error > 0
    assert abs(values.mean() - whole[name]) < 4 * error
  for sums in drawn:
    np.testing.assert_array_equal(sums["feature"], whole["feature"])
  # Held-out figures are of all places; so are those of short batches.
  for other in (some.held, dataclasses.replace(every, places=1000)):
    sums = sums_of(other, head, params, batch)
    np.testing.assert_allclose(sums["overlap"], whole["overlap"], rtol=1e-6)


def test_drafts_of_the_commonest_ids():
  """arXiv 2502.14856: what is learnt is of all ids, what is right of some."""
  objective, params, head, _ = trained("llama")
  module, batch = KINDS["llama"]()[0], batch_of("llama")
  target = types.SimpleNamespace(module=module, params=params)
  rows = [
      features.Row(None, (3,), tuple(ids[mask].tolist()))
      for ids, mask in zip(batch.ids_BT, batch.answer_BT)
  ]
  few = dataclasses.replace(objective, heads=eagle.EagleConfig(listed=6))
  frozen = few.frozen(target, rows)
  want_W = commonest.commonest(rows, V, 6)
  np.testing.assert_array_equal(frozen.listed.ids_W, want_W)
  made, whole = (
      jax.jit(each.held.sums)(head, own, batch)
      for each, own in ((few, frozen), (objective, Frozen(params)))
  )
  for name in ("loss", "cross_entropy", "overlap", "tokens"):
    np.testing.assert_array_equal(made[name], whole[name])
  # By the same hidden states: the listed token of most weight, or none.
  pair = few.model.params(head, params, frozen.listed)
  states_BTD = jnp.asarray(batch.states_BTD, jnp.float32)
  drafts = jax.jit(
      lambda: [
          (few.model.logits(pair.replace(listed=None), hidden), label, known)
          for hidden, label, known in few._drafts(
              pair, params, batch, states_BTD, 1
          )
      ]
  )
  ((logits_BTV, label_BT, known_BT),) = jax.device_get(drafts())
  best_BT = want_W[np.argmax(logits_BTV[..., want_W], axis=-1)]
  right = int(np.sum((best_BT == label_BT) & known_BT))
  assert made["accepted_1"] == right > 0
  assert right < np.sum(known_BT)
  found_MC, known_M = few.ranks(head, frozen, batch, 9)
  among = np.isin(label_BT, want_W) & known_BT
  assert found_MC[0, 0] == right and np.sum(found_MC[0]) == np.sum(among)
  assert known_M[0] == np.sum(known_BT)


@pytest.mark.parametrize(
    ("options", "field"),
    [(dict(depth=0), "depth"), (dict(weight=-1), "weight"),
     (dict(noise=True), "noise"), (dict(places=-1), "places"),
     (dict(heads=eagle.EagleConfig(listed=V + 1)), "listed")],
)
def test_wrong_values_are_refused(options, field):
  with pytest.raises(errors.UserError, match=f"^{field}: "):
    Objective(
        **dict(heads=SHAPE, target=KINDS["llama"]()[0].config) | options
    )


def test_a_trained_head_is_of_the_shape_that_drafts():
  module, _ = KINDS["t5"]()
  objective = Objective(SHAPE, module.config)
  made = jax.eval_shape(objective.init, jax.random.key(0))
  want = jax.eval_shape(eagle.of(module).init, jax.random.key(0))
  assert made == want
