"""Chat templates: what a person says -> the text that a model reads.

Templates are Jinja2 programs of whoever made the model, so they run in its
sandbox; names and options are those that transformers gives them.

A conversation is a list of messages, oldest first, each with its `role`
("user", "assistant" or "system") and its `content`; one turn of a user may be
given as a string.
"""

import dataclasses
import datetime
import functools
import json
from typing import Any, Mapping, Sequence

from specjax import errors
from specjax.errors import UserError

Message = Mapping[str, str]
Said = str | Sequence[Message]


def message(role: str, content: str) -> Message:
  """One message of a conversation."""
  return {"role": role, "content": content}


def messages(said: Said) -> list[Message]:
  """The messages of a conversation."""
  return [message("user", said)] if isinstance(said, str) else list(said)


def joined(said: Said) -> str:
  """A conversation as one text, for models without a template."""
  return "\n\n".join(each["content"] for each in messages(said))


def check(i: int, said: Said) -> None:
  """Refuses what is neither a text nor a conversation.

  Args:
    i: which of the texts it is.
    said: that.

  Raises:
    UserError: it is empty, or of another form; the message names it.
  """
  try:
    turns = [(x["role"], x["content"]) for x in messages(said)]
  except (TypeError, KeyError):
    turns = []
  words = [word for turn in turns for word in turn]
  # A model may have answered nothing.
  good = all(isinstance(word, str) for word in words)
  if not words or not good or not words[-1].strip():
    raise UserError(
        f"texts: number {i} is empty or not a string; or give messages with"
        " role and content"
    )
  if words[-2] != "user":
    raise UserError(
        f"texts: number {i}: give messages of which the last is a user's"
    )
  if any("\ud800" <= letter <= "\udfff" for word in words for letter in word):
    raise UserError(
        f"texts: number {i} holds half of a surrogate pair; give Unicode text"
    )


@dataclasses.dataclass(frozen=True)
class Template:
  """The template of a model.

  Attributes:
    source: the program.
    tokens: special tokens by the names that it calls them by, bos_token say.
    path: of the file that holds it, for messages.
  """

  source: str
  tokens: Mapping[str, str]
  path: Any

  def __call__(self, said: Said) -> str:
    """A conversation, and the head of the next answer.

    Raises:
      UserError: the template is faulty, or takes no such turns.
    """
    try:
      text = self._program.render(
          messages=messages(said), add_generation_prompt=True, **self.tokens
      )
      # Half characters are no text that a tokenizer can take.
      text.encode("utf-8")
      return text
    # The program is a stranger's: anything may come.
    except Exception as error:
      raise UserError(
          f"{self.path}: the chat template fails ({errors.reason(error)}); give"
          " --config.data.chat=false to do without it"
      ) from None

  @functools.cached_property
  def _program(self):
    from jinja2 import sandbox

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = functools.partial(
        json.dumps, ensure_ascii=False
    )
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
    }
    return environment.from_string(self.source)


def _refuse(reason: str):
  raise ValueError(reason)
