"""The pictures that are made of bars."""

import math
from typing import Any, Sequence

from specjax.measure import tables
from specjax.measure.page import markup

# Draft positions, at most; hardly any draft is judged further on.
_POSITIONS = 40
_ROUNDS = markup.legend(
    {"draft": "drafts", "verify": "target's pass", "rest": "the loop"}
)


def gap(report: dict[str, Any]) -> str:
  """Each factor's effect on the speed-up, one bar after the other."""
  if not tables.predicts(report):
    words = f"Nothing was predicted: {tables.unpredicted(report)}."
    found = report["predicted_speedup"]["from_tokens"]
    if found is not None:
      words += (
          f" From its tokens, tokens a timed round / (gamma c + v):"
          f" {_times(found)}; measured"
          f" {_times(report['measured_speedup']['median'])}."
      )
    return markup.note(words)
  value = report["predicted_speedup"]["theorem_3_8"]
  bars = [("predicted", 0.0, value, "theory")]
  for name, factor in report["gap"].items():
    label = f"× {factor:.2f} {name.replace('_', ' ')}"
    kind = "gain" if factor > 1 else "loss"
    bars.append((label, value, value * factor, kind))
    value *= factor
  measured = report["measured_speedup"]["median"]
  bars.append(("measured", 0.0, measured, "measured"))
  scale = _scale(1.0, *(end for _, _, end, _ in bars))
  plain = scale.line(1.0)
  rows = [
      markup.row(label, scale.bar(start, end, kind) + plain, _times(end))
      for label, start, end, kind in bars
  ]
  return markup.table(rows) + markup.note(
      "Theorem 3.8 times each factor of the gap. Sample: Eq. 1 at the alpha of"
      " the timed rows, against that of all; ends: last rounds give more than a"
      " text has left; tokens: a timed round, against i.i.d. ones on texts as"
      " long; verify: v is not 1; overhead: of the loops beside their steps;"
      " idle rows: rows of a batch end at different times. Dashed: plain"
      " decoding."
  )


def timing(report: dict[str, Any], details: dict[str, Any]) -> str:
  """Tokens per second and the speed-up: the median, and every repeat."""
  medians, rates = report["tokens_per_second"], details["tokens_per_second"]
  scale = _scale(*rates["plain"], *rates["speculative"])

  def rate(side, kind):
    marks = scale.bar(0, medians[side], kind)
    marks += "".join(map(scale.dot, rates[side]))
    return markup.row(side, marks, f"{medians[side]:.4g}/s")

  decoding, whole = details["speedups"], details["end_to_end_speedups"]
  factors = _scale(1.0, *decoding, *whole)

  def factor(label, median, values):
    marks = factors.bar(0, median, "measured") + factors.line(1.0)
    marks += "".join(map(factors.dot, values))
    return markup.row(label, marks, _times(median))

  measured = report["measured_speedup"]
  rows = [
      rate("plain", "theory"),
      rate("speculative", "measured"),
      factor("speed-up", measured["median"], decoding),
      factor("end to end", report["end_to_end_speedup"], whole),
  ]
  return markup.table(rows) + markup.note(
      f"Dots: each of {len(decoding)} repeats over {details['timed_rows']}"
      " rows, plain and speculative by turns. Bars: the median speed-ups, and"
      f" the rates of that repeat. The speed-up is {_times(measured['low'])} to"
      f" {_times(measured['high'])}; end to end it counts encoder and prompt."
      " Dashed: plain decoding."
  )


def positions(report: dict[str, Any], details: dict[str, Any]) -> str:
  """Accepted among the judged drafts, position by position, and alpha."""
  if not report["gamma"]:
    return markup.note("There were no drafts.")
  scale, alpha = markup.Scale(1.0), report["alpha"]
  predicted = "" if alpha is None else scale.line(alpha)
  shares = report["acceptance_by_position"]
  counts = zip(shares, details["judged_by_position"])
  judged = [(i, *pair) for i, pair in enumerate(counts, 1) if pair[1]]
  if not judged:
    return markup.note("No draft was judged.")
  rows = [
      markup.row(
          f"draft {i}",
          scale.bar(0, share, "measured")
          + scale.whisker(*interval(share, count))
          + predicted,
          f"{share:.2f} of {count:,}",
      )
      for i, share, count in judged[:_POSITIONS]
  ]
  words = "Accepted, of the drafts judged there."
  if tables.is_tree(report):
    words = "Accepted: one of the siblings judged there."
  if alpha is not None:
    words += (
        f" Dashed: alpha {tables.number(alpha)}, what each position would have"
        " if they were i.i.d."
    )
  words += " Thin: 95 % interval, were the drafts independent."
  if len(rows) < len(shares):
    words += f" No bar: {len(shares) - len(rows)} of {len(shares)} positions."
  return markup.table(rows) + markup.note(words)


def interval(share: float, count: int) -> tuple[float, float]:
  """Wilson's 95 % interval of a share of `count` independent drafts."""
  z2 = 1.96**2
  middle = share + z2 / (2 * count)
  half = math.sqrt(
      z2 * (share * (1 - share) / count + z2 / (4 * count * count))
  )
  return tuple((middle + d) / (1 + z2 / count) for d in (-half, half))


def rounds(report: dict[str, Any], details: dict[str, Any]) -> str:
  """Where the time of one round goes."""
  took, gamma = details["milliseconds"], report["gamma"]
  nodes = report["nodes"]
  drafts, verify = gamma * took["draft_step"], took["verify_step"]
  token, whole = took["target_step"], took["speculative_round"]
  scale = _scale(took["plain_round"], whole, token, drafts + verify)
  rows = [
      _stack(scale, "plain", [("verify", token)], took["plain_round"]),
      _stack(
          scale, "speculative", [("draft", drafts), ("verify", verify)], whole
      ),
  ]
  if tables.narrows(report):
    return markup.table(rows) + _ROUNDS + markup.note(
        f"A round may be shorter than its parts, which are of {nodes} drafts:"
        " those with fewer make the target's pass over fewer tokens. Over one"
        f" it takes {token:.3g} ms, over {nodes + 1} {verify:.3g} ms."
    )
  what = "levels of drafts" if tables.is_tree(report) else "drafts"
  return markup.table(rows) + _ROUNDS + markup.note(
      f"Of a round, {drafts:.3g} ms are for {gamma} {what} and {verify:.3g} for"
      " the target's pass, both timed on their own, and"
      f" {whole - drafts - verify:.3g} are left to the loop. The target's pass"
      f" over one token takes {token:.3g}."
  )


def _stack(
    scale: markup.Scale,
    label: str,
    parts: Sequence[tuple[str, float]],
    whole: float,
) -> str:
  marks, end = "", 0.0
  for kind, length in parts:
    marks += scale.bar(end, end + length, kind)
    end += length
  # Steps that are timed on their own may take longer than in the round.
  marks += scale.bar(end, max(end, whole), "rest")
  return markup.row(label, marks, f"{whole:.3g} ms")


def _scale(*values: float) -> markup.Scale:
  """With a little room behind the largest value."""
  return markup.Scale(1.02 * max(values))


def _times(value: float) -> str:
  return f"{value:.2f}x"
