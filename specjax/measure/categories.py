"""Figures category by category, and turn by turn.

A report with `categories` has them beside those in all: category -> kind of
drafts -> figures; `turns` has the same for first, second ... answers, and
`drafters` each kind's own figures in all.
"""

import dataclasses
import functools
import operator
from typing import Any, Callable, Sequence

from specjax.measure import acceptance
from specjax.measure import lossless
from specjax.measure import report as report_lib
from specjax.measure import timing

HEAD = (
    "", "drafts", "answers", "tokens/s", "plain", "speed-up", "low to high",
    "tokens a pass", "differ",
)
ALL = "in all"


@dataclasses.dataclass(frozen=True)
class Answer:
  """One answer of the target, with and without drafts.

  Attributes:
    category: of its prompt.
    turn: from 1.
    plain: the result without drafts.
    speculative: the result with them.
    times: of both.
    mismatch: where they differ; None where they don't, or are sampled.
  """

  category: str
  turn: int
  plain: Any
  speculative: Any
  times: timing.Times
  mismatch: lossless.Mismatch | None


def total(answers: Sequence[Answer]) -> timing.Times:
  """Time of all of them."""
  return functools.reduce(operator.add, (row.times for row in answers))


def figures(answers: Sequence[Answer], greedy: bool) -> dict[str, Any]:
  """What a group of answers comes to, by the names that a report has."""
  found = [row.mismatch for row in answers if row.mismatch]
  return {
      "answers": len(answers),
      "tokens": sum(len(row.speculative.tokens) for row in answers),
      "block_efficiency": acceptance.block_efficiency(
          [len(row.speculative.tokens) for row in answers],
          [row.speculative.rounds for row in answers],
      ),
      **report_lib.speed(total(answers)),
      "mismatched_rows": len(found) if greedy else None,
      "near_ties": sum(row.near_tie for row in found),
  }


def grouped(
    by_drafter: dict[str, Sequence[Answer]],
    key: Callable[[Answer], Any],
    greedy: bool,
) -> dict[str, dict[str, Any]]:
  """Group -> kind of drafts -> figures.

  Args:
    by_drafter: the same prompts' answers of each kind.
    key: group of an answer.
    greedy: whether answers must be alike.
  """
  out: dict[str, dict[str, Any]] = {}
  for name, answers in by_drafter.items():
    groups: dict[str, list[Answer]] = {}
    for row in answers:
      groups.setdefault(str(key(row)), []).append(row)
    for group, rows in groups.items():
      out.setdefault(group, {})[name] = figures(rows, greedy)
  return out


def table(report: dict[str, Any]) -> list[tuple[str, ...]]:
  """Lines of the table, HEAD not among them; none where there is none."""
  if "categories" not in report:
    return []
  groups = dict(report["categories"])
  if len(report["turns"]) > 1:
    groups |= {f"turn {k}": v for k, v in report["turns"].items()}
  groups[ALL] = report["drafters"]
  return [
      _line(group if i == 0 else "", name, made)
      for group, drafters in groups.items()
      for i, (name, made) in enumerate(drafters.items())
  ]


def _line(group: str, name: str, made: dict[str, Any]) -> tuple[str, ...]:
  speedup, rate = made["measured_speedup"], made["tokens_per_second"]
  differ, near = made["mismatched_rows"], made["near_ties"]
  words = "-" if differ is None else str(differ - near)
  return (
      group,
      name,
      str(made["answers"]),
      f"{rate['speculative']:.4g}",
      f"{rate['plain']:.4g}",
      f"{speedup['median']:.2f}x",
      f"{speedup['low']:.2f} to {speedup['high']:.2f}",
      f"{made['block_efficiency']:.2f}",
      f"{words} ({near} near ties)" if near else words,
  )


def text(report: dict[str, Any]) -> str:
  """The table for the terminal; "" where there is none."""
  lines = [HEAD, *table(report)]
  if len(lines) == 1:
    return ""
  widths = [max(map(len, column)) for column in zip(*lines)]
  return "\n".join(
      "  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip()
      for line in lines
  )


def markdown(report: dict[str, Any]) -> str:
  """The same in Markdown."""
  rows = table(report)
  if not rows:
    return ""
  lines = [HEAD, ("---",) * len(HEAD), *rows]
  cell = lambda word: word.replace("|", "\\|")
  made = [f"| {' | '.join(map(cell, line))} |" for line in lines]
  return "\n".join(made) + "\n"
