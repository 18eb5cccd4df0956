"""Wall-clock time of whole decodings: plain and speculative, in turn.

The first call of each shape compiles; it is timed apart. Then come more calls
on the very batches that are timed, then the timed window, in which nothing may
compile (Lightning-AI/lightning-thunder#2638).
"""

import contextlib
import dataclasses
import statistics
import time
from typing import Any, Callable, Iterator, Mapping, Sequence

import jax
import numpy as np

from specjax import sharding

_COMPILED = "/jax/core/compile/backend_compile_duration"
PLAIN, SPECULATIVE = "plain", "speculative"


@dataclasses.dataclass(frozen=True)
class Counts:
  """What was done in timed batches, the same in every repeat.

  Attributes:
    tokens: emitted.
    row_rounds: target passes, counted row by row.
    passes: target passes, counted batch by batch: as its longest row needs.
    slots: passes times the rows of their batch.
  """

  tokens: int = 0
  row_rounds: int = 0
  passes: int = 0
  slots: int = 0

  @classmethod
  def of(cls, state) -> "Counts":
    """What a batch's final state tells."""
    rounds_B, length_B, prompt_B = sharding.fetch(
        (state.tallies.rounds_B, state.length_B, state.prompt_B)
    )
    tokens_B = length_B - prompt_B
    passes = int(rounds_B.max())
    return cls(
        tokens=int(tokens_B.sum()),
        row_rounds=int(rounds_B.sum()),
        passes=passes,
        slots=passes * len(rounds_B),
    )

  def __add__(self, other: "Counts") -> "Counts":
    return Counts(
        self.tokens + other.tokens,
        self.row_rounds + other.row_rounds,
        self.passes + other.passes,
        self.slots + other.slots,
    )

  @property
  def tokens_per_round(self) -> float:
    """Tokens a row emits in one of its rounds."""
    return self.tokens / self.row_rounds

  @property
  def busy(self) -> float:
    """Share of the passes' rows that had not ended."""
    return self.row_rounds / self.slots


@dataclasses.dataclass(frozen=True)
class Times:
  """Seconds of all batches together, one entry a repeat.

  Attributes:
    compiling: what first calls took beyond later ones, side -> seconds.
    prefill: source and prompt, and what drafts learn from finished batches,
      side -> repeats.
    decode: all rounds, side -> repeats.
    counts: side -> what was done.
  """

  compiling: Mapping[str, float]
  prefill: Mapping[str, Sequence[float]]
  decode: Mapping[str, Sequence[float]]
  counts: Mapping[str, Counts]

  @property
  def compile_seconds(self) -> float:
    """Of all sides."""
    return sum(self.compiling.values())

  def __add__(self, other: "Times") -> "Times":
    """Of the batches of both, repeat by repeat."""

    def each(a, b):
      pairs = lambda side: zip(a[side], b[side], strict=True)
      return {side: [x + y for x, y in pairs(side)] for side in a}

    return Times(
        {k: v + other.compiling[k] for k, v in self.compiling.items()},
        each(self.prefill, other.prefill),
        each(self.decode, other.decode),
        {k: v + other.counts[k] for k, v in self.counts.items()},
    )

  def against_plain(self, side: str) -> "Times":
    """Of plain decoding and one of several other sides."""
    names = {PLAIN: PLAIN, SPECULATIVE: side}

    def pick(values):
      return {name: values[own] for name, own in names.items()}

    fields = dataclasses.fields(self)
    return Times(*(pick(getattr(self, field.name)) for field in fields))

  def speedups(self, *, end_to_end: bool = False) -> list[float]:
    """Plain over speculative time a token, one a repeat."""

    def seconds(side):
      total = np.asarray(self.decode[side])
      if end_to_end:
        total = total + np.asarray(self.prefill[side])
      return total / self.counts[side].tokens

    return (seconds(PLAIN) / seconds(SPECULATIVE)).tolist()

  @property
  def median_repeat(self) -> int:
    """The repeat whose speed-up is the (lower) median one."""
    ratios = self.speedups()
    return ratios.index(statistics.median_low(ratios))


@contextlib.contextmanager
def no_compilation() -> Iterator[None]:
  """Raises RuntimeError at the end where anything was compiled inside."""
  compiled = []

  def listen(event, seconds, **_):
    if event == _COMPILED:
      compiled.append(seconds)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
  if compiled:
    raise RuntimeError(
        f"{len(compiled)} compilations inside a timed window: its shapes were"
        " not warmed up"
    )


def interleave(
    sides: Mapping[str, Any],
    batches: Sequence[Any],
    *,
    repeats: int,
    warmup: int,
    turn: int = 0,
    tick: Callable[[], None] = lambda: None,
    hear: Callable[[str, Any, Any], None] = lambda name, side, state: None,
    beside: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
  """Times every side on every batch, in turn.

  Sides whose drafts learn begin each repeat with what they knew at first, and
  learn from batch to batch; their time for that is the prefill's.

  Args:
    sides: name -> Side.
    batches: what is decoded; each of them is warmed up.
    repeats: timed calls of each.
    warmup: calls of each before that; 0 where all their shapes were called
      before.
    turn: which of several calls that belong together this is: every second one
      begins with the last side.
    tick: called after each call.
    hear: given the name of a side, the side and its final state after each
      timed call.
    beside: called after each timed batch, to time other things under the same
      circumstances.
    clock: seconds.
  """

  def call(now, name, batch):
    """One batch, decoded by the side that `now` has; seconds and the state."""
    began = clock()
    state = jax.block_until_ready(now[name].prefill(batch))
    middle = clock()
    state = jax.block_until_ready(now[name].run(state))
    ended = clock()
    now[name] = now[name].adopt(state)
    around = middle - began + clock() - ended
    tick()
    return around, ended - middle, state

  first = dict.fromkeys(sides, 0.0)
  for i in range(warmup):
    now = dict(sides)
    for batch in batches:
      for name in sides:
        before, after, state = call(now, name, batch)
        Counts.of(state)
        first[name] += before + after if i == 0 else 0.0
  prefill = {name: [0.0] * repeats for name in sides}
  decode = {name: [0.0] * repeats for name in sides}
  with no_compilation():
    for i in range(repeats):
      counts, now = dict.fromkeys(sides, Counts()), dict(sides)
      # Every second repeat the other way round: a drift then cancels out.
      order = list(sides)[:: -1 if (i + turn) % 2 else 1]
      for batch in batches:
        for name in order:
          before, after, state = call(now, name, batch)
          prefill[name][i] += before
          decode[name][i] += after
          counts[name] += Counts.of(state)
          hear(name, now[name], state)
        beside()
  steady = lambda name: statistics.median(
      map(sum, zip(prefill[name], decode[name]))
  )
  compiling = {
      name: max(0.0, first[name] - steady(name)) for name in sides
  }
  return Times(compiling, prefill, decode, counts)
