"""The trace: what became of every draft, as in the paper's Figure 1.

Each line is one round: the text so far, accepted drafts, the rejected one, and
the token that the target added. A judged draft unfolds its p, q and coin under
the pointer or the keyboard's focus; style.css does it all.
"""

from typing import Any

from specjax.measure import tables
from specjax.measure.page import markup

# Characters, at most: of the text so far, and of a source.
_BEFORE, _SOURCE = 90, 300
_LEGEND = """<p class="legend"><span class="a">accepted</span> drafts, a
<span class="r">rejected</span> draft, and the
<span class="n">target's own</span> token: corrected after a rejection, extra
after none. Each line is one pass of the target. Point at a draft, tap it, or
move on with the tab key to see its p, q and coin.</p>"""
_SIBLINGS = (
    " Of siblings the accepted one is shown, or the last rejected one; its p is"
    " what those before it have left."
)
# Rules that do not compare a draft's own p, q and coin.
_OTHERS = {
    "block": (
        "The chain is judged as a whole: a coin decides about all drafts up to"
        " its own, and the last one that says yes counts."
    ),
    "typical": (
        f"{tables.LOSSY}. Typical acceptance: a draft is accepted when its p is"
        " above a threshold, which stands in the coin's place."
    ),
}


def picture(report: dict[str, Any], details: dict[str, Any]) -> str:
  """Every traced row; the first is unfolded."""
  if not report["gamma"]:
    return markup.note("There were no drafts.")
  if not details["trace"]:
    return markup.note("No row was traced: measure.traced_rows is 0.")
  lenience = report["config"]["verify"]["lenience"]
  greedy = tables.sampling(report) == "greedy"
  words = _OTHERS.get(report["rule"]) or _token_rule(lenience, greedy)
  if report["rule"] == "tree":
    words += _SIBLINGS
  tested = report["rule"] not in _OTHERS and not (greedy and lenience < 1)
  rows = [
      _row(row, i == 0, lenience if tested else None)
      for i, row in enumerate(details["trace"])
  ]
  return "\n".join([_LEGEND, markup.note(words), *rows])


def _token_rule(lenience: float, greedy: bool) -> str:
  """How drafts are judged one by one, in words."""
  if greedy and lenience < 1:
    return (
        "Greedy and lenient: a draft is accepted where the model gives it at"
        f" least {lenience:g} of its largest probability; p is 1 for the"
        " target's choice and 0 for any other, and no coin counts."
    )
  words = f"A draft is accepted when {_product(lenience)} < p."
  if greedy:
    words += (
        " Greedy: p is 1 for the target's choice and 0 for any other, so that"
        " any coin says the same."
    )
  return words


def _product(lenience: float) -> str:
  return "coin × q" if lenience == 1 else f"coin × {lenience:g} × q"


def _row(row: dict[str, Any], unfolded: bool, lenience: float | None) -> str:
  """One row: its source, its rounds.

  Args:
    row: an entry of the details' trace.
    unfolded: from the start.
    lenience: of the test with p, q and the coin; None where it was not that.
  """
  source = " ".join(row["source"].split())
  if len(source) > _SOURCE:
    source = source[:_SOURCE] + "…"
  tokens, count = row["tokens"], len(row["rounds"])
  figures = f"{_several(tokens, 'token')} in {_several(count, 'round')}"
  if count:
    figures += f": {tokens / count:.2f} a round"
  if row["finish"] == "length":
    figures += ", cut at decode.max_new_tokens"
  lines, text = [], ""
  for round_ in row["rounds"]:
    lines.append(_line(round_, text, lenience))
    kept = [token["piece"] for token in round_["judged"][: round_["accepted"]]]
    kept += [round_["next"]["piece"]] if round_["next"] else []
    text += "".join(kept)
  body = "\n".join(lines)
  return f"""<details class="trace"{' open' * unfolded}>
<summary><bdi>{markup.text(source)}</bdi>
<small>{markup.text(figures)}</small></summary>
<ol>
{body}
</ol>
</details>"""


def _several(count: int, what: str) -> str:
  return f"{count} {what}" + "s" * (count != 1)


def _line(round_: dict[str, Any], text: str, lenience: float | None) -> str:
  """One round, behind the end of the text so far."""
  chips = [
      _chip(
          token["piece"],
          "a" if i < round_["accepted"] else "r",
          ' tabindex="0"',
          _tip(token, i < round_["accepted"], lenience),
      )
      for i, token in enumerate(round_["judged"])
  ]
  if round_["next"]:
    rejected = len(round_["judged"]) > round_["accepted"]
    what = "corrected" if rejected else "extra"
    chips.append(_chip(round_["next"]["piece"], "n", f' title="{what}"'))
  before = text.replace("▁", " ").strip()
  if len(before) > _BEFORE:
    before = "…" + before[-_BEFORE:]
  return (
      f'<li><span class="before" aria-hidden="true"><bdi>{markup.text(before)}'
      f'</bdi></span><span class="new">{"".join(chips)}</span></li>'
  )


def _chip(piece: str, kind: str, attributes: str, tip: str = "") -> str:
  """One token; a blank before it where it begins a word."""
  begins = piece.startswith("▁") and piece != "▁"
  shown = markup.text(piece[begins:])
  return f'{" " * begins}<span class="{kind}"{attributes}>{shown}{tip}</span>'


def _tip(token: dict[str, Any], accepted: bool, lenience: float | None) -> str:
  """What unfolds: p, q, the coin, and how they compare."""
  p, q, coin = token["p"], token["q"], token["coin"]
  most = max(p, q)
  head = "accepted" if accepted else "rejected"
  bars = [("q", q, q), ("coin", coin, 0.0)]
  if lenience is not None:
    product = coin * lenience * q
    head += f": {_product(lenience)} {'<' if accepted else '≥'} p"
    bars.append((_product(lenience), product, product))
  bars.append(("p", p, p))
  body = "".join(
      f'<i style="--w:{length / most if most else 0:.2f}">{name}'
      f" <b>{value:.3g}</b></i>"
      for name, value, length in bars
  )
  return (
      f'<span class="tip" role="tooltip"><b>{markup.text(head)}</b>{body}'
      f"<small>token {token['id']}</small></span>"
  )
