"""Text and bars as HTML that any text is safe in."""

import dataclasses
import html
from typing import Mapping
import unicodedata


def text(value: str) -> str:
  """Escaped; what would steer, hide or upset a page is spelled out."""
  return html.escape("".join(map(_visible, value)))


def _visible(character: str) -> str:
  # Blanks of all kinds are no danger, but none of them is "printable".
  if character.isprintable() or unicodedata.category(character) == "Zs":
    return character
  code = ord(character)
  return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def note(words: str) -> str:
  """A paragraph below a picture, or in its place."""
  return f'<p class="note">{text(words)}</p>'


def legend(keys: Mapping[str, str]) -> str:
  """What the colours mean: kind -> words."""
  body = " ".join(
      f'<span><i class="key {kind}"></i>{text(words)}</span>'
      for kind, words in keys.items()
  )
  return f'<p class="legend">{body}</p>'


def table(rows: list[str]) -> str:
  """Rows of `row`, one below the other."""
  body = "\n".join(rows)
  return f'<table class="bars">\n{body}\n</table>'


def row(label: str, marks: str, figure: str) -> str:
  """A label, marks on a Scale, a figure."""
  return (
      f'<tr><th scope="row">{text(label)}</th>'
      f'<td class="track"><div>{marks}</div></td><td>{text(figure)}</td></tr>'
  )


@dataclasses.dataclass(frozen=True)
class Scale:
  """A horizontal axis from 0 to `most`, as wide as there is room."""

  most: float

  def at(self, value: float) -> float:
    """Per cent of the width; what lies outside ends at the edge."""
    share = value / self.most if self.most > 0 else 0.0
    return round(100 * min(1.0, max(0.0, share)), 2)

  def bar(self, low: float, high: float, kind: str) -> str:
    """From one value to another, in the colour of its kind."""
    low, high = sorted((self.at(low), self.at(high)))
    return self._mark(f"bar {kind}", low, f";width:{high - low:.2f}%")

  def whisker(self, low: float, high: float) -> str:
    """A thin line over a bar, for how sure its end is."""
    low, high = self.at(low), self.at(high)
    return self._mark("whisker", low, f";width:{high - low:.2f}%")

  def dot(self, value: float) -> str:
    """One of several measurements."""
    return self._mark("dot", self.at(value))

  def line(self, value: float) -> str:
    """A dashed upright: what to compare with."""
    return self._mark("line", self.at(value))

  def _mark(self, kind: str, left: float, more: str = "") -> str:
    return f'<i class="{kind}" style="left:{left:.2f}%{more}"></i>'
