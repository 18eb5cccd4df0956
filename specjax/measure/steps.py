"""Time of a single step: the draft's, the target's, and the verify step.

Each is timed as many dependent steps in one `lax.fori_loop` under one jit, so
that what the host needs to start a program is not counted. A step is what a
round can't do without: the model's pass, the law, the draw.
"""

import dataclasses
import functools
import statistics
import time
from typing import Any, Callable

import jax
import jax.numpy as jnp

from specjax import sampling as sampling_lib
from specjax.decoding import side as side_lib
from specjax.measure import timing
from specjax.models import cache as cache_lib


@dataclasses.dataclass(frozen=True)
class Steps:
  """Seconds of one step.

  Attributes:
    draft: of one drafted token: a proposal, over its depth.
    target: of the target on one token.
    verify: of the target on gamma + 1 tokens.
  """

  draft: float
  target: float
  verify: float

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
  """Times the steps in turn, in the middle of a decoding.

  Args:
    plain: the target without drafts.
    speculative: the target with them.
    batch: whose shapes are taken.
    steps: in one timing.
    repeats: timings of each; the median counts.
    tick: called after each timing.
    clock: seconds.
  """
  drafter = speculative.loop.drafter

  def target(side, width):
    state = middle(side, batch)
    return lambda count: target_steps(
        side.loop.target, side.target_params, state, width, count
    )

  runs = {"target": target(plain, 1)}
  if drafter.depth:
    state = middle(speculative, batch)
    runs["verify"] = target(speculative, drafter.depth + 1)
    runs["draft"] = lambda count: draft_steps(
        drafter, speculative.drafter_params, state, count
    )
  seconds = interleave(runs, steps, repeats, tick, clock)
  if not drafter.depth:
    return Steps(0.0, seconds["target"], seconds["target"])
  return Steps(
      draft=seconds["draft"] / drafter.depth,
      target=seconds["target"],
      verify=seconds["verify"],
  )


def interleave(
    runs: dict[str, Callable[[Any], Any]],
    steps: int,
    repeats: int,
    tick: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
  """Median seconds of one step of each run, by turns; first calls are free."""
  count = jnp.int32(steps)
  for run in runs.values():
    jax.block_until_ready(run(count))
    tick()
  seconds = {name: [] for name in runs}
  with timing.no_compilation():
    for _ in range(repeats):
      for name, run in runs.items():
        began = clock()
        jax.block_until_ready(run(count))
        seconds[name].append((clock() - began) / steps)
        tick()
  return {name: statistics.median(times) for name, times in seconds.items()}


def middle(side: side_lib.Side, batch):
  """The state of a batch that is half decoded, as far as shapes can tell."""
  state = side.prefill(batch)
  middle_B = state.prompt_B + side.budget // 2
  return state.replace(length_B=middle_B, done_B=jnp.zeros_like(state.done_B))


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
    return cache, law.row(end_B).draw(_keys(state, i))

  token_B = state.tokens_BS[:, 0]
  return jax.lax.fori_loop(0, count, step, (state.cache, token_B))[1]


@functools.partial(jax.jit, static_argnums=0)
def draft_steps(drafter, params, state, count):
  """`count` proposals, each from the last one's; returns their tokens."""
  width = state.sampling.suppressed_V.shape[0]
  context = state.context()
  row_B = jnp.arange(state.length_B.shape[0])

  def step(i, carry):
    drafter_state, tokens_BS, _ = carry
    proposal, drafter_state = drafter.propose(
        params,
        drafter_state,
        context.replace(tokens_BS=tokens_BS, length_B=_length(state, i)),
        _keys(state, i),
        width,
    )
    drafted_BN = proposal.tokens_BN
    # The newest token becomes a drafted one: the next step waits for it.
    newest_B = _length(state, i + 1) - 1
    tokens_BS = tokens_BS.at[row_B, newest_B].set(drafted_BN[:, -1])
    return drafter_state, tokens_BS, drafted_BN

  empty_BN = jnp.zeros((row_B.shape[0], drafter.nodes), jnp.int32)
  start = (state.drafter, state.tokens_BS, empty_BN)
  return jax.lax.fori_loop(0, count, step, start)[2]


def _length(state, i):
  """Length at step i; it changes, so that no work can leave the loop."""
  return state.length_B + i % 2


def _keys(state, i):
  """Keys of one step."""
  return jax.vmap(jax.random.fold_in, in_axes=(0, None))(state.key_B, i)
