"""What a family of models must say about its checkpoints."""

import dataclasses
import pathlib
from typing import Any, Callable, NamedTuple, Sequence

from flax import linen as nn

from specjax.checkpoints import chat
from specjax.checkpoints import fields
from specjax.checkpoints import places
from specjax.checkpoints import tokenizer as tokenizer_lib

# One of models' configs.
Config = Any


class Question(NamedTuple):
  """A text as ids: what an encoder reads, and what the decoder begins with."""

  source: tuple[int, ...] | None
  prompt: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Family:
  """A kind of models, by Hugging Face's model_type.

  Attributes:
    architectures: classes that a config.json may name; the first is written.
    module: the Linen module of a config.
    parse: fields of a config.json -> config.
    unparse: config -> fields, for every transformers.
    fits: whether a config is of this family.
    table: config -> places.Table.
    tidy: (fields, config, tensors by name) -> tensors, without those that no
      model reads, by the names of the table.
    copies: config -> names that writers give to copies, with their originals.
    tokenizer: (directory, config) -> its tokenizer.
    question: (config, ids) -> the Question that they are.
    ask: (config, tokenizer, texts, most, chat) -> a Question each. A text may
      be a conversation. Texts are cut so that their ids are no more than
      `most`; `chat` is whether texts are what a person says to the model, None
      where it was made for it.
  """

  architectures: tuple[str, ...]
  module: Callable[..., nn.Module]
  parse: Callable[[fields.Getter], Config]
  unparse: Callable[[Config], dict[str, Any]]
  fits: Callable[[Config], bool]
  table: Callable[[Config], places.Table]
  tidy: Callable[[fields.Getter, Config, dict[str, Any]], dict[str, Any]]
  copies: Callable[[Config], dict[str, str]]
  tokenizer: Callable[[pathlib.Path, Config], tokenizer_lib.Pieces]
  question: Callable[[Config, tuple[int, ...]], Question]
  ask: Callable[
      [Config, tokenizer_lib.Pieces, Sequence[chat.Said], int, bool | None],
      list[Question],
  ]
