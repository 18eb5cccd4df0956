"""What a run reports: the keys that other tools rely on, and details."""

import dataclasses
import statistics
from typing import Any, Mapping, Sequence

from specjax import sections
from specjax import theory
from specjax import topology
from specjax.checkpoints import published
from specjax.data import metrics
from specjax.data import tasks
from specjax.measure import acceptance
from specjax.measure import environment
from specjax.measure import gap as gap_lib
from specjax.measure import lossless
from specjax.measure import show
from specjax.measure import steps as steps_lib
from specjax.measure import timing


@dataclasses.dataclass(frozen=True)
class Measured:
  """All that was measured in one run.

  Attributes:
    config: of the run.
    examples: the texts, in order.
    plain: a result a text, without drafts.
    speculative: likewise, with drafts.
    mismatches: rows whose tokens differ; None where they are sampled.
    alpha: None without drafts, and for drafts that have none.
    positions: places that alpha is the mean of.
    timed_alpha: alpha of the timed rows alone.
    gamma: drafted tokens a round; of a tree, its depth.
    nodes: all drafted tokens a round.
    widths: of the target's passes; several where a round may have fewer drafts.
    tree: their shape; None is a chain.
    steps: seconds of single steps.
    times: seconds of whole decodings.
    timed_rows: how many rows those are of, from the front.
    traced: results with their rounds, of the first texts.
    pieces: string of each id of the tokenizer.
    where: command, commit, date and device, from environment.where.
  """

  config: sections.Experiment
  examples: Sequence[tasks.Example]
  plain: Sequence[Any]
  speculative: Sequence[Any]
  mismatches: Sequence[lossless.Mismatch] | None
  alpha: float | None
  positions: int
  timed_alpha: float | None
  gamma: int
  nodes: int
  widths: Sequence[int]
  tree: topology.Topology | None
  steps: steps_lib.Steps
  times: timing.Times
  timed_rows: int
  traced: Sequence[Any]
  pieces: Sequence[str]
  where: Mapping[str, str | None]

  @property
  def predicts(self) -> bool:
    """Whether theory is for these drafts: alpha is known, and gamma fixed."""
    fixed = self.alpha is not None and not self.config.draft.confidence
    return fixed or not self.gamma


def make(measured: Measured) -> tuple[dict[str, Any], dict[str, Any]]:
  """The report, whose keys stay what they are, and the details behind it."""
  config, times = measured.config, measured.times
  rule = config.rule()
  steps, gamma = measured.steps, measured.gamma
  report = {
      "alpha": measured.alpha,
      "acceptance_by_position": acceptance.by_position(
          [row.judged for row in measured.speculative],
          [row.accepted for row in measured.speculative],
      ),
      "block_efficiency": acceptance.block_efficiency(
          [len(row.tokens) for row in measured.speculative],
          [row.rounds for row in measured.speculative],
      ),
      "c": steps.c,
      "verify_cost": steps.verify_cost,
      "predicted_speedup": {
          "theorem_3_8": _predicted(measured, 1.0),
          "with_verify_cost": _predicted(measured, steps.verify_cost),
          "from_tokens": _from_tokens(measured),
      },
      **speed(times),
      "gap": _gap(measured),
      "break_even": _break_even(measured),
      "mismatched_rows": None
      if measured.mismatches is None
      else len(measured.mismatches),
      "quality": _quality(measured),
      "compile_seconds": times.compile_seconds,
      "device": measured.where["device"],
      "dtype": config.decode.dtype,
      "batch": config.decode.batch,
      "gamma": gamma,
      "nodes": measured.nodes,
      "rule": rule.name,
      "lossless": rule.lossless,
      "drafter": config.draft.name if gamma else "none",
      "synthetic": config.synthetic,
      "sampling": dataclasses.asdict(config.sampling),
      "commit": measured.where["commit"],
      "config": dataclasses.asdict(config),
  }
  return report, _details(measured)


def speed(times: timing.Times) -> dict[str, Any]:
  """What times of plain and speculative decoding come to."""
  speedups = times.speedups()
  whole = times.speedups(end_to_end=True)
  return {
      "measured_speedup": {
          "median": statistics.median_low(speedups),
          "low": min(speedups),
          "high": max(speedups),
      },
      "end_to_end_speedup": statistics.median_low(whole),
      "tokens_per_second": {
          side: times.counts[side].tokens
          / times.decode[side][times.median_repeat]
          for side in (timing.PLAIN, timing.SPECULATIVE)
      },
  }


def _predicted(measured: Measured, v: float) -> float | None:
  """Theorem 3.8 with v in place of 1; None where it is for other drafts."""
  if not measured.predicts:
    return None
  return theory.speedup(
      measured.alpha or 0.0, measured.gamma, measured.steps.c, v
  )


def _from_tokens(measured: Measured) -> float | None:
  """tokens / (gamma c + v), with the tokens of a timed round in Eq. 1's place.

  For drafts that have no alpha, too. None without drafts, and where rounds may
  have fewer of them: gamma c + v is what a whole round costs.
  """
  if not measured.gamma or len(measured.widths) > 1:
    return None
  steps = measured.steps
  tokens = measured.times.counts[timing.SPECULATIVE].tokens_per_round
  return tokens / (measured.gamma * steps.c + steps.verify_cost)


def _gap(measured: Measured) -> dict[str, float | None]:
  """Of the repeat with the median speed-up, so that the product is exact.

  None where nothing was predicted.
  """
  if not measured.predicts:
    return dict.fromkeys(
        field.name for field in dataclasses.fields(gap_lib.Gap)
    )
  times = measured.times
  seconds = lambda side: times.decode[side][times.median_repeat]
  timed = measured.speculative[: measured.timed_rows]
  return dataclasses.asdict(
      gap_lib.decompose(
          measured.alpha or 0.0,
          measured.timed_alpha or 0.0,
          [len(row.tokens) for row in timed],
          measured.gamma,
          measured.steps,
          times.counts[timing.PLAIN],
          times.counts[timing.SPECULATIVE],
          seconds(timing.PLAIN),
          seconds(timing.SPECULATIVE),
      )
  )


def _break_even(measured: Measured) -> dict[str, Any] | None:
  """What it would take to be as fast as plain decoding; None without drafts."""
  if not measured.gamma:
    return None
  times = measured.times
  return dataclasses.asdict(
      gap_lib.break_even(
          times.speedups()[times.median_repeat],
          times.counts[timing.SPECULATIVE].tokens_per_round,
          measured.gamma,
          measured.steps,
      )
  )


def _quality(measured: Measured) -> dict[str, Any]:
  """BLEU or ROUGE of both outputs.

  None where the task has no metric, and where weights are random.
  """
  metric = tasks.get_task(measured.config.data.task).metric
  references = [example.reference for example in measured.examples]
  said = not measured.config.target.checkpoint.startswith(published.RANDOM)
  if not metric or not any(references) or not said:
    return {"plain": None, "speculative": None, "metric": None}

  def score(results):
    return metrics.score(metric, [row.text for row in results], references)

  return {
      "plain": score(measured.plain),
      "speculative": score(measured.speculative),
      "metric": metrics.NAMES[metric],
  }


def _details(measured: Measured) -> dict[str, Any]:
  times, steps = measured.times, measured.steps
  per_pass = {
      side: 1e3
      * times.decode[side][times.median_repeat]
      / times.counts[side].passes
      for side in times.decode
  }
  ids = [example.id for example in measured.examples]
  tree = measured.tree
  return {
      "rows": len(ids),
      "timed_rows": measured.timed_rows,
      "alpha_positions": measured.positions,
      "rounds": sum(row.rounds for row in measured.speculative),
      "empty_rounds": sum(row.empty for row in measured.speculative),
      "drafted": sum(row.drafted for row in measured.speculative),
      "tree": tree and topology.dump(tree.paths),
      "judged_by_position": [
          sum(counts)
          for counts in zip(*(row.judged for row in measured.speculative))
      ],
      "milliseconds": {
          "draft_step": 1e3 * steps.draft,
          "target_step": 1e3 * steps.target,
          "verify_step": 1e3 * steps.verify,
          "plain_round": per_pass[timing.PLAIN],
          "speculative_round": per_pass[timing.SPECULATIVE],
      },
      "tokens_per_second": {
          side: [times.counts[side].tokens / seconds for seconds in repeats]
          for side, repeats in times.decode.items()
      },
      "speedups": times.speedups(),
      "end_to_end_speedups": times.speedups(end_to_end=True),
      "decode_seconds": {k: list(v) for k, v in times.decode.items()},
      "prefill_seconds": {k: list(v) for k, v in times.prefill.items()},
      "mismatches": [
          dataclasses.asdict(mismatch)
          | {"id": ids[mismatch.row], "near_tie": mismatch.near_tie}
          for mismatch in measured.mismatches or ()
      ],
      "outputs": [
          {
              "id": name,
              "plain": plain.text,
              "speculative": speculative.text,
              "tokens": len(speculative.tokens),
              "rounds": speculative.rounds,
          }
          for name, plain, speculative in zip(
              ids, measured.plain, measured.speculative
          )
      ],
      "trace": [
          _trace(example, result, measured.pieces)
          for example, result in zip(measured.examples, measured.traced)
      ],
      "versions": environment.versions(),
      "command": measured.where["command"],
      "date": measured.where["date"],
  }


def _trace(example: tasks.Example, result: Any, pieces) -> dict[str, Any]:
  """One row, round by round."""
  token = lambda i: {"id": i, "piece": show.piece_of(i, pieces)}
  return {
      "id": example.id,
      "source": example.source,
      "text": result.text,
      "finish": result.finish,
      "tokens": len(result.tokens),
      "rounds": [
          {
              "judged": [
                  token(i) | {"p": p, "q": q, "coin": coin}
                  for i, p, q, coin in zip(
                      round_.drafted, round_.p, round_.q, round_.coin
                  )
              ],
              "accepted": round_.accepted,
              "next": None if round_.next is None else token(round_.next),
          }
          for round_ in result.trace
      ],
  }
