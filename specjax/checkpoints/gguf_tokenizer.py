"""Tokenizers of GGUF files, rebuilt of their vocabulary and merges.

Two kinds: byte-level BPE ("gpt2"), whose merges are listed and whose way to
split a text has a name; and SentencePiece's BPE ("llama"), of which a file has
the pieces with their scores, and bytes for what has no piece.
"""

import functools
from typing import Any, Callable, Sequence

from specjax import checks
from specjax.checkpoints import chat as chat_lib
from specjax.checkpoints import fields as fields_lib
from specjax.checkpoints import text_tokenizer
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.errors import UserError

_KEY = "tokenizer.ggml."
# Types of tokens: gguf.TokenType.
_CONTROL, _USER_DEFINED = 3, 4
_LONGEST_PIECE = 1000
_SPACE = "\u2581"

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")


def _split(pattern: str):
  """Splits a text by a pattern, then into bytes."""
  import tokenizers
  from tokenizers import pre_tokenizers

  return pre_tokenizers.Sequence([
      pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
  ])


def _gpt2():
  from tokenizers import pre_tokenizers

  return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm():
  """As GPT-2, but every digit stands alone."""
  from tokenizers import pre_tokenizers

  return pre_tokenizers.Sequence(
      [pre_tokenizers.Digits(individual_digits=True), _gpt2()]
  )


_llama3 = functools.partial(_split, _LLAMA3)
_qwen2 = functools.partial(_split, _QWEN2)
# tokenizer.ggml.pre -> how a text is split before merging.
_SPLITS: dict[str, Callable[[], Any]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
}


def ends(get: fields_lib.Getter) -> list[int]:
  """Ids that end a text, or a turn of it."""
  names = [_KEY + name for name in ("eos_token_id", "eot_token_id")]
  given = [name for name in names if get.fields.get(name) is not None]
  return list(dict.fromkeys(get.integer(name) for name in given))


def build(
    get: fields_lib.Getter, ends: Sequence[int]
) -> text_tokenizer.TextTokenizer:
  """The tokenizer in a file's metadata.

  Args:
    get: the metadata.
    ends: ids that end a text.

  Raises:
    UserError: a field is missing, faulty, or names an unknown kind.
  """
  kinds = {"gpt2": _byte_level, "llama": _sentencepiece}
  kind = get.one_of(_KEY + "model", None, tuple(kinds))
  pieces = _list(get, "tokens", str)
  if len(set(pieces)) < len(pieces):
    raise UserError(f"{get.path}: field {_KEY}tokens lists a token twice")
  with tokenizer_lib.plain_errors(f"{get.path}: its tokenizer is faulty"):
    backend = kinds[kind](get, pieces)
    _add_special(get, backend, pieces)
    bos = _bos(get, kind, pieces)
    if bos is not None:
      _begin_with(backend, pieces[bos], bos)
    return text_tokenizer.TextTokenizer(backend, ends, _template(get, pieces))


def _list(get: fields_lib.Getter, name: str, kind, length: int | None = None):
  """A list of one type, of a given length."""
  remedy = f"must be a list of {kind.__name__}"
  remedy += "" if length is None else f", {length} of them"
  values = get.fields.get(_KEY + name)
  # Not `refuse`: such a list may be long.
  if not (
      isinstance(values, list)
      and all(isinstance(value, kind) for value in values)
      and length in (None, len(values))
  ):
    raise UserError(f"{get.path}: field {_KEY}{name} {remedy}")
  return values


def _byte_level(get: fields_lib.Getter, pieces: list[str]):
  """BPE over bytes, each of which has a printable character of its own."""
  import tokenizers
  from tokenizers import decoders, models, normalizers

  split = get.one_of(_KEY + "pre", "default", tuple(_SPLITS))
  merges = [merge.split(" ") for merge in _list(get, "merges", str)]
  if any(len(merge) != 2 for merge in merges):
    raise UserError(f"{get.path}: field {_KEY}merges must list pairs")
  vocabulary = {piece: i for i, piece in enumerate(pieces)}
  backend = tokenizers.Tokenizer(
      models.BPE(
          vocab=vocabulary,
          merges=[tuple(merge) for merge in merges],
          # Llama 3 takes a whole word for a token before it merges.
          ignore_merges=_SPLITS[split] is _llama3,
      )
  )
  if _SPLITS[split] is _qwen2:
    backend.normalizer = normalizers.NFC()
  backend.pre_tokenizer = _SPLITS[split]()
  backend.decoder = decoders.ByteLevel()
  return backend


def _sentencepiece(get: fields_lib.Getter, pieces: list[str]):
  """SentencePiece's BPE: the neighbours that make the best piece merge."""
  import tokenizers
  from tokenizers import decoders, models, normalizers

  scores = _list(get, "scores", float, len(pieces))
  unknown = get.integer(_KEY + "unknown_token_id", 0)
  if unknown >= len(pieces):
    get.refuse(_KEY + "unknown_token_id", f"must be below {len(pieces)}")
  prefix = get.boolean(_KEY + "add_space_prefix", True)
  backend = tokenizers.Tokenizer(
      models.BPE(
          vocab={piece: i for i, piece in enumerate(pieces)},
          merges=merges_of(pieces, scores),
          unk_token=pieces[unknown],
          fuse_unk=True,
          byte_fallback=True,
      )
  )
  marks = [normalizers.Replace(" ", _SPACE)]
  backend.normalizer = normalizers.Sequence(
      [normalizers.Prepend(_SPACE), *marks] if prefix else marks
  )
  steps = [
      decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()
  ]
  if prefix:
    steps.append(decoders.Strip(content=" ", left=1))
  backend.decoder = decoders.Sequence(steps)
  return backend


def merges_of(
    pieces: Sequence[str], scores: Sequence[float]
) -> list[tuple[str, str]]:
  """The merges that a vocabulary with scores stands for, first ones first.

  Every way to put a piece together of two others is a merge; those of the
  better piece come first.

  Args:
    pieces: by id.
    scores: of each.

  Raises:
    ValueError: a piece is absurdly long.
  """
  ids = {piece: i for i, piece in enumerate(pieces)}
  found = []
  for i, piece in enumerate(pieces):
    if len(piece) > _LONGEST_PIECE:
      raise ValueError(f"token {i} has {len(piece)} characters")
    for cut in range(1, len(piece)):
      left, right = piece[:cut], piece[cut:]
      if left in ids and right in ids:
        order = (-scores[i], -len(left), -len(right), i, ids[left], ids[right])
        found.append((order, (left, right)))
  return [merge for _, merge in sorted(found)]


def _add_special(get: fields_lib.Getter, backend, pieces) -> None:
  """Tokens that a text is never split in, nor put together to."""
  import tokenizers

  if get.fields.get(_KEY + "token_type") is None:
    return
  kinds = _list(get, "token_type", int, len(pieces))
  for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
    added = [
        tokenizers.AddedToken(piece, normalized=False, special=special)
        for piece, own in zip(pieces, kinds)
        if own == kind and piece
    ]
    (backend.add_special_tokens if special else backend.add_tokens)(added)


def _bos(get: fields_lib.Getter, kind: str, pieces) -> int | None:
  """Id of the token that every text begins with, None without one."""
  llama3 = _SPLITS.get(get.fields.get(_KEY + "pre")) is _llama3
  if not get.boolean(_KEY + "add_bos_token", kind == "llama" or llama3):
    return None
  name = _KEY + "bos_token_id"
  bos = get.integer(name)
  if bos >= len(pieces):
    get.refuse(name, f"must be below {len(pieces)}")
  return bos


def _begin_with(backend, piece: str, token: int) -> None:
  from tokenizers import processors

  backend.post_processor = processors.TemplateProcessing(
      single=f"{piece}:0 $A:0", special_tokens=[(piece, token)]
  )


def _template(get: fields_lib.Getter, pieces) -> chat_lib.Template | None:
  """The chat template, with the special tokens by their names."""
  source = get.fields.get("tokenizer.chat_template")
  if not isinstance(source, str):
    return None
  tokens = {}
  for name, key in (
      ("bos_token", "bos"),
      ("eos_token", "eos"),
      ("unk_token", "unknown"),
      ("pad_token", "padding"),
  ):
    token = get.fields.get(f"{_KEY}{key}_token_id")
    if checks.is_whole(token, 0, len(pieces) - 1):
      tokens[name] = pieces[token]
  return chat_lib.Template(source, tokens, get.path)
