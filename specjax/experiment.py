"""One experiment: decoded, timed, judged.

    report, details = run(prepare.prepare(config))

`report` has the keys that other tools rely on, `details` what stands behind
them.
"""

import dataclasses
import math
from typing import Any, Callable, Sequence

import numpy as np

from specjax import outputs
from specjax import prepare as prepare_lib
from specjax import settings as settings_lib
from specjax.measure import acceptance
from specjax.measure import environment
from specjax.measure import lossless
from specjax.measure import report as report_lib
from specjax.measure import steps as steps_lib
from specjax.measure import timing
from specjax.verify import token

# Timings of single steps in one repeat.
_TURNS = 8


def run(
    setup: prepare_lib.Setup, command: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Times, decodes and judges; shows how far it is.

  Args:
    setup: from `prepare`.
    command: that started the run, for its details.

  Returns:
    The report and its details, see measure.report.
  """
  where = environment.where(command)
  with _Progress() as progress:
    return report_lib.make(_measure(setup, progress, where))


def trace(setup: prepare_lib.Setup) -> outputs.Result:
  """`traces` of the first row."""
  return traces(setup, 1)[0]


def traces(
    setup: prepare_lib.Setup,
    rows: int,
    tick: Callable[[], None] = lambda: None,
) -> list[outputs.Result]:
  """Decodes the first rows with drafts and records every round.

  In the batches' own shapes, so that the tokens are those of other decodings.
  """
  loop = setup.speculative.loop
  traced = dataclasses.replace(
      loop, rule=dataclasses.replace(loop.rule, trace=True), trace=True
  )
  side = dataclasses.replace(setup.speculative, loop=traced)
  return setup.decode(side, tick, rows)


def _measure(
    setup: prepare_lib.Setup, progress: "_Progress", where
) -> report_lib.Measured:
  config = setup.config
  measure, rows = config.measure, len(setup.requests)
  timed = setup.groups(measure.timed_rows or rows)
  # Batches are in order of width: the middle one is a usual one.
  programs = steps_lib.programs(
      setup.plain, setup.speculative, timed[len(timed) // 2].batch
  )
  every = math.ceil(len(timed) / _TURNS)
  turns = len(timed) * measure.repeats // every
  calls = 2 * len(timed) * (measure.warmup + measure.repeats)
  progress.phase("timing", calls + len(programs) * (1 + turns))
  turn = steps_lib.Turns(programs, measure.steps, progress.tick, every=every)
  times = timing.interleave(
      {timing.PLAIN: setup.plain, timing.SPECULATIVE: setup.speculative},
      [group.batch for group in timed],
      repeats=measure.repeats,
      warmup=measure.warmup,
      tick=progress.tick,
      beside=turn,
  )
  steps = steps_lib.Steps.of(turn.seconds, setup.drafts.drafter.depth)
  sides = 1 if setup.output else 2
  progress.phase("decoding", sides * len(setup.groups(rows)))
  plain = setup.output or setup.decode(setup.plain, progress.tick)
  speculative, side = setup.decode_and_learn(
      setup.speculative, progress.tick
  )
  setup.save_responses(side)
  progress.phase("acceptance", rows)
  timed_rows = sum(len(group.rows) for group in timed)
  places = _places(setup, plain, progress.tick)
  # Plain decoding has no rounds worth seeing.
  shown = measure.traced_rows if setup.drafts.drafter.depth else 0
  progress.phase("trace", len(setup.groups(shown)))
  traced = traces(setup, shown, progress.tick)
  return report_lib.Measured(
      config=config,
      examples=setup.examples,
      plain=plain,
      speculative=speculative,
      mismatches=_mismatches(setup, plain, speculative),
      alpha=places and acceptance.alpha(places)[0],
      positions=acceptance.alpha(places)[1] if places else 0,
      timed_alpha=places and acceptance.alpha(places[:timed_rows])[0],
      gamma=setup.drafts.drafter.depth,
      nodes=setup.drafts.drafter.nodes,
      widths=setup.drafts.drafter.widths,
      tree=setup.drafts.tree,
      steps=steps,
      times=times,
      timed_rows=timed_rows,
      traced=traced,
      pieces=setup.target.tokenizer.shown,
      where=where,
  )


def pair(
    setup: prepare_lib.Setup, rules: Sequence[token.TokenRule] = ()
) -> acceptance.Pair:
  """Target and drafts whose laws are compared, and what judges them.

  Args:
    setup: target, drafts, and the token rule where there are no others.
    rules: what judges the drafts, each for itself.
  """
  drafter = setup.drafts.drafter
  return acceptance.Pair(
      setup.target.module,
      drafter.reader,
      tuple(rules) or (setup.config.token_rule(),),
      drafter.argmax,
  )


def chances(
    setup: prepare_lib.Setup,
    texts: Sequence[outputs.Result],
    rules: Sequence[token.TokenRule] = (),
    tick: Callable[[], None] = lambda: None,
) -> list[np.ndarray]:
  """Chance of acceptance at every place of the rows' given outputs.

  Returns:
    A row's chance_JT each, J for the rules; see `pair`.
  """
  ends = setup.target.module.config.ends
  draft_settings = setup.config.draft_settings(ends)

  def rows():
    for i, result in enumerate(texts):
      yield setup.single(i, result.tokens)
      tick()

  return acceptance.chances(
      pair(setup, rules),
      setup.target.params,
      setup.drafts.params,
      rows(),
      settings_lib.stack([draft_settings], setup.vocabulary),
  )


def alpha(
    setup: prepare_lib.Setup, plain: Sequence[outputs.Result]
) -> tuple[float | None, int]:
  """alpha over plain decoding's output, and its number of places.

  None without drafts, and where drafts have no law at each place: what can
  be copied depends on where a round begins.
  """
  places = _places(setup, plain)
  return acceptance.alpha(places) if places else (None, 0)


def _places(
    setup: prepare_lib.Setup,
    plain: Sequence[outputs.Result],
    tick: Callable[[], None] = lambda: None,
) -> list[np.ndarray] | None:
  """chance_T of each row's plain output; None where `alpha` is."""
  drafter = setup.drafts.drafter
  if not drafter.depth or drafter.reader is None:
    return None
  return [chance_T for [chance_T] in chances(setup, plain, tick=tick)]


def _mismatches(setup: prepare_lib.Setup, plain, speculative):
  """Rows that differ in greedy decoding; None where rows are sampled."""
  sampling = setup.config.sampling
  if sampling.temperature > 0 and sampling.top_p > 0:
    return None
  return mismatches(setup, plain, speculative)


def mismatches(
    setup: prepare_lib.Setup, plain, speculative
) -> list[lossless.Mismatch]:
  """Rows that differ, with the gap of plain decoding's two best logits.

  Args:
    setup: what both were decoded with.
    plain: results of all rows, in order.
    speculative: likewise.
  """
  found = []
  for i, (a, b) in enumerate(zip(plain, speculative)):
    position = lossless.first_difference(a.tokens, b.tokens)
    if position is not None:
      batch, text_BS, _ = setup.single(i, a.tokens)
      gap = lossless.two_best_gap(
          setup.target.module, setup.target.params, batch, text_BS, position
      )
      bound = lossless.NEAR_TIE[setup.config.decode.dtype]
      found.append(lossless.Mismatch(i, position, gap, bound))
  return found


class _Progress:
  """One bar a phase."""

  def __init__(self):
    self._bar = None

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._close()

  def _close(self):
    if self._bar is not None:
      self._bar.close()

  def phase(self, name: str, total: int) -> None:
    """Begins the next phase of `total` ticks."""
    self._close()
    self._bar = prepare_lib.bar(name, total)

  def tick(self) -> None:
    """One more is done."""
    self._bar.update()
