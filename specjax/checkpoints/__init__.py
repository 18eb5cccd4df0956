"""Checkpoints: models and their tokenizers, by name, folder or file."""

import dataclasses
from typing import Any, Sequence

from flax import linen as nn
import jax.numpy as jnp

from specjax import sharding
from specjax.checkpoints import chat as chat_lib
from specjax.checkpoints import config as config_lib
from specjax.checkpoints import families
from specjax.checkpoints import gguf_file
from specjax.checkpoints import hf
from specjax.checkpoints import published
from specjax.checkpoints import resolve as resolve_lib
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.checkpoints.families import base
from specjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A model that is ready to decode.

  Attributes:
    name: what it was asked for by.
    module: the Linen module.
    params: for `module.apply(params, ...)`.
    tokenizer: its own.
  """

  name: str
  module: nn.Module
  params: dict[str, Any]
  tokenizer: tokenizer_lib.Pieces

  def ask(
      self,
      texts: Sequence[chat_lib.Said],
      most: int,
      chat: bool | None = None,
  ) -> list[base.Question]:
    """Texts as ids: what an encoder reads, and what the decoder begins with.

    Args:
      texts: none of them empty; one may be a conversation (see chat).
      most: longer ones are cut, to so many ids.
      chat: put them in the model's chat template; None where it has one.

    Raises:
      UserError: the model has no template, or it leaves no room.
    """
    config = self.module.config
    ask = families.of(config).ask
    return ask(config, self.tokenizer, texts, most, chat)

  def ask_ids(self, rows: Sequence[tuple[int, ...]]) -> list[base.Question]:
    """The same of ids, as they are."""
    config = self.module.config
    question = families.of(config).question
    return [question(config, ids) for ids in rows]


def load(
    name: str,
    dtype=jnp.float32,
    *,
    keep_bfloat16: bool = True,
    layout: sharding.Layout | None = None,
    hint: str = "mini/target is a model that ships with the package",
) -> Checkpoint:
  """Finds, reads and checks a model.

  Args:
    name: a folder, a .gguf file, a shipped model such as mini/target, or a
      Hugging Face name; see `resolve.resolve`. Or "random:" and the name of a
      public T5, for its shape alone.
    dtype: of parameters and products.
    keep_bfloat16: matrices that are stored in bfloat16 stay so, whatever the
      dtype: half the memory, and the same law.
    layout: of a target on several devices; each parameter goes there as soon
      as it is read.
    hint: what a person can do where the model can't be had.

  Raises:
    UserError: it can't be had, or is faulty.
  """
  if name.startswith(published.RANDOM):
    module, params = published.draw(name, dtype, layout)
    path = resolve_lib.resolve(published.TOKENIZER, hint=hint)
    tokenizer = load_tokenizer(path)
  else:
    path = resolve_lib.resolve(name, hint=hint)
    put = layout and layout.put
    if path.is_file():
      module, params, tokenizer = gguf_file.load(
          path, dtype, keep_bfloat16=keep_bfloat16, put=put
      )
    else:
      tokenizer = load_tokenizer(path)
      module, params = hf.load_model(
          path, dtype, keep_bfloat16=keep_bfloat16, put=put
      )
  if tokenizer.size > module.config.vocab_size:
    raise UserError(
        f"{path}: the tokenizer has {tokenizer.size} ids, the model only"
        f" {module.config.vocab_size} (field vocab_size)"
    )
  return Checkpoint(name, module, params, tokenizer)


def load_tokenizer(path) -> tokenizer_lib.Pieces:
  """The tokenizer of a folder or file that `resolve` found.

  Raises:
    UserError: it is missing or faulty.
  """
  if path.is_file():
    return gguf_file.load_tokenizer(path)
  family, config = config_lib.parse(config_lib.fields(path / config_lib.FILE))
  return family.tokenizer(path, config)
