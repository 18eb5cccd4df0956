"""How many drafts pay: the rule alone, against what it promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import errors
from specjax.drafters import switch as switch_lib
from tests import mocks

Switch = switch_lib.Switch
quick_compiles = mocks.quick_compiles
WIDTHS = (1, 3, 5, 9)
ROWS = 32


def costs(*verify, draft=0.0, matching=0.0) -> switch_lib.Costs:
  return switch_lib.Costs(
      jnp.float32(draft),
      jnp.float32(matching),
      jnp.asarray(verify, jnp.float32),
  )


@functools.partial(jax.jit, static_argnums=0)
def begun(switch, book, emitted_B, own, class_B, count_B):
  """A round up to its drafts: who looks, how many there are, and the book."""
  looks_B, book = switch.look(book, emitted_B >= 0, emitted_B, own, WIDTHS)
  count_B = jnp.where(looks_B, count_B, 0)
  drafts_B, book = switch.choose(
      book, emitted_B, class_B, count_B, own.wider_W, WIDTHS, own.matching
  )
  return looks_B, drafts_B, book


settled = jax.jit(Switch.settle, static_argnums=0)


def play(switch, own, rounds, found, chance):
  """Rounds of some rows.

  Args:
    switch: the rule.
    own: Costs.
    rounds: how many.
    found: round -> class_B and count_B of what could be copied.
    chance: round and class_B -> of each draft to be accepted.

  Returns:
    drafts_RB, and loss_RB and tokens_RB after each round: target steps lost,
    in double precision.
  """
  rng = np.random.default_rng(0)
  book = switch.start(jnp.zeros(ROWS))
  loss_B, tokens_B = np.zeros(ROWS), np.zeros(ROWS, np.int32)
  wider_W = np.asarray(own.wider_W, np.float64)
  out = []
  for i in range(rounds):
    class_B, count_B = found(i)
    looks_B, drafts_B, book = begun(
        switch, book, tokens_B, own, class_B, count_B
    )
    looks_B, drafts_B = np.asarray(looks_B), np.asarray(drafts_B)
    assert np.all(drafts_B <= np.where(looks_B, count_B, 0))
    right_BG = rng.random((ROWS, 8)) < chance(i, class_B)[:, None]
    run_B = np.sum(np.cumprod(right_BG, axis=1), axis=1)
    accepted_B = np.minimum(run_B, drafts_B).astype(np.int32)
    own_B = np.where(drafts_B > 0, class_B, switch_lib.NOWHERE)
    book = settled(switch, book, own_B, drafts_B, accepted_B)
    loss_B = loss_B - accepted_B + looks_B * float(own.matching)
    loss_B = loss_B + wider_W[np.searchsorted(WIDTHS, drafts_B + 1)]
    tokens_B = tokens_B + accepted_B + 1
    out.append((drafts_B, loss_B, tokens_B))
  np.testing.assert_allclose(book.balance_B, -loss_B, atol=0.05)
  return [np.stack(values) for values in zip(*out)]


def of_class(number, count=8):
  """The same is found in every round."""
  return lambda _: (np.full(ROWS, number, np.int32), np.full(ROWS, count))


def anything(seed=0):
  """Any class and length, and often nothing."""
  rng = np.random.default_rng(seed)

  def found(_):
    class_B = rng.integers(0, 3, ROWS, np.int32)
    return class_B, np.maximum(rng.integers(-4, 9, ROWS), 0)

  return found


always = lambda value: lambda _, class_B: np.full(ROWS, value)
CHEAP, USUAL, DEAR = (1, 1.05, 1.1, 1.2), (1, 1.3, 1.6, 2.2), (1, 1.5, 2, 3)


@pytest.mark.parametrize("verify", [CHEAP, USUAL, DEAR])
@pytest.mark.parametrize("matching", [0.0, 0.04])
def test_a_row_loses_but_little(verify, matching):
  """Half a step and a hundredth of its tokens, if nothing is ever accepted."""
  own = costs(*verify, matching=matching)
  for found in (anything(), of_class(2)):
    drafts, loss, tokens = play(Switch(), own, 300, found, always(0.0))
    assert np.all(loss <= 0.5 + 0.01 * tokens + 1e-3)
    assert np.all(tokens[-1] == 300)
    # It does try, and later again.
    assert np.any(drafts[:20] > 0) and np.any(drafts[150:] > 0)


def test_no_acceptance_breaks_the_bound():
  """Also where it comes and goes."""
  rng = np.random.default_rng(3)
  chances = rng.random((30, ROWS))
  own = costs(*USUAL, matching=0.02)
  drafts, loss, tokens = play(
      Switch(), own, 300, anything(1), lambda i, _: chances[i // 10]
  )
  assert np.all(loss <= 0.5 + 0.01 * tokens + 1e-3)
  assert set(range(5)) <= set(np.unique(drafts))
  assert np.mean(loss[-1]) < 0


@pytest.mark.parametrize(
    "chance, width", [(0.1, 1), (0.45, 3), (0.65, 5), (0.95, 9)]
)
@pytest.mark.parametrize("number", [1, 2])
def test_the_best_width_is_found(chance, width, number):
  """From either side, at a v that makes each of them the best somewhere."""
  gain_W = [
      sum(chance ** (i + 1) for i in range(wide - 1)) - v + 1
      for wide, v in zip(WIDTHS, USUAL)
  ]
  assert WIDTHS[int(np.argmax(gain_W))] == width
  drafts, loss, _ = play(
      Switch(), costs(*USUAL), 300, of_class(number), always(chance)
  )
  widths, times = np.unique(drafts[150:] + 1, return_counts=True)
  assert widths[np.argmax(times)] == width
  assert np.max(times) > 0.4 * np.sum(times)
  assert np.mean(loss[-1]) < (4 if width == 1 else -50)


def test_classes_are_judged_apart():
  def found(i):
    return np.full(ROWS, 2 * (i % 2), np.int32), np.full(ROWS, 8)

  right = lambda _, class_B: 1.0 * (class_B == 2)
  drafts, _, _ = play(Switch(), costs(*CHEAP), 100, found, right)
  assert np.all(drafts[51::2] == 8)
  assert np.mean(drafts[50::2] > 0) < 0.35


def test_a_row_recovers():
  """After many rounds in which nothing was accepted, all is."""
  chance = lambda i, _: np.full(ROWS, float(i >= 100))
  drafts, loss, _ = play(Switch(), costs(*USUAL), 260, of_class(1), chance)
  assert np.mean(drafts[60:100] > 0) < 0.1
  assert np.all(drafts[-20:] == 8) and np.all(loss[-1] < -100)


def test_a_row_stops():
  """Gains of long ago do not pay for drafts that are wrong now."""
  chance = lambda i, _: np.full(ROWS, float(i < 100))
  drafts, _, _ = play(Switch(), costs(*USUAL), 220, of_class(1), chance)
  assert np.all(drafts[90:100] == 8)
  assert np.mean(drafts[180:] > 0) < 0.2


def test_short_continuations_get_narrow_passes():
  for count, most in ((1, 1), (2, 2), (3, 3)):
    drafts, _, _ = play(
        Switch(), costs(*CHEAP), 40, of_class(2, count), always(1.0)
    )
    assert np.all(drafts[-1] == most)


def test_what_can_not_pay_is_not_looked_for():
  """Nor paid for; it is forgotten all the same."""
  switch, own = Switch(), costs(1, 4, 5, 6, matching=0.2)
  book = switch.start(jnp.zeros(2))
  book = book.replace(judged_BC=book.judged_BC + 10)
  looks_B, after = switch.look(
      book, jnp.array([True, False]), jnp.zeros(2), own, WIDTHS
  )
  assert not np.any(looks_B)
  np.testing.assert_array_equal(after.balance_B, [0, 0])
  np.testing.assert_allclose(
      after.judged_BC, [[9.8, 9.8, 9.8, 10]] + [[10] * 4], rtol=1e-6
  )


def test_rows_without_drafts_keep_their_book():
  switch = Switch()
  book = switch.start(jnp.zeros(2))
  nowhere_B = jnp.full(2, switch_lib.NOWHERE)
  # A row that ended emits nothing: -1 of it would be accepted.
  after = switch.settle(book, nowhere_B, jnp.zeros(2, int), jnp.array([0, -1]))
  jax.tree.map(np.testing.assert_array_equal, after, book)
  drafts_B, after = switch.choose(
      book, jnp.zeros(2), jnp.zeros(2, int), jnp.zeros(2, int),
      jnp.zeros(4), WIDTHS,
  )
  assert not np.any(drafts_B)
  jax.tree.map(np.testing.assert_array_equal, after, book)


@pytest.mark.parametrize("field", ["credit", "share", "margin"])
@pytest.mark.parametrize("value", [-1, float("nan"), None])
def test_refused_options(field, value):
  with pytest.raises(errors.UserError, match=f"^{field}: give"):
    Switch(**{field: value})
