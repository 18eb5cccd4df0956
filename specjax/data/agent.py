"""An agent's prompts: loops over texts that come back again and again.

Built from the shipped descriptions of Debian packages, always alike. Later
turns stand behind the model's own answers to the earlier ones.

- edits: one document, changed a little and written out again, turn by turn
- corrections: an answer that is checked and given again
- retries: the same request three times, with another remark each time
- requests: many texts in a row, each to be put on the same form

Prompt lookup has something to copy in the first two, and a suffix tree over
earlier responses in the last two.
"""

import re
from typing import Any, Iterator

from specjax.data import tasks

# Documents of that many words can be written out again in 128 tokens.
_SHORT = range(40, 71)
_LOOPS, _FORMS = 8, 24

_EDITS = (
    "Here is a text:\n\n{text}\n\nWrite out the whole text again, word for"
    ' word, but replace "{word}" with "gadget".',
    'Now add the sentence "It is free software." at the end, and write out the'
    " whole text again.",
    'Now put the title "{title}" on a line of its own in front, and write out'
    " the whole text again.",
    'Now replace "{other}" with "widget", and write out the whole text again.',
)
_CORRECTIONS = (
    "List what this package is good for, one point a line, each beginning with"
    ' "- ":\n\n{text}',
    "Check your list against the text. Correct what is wrong, and give the"
    " whole list again.",
    "Check it once more, and give the whole list again.",
    "Give the final list.",
)
_RETRY = (
    "Explain to a beginner what this package does and who needs it. {remark}"
    "\n\n{text}"
)
_REMARKS = (
    "Use plain words.",
    "Use plain words. Your last answer could not be read.",
    "Use plain words, please. This is the last try.",
)
_FORM = (
    "Fill in this form about the package that the text describes. Answer with"
    " the form and nothing else.\n\nName of the package: \nWhat the package is"
    " for: \nProgramming language of the package: \nWho should install the"
    " package: \nWho should not install the package: \n\nText: {text}"
)


def rows() -> Iterator[dict[str, Any]]:
  """The prompts, as Spec-Bench has them."""
  texts = {
      row.id.split("/")[1]: row.source.removeprefix(tasks.SUMMARIZE)
      for row in tasks.load_task("mini_summ")
  }
  short = [
      (name, text)
      for name, text in texts.items()
      if len(text.split()) in _SHORT and len(_words(text)) > 1
  ]
  for name, text in short[:_LOOPS]:
    word, other = _words(text)[:2]
    parts = dict(text=text, word=word, other=other, title=name)
    yield _row("edits", name, [turn.format(**parts) for turn in _EDITS])
  for name, text in short[_LOOPS : 2 * _LOOPS]:
    turns = [turn.format(text=text) for turn in _CORRECTIONS]
    yield _row("corrections", name, turns)
  for name, text in short[2 * _LOOPS : 3 * _LOOPS]:
    for i, remark in enumerate(_REMARKS, 1):
      turn = _RETRY.format(text=text, remark=remark)
      yield _row("retries", f"{name}/{i}", [turn])
  for name, text in short[3 * _LOOPS : 3 * _LOOPS + _FORMS]:
    yield _row("requests", name, [_FORM.format(text=text)])


def _row(category: str, name: str, turns: list[str]) -> dict[str, Any]:
  return {
      "question_id": f"{category}/{name}", "category": category, "turns": turns
  }


def _words(text: str) -> list[str]:
  """Words of small letters, the longest first."""
  found = dict.fromkeys(re.findall(r"\b[a-z]{5,}\b", text))
  return sorted(found, key=len, reverse=True)
