"""A report as one HTML page that needs nothing else."""

import html
from typing import Any, Sequence

from specjax.measure import tables

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 60em;
  padding: 0 1em; color: #222; background: #fff; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; }
td { padding: .25em 1em .25em 0; border-bottom: 1px solid #e4e4e4;
  vertical-align: top; }
td:nth-child(2) { font-weight: 600; }
td:nth-child(3) { color: #666; }
svg text { font: 13px system-ui, sans-serif; fill: #222; }
.note { color: #666; }
"""
_WIDTH, _ROW, _LABEL = 640, 26, 200


def page(report: dict[str, Any], details: dict[str, Any]) -> str:
  """The whole page."""
  title = html.escape(report["config"]["name"])
  command = html.escape(details["command"])
  cells = lambda row: "".join(f"<td>{html.escape(x)}</td>" for x in row)
  table = "\n".join(
      f"<tr>{cells(row)}</tr>" for row in tables.rows(report, details)
  )
  return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>specjax: {title}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>specjax: {title}</h1>
<p class="note"><code>{command}</code>, {html.escape(details["date"])}</p>
<table>
{table}
</table>
<h2>Accepted drafts by position</h2>
{_positions(report)}
<h2>From the predicted speed-up to the measured one</h2>
{_gap(report)}
</body>
</html>
"""


def _positions(report) -> str:
  shares = report["acceptance_by_position"]
  if not shares:
    return '<p class="note">There were no drafts.</p>'
  bars = [
      (f"draft {i}", share or 0.0, tables.number(share), "#3d7ea6")
      for i, share in enumerate(shares, 1)
  ]
  alpha = report["alpha"]
  bars.append(("alpha", alpha, tables.number(alpha), "#9bb8c9"))
  return _bars(bars, most=1.0)


def _gap(report) -> str:
  """Each factor's effect on the speed-up, one bar after the other."""
  value = report["predicted_speedup"]["theorem_3_8"]
  bars = [("predicted (Thm 3.8)", value, f"{value:.2f}x", "#9bb8c9")]
  for name, factor in report["gap"].items():
    value *= factor
    label = f"x {name.replace('_', ' ')} {factor:.2f}"
    bars.append((label, value, f"{value:.2f}x", "#c9b28f"))
  measured = report["measured_speedup"]["median"]
  bars.append(("measured", measured, f"{measured:.2f}x", "#3d7ea6"))
  return _bars(bars, most=max(bar[1] for bar in bars))


def _bars(bars: Sequence[tuple[str, float, str, str]], most: float) -> str:
  """Horizontal bars of (label, value, figure, colour)."""
  room = _WIDTH - _LABEL - 60
  parts = []
  for i, (label, value, figure, colour) in enumerate(bars):
    top, length = i * _ROW, room * value / (most or 1.0)
    parts.append(
        f'<text x="0" y="{top + 17}">{html.escape(label)}</text>'
        f'<rect x="{_LABEL}" y="{top + 4}" width="{length:.1f}" height="18"'
        f' fill="{colour}"/>'
        f'<text x="{_LABEL + length + 6:.1f}" y="{top + 17}">{figure}</text>'
    )
  height = _ROW * len(bars)
  body = "\n".join(parts)
  return (
      f'<svg width="{_WIDTH}" height="{height}" role="img"'
      f' viewBox="0 0 {_WIDTH} {height}">\n{body}\n</svg>'
  )
