"""Checkpoints: models and their tokenizers, by name or by folder."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from specjax.checkpoints import hf
from specjax.checkpoints import resolve as resolve_lib
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.errors import UserError
from specjax.models import t5


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
  module: t5.T5
  params: dict[str, Any]
  tokenizer: tokenizer_lib.Tokenizer


def load(
    name: str,
    dtype=jnp.float32,
    *,
    keep_bfloat16: bool = True,
    hint: str = "mini/target is a model that ships with the package",
) -> Checkpoint:
  """Finds, reads and checks a model.

  Args:
    name: a folder, a shipped model such as mini/target, or a Hugging Face
      name; see `resolve.resolve`.
    dtype: of parameters and products.
    keep_bfloat16: matrices that are stored in bfloat16 stay so, whatever the
      dtype: half the memory, and the same law.
    hint: what a person can do where the model can't be had.

  Raises:
    UserError: it can't be had, or is faulty.
  """
  directory = resolve_lib.resolve(name, hint=hint)
  tokenizer = tokenizer_lib.Tokenizer.load(directory)
  module, params = hf.load_t5(directory, dtype, keep_bfloat16=keep_bfloat16)
  if tokenizer.size > module.config.vocab_size:
    raise UserError(
        f"{directory}: the tokenizer has {tokenizer.size} ids, the model only"
        f" {module.config.vocab_size} (field vocab_size)"
    )
  return Checkpoint(name, module, params, tokenizer)
