"""Prompts for benchmarks: one question or several turns, by category.

    load("question.jsonl")    Spec-Bench's rows, or {"prompt": ...} ones
    load("mine.txt")          a prompt a line
    load("agent")             the project's own, see `agent`

Spec-Bench (Xia et al., arXiv 2401.07851) has a JSON object a line, with
`question_id`, `category` and `turns`: what a person says, turn by turn, the
model's answers in between.
"""

import dataclasses
import os
from typing import Any, Sequence

from specjax import errors
from specjax import strict_json
from specjax.data import agent
from specjax.data import tasks
from specjax.errors import UserError

AGENT = "agent"
# Of prompts that name no category.
CATEGORY = "prompts"
_SUFFIXES = (".json", ".jsonl")


@dataclasses.dataclass(frozen=True)
class Prompt:
  """What a person says to a model.

  Attributes:
    id: of its own.
    category: of figures that are reported together.
    turns: one or more; the model answers after each.
  """

  id: str
  category: str
  turns: tuple[str, ...]


def load(path: str) -> list[Prompt]:
  """Reads prompts.

  Args:
    path: a file of JSON lines (.jsonl, .json), another file with a prompt a
      line, or "agent".

  Raises:
    UserError: it can't be read, has no prompt, or a faulty one; file, line
      and field are named.
  """
  if path == AGENT:
    rows = enumerate(agent.rows(), 1)
  elif path.lower().endswith(_SUFFIXES):
    rows = _json_lines(path)
  else:
    rows = ((i, {"prompt": line}) for i, line in _lines(path))
  made: dict[str, Prompt] = {}
  for number, row in rows:
    prompt = _prompt(path, number, row)
    if prompt.id in made:
      name = errors.shown(prompt.id)
      raise _bad(path, number, f"has the id {name} of an earlier line")
    made[prompt.id] = prompt
  if not made:
    raise UserError(f"--prompts: {path} has no prompts; give some")
  return list(made.values())


def choose(
    prompts: Sequence[Prompt], first: int = 0, only: Sequence[str] = ()
) -> list[Prompt]:
  """The first of each category.

  Args:
    prompts: in the order that they stay in.
    first: how many; 0 takes all.
    only: of these categories; of all where there are none.

  Raises:
    UserError: there is no such category.
  """
  known = list(dict.fromkeys(prompt.category for prompt in prompts))
  for name in only:
    if name not in known:
      some = errors.several(map(errors.line, known))
      raise UserError(f"--only: no category {errors.shown(name)}; give {some}")
  count = dict.fromkeys(known, 0)
  out = []
  for prompt in prompts:
    count[prompt.category] += 1
    wanted = not only or prompt.category in only
    if wanted and (not first or count[prompt.category] <= first):
      out.append(prompt)
  return out


def _lines(path: str):
  """(number, line) of a file's lines, without the empty ones."""
  lines = tasks.lines(path, "--prompts")
  return ((number, line) for number, line in lines if line.strip())


def _json_lines(path: str):
  for number, line in _lines(path):
    try:
      row = strict_json.loads(line)
    except ValueError as error:
      raise _bad(path, number, f"is not JSON ({error})") from None
    yield number, row


def _prompt(path: str, number: int, row: Any) -> Prompt:
  """A row of a file."""
  if not isinstance(row, dict):
    raise _bad(path, number, "is not a JSON object")
  if "turns" not in row and "prompt" not in row:
    raise _bad(path, number, "has neither field 'turns' nor 'prompt'")
  turns = row["turns"] if "turns" in row else [row["prompt"]]
  if not isinstance(turns, list) or not turns or not all(map(_is_text, turns)):
    field = "turns" if "turns" in row else "prompt"
    raise _bad(path, number, f"field '{field}' holds no text, or an empty one")
  name = row.get("question_id", row.get("id", number))
  category = row.get("category", CATEGORY)
  for field, value in (("question_id", name), ("category", category)):
    if not isinstance(value, (str, int)) or isinstance(value, bool):
      kind = type(value).__name__
      raise _bad(path, number, f"field '{field}' is {kind}, not a string")
  return Prompt(str(name), str(category), tuple(turns))


def _is_text(value: Any) -> bool:
  """Whether it is text, and some."""
  return isinstance(value, str) and bool(value.strip())


def _bad(path: str, number: int, what: str) -> UserError:
  return UserError(f"--prompts: {os.fspath(path)}, line {number} {what}")
