"""Tokenizers of decoder-only models: prompts in, text out.

A prompt begins as the model was trained to see one: with its token for the
beginning of a text, where it has one, or in its chat template.
"""

import functools
import itertools
import pathlib
from typing import Any, Iterable, Sequence

from specjax import errors
from specjax.checkpoints import chat as chat_lib
from specjax.checkpoints import files
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.errors import UserError

FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
# What a directory may hold beside FILE.
BESIDE = (CONFIG, TEMPLATE)
_SPACE, _END_OF_LINE = "\u2581", "\u23ce"


class TextTokenizer(tokenizer_lib.Pieces):
  """Text to ids and back.

  Attributes:
    template: of what is said to the model, or None.
  """

  def __init__(
      self,
      backend,
      ends: Sequence[int],
      template: chat_lib.Template | None = None,
  ):
    """Takes a tokenizers.Tokenizer; texts end in the first of `ends`.

    Raises:
      ValueError: its ids are none of a model's.
    """
    self._backend = backend
    self._ends = tuple(ends)
    self.template = template
    self.pieces = tokenizer_lib.pieces_of(backend)
    begin = backend.encode("").ids
    if any(i >= self.size for i in begin):
      raise ValueError(f"texts begin with {begin}, which it has no tokens for")
    first = [*begin, *self._ends, 0]
    self.start_id = first[0]
    self.eos_id = self._ends[0] if self._ends else self.start_id

  @functools.cached_property
  def shown(self) -> list[str]:
    """Bytes as the text they are part of, and the ends of lines."""
    texts = self._backend.decode_batch(
        [[i] for i in range(self.size)], skip_special_tokens=False
    )
    visible = lambda text: text.replace(" ", _SPACE).replace("\n", _END_OF_LINE)
    return [
        piece if _SPACE in piece else visible(text)
        for piece, text in zip(self.pieces, texts)
    ]

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Ids of outputs: nothing in front, `eos_id` at the end."""
    return [row + [self.eos_id] for row in self._encode(texts, False)]

  def prompts(
      self,
      texts: Sequence[chat_lib.Said],
      *,
      most: int,
      chat: bool | None = None,
  ) -> list[list[int]]:
    """Ids of prompts.

    Args:
      texts: what the model goes on with, or what is said to it.
      most: longer texts are cut at their end, so that prompts are no longer;
        of a conversation the longest message is.
      chat: whether they are put in the model's chat template; None where it
        has one.

    Raises:
      UserError: there is no template, it fails, or it leaves no room.
    """
    errors.require(
        not chat or self.template is not None,
        "chat",
        "the model has no chat template; give false",
        chat,
    )
    chat = self.template is not None if chat is None else chat
    rows = self._prompts(texts, chat)
    return [
        row if len(row) <= most else self._cut(text, row, most, chat)
        for text, row in zip(texts, rows)
    ]

  def _prompts(self, texts, chat: bool) -> list[list[int]]:
    if chat:
      return self._encode([self.template(text) for text in texts], False)
    texts = list(map(chat_lib.joined, texts))
    # BERT's tokenizers end a text of their own accord; a text may itself, too.
    bare = map(self._closing, self._encode(texts, False))
    return [
        row[: len(row) - (self._closing(row) - own)]
        for row, own in zip(self._encode(texts, True), bare)
    ]

  def _closing(self, row: Sequence[int]) -> int:
    """How many ends of a text stand at the end."""
    return sum(1 for _ in itertools.takewhile(self.eos_id.__eq__, row[::-1]))

  def _cut(self, said: chat_lib.Said, row: list[int], most: int, chat: bool):
    """The prompt of as much of a text as there is room for."""
    messages = chat_lib.messages(said if chat else chat_lib.joined(said))
    parts = self._encode([each["content"] for each in messages], False)
    while len(row) > most:
      at = max(range(len(parts)), key=lambda i: len(parts[i]))
      if len(parts[at]) < 2:
        raise UserError(
            f"max_source_tokens: give more than the chat template takes alone,"
            f" got {most}"
        )
      # Joints are tokenized anew: it may take one token more, or less.
      keep = max(1, len(parts[at]) - (len(row) - most))
      parts[at] = parts[at][:keep]
      messages[at] = chat_lib.message(
          messages[at]["role"], self.decode(parts[at], skip_special=False)
      )
      [row] = self._prompts([messages], chat)
    return row

  def _encode(self, texts, special: bool) -> list[list[int]]:
    rows = self._backend.encode_batch(list(texts), add_special_tokens=special)
    return [row.ids for row in rows]

  def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
    """Text of ids.

    Args:
      ids: all of them are read: none ends anything.
      skip_special: leaves out control tokens. Ids beyond the tokenizer never
        give any text.
    """
    ids = [int(i) for i in ids]
    ids = [i for i in ids if 0 <= i < self.size]
    return self._backend.decode(ids, skip_special_tokens=skip_special)


def load(directory, ends: Sequence[int]) -> TextTokenizer:
  """Reads the tokenizer of a model's directory.

  Args:
    directory: holds tokenizer.json, and what says how it is used.
    ends: ids that end a text.

  Raises:
    UserError: a file is missing or damaged.
  """
  directory = pathlib.Path(directory)
  path = directory / FILE
  if not path.is_file():
    raise UserError(f"{directory} holds no {FILE}: copy the model's own there")
  with tokenizer_lib.plain_errors(f"{path} is no tokenizer"):
    backend = tokenizer_lib.json_backend(path)
    return TextTokenizer(backend, ends, _template(directory))


def _template(directory: pathlib.Path) -> chat_lib.Template | None:
  """Of a file of its own, or of tokenizer_config.json."""
  path = directory / CONFIG
  fields = files.read_json(path) if path.is_file() else {}
  source = fields.get("chat_template")
  if isinstance(source, list):
    # Several by name.
    named = [each for each in source if isinstance(each, dict)]
    default = [each for each in named if each.get("name") == "default"]
    source = default[-1].get("template") if default else None
  if (directory / TEMPLATE).is_file():
    path = directory / TEMPLATE
    source = files.read_bytes(path).decode("utf-8", errors="replace")
  if not isinstance(source, str):
    return None
  return chat_lib.Template(source, _tokens(fields), path)


def _tokens(fields: dict[str, Any]) -> dict[str, str]:
  """Special tokens, which are strings or objects that hold one."""
  tokens = {}
  for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
    value = fields.get(name)
    value = value.get("content") if isinstance(value, dict) else value
    if isinstance(value, str):
      tokens[name] = value
  return tokens
