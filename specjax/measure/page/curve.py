"""Speed-up against gamma: theory's curve, and the point that was measured."""

import math
from typing import Any, Sequence

from specjax import theory
from specjax.measure import tables
from specjax.measure.page import markup

_WIDTH, _HEIGHT = 420, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 36, 10, 12, 38
_POINTS = 64
_LEGEND = markup.legend({
    "paper": "Theorem 3.8",
    "with-v": "with v in place of 1",
    "point": "measured, lowest to highest",
})


def picture(report: dict[str, Any]) -> str:
  """The curve at the measured alpha, c and v."""
  alpha, gamma, c = report["alpha"], report["gamma"], report["c"]
  if not gamma:
    return markup.note("There were no drafts.")
  if alpha is None:
    return markup.note(f"There is no curve: {tables.unpredicted(report)}.")
  if tables.is_tree(report):
    return markup.note(
        "There is no curve: drafts are a tree, whose shape is in the settings."
    )
  v = report["verify_cost"]
  paper = lambda g: theory.speedup(alpha, g, c)
  with_v = lambda g: theory.speedup(alpha, g, c, verify_cost(g, gamma, v))
  last = max(8, 2 * gamma)
  gammas = {round(i * last / _POINTS) for i in range(_POINTS + 1)}
  gammas = sorted(gammas | {gamma})
  measured = report["measured_speedup"]
  most = max(1.0, measured["high"], *map(paper, gammas), *map(with_v, gammas))
  axes = _Axes(last, most)
  svg = axes.svg(
      axes.curve("paper", [(g, paper(g)) for g in gammas])
      + axes.curve("with-v", [(g, with_v(g)) for g in gammas])
      + axes.point(gamma, **measured),
      f"Speed-up against gamma: Theorem 3.8 {paper(gamma):.2f} and measured"
      f" {measured['median']:.2f} at gamma {gamma}",
  )
  best = lambda curve: max(range(last + 1), key=curve)
  a, b = best(paper), best(with_v)
  grows = "to grow evenly from 1 at gamma 0" if v >= 1 else "for every gamma's"
  return svg + _LEGEND + markup.note(
      f"At alpha {alpha:.2f}, c {c:.3f}, and v {v:.2f} at gamma {gamma}, taken"
      f" {grows}. Best gamma up to {last}: {a} ({paper(a):.2f}x) by the"
      f" theorem, {b} ({with_v(b):.2f}x) with v."
  )


def verify_cost(g: int, gamma: int, v: float) -> float:
  """v at `g` drafts, from the one that was measured at `gamma`.

  It grows evenly from 1 at no drafts; below 1 it is the same for any number.
  """
  return v if g and v < 1 else 1.0 + (v - 1.0) * g / gamma


class _Axes:
  """A frame with ticks; marks are strings of SVG."""

  def __init__(self, last: int, most: float):
    self.last = last
    self.step = _step(most, 4)
    self.most = self.step * math.ceil(1.02 * most / self.step)

  def x(self, gamma: float) -> float:
    room = _WIDTH - _LEFT - _RIGHT
    return round(_LEFT + room * gamma / self.last, 1)

  def y(self, value: float) -> float:
    room = _HEIGHT - _TOP - _BOTTOM
    return round(_HEIGHT - _BOTTOM - room * value / self.most, 1)

  def curve(self, kind: str, points: Sequence[tuple[float, float]]) -> str:
    path = " ".join(f"{self.x(g)},{self.y(value)}" for g, value in points)
    return f'<polyline class="{kind}" points="{path}"/>\n'

  def point(self, gamma: int, median: float, low: float, high: float) -> str:
    x = self.x(gamma)
    return (
        f'<line class="whisker" x1="{x}" x2="{x}" y1="{self.y(low)}"'
        f' y2="{self.y(high)}"/>\n'
        f'<circle class="point" cx="{x}" cy="{self.y(median)}" r="5">'
        f"<title>measured: {median:.2f}x at gamma {gamma}</title></circle>\n"
    )

  def svg(self, marks: str, words: str) -> str:
    """The whole picture; `words` are for those who don't see it."""
    ticks = []
    for i in range(round(self.most / self.step) + 1):
      value = i * self.step
      y = self.y(value)
      kind = "plain" if value == 1 else "grid"
      ticks.append(
          f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}"'
          f' y2="{y}"/><text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">'
          f"{value:g}x</text>"
      )
    step = max(1, round(_step(self.last, 8)))
    for gamma in range(0, self.last + 1, step):
      ticks.append(
          f'<text x="{self.x(gamma)}" y="{_HEIGHT - _BOTTOM + 17}"'
          f' text-anchor="middle">{gamma}</text>'
      )
    ticks.append(
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">'
        "gamma, drafted tokens a round</text>"
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="{markup.text(words)}">\n'
        + "\n".join(ticks)
        + f"\n{marks}</svg>\n"
    )


def _step(most: float, ticks: int) -> float:
  """A round distance of about so many ticks from 0 to `most`."""
  rough = most / ticks
  power = 10 ** math.floor(math.log10(rough))
  return next(n * power for n in (1, 2, 5, 10) if n * power >= rough)
