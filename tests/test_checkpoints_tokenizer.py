"""T5's tokenizers: ids, sentinels, streaming, and pairs that don't match."""

import io
import struct

import numpy as np
import pytest
import sentencepiece
import tokenizers

from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.errors import UserError

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "A draft is verified by the target, block by block; über allem: Größe.",
    "translate English to German: That is good.",
]


def train(texts, size, **options) -> bytes:
  """A spiece.model with T5's control ids; options of sentencepiece."""
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(texts),
      model_writer=model,
      vocab_size=size,
      pad_id=0,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
      pad_piece="<pad>",
      hard_vocab_limit=False,
      minloglevel=2,
      **options,
  )
  return model.getvalue()


def spell(pieces) -> bytes:
  """A spiece.model of given pieces: its protocol buffer, written by hand."""

  def message(number, body):
    assert len(body) < 128
    return bytes([number << 3 | 2, len(body)]) + body

  model = b""
  for i, piece in enumerate(pieces):
    # Types: 1 is an ordinary piece, 2 the unknown one, 3 a control.
    kind = {"<unk>": 2, "<pad>": 3, "</s>": 3}.get(piece, 1)
    body = message(1, piece.encode()) + b"\x15" + struct.pack("<f", -i / 1e4)
    model += message(1, body + bytes([3 << 3, kind]))
  return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Holds a.model of 120 pieces, and tokenizer.json of the very same ones."""
  path = tmp_path_factory.mktemp("tokenizer")
  (path / "a.model").write_bytes(train(TEXTS * 20, 120))
  processor = sentencepiece.SentencePieceProcessor(str(path / "a.model"))
  pieces = [
      (processor.id_to_piece(i), processor.get_score(i))
      for i in range(processor.get_piece_size())
  ]
  model = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 2, False))
  space = {"replacement": "▁", "prepend_scheme": "always"}
  model.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
      tokenizers.pre_tokenizers.WhitespaceSplit(),
      tokenizers.pre_tokenizers.Metaspace(**space),
  ])
  model.decoder = tokenizers.decoders.Metaspace(**space)
  model.add_special_tokens(
      [f"<extra_id_{i}>" for i in reversed(range(100))]
  )
  model.enable_padding()
  model.enable_truncation(4)
  model.save(str(path / "tokenizer.json"))
  return path


@pytest.fixture(scope="module", params=("a.model", "tokenizer.json"))
def tokenizer(request, folder):
  return tokenizer_lib.Tokenizer(folder / request.param)


def test_sentinels_of_t5(tmp_path):
  """huggingface/transformers#14282, #4875: extra_id_0 is the last id."""
  pieces = ["<pad>", "</s>", "<unk>", *(f"▁{i:x}" for i in range(31997))]
  (tmp_path / "spiece.model").write_bytes(spell(pieces))
  t5 = tokenizer_lib.Tokenizer.load(tmp_path)
  assert t5.size == 32100
  assert t5.encode("<extra_id_0>") == [32099, 1]
  assert t5.encode("<extra_id_1>") == [32098, 1]
  assert t5.encode("<extra_id_99>") == [32000, 1]
  assert t5.encode("0 7cfc") == [3, 31999, 1]
  assert t5.decode([0, 3, 32099, 31999, 1, 32100, 32127, 4]) == "0 7cfc 1"


def test_encoding(tokenizer):
  """</s> at the end, nothing in front; batches are the same texts."""
  rows = tokenizer.encode_batch(TEXTS)
  for text, ids in zip(TEXTS, rows):
    assert ids == tokenizer.encode(text)
    assert ids[-1] == tokenizer.eos_id == 1
    assert not {0, 1, 2} & set(ids[:-1])
    assert tokenizer.decode(ids) == text
  assert tokenizer.encode("") == tokenizer.encode("  ") == [1]
  assert tokenizer.encode_batch([]) == []


def test_both_files_give_the_same_ids(folder):
  a = tokenizer_lib.Tokenizer(folder / "a.model")
  b = tokenizer_lib.Tokenizer(folder / "tokenizer.json")
  assert a.size == b.size == len(a.pieces)
  assert a.fingerprint() == b.fingerprint()
  tokenizer_lib.check_same(a, b)
  texts = TEXTS + ["A <extra_id_0> jumps<extra_id_99>dog", "a\tb\n c "]
  assert a.encode_batch(texts) == b.encode_batch(texts)


def test_sentinels_in_text(tokenizer):
  last = tokenizer.size - 1
  fox, dog = tokenizer.encode("fox")[:-1], tokenizer.encode("dog")[:-1]
  text = "fox <extra_id_0> dog<extra_id_17>fox"
  want = [*fox, last, *dog, last - 17, *fox, 1]
  assert tokenizer.encode(text) == want
  assert tokenizer.decode(want) == "fox dog fox"
  assert tokenizer.decode([0, *want], skip_special=False) == (
      "<pad> fox <extra_id_0> dog <extra_id_17> fox </s>"
  )


def test_what_only_looks_like_a_sentinel(folder):
  """T5 has 100 of them; other numbers are text."""
  t = tokenizer_lib.Tokenizer(folder / "a.model")
  for text in ("<extra_id_100>", "<extra_id_007>", "<extra_id_>"):
    ids = t.encode(text)
    assert len(ids) > 2
    assert max(ids) < t.size - 100


def test_decoding_stops_at_nothing(tokenizer):
  """Not at </s>; ids of a wider model give no text."""
  fox, dog = tokenizer.encode("fox"), tokenizer.encode("dog")
  ids = [0, *fox, 0, *dog, tokenizer.size, tokenizer.size + 27, -1]
  assert tokenizer.decode(ids) == "fox dog"
  assert tokenizer.decode(np.array(ids, np.int32)) == "fox dog"
  assert tokenizer.decode([]) == ""


def test_ids_are_decoded_together(tokenizer):
  """Blocks alone would lose the spaces between them (sentencepiece#1043)."""
  ids = [0]
  for text in TEXTS:
    ids += tokenizer.encode(text)
  assert tokenizer.decode(ids) == " ".join(TEXTS)
  blocks = [ids[i : i + 3] for i in range(0, len(ids), 3)]
  assert "".join(map(tokenizer.decode, blocks)) != " ".join(TEXTS)
  # A round is shown by its pieces, which bring their spaces along.
  shown = "".join(tokenizer.shown[i] for i in ids if i > 1)
  assert shown.replace("▁", " ") == " " + " ".join(TEXTS)


def test_bytes(tmp_path):
  """A character that is no piece comes as its bytes, and whole again."""
  model = train(TEXTS * 20, 340, byte_fallback=True)
  (tmp_path / "spiece.model").write_bytes(model)
  t = tokenizer_lib.Tokenizer.load(tmp_path)
  ids = t.encode("fox 日本 dog")
  assert {t.pieces[i] for i in ids} >= {"<0xE6>", "<0x97>", "<0xA5>"}
  assert t.decode(ids) == "fox 日本 dog"


def test_pairs(folder, tmp_path):
  """Same ids, other strings: refused with the first that differs."""
  a = tokenizer_lib.Tokenizer(folder / "a.model")
  swapped = a.pieces[:-100]
  swapped[5], swapped[6] = swapped[6], swapped[5]
  (tmp_path / "swapped.model").write_bytes(spell(swapped))
  (tmp_path / "shorter.model").write_bytes(spell(a.pieces[:-101]))
  swapped = tokenizer_lib.Tokenizer(tmp_path / "swapped.model")
  shorter = tokenizer_lib.Tokenizer(tmp_path / "shorter.model")
  with pytest.raises(UserError) as caught:
    tokenizer_lib.check_same(a, swapped)
  assert f"id 5 is {a.pieces[5]!r} against {a.pieces[6]!r}" in str(caught.value)
  assert "\n" not in str(caught.value)
  with pytest.raises(UserError, match=rf"{a.size} ids against {a.size - 1}"):
    tokenizer_lib.check_same(a, shorter)


def test_files_that_are_none(tmp_path):
  load = tokenizer_lib.Tokenizer.load
  with pytest.raises(UserError, match="no spiece.model and no tokenizer.json"):
    load(tmp_path)
  (tmp_path / "tokenizer.json").write_text("{}")
  with pytest.raises(UserError, match="tokenizer.json is no tokenizer"):
    load(tmp_path)
  (tmp_path / "spiece.model").write_bytes(b"version https://git-lfs")
  with pytest.raises(UserError, match="is no SentencePiece model"):
    load(tmp_path)
  (tmp_path / "spiece.model").write_bytes(spell(["<unk>", "▁a", "b"]))
  with pytest.raises(UserError, match="has no piece <pad>"):
    load(tmp_path)
