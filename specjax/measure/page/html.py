"""A report as one HTML page that needs nothing else."""

import importlib.resources
from typing import Any

from specjax.measure import categories
from specjax.measure import tables
from specjax.measure.page import bars
from specjax.measure.page import curve
from specjax.measure.page import markup
from specjax.measure.page import trace

_HEADLINES = (
    "measured speed-up",
    "predicted speed-up",
    "alpha",
    "block efficiency",
    "rows that differ",
    "BLEU",
    "ROUGE-Lsum",
)
# Figures that are part of the one above are set in.
_PART = ' class="part"'


def page(report: dict[str, Any], details: dict[str, Any]) -> str:
  """The whole page."""
  style = importlib.resources.files(__package__) / "style.css"
  rows = tables.rows(report, details)
  name = markup.text(report["config"]["name"])
  return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>specjax: {name}</title>
<style>
{style.read_text(encoding="utf-8")}</style>
</head>
<body>
<header>
<small>specjax report</small>
<h1>{name}</h1>
<p>{markup.text(_what(report, details))}</p>
</header>
<main>
<div class="tiles">
{_tiles(rows)}
</div>
{_by_category(report)}
{_section("Round by round", trace.picture(report, details), "wide")}
{_section("From predicted to measured", bars.gap(report))}
{_section("How fast?", bars.timing(report, details))}
{_section("Acceptance by position", bars.positions(report, details))}
{_section("Speed-up against gamma", curve.picture(report), "tall")}
{_section("Where a round's time goes", bars.rounds(report, details))}
{_section("All figures", _figures(rows), "wide")}
{_section("Settings", _settings(report["config"]), "wide")}
</main>
<footer><code>{markup.text(details["command"])}</code><br>
{markup.text(_where(report, details))}</footer>
</body>
</html>
"""


def _what(report, details) -> str:
  """The run in one sentence."""
  config = report["config"]
  drafts = f" with drafts of {report['drafter']}" if report["gamma"] else ""
  shape = f", {tables.shape(report)}" if report["gamma"] else ""
  lossy = "" if report["lossless"] else f" {tables.LOSSY}."
  return (
      f"{config['target']['checkpoint']}{drafts}{shape}, on {details['rows']}"
      f" texts of {tables.texts(config)}: {tables.sampling(report)},"
      f" {report['dtype']}, batch {report['batch']}, {report['device']}."
      f"{lossy}"
  )


def _where(report, details) -> str:
  versions = ", ".join(f"{k} {v}" for k, v in details["versions"].items())
  commit = report["commit"] or "unknown"
  return f"{details['date']}, commit {commit}, {versions}"


def _section(title: str, body: str, kind: str = "") -> str:
  kind = f' class="{kind}"' if kind else ""
  return f"<section{kind}>\n<h2>{markup.text(title)}</h2>\n{body}\n</section>"


def _tiles(rows: tables.Rows) -> str:
  """The headlines in large type."""
  found = {name: (figure, note) for name, figure, note in rows}
  return "\n".join(
      f"<div><h2>{markup.text(name)}</h2><b>{markup.text(found[name][0])}</b>"
      f"<small>{markup.text(found[name][1])}</small></div>"
      for name in _HEADLINES
      if name in found
  )


def _figures(rows: tables.Rows) -> str:
  body = "\n".join(
      f'<tr><th scope="row"{_PART * name.startswith(" ")}>'
      f"{markup.text(name.strip())}</th><td>{markup.text(figure)}</td>"
      f"<td>{markup.text(note)}</td></tr>"
      for name, figure, note in rows
  )
  return f'<table class="figures">\n{body}\n</table>'


def _by_category(report) -> str:
  """A section, where there are categories."""
  lines = categories.table(report)
  if not lines:
    return ""
  row = lambda tag, words: "".join(
      f"<{tag}>{markup.text(word)}</{tag}>" for word in words
  )
  body = "\n".join(f"<tr>{row('td', line)}</tr>" for line in lines)
  head = f"<tr>{row('th', categories.HEAD)}</tr>"
  table = f'<table class="categories">\n{head}\n{body}\n</table>'
  first = next(iter(report["drafters"]))
  note = markup.note(
      "Decoding; speed-up over plain decoding of the same prompts, by turns:"
      " the median of the repeats, their range, and the rates of that repeat."
      f" All other figures on this page are of {first}."
  )
  return _section("By category", table + note, "wide")


def _settings(config: dict[str, Any]) -> str:
  """Every option of the run."""
  parts = [
      f"{markup.text(path)} = {markup.text(repr(value))}"
      for path, value in _leaves(config)
  ]
  body = "\n".join(parts)
  return f"<pre>{body}</pre>"


def _leaves(values: dict[str, Any], path: str = ""):
  """Path and value of every option, of sections in sections, too."""
  for key, value in values.items():
    if isinstance(value, dict):
      yield from _leaves(value, f"{path}{key}.")
    else:
      yield f"{path}{key}", value
