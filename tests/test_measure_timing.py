"""Timing: compile time apart, nothing compiled inside, sides in turn."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import pytest

from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.decoding import side as side_lib
from specjax.drafters import lookup
from specjax.drafters import none
from specjax.measure import gap as gap_lib
from specjax.measure import steps as steps_lib
from specjax.measure import timing
from specjax.settings import Settings
from specjax.verify import token
from tests import mocks

PLAIN, SPECULATIVE = timing.PLAIN, timing.SPECULATIVE


class Clock:
  """Time that passes only when it is told to."""

  def __init__(self):
    self.now = 0.0

  def __call__(self):
    return self.now


def final(rounds, lengths):
  """A finished state, as far as counts go."""
  return types.SimpleNamespace(
      tallies=types.SimpleNamespace(rounds_B=jnp.array(rounds)),
      length_B=jnp.array(lengths) + 1,
      prompt_B=jnp.ones(len(lengths), jnp.int32),
  )


class Side:
  """Decodes shapes; the first call of each is slow, as compilation is."""

  def __init__(self, clock, prefill, decode, state):
    self.clock, self.prefill_, self.decode = clock, prefill, decode
    self.state, self.seen, self.calls = state, set(), []

  def prefill(self, shape):
    self.clock.now += self.prefill_
    return shape

  def run(self, shape):
    self.clock.now += self.decode + (0.0 if shape in self.seen else 1.0)
    self.seen.add(shape)
    self.calls.append(shape)
    return self.state

  def adopt(self, state):
    return self


def sides(clock):
  return {
      PLAIN: Side(clock, 0.002, 0.030, final([9, 6], [9, 6])),
      SPECULATIVE: Side(clock, 0.003, 0.010, final([3, 2], [9, 6])),
  }


def test_steady_time_is_reported():
  """Lightning-AI/lightning-thunder#2638: compile time counted as decoding.

  ekryski/mlx-swift-lm#10, bytedance/jaqmc#34.
  """
  clock = Clock()
  times = timing.interleave(
      sides(clock), (4, 5, 4), repeats=3, warmup=1, clock=clock
  )
  assert times.decode[PLAIN] == pytest.approx([0.09] * 3)
  assert times.prefill[SPECULATIVE] == pytest.approx([0.009] * 3)
  # Two sides, two shapes, a second each.
  assert times.compile_seconds == pytest.approx(4.0)
  assert times.speedups() == pytest.approx([3.0] * 3)
  assert times.speedups(end_to_end=True) == pytest.approx([32 / 13] * 3)


def test_the_device_is_waited_for():
  """Work that was only handed to it has taken no time yet."""
  clock = Clock()

  def works(seconds):
    def wait():
      clock.now += seconds

    return wait

  both = sides(clock)
  both[PLAIN].state.block_until_ready = works(0.6)
  both[SPECULATIVE].state.block_until_ready = works(0.2)
  times = timing.interleave(both, (4,), repeats=2, warmup=1, clock=clock)
  assert times.decode[PLAIN] == pytest.approx([0.63] * 2)
  assert times.decode[SPECULATIVE] == pytest.approx([0.21] * 2)


def test_every_timed_shape_is_warmed_up():
  """The last, shorter batch too; both sides equally often."""
  clock = Clock()
  both = sides(clock)
  ticks = []
  timing.interleave(
      both,
      (4, 5),
      repeats=3,
      warmup=2,
      clock=clock,
      tick=lambda: ticks.append(1),
  )
  for side in both.values():
    assert side.calls == [4, 5] * 5
  assert len(ticks) == 20


def test_other_things_are_timed_beside_every_timed_batch():
  both = sides(Clock())
  calls = lambda: [len(side.calls) for side in both.values()]
  seen = []
  timing.interleave(
      both,
      (4, 5),
      repeats=2,
      warmup=1,
      beside=lambda: seen.append(calls()),
  )
  assert seen == [[3, 3], [4, 4], [5, 5], [6, 6]]


def test_sides_take_turns():
  clock, order = Clock(), []
  both = sides(clock)
  for name, side in both.items():
    run = side.run
    side.run = lambda shape, name=name, run=run: order.append(name) or run(
        shape
    )
  timing.interleave(both, (4, 5), repeats=2, warmup=1, clock=clock)
  assert order[4:8] == [PLAIN, SPECULATIVE] * 2
  assert order[8:] == [SPECULATIVE, PLAIN] * 2
  order.clear()
  for turn in range(3):
    timing.interleave(both, (4,), repeats=1, warmup=0, turn=turn, clock=clock)
  there, back = [PLAIN, SPECULATIVE], [SPECULATIVE, PLAIN]
  assert order == there + back + there


def test_drafts_learn_from_batch_to_batch():
  """Each repeat begins with what was known at first; learning takes time."""
  clock, known = Clock(), []

  @dataclasses.dataclass
  class Learner:
    seen: tuple = ()

    def prefill(self, shape):
      return shape

    def run(self, shape):
      clock.now += 1.0
      known.append((shape, self.seen))
      return final([2], [2])

    def adopt(self, state):
      clock.now += 0.25
      return Learner((*self.seen, known[-1][0]))

  learner = Learner()
  times = timing.interleave(
      {PLAIN: Side(clock, 0.0, 2.0, final([2], [2])), SPECULATIVE: learner},
      (4, 5, 6),
      repeats=2,
      warmup=1,
      clock=clock,
  )
  assert known == [(4, ()), (5, (4,)), (6, (4, 5))] * 3
  assert times.decode[SPECULATIVE] == pytest.approx([3.0] * 2)
  assert times.prefill[SPECULATIVE] == pytest.approx([0.75] * 2)


def test_batch_by_batch():
  """Several sides; shapes that were called before; times that add up."""
  clock, heard = Clock(), []
  three = sides(clock) | {
      "other": Side(clock, 0.001, 0.060, final([9], [9]))
  }

  def one(shape, warmup):
    return timing.interleave(
        three,
        (shape,),
        repeats=2,
        warmup=warmup,
        clock=clock,
        hear=lambda name, side, state: heard.append((name, side, state)),
    )

  times = one(4, 1) + one(4, 0)
  assert len(heard) == 12
  assert heard[0] == (PLAIN, three[PLAIN], three[PLAIN].state)
  assert times.decode["other"] == pytest.approx([0.12, 0.12])
  assert times.counts["other"].tokens == 18
  assert times.compile_seconds == pytest.approx(3.0)
  pair = times.against_plain("other")
  assert pair.compile_seconds == pytest.approx(2.0)
  # Plain decodes 15 tokens a batch in half of the time.
  assert pair.speedups() == pytest.approx([0.5 * 9 / 15] * 2)
  assert pair.speedups(end_to_end=True) == pytest.approx([32 / 61 * 9 / 15] * 2)
  assert times.against_plain(SPECULATIVE).speedups() == pytest.approx([3.0] * 2)


def test_counts():
  counts = timing.Counts.of(final([9, 6], [9, 6]))
  counts += timing.Counts.of(final([4, 0], [8, 0]))
  assert (counts.tokens, counts.row_rounds) == (23, 19)
  assert (counts.passes, counts.slots) == (13, 26)
  assert counts.tokens_per_round == 23 / 19
  assert counts.busy == 19 / 26


def test_unequal_outputs_are_compared_by_the_token():
  """Sampled outputs differ in length, which is no speed-up."""
  counts = {
      PLAIN: timing.Counts(100, 100, 100, 100),
      SPECULATIVE: timing.Counts(50, 25, 25, 25),
  }
  times = timing.Times(
      {PLAIN: 0.0, SPECULATIVE: 0.0},
      {PLAIN: [0.0], SPECULATIVE: [0.0]},
      {PLAIN: [1.0], SPECULATIVE: [0.5]},
      counts,
  )
  assert times.speedups() == [1.0]


def test_median_repeat():
  one = timing.Counts(10, 10, 10, 10)
  times = timing.Times(
      {PLAIN: 0.0, SPECULATIVE: 0.0},
      {PLAIN: [0.0] * 4, SPECULATIVE: [0.0] * 4},
      {PLAIN: [4.0, 1.0, 3.0, 2.0], SPECULATIVE: [1.0] * 4},
      {PLAIN: one, SPECULATIVE: one},
  )
  assert times.median_repeat == 3


def test_compilation_in_the_window_is_an_error():
  double = jax.jit(lambda x: 2 * x)
  small, large = jnp.ones(3), jnp.ones(4)
  double(small)
  with timing.no_compilation():
    double(small)
  with pytest.raises(RuntimeError, match="1 compilations inside"):
    with timing.no_compilation():
      double(large)
  # Nothing listens any more.
  with timing.no_compilation():
    pass


class Compiles(Side):
  """A side that compiles in its third call, as a forgotten shape would."""

  def run(self, shape):
    out = super().run(shape)
    jax.jit(lambda x: x + 1)(jnp.ones(len(self.calls) // 3 + 1))
    return out


def test_interleave_notices_compilation():
  clock = Clock()
  side = Compiles(clock, 0.0, 1.0, final([1], [1]))
  with pytest.raises(RuntimeError, match="timed window"):
    timing.interleave(
        {PLAIN: side, SPECULATIVE: side}, (4,), repeats=2, warmup=1
    )


def test_steps_are_steady():
  clock, order = Clock(), []

  def run(name, seconds):
    def step(count):
      first = name not in order
      order.append(name)
      clock.now += seconds * int(count) + (1.0 if first else 0.0)
      return count

    return step

  runs = {"draft": run("draft", 0.001), "target": run("target", 0.01)}
  seconds = steps_lib.interleave(runs, 20, 3, clock=clock)
  assert seconds["draft"] == pytest.approx([0.001] * 3)
  assert seconds["target"] == pytest.approx([0.01] * 3)
  assert order == ["draft", "target"] * 4


def test_some_calls_are_no_turn():
  """Of five calls every second is one, and the first run is not timed."""
  clock, counts = Clock(), []

  def step(count):
    counts.append(int(count))
    clock.now += 0.5 * int(count)
    return count

  turn = steps_lib.Turns({"target": step}, 4, clock=clock, every=2)
  for _ in range(5):
    turn()
  assert counts == [4] * 3 and turn.seconds == {"target": [0.5] * 2}


def test_steps_are_told_from_what_they_add():
  """The last two turns ran on a machine twice as slow, and thrice."""
  seconds = {
      "target": [1.0, 1.0, 1.0, 2.0, 3.0],
      "verify": [1.5, 1.5, 1.5, 3.0, 4.5],
      "drafted": [2.1, 2.1, 2.1, 4.2, 6.3],
  }
  steps = steps_lib.Steps.of(seconds, 3)
  assert dataclasses.astuple(steps) == pytest.approx((0.2, 1.0, 1.5))
  plain = steps_lib.Steps.of({"target": [1.0]}, 0)
  assert dataclasses.astuple(plain) == pytest.approx((0.0, 1.0, 1.0))


def test_wider_passes_cost_what_they_take(monkeypatch):
  """Of a model that takes a millisecond a token, and two for each pass."""
  clock, model = Clock(), mocks.TableModel(5)
  loop = loop_lib.Loop(model, none.NoDrafter(), token.TokenRule())
  side = side_lib.Side(loop, mocks.random_table(model, 0), (), 8)
  batch = requests_lib.make_batch(
      mocks.requests(Settings(eos=()), 8), vocabulary=5, seed=0
  )

  def steps(module, params, state, width, count):
    assert module is model
    clock.now += int(count) * (2 + width)
    return count

  monkeypatch.setattr(steps_lib, "target_steps", steps)
  got = steps_lib.verify_costs(
      side, batch, (1, 3, 4), steps=3, repeats=2, clock=clock
  )
  assert got == pytest.approx([1, 5 / 3, 2])


def test_the_text_before_a_timed_step_repeats_itself():
  """So that drafts that copy have something to copy."""
  model, drafter = mocks.TableModel(5), lookup.LookupDrafter(gamma=2)
  loop = loop_lib.Loop(model, drafter, token.TokenRule())
  side = side_lib.Side(loop, mocks.random_table(model, 0), (), 30)
  batch = requests_lib.make_batch(
      mocks.requests(Settings(eos=()), 30, prompts=[(4, 4)]),
      vocabulary=5,
      seed=0,
  )
  state = steps_lib.middle(side, batch)
  assert state.length_B.tolist() == [17]
  assert state.tokens_BS[0, :17].tolist() == [4, 4, *[2, 3, 4, 0, 1] * 3]
  assert loop.propose((), state)[0].count_B.tolist() == [2]


def test_costs():
  steps = steps_lib.Steps(draft=1.0, target=4.0, verify=6.0)
  assert (steps.c, steps.verify_cost) == (0.25, 1.5)


def test_gap_is_one_where_the_theorem_holds():
  """alpha 1, v = 1, no overhead, one row."""
  steps = steps_lib.Steps(draft=0.1, target=1.0, verify=1.0)
  gap = gap_lib.decompose(
      1.0,
      1.0,
      [40],
      3,
      steps,
      plain=timing.Counts(40, 40, 40, 40),
      speculative=timing.Counts(40, 10, 10, 10),
      plain_seconds=40.0,
      speculative_seconds=13.0,
  )
  assert dataclasses.astuple(gap) == pytest.approx([1.0] * 6)


def test_gap_multiplies_up_to_the_measured_speedup():
  steps = steps_lib.Steps(draft=0.2, target=1.1, verify=2.3)
  plain = timing.Counts(tokens=90, row_rounds=90, passes=40, slots=120)
  speculative = timing.Counts(tokens=80, row_rounds=35, passes=15, slots=45)
  gap = gap_lib.decompose(
      0.6, 0.5, [3, 2], 2, steps, plain, speculative, 50.0, 44.0
  )
  measured = (50.0 / 90) / (44.0 / 80)
  predicted = (1 + 0.6 + 0.36) / (2 * 0.2 / 1.1 + 1)
  assert predicted * gap.product == pytest.approx(measured)
  assert gap.sample == pytest.approx(1.75 / 1.96)
  # Texts of two tokens take 1 + .5 rounds, of three 1 + .5 * 1.5 + .25.
  independent = 5 / (1.5 + 2.0)
  assert gap.ends == pytest.approx(independent / 1.75)
  assert gap.tokens == pytest.approx(80 / 35 / independent)
  assert gap.verify == pytest.approx((0.4 + 1.1) / (0.4 + 2.3))
  assert gap.idle_rows == pytest.approx((35 / 45) / (90 / 120))
  assert gap.overhead == pytest.approx(
      (2 * 0.2 + 2.3) / (44 / 15) * (50 / 40) / 1.1
  )


@pytest.mark.parametrize(
    "speedup, tokens, draft, verify",
    [(0.7, 1.6, 0.02, 2.0), (0.9, 1.2, 0.3, 1.1), (1.8, 2.9, 0.1, 1.2)],
)
def test_break_even(speedup, tokens, draft, verify):
  """Each of the three alone, where it is told, brings the speed-up to 1."""
  gamma, target = 2, 0.5
  steps = steps_lib.Steps(draft=draft, target=target, verify=verify)
  made = gap_lib.break_even(speedup, tokens, gamma, steps)
  at_work = speedup * (gamma * draft + verify) / tokens
  of = lambda tokens, draft, verify: at_work * tokens / (gamma * draft + verify)
  alone = {
      "tokens": (made.tokens, lambda x: of(x, draft, verify), gamma + 1),
      "c": (made.c, lambda x: of(tokens, x * target, verify), 0),
      "verify_cost": (
          made.verify_cost, lambda x: of(tokens, draft, x * target), 1
      ),
  }
  for name, (wanted, faster, best) in alone.items():
    assert faster(best) / speedup == pytest.approx(made.lost[name])
    if wanted is None:
      assert faster(best) < 1
    else:
      assert faster(wanted) == pytest.approx(1)


def test_drafts_for_nothing_at_one_tokens_cost_lose_no_time():
  steps = steps_lib.Steps(draft=0.0, target=1.0, verify=1.0)
  made = gap_lib.break_even(2.0, 2.0, 3, steps)
  assert (made.tokens, made.c, made.verify_cost) == (1.0, 1 / 3, 2.0)
  assert made.lost == {"tokens": 2.0, "c": 1.0, "verify_cost": 1.0}
