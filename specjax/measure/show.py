"""One decoding, round by round: accepted, rejected and extra tokens."""

import os
from typing import Any, Sequence, TextIO

ACCEPTED, REJECTED, NEXT = "accepted", "rejected", "next"
_COLOURS = {ACCEPTED: "32", REJECTED: "31", NEXT: "34"}
_MARKS = {ACCEPTED: ("", ""), REJECTED: ("[-", "-]"), NEXT: ("{+", "+}")}
_WORDS = {
    ACCEPTED: "accepted draft",
    REJECTED: "rejected draft",
    NEXT: "the target's own (corrected or extra)",
}


def wants_colour(stream: TextIO) -> bool:
  """A terminal, and NO_COLOR (no-color.org) is not set."""
  return stream.isatty() and not os.environ.get("NO_COLOR")


def paint(piece: str, kind: str, colour: bool) -> str:
  """A piece in its colour, or between its marks."""
  if colour:
    return f"\x1b[{_COLOURS[kind]}m{piece}\x1b[0m"
  before, after = _MARKS[kind]
  return f"{before}{piece}{after}"


def line(round_: Any, pieces: Sequence[str], colour: bool) -> str:
  """One round.

  Args:
    round_: ids `drafted` (those judged), how many were `accepted`, and the
      `next` id or None.
    pieces: string of each id of the tokenizer.
    colour: ANSI colours, else marks.
  """
  kinds = [
      (token, ACCEPTED if i < round_.accepted else REJECTED)
      for i, token in enumerate(round_.drafted)
  ]
  if round_.next is not None:
    kinds.append((round_.next, NEXT))
  return "".join(
      paint(plain(piece_of(token, pieces).replace("\u2581", " ")), kind, colour)
      for token, kind in kinds
  )


def piece_of(token: int, pieces: Sequence[str]) -> str:
  """The string of one id; models are often wider than their tokenizer."""
  return pieces[token] if token < len(pieces) else f"<{token}>"


def plain(text: str) -> str:
  """Text of which nothing steers a terminal."""
  return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def legend(colour: bool) -> str:
  """What the colours or marks mean."""
  return ", ".join(paint(_WORDS[kind], kind, colour) for kind in _WORDS)


def render(result: Any, pieces: Sequence[str], colour: bool) -> str:
  """All rounds of a result with its trace, the legend and the figures.

  Args:
    result: a outputs.Result that was decoded with trace=True.
    pieces: string of each id of the tokenizer.
    colour: ANSI colours, else marks.
  """
  lines = [
      f"{i:4}  {line(round_, pieces, colour)}"
      for i, round_ in enumerate(result.trace, 1)
  ]
  accepted, judged = sum(result.accepted), sum(result.judged)
  per_pass = len(result.tokens) / result.rounds
  return "\n".join([
      *lines,
      "",
      legend(colour),
      f"{len(result.tokens)} tokens in {result.rounds} rounds:"
      f" {per_pass:.2f} tokens per target pass; {accepted} of {judged} judged"
      " drafts accepted",
  ])
