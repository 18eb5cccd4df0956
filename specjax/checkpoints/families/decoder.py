"""What the checkpoints of decoder-only families share."""

from typing import Sequence

from specjax.checkpoints import chat as chat_lib
from specjax.checkpoints import fields
from specjax.checkpoints import places
from specjax.checkpoints import text_tokenizer
from specjax.checkpoints.families import base
from specjax.models import decoder

HEAD = "lm_head.weight"


def ends(get: fields.Getter, size: int) -> tuple[int, ...]:
  """Ids that end a text: those of generation_config.json, else config.json."""
  generation = get.fields.get("generation_config", {})
  own = fields.Getter(generation, get.path).ids("eos_token_id", size)
  return own or get.ids("eos_token_id", size)


def matrix(name: str, path, shape, form=places.KERNEL, *, bias=False):
  """Entries of one matrix [out, in] and its bias, by their stored names."""
  entries = {f"{name}.weight": places.Place((*path, "kernel"), shape, form)}
  if bias:
    out = shape[1] if form.turned else shape[0]
    alike = places.Form(groups=form.groups, held=form.held)
    entries[f"{name}.bias"] = places.Place((*path, "bias"), (out,), alike)
  return entries


def tokenizer(directory, config: decoder.DecoderConfig):
  """Reads tokenizer.json and what else says how to use it."""
  return text_tokenizer.load(directory, config.ends)


def question(
    config: decoder.DecoderConfig, ids: tuple[int, ...]
) -> base.Question:
  """They are the prompt."""
  del config
  return base.Question(None, ids)


def ask(
    config: decoder.DecoderConfig,
    tokenizer: text_tokenizer.TextTokenizer,
    texts: Sequence[chat_lib.Said],
    most: int,
    chat: bool | None,
) -> list[base.Question]:
  """The text is the prompt; see base.Family.ask."""
  rows = tokenizer.prompts(texts, most=most, chat=chat)
  return [question(config, tuple(row)) for row in rows]
