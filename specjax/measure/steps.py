"""Time of a single step: the target's, the verify step, the draft's.

Each is timed as many dependent steps in one `lax.fori_loop` under one jit, so
that what the host needs to start a program is not counted. A step is what a
round can't do without: the model's pass, the law, the draw.

A draft step is what it adds to a verify step: timed on its own, a small
draft's weights would stay in a cache that the target's drive them out of in
every round.

A machine that others use, too, is now fast and now slow. So all programs are
timed in turn, each turn beside a whole decoding where there is one, and what
counts is how many target steps of its turn a step takes.
"""

import dataclasses
import functools
import statistics
import time
from typing import Any, Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from specjax import sampling as sampling_lib
from specjax.decoding import side as side_lib
from specjax.measure import timing
from specjax.models import cache as cache_lib


# Ids of the text that is taken to stand before a timed step.
_PERIOD = 32


@dataclasses.dataclass(frozen=True)
class Steps:
  """Seconds of one step.

  Attributes:
    draft: of one drafted token: what a proposal adds to a verify step, over
      its depth.
    target: of the target on one token.
    verify: of the target on all drafts and the newest token.
  """

  draft: float
  target: float
  verify: float

  @classmethod
  def of(cls, seconds: dict[str, list[float]], depth: int) -> "Steps":
    """From what `measure` times.

    Args:
      seconds: of one step of "target", and where there are drafts of "verify"
        and "drafted" (a proposal and its verify step), turn by turn.
      depth: gamma, or 0.
    """
    one = statistics.median(seconds["target"])
    if not depth:
      return cls(0.0, one, one)
    turns = list(zip(*map(seconds.get, ("target", "verify", "drafted"))))
    verify = statistics.median(v / t for t, v, _ in turns)
    drafts = statistics.median((d - v) / t for t, v, d in turns)
    return cls(max(0.0, drafts) * one / depth, one, verify * one)

  @property
  def c(self) -> float:
    """Draft step over target step (arXiv 2211.17192, Definition 3.7)."""
    return self.draft / self.target

  @property
  def verify_cost(self) -> float:
    """v: verify step over target step, which the paper takes as 1."""
    return self.verify / self.target


def measure(
    plain: side_lib.Side,
    speculative: side_lib.Side,
    batch,
    *,
    steps: int,
    repeats: int,
    tick: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Steps:
  """Times the steps in turn, with nothing between the turns.

  Args:
    plain: the target without drafts.
    speculative: the target with them.
    batch: whose shapes are taken.
    steps: in one timing.
    repeats: timings of each; the median counts.
    tick: called after each timing.
    clock: seconds.
  """
  runs = programs(plain, speculative, batch)
  seconds = interleave(runs, steps, repeats, tick, clock)
  return Steps.of(seconds, speculative.loop.drafter.depth)


def programs(
    plain: side_lib.Side, speculative: side_lib.Side, batch
) -> dict[str, Callable[[Any], Any]]:
  """What Steps.of wants timed, in the middle of decoding a batch.

  Args:
    plain: the target without drafts.
    speculative: the target with them.
    batch: whose shapes are taken.

  Returns:
    name -> runs so many steps.
  """
  drafter = speculative.loop.drafter

  def target(side, width):
    # Without the drafter's own part, so that all drafts share a program.
    state = middle(side, batch).replace(drafter=())
    return lambda count: target_steps(
        side.loop.target, side.target_params, state, width, count
    )

  runs = {"target": target(plain, 1)}
  if not drafter.depth:
    return runs
  # A step is of all drafts, however few a round may have.
  loop = dataclasses.replace(
      speculative.loop, drafter=drafter.whole, narrow=False
  )
  drafted = functools.partial(
      round_steps,
      loop,
      speculative.target_params,
      speculative.drafter_params,
      middle(speculative, batch),
      False,
  )
  return runs | {
      "verify": target(speculative, drafter.nodes + 1),
      "drafted": drafted,
  }


class Turns:
  """Times programs in turn, whenever asked to.

  Attributes:
    seconds: of one step of each program, turn by turn.
  """

  def __init__(
      self,
      runs: Mapping[str, Callable[[Any], Any]],
      steps: int,
      tick: Callable[[], None] = lambda: None,
      clock: Callable[[], float] = time.perf_counter,
      every: int = 1,
  ):
    """Calls each program once, which is free.

    Args:
      runs: name -> runs so many steps.
      steps: in one timing.
      tick: called after each timing.
      clock: seconds.
      every: which of the calls are a turn; the others do nothing.
    """
    self._runs, self._tick, self._clock = runs, tick, clock
    self._every, self._calls = every, 0
    self._steps, self._count = steps, jnp.int32(steps)
    self.seconds = {name: [] for name in runs}
    for run in runs.values():
      jax.block_until_ready(run(self._count))
      tick()

  def __call__(self) -> None:
    """Times each program once more."""
    self._calls += 1
    if self._calls % self._every:
      return
    for name, run in self._runs.items():
      began = self._clock()
      jax.block_until_ready(run(self._count))
      self.seconds[name].append((self._clock() - began) / self._steps)
      self._tick()


def interleave(
    runs: dict[str, Callable[[Any], Any]],
    steps: int,
    repeats: int,
    tick: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
  """Seconds of one step of each run, by turns; first calls are free."""
  turns = Turns(runs, steps, tick, clock)
  with timing.no_compilation():
    for _ in range(repeats):
      turns()
  return turns.seconds


def verify_costs(
    plain: side_lib.Side,
    batch,
    widths: Sequence[int],
    *,
    steps: int,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
  """v of target passes over so many tokens, the first of which is 1.

  Args:
    plain: the target without drafts.
    batch: whose shapes are taken.
    widths: tokens of the passes.
    steps: in one timing.
    repeats: timings of each; the median counts.
    clock: seconds.
  """

  def run(width):
    state = middle(plain, batch)
    return lambda count: target_steps(
        plain.loop.target, plain.target_params, state, width, count
    )

  runs = {str(width): run(width) for width in widths}
  seconds = interleave(runs, steps, repeats, clock=clock)
  medians = [statistics.median(seconds[str(width)]) for width in widths]
  return [median / medians[0] for median in medians]


def middle(side: side_lib.Side, batch):
  """The state of a batch that is half decoded, as far as shapes can tell.

  Its text repeats itself, so that there is something to copy.
  """
  state = side.prefill(batch)
  index_S = jnp.arange(state.tokens_BS.shape[1])
  width = state.sampling.suppressed_V.shape[0]
  return state.replace(
      tokens_BS=jnp.where(
          index_S < state.prompt_B[:, None],
          state.tokens_BS,
          index_S % min(width, _PERIOD),
      ),
      length_B=state.prompt_B + side.budget // 2,
      done_B=jnp.zeros_like(state.done_B),
  )


@functools.partial(jax.jit, static_argnums=(0, 3))
def target_steps(module, params, state, width: int, count):
  """`count` target steps on `width` tokens each; returns the last token."""
  index_T = jnp.arange(width)
  end_B = jnp.full_like(state.length_B, width - 1)

  def step(i, carry):
    cache, token_B = carry
    length_B = _length(state, i)
    new_BT = (length_B - state.prompt_B)[:, None] + index_T
    tokens_BT = jnp.broadcast_to(token_B[:, None], new_BT.shape)
    query = cache_lib.chain_query(
        tokens_BT, length_B - 1, cache.slots, jnp.ones_like(new_BT, bool)
    )
    logits_BTV, cache, _ = module.apply(
        params, query, cache, state.memory, method="decode"
    )
    law = sampling_lib.make_law(logits_BTV, state.sampling, new_BT)
    token_B = law.row(end_B).draw(
        _keys(state, i), sampling_lib.Purpose.EXTRA
    )
    return cache, token_B

  token_B = state.tokens_BS[:, 0]
  return jax.lax.fori_loop(0, count, step, (state.cache, token_B))[1]


@functools.partial(jax.jit, static_argnums=(0, 4))
def round_steps(loop, target_params, drafter_params, state, whole: bool, count):
  """`count` proposals with their verify steps, or whole rounds.

  Returns the tokens.
  """
  row_B = jnp.arange(state.length_B.shape[0])

  def at(i, carry):
    cache, drafter, tokens_BS = carry
    return state.replace(
        cache=cache,
        drafter=drafter,
        tokens_BS=tokens_BS,
        length_B=_length(state, i),
        tallies=state.tallies.replace(
            rounds_B=jnp.full_like(state.tallies.rounds_B, i)
        ),
    )

  def drafted(i, carry):
    now = at(i, carry)
    proposal, drafter = loop.propose(drafter_params, now)
    law, _, cache, features = loop.score(target_params, now, proposal)
    token_B = law.row(proposal.count_B).draw(
        _keys(state, i), sampling_lib.Purpose.EXTRA
    )
    if loop.drafter.taps:
      # Its drafts wait for the target's states, not for a token.
      width = loop.drafter.depth + 1
      drafter = loop.drafter.observe(
          drafter_params,
          drafter,
          jnp.broadcast_to(token_B[:, None], (*token_B.shape, width)),
          tuple(x_BTD[:, :width] for x_BTD in features),
          jnp.full_like(now.length_B, width),
          now.context(),
      )
    # The newest token becomes a drawn one: the next step waits for it.
    tokens_BS = now.tokens_BS.at[row_B, now.length_B - 1].set(token_B)
    return cache, drafter, tokens_BS

  def round_(i, carry):
    after = loop.round(target_params, drafter_params, at(i, carry))
    return after.cache, after.drafter, after.tokens_BS

  start = (state.cache, state.drafter, state.tokens_BS)
  step = round_ if whole else drafted
  return jax.lax.fori_loop(0, count, step, start)[2]


def _length(state, i):
  """Length at step i; it changes, so that no work can leave the loop."""
  return state.length_B + i % 2


def _keys(state, i):
  """Keys of one step."""
  return jax.vmap(jax.random.fold_in, in_axes=(0, None))(state.key_B, i)
