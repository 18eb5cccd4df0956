"""Tokenizers: what all of them have, and T5's.

T5's are spiece.model, or tokenizer.json where there is none. Ids are laid out
as pieces, then the sentinels <extra_id_i>, which count down: of 32,000 pieces
and 100 sentinels, <extra_id_0> is 32099, the last id, and <extra_id_99> is
32000. A model is often wider (32,128); the ids beyond the tokenizer stand for
no text.
"""

import contextlib
import functools
import hashlib
import pathlib
import re
from typing import Iterable, Iterator, Sequence

from specjax import errors
from specjax.checkpoints import files
from specjax.errors import UserError

# In the order in which they are looked for.
FILES = ("spiece.model", "tokenizer.json")
_EXTRA_IDS = 100
# Twice as many as any model has: a list of all of them is built.
_MOST_IDS = 2**21
# SentencePiece's piece of a byte, and what stands for bytes that are no text.
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
_NO_TEXT = "\ufffd"


class Pieces:
  """What every tokenizer has; one of its own adds encode_batch and decode.

  Attributes:
    pieces: the string of each id.
    start_id: id that stands before the first token of an output.
    eos_id: id that ends one.
  """

  pieces: list[str]
  start_id: int
  eos_id: int

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Ids of every text, `eos_id` at the end."""
    raise NotImplementedError

  def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
    """Text of ids."""
    raise NotImplementedError

  def settled(self, ids: Iterable[int]) -> str:
    """The beginning of the text of ids that stays, whatever ids follow.

    Bytes at the end may be part of a character. Where they are pieces, all of
    them in a row may turn out to be no text.
    """
    ids = [int(i) for i in ids]
    while ids and self._is_open(ids[-1]):
      ids.pop()
    return self.decode(ids).rstrip(_NO_TEXT)

  def _is_open(self, i: int) -> bool:
    """Whether what comes next may belong to a row of bytes that ends here."""
    text = self.decode([i])
    return not text or _BYTE.fullmatch(self.pieces[i]) is not None

  @property
  def size(self) -> int:
    """Number of ids, special ones included; a model may be wider."""
    return len(self.pieces)

  @property
  def shown(self) -> Sequence[str]:
    """The string of each id for people; a space is \u2581."""
    return self.pieces

  @functools.cached_property
  def _digest(self) -> str:
    return hashlib.sha256("\0".join(self.pieces).encode()).hexdigest()

  def fingerprint(self) -> str:
    """Hash of the piece strings in the order of their ids."""
    return self._digest

  def encode(self, text: str) -> list[int]:
    """`encode_batch` of one text."""
    return self.encode_batch([text])[0]


def json_backend(path: pathlib.Path):
  """The tokenizers.Tokenizer of a tokenizer.json; raises what that does."""
  import tokenizers

  backend = tokenizers.Tokenizer.from_buffer(files.read_bytes(path))
  # Batches are padded and cut by whoever knows the shapes.
  backend.no_padding()
  backend.no_truncation()
  return backend


def pieces_of(backend) -> list[str]:
  """The string of each id of a tokenizers.Tokenizer; "" where it has none.

  Raises:
    ValueError: an id is absurdly high.
  """
  size = max(backend.get_vocab().values(), default=-1) + 1
  if size > _MOST_IDS:
    raise ValueError(f"it has an id {size - 1}")
  return [backend.id_to_token(i) or "" for i in range(size)]


@contextlib.contextmanager
def plain_errors(what: str) -> Iterator[None]:
  """What the tokenizers library does not take is one line, with `what`.

  Raises:
    UserError: in place of all that the library raises.
  """
  try:
    yield
  except UserError:
    raise
  # It does not say all that it raises.
  except Exception as error:
    raise UserError(
        f"{what} ({errors.reason(error)}): fetch it again"
    ) from None


class _SentencePiece:
  """spiece.model, which knows nothing of sentinels."""

  def __init__(self, path: pathlib.Path):
    import sentencepiece

    try:
      self._model = sentencepiece.SentencePieceProcessor(model_file=str(path))
      pieces = self._model.get_piece_size()
      self.pieces = [self._model.id_to_piece(i) for i in range(pieces)]
    # The library does not say all that it raises.
    except Exception as error:
      raise UserError(
          f"{path} is no SentencePiece model ({errors.reason(error)}): fetch it"
          " again"
      ) from None
    self.pieces += [f"<extra_id_{i}>" for i in reversed(range(_EXTRA_IDS))]

  def encode(self, texts: list[str]) -> list[list[int]]:
    return self._model.encode(texts)

  def decode(self, ids: list[int]) -> str:
    return self._model.decode(ids)


class _Json:
  """tokenizer.json of the tokenizers library."""

  def __init__(self, path: pathlib.Path):
    with plain_errors(f"{path} is no tokenizer"):
      self._model = json_backend(path)
      self.pieces = pieces_of(self._model)

  def encode(self, texts: list[str]) -> list[list[int]]:
    rows = self._model.encode_batch(texts, add_special_tokens=False)
    return [row.ids for row in rows]

  def decode(self, ids: list[int]) -> str:
    return self._model.decode(ids, skip_special_tokens=False)


class Tokenizer(Pieces):
  """Text to ids and back, by T5's conventions.

  Attributes:
    pad_id: id of <pad>, which a decoder starts with.
    eos_id: id of </s>, which ends every encoded text.
  """

  def __init__(self, path):
    """Reads one file, a spiece.model or a tokenizer.json.

    Raises:
      UserError: there is none, or it is no tokenizer of a T5.
    """
    path = pathlib.Path(path)
    if not path.is_file():
      raise UserError(f"{path} does not exist")
    self._backend = (
        _Json(path) if path.suffix == ".json" else _SentencePiece(path)
    )
    self.pieces: list[str] = self._backend.pieces
    ids = {piece: i for i, piece in enumerate(self.pieces)}
    for piece in ("<pad>", "</s>"):
      if piece not in ids:
        raise UserError(f"{path} has no piece {piece}; T5's tokenizers do")
    self.pad_id, self.eos_id = ids["<pad>"], ids["</s>"]
    self.start_id = self.pad_id
    self._sentinels = {
        piece: i
        for piece, i in ids.items()
        if re.fullmatch(r"<extra_id_\d+>", piece)
    }
    self._special = {self.pad_id, self.eos_id, *self._sentinels.values()}

  @classmethod
  def load(cls, directory) -> "Tokenizer":
    """Reads the tokenizer of a model's directory, spiece.model first.

    Raises:
      UserError: there is none, or it is no tokenizer of a T5.
    """
    directory = pathlib.Path(directory)
    for name in FILES:
      if (directory / name).is_file():
        return cls(directory / name)
    raise UserError(
        f"{directory} holds no spiece.model and no tokenizer.json: copy the"
        " model's own there"
    )

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Ids of texts, </s> at the end; <extra_id_i> in one is that sentinel."""
    # Odd members of a split by one group are what the group matched.
    parts = [re.split(r"(<extra_id_\d+>)", text) for text in texts]
    parts = [self._merge(row) for row in parts]
    plain = [part for row in parts for part in row if isinstance(part, str)]
    encoded = iter(self._backend.encode(plain))
    rows = []
    for row in parts:
      ids = []
      for part in row:
        ids += next(encoded) if isinstance(part, str) else [part]
      rows.append(ids + [self.eos_id])
    return rows

  def _merge(self, parts: list[str]) -> list[str | int]:
    """Sentinels become ids; what only looks like one stays text."""
    merged = [parts[0]]
    for name, text in zip(parts[1::2], parts[2::2]):
      if name in self._sentinels:
        merged += [self._sentinels[name], text]
      else:
        merged[-1] += name + text
    return merged

  def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
    """Text of ids.

    Args:
      ids: all of them are read: </s> ends nothing.
      skip_special: leaves out <pad>, </s> and sentinels. Ids beyond the
        tokenizer never give any text.
    """
    ids = [int(i) for i in ids]
    ids = [i for i in ids if 0 <= i < self.size]
    if skip_special:
      return self._backend.decode([i for i in ids if i not in self._special])
    parts, plain = [], []
    for i in ids:
      if i in self._special:
        parts += [self._backend.decode(plain), self.pieces[i]]
        plain = []
      else:
        plain.append(i)
    parts.append(self._backend.decode(plain))
    return " ".join(part for part in parts if part)


def check_same(target: Pieces, draft: Pieces) -> None:
  """Refuses a draft whose ids mean other text than the target's.

  Raises:
    UserError: an id differs; the first that does is named.
  """
  if target.fingerprint() == draft.fingerprint():
    return
  if target.size != draft.size:
    what = f"{target.size} ids against {draft.size}"
  else:
    pairs = zip(target.pieces, draft.pieces)
    i, (a, b) = next((i, x) for i, x in enumerate(pairs) if x[0] != x[1])
    what = f"id {i} is {errors.shown(a)} against {errors.shown(b)}"
  raise UserError(
      f"draft: its tokenizer is not the target's ({what}); choose a draft that"
      " was trained with the target's tokenizer"
  )
