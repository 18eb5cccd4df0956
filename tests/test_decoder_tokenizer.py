"""Tokenizers of decoder-only models: rebuilt from GGUF, read from folders."""

import functools
import io
import json
import pathlib

import gguf
import pytest
import sentencepiece
import tokenizers
from tokenizers import normalizers, pre_tokenizers, processors

from specjax.checkpoints import chat
from specjax.checkpoints import gguf_file
from specjax.checkpoints import gguf_tokenizer
from specjax.checkpoints import text_tokenizer
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.errors import UserError
from tests import gguf_files
from tests import varied

TEXTS = varied.strings()
# As the models' own tokenizer.json have them.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def words(digits):
  return pre_tokenizers.Sequence([
      pre_tokenizers.Split(tokenizers.Regex(_WORDS % digits), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
  ])


def digits_apart():
  return pre_tokenizers.Sequence([
      pre_tokenizers.Digits(individual_digits=True),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
  ])


SPLITS = {
    "gpt-2": lambda: None,
    "default": lambda: None,
    "smollm": digits_apart,
    "qwen2": lambda: words(""),
    "llama-bpe": lambda: words("{1,3}"),
}


def build(path, write, **fields):
  """The tokenizer of a file with only that in it."""
  writer = gguf.GGUFWriter(path, "llama")
  write(writer)
  for name, value in fields.items():
    getattr(writer, name)(value)
  gguf_files.close(writer)
  get, _ = gguf_file.read(path)
  return gguf_tokenizer.build(get, (2,))


@functools.cache
def original(pre):
  """A trained tokenizer that splits as models of that kind do."""
  model = gguf_files.byte_level(SPLITS[pre]())
  if pre == "qwen2":
    model.normalizer = normalizers.NFC()
  return model


@pytest.mark.parametrize("pre", SPLITS)
def test_byte_level(tmp_path, pre):
  """The rebuilt one gives the same ids, and its ids the same text."""
  model = original(pre)
  made = build(
      tmp_path / "t.gguf",
      lambda writer: gguf_files.add_byte_level(writer, model, pre),
      add_add_bos_token=False,
  )
  rows = made.prompts(TEXTS, most=10**6, chat=False)
  assert made.size == 400
  for text, row in zip(TEXTS, rows):
    ids = model.encode(text).ids
    assert row == ids, repr(text)
    assert made.decode(ids, skip_special=False) == model.decode(
        ids, skip_special_tokens=False
    )


def test_the_ways_to_split_differ():
  """Else the test above would show nothing."""
  ids = {tuple(tuple(original(pre).encode(text).ids) for text in TEXTS)
         for pre in SPLITS}
  assert len(ids) == len(SPLITS) - 1


def sentencepiece_model(prefix=True):
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(gguf_files.TEXTS * 5),
      model_writer=model,
      model_type="bpe",
      vocab_size=500,
      hard_vocab_limit=False,
      byte_fallback=True,
      normalization_rule_name="identity",
      remove_extra_whitespaces=False,
      add_dummy_prefix=prefix,
      unk_id=0,
      bos_id=1,
      eos_id=2,
      minloglevel=2,
  )
  return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def add_sentencepiece(writer, model, prefix=True):
  """Metadata of a SentencePiece model, as Llama 2's converter writes it."""
  count = model.get_piece_size()
  kinds = [
      2 if model.is_unknown(i)
      else 3 if model.is_control(i)
      else 6 if model.is_byte(i)
      else 1
      for i in range(count)
  ]
  writer.add_tokenizer_model("llama")
  writer.add_token_list([model.id_to_piece(i) for i in range(count)])
  writer.add_token_scores([model.get_score(i) for i in range(count)])
  writer.add_token_types(kinds)
  writer.add_bos_token_id(1)
  writer.add_eos_token_id(2)
  writer.add_unk_token_id(0)
  writer.add_add_space_prefix(prefix)


@pytest.mark.parametrize("prefix", (True, False))
def test_sentencepiece(tmp_path, prefix):
  """Ids of sentencepiece itself, bytes of unknown characters included."""
  model = sentencepiece_model(prefix)
  made = build(
      tmp_path / "t.gguf", lambda w: add_sentencepiece(w, model, prefix)
  )
  # sentencepiece drops NUL.
  texts = [text for text in TEXTS if "\0" not in text]
  rows = made.prompts(texts, most=10**6)
  for text, row in zip(texts, rows):
    assert row == [1] + model.encode(text), repr(text)
    assert made.decode(row) == model.decode(row)
  assert made.start_id == 1 and made.eos_id == 2
  assert made.shown[model.piece_to_id("<0x0A>")] == "\u23ce"


def test_merges_in_the_order_of_scores():
  pieces = ["a", "b", "ab", "aba", "ba", "abab", "z"]
  scores = [0.0, 0.0, -1.0, -3.0, -2.0, -4.0, -9.0]
  assert gguf_tokenizer.merges_of(pieces, scores) == [
      ("a", "b"),
      ("b", "a"),
      ("ab", "a"),
      ("a", "ba"),
      ("aba", "b"),
      ("ab", "ab"),
  ]


def test_begins_where_the_file_says(tmp_path):
  """Llama 3 and SentencePiece begin with a token of their own by default."""
  add = lambda pre: lambda w: gguf_files.add_byte_level(w, original(pre), pre)
  path = tmp_path / "t.gguf"
  prompt = lambda made: made.prompts(["dog"], most=9)[0]
  plain = original("gpt-2").encode("dog").ids
  assert prompt(build(path, add("gpt-2"))) == plain
  made = build(path, add("gpt-2"), add_add_bos_token=True)
  assert prompt(made) == [0] + plain and made.start_id == 0
  llama3 = original("llama-bpe").encode("dog").ids
  assert prompt(build(path, add("llama-bpe"))) == [0] + llama3
  made = build(path, add("llama-bpe"), add_add_bos_token=False)
  assert prompt(made) == llama3


@pytest.fixture(name="made")
def fixture_made(tmp_path):
  return build(
      tmp_path / "t.gguf",
      lambda w: gguf_files.add_byte_level(w, original("gpt-2"), "gpt-2"),
      add_chat_template=gguf_files.TEMPLATE,
  )


def test_chat(made):
  """Templates are the default where there are some; tokens are single ids."""
  [row] = made.prompts(["The dog."], most=99)
  text = "<|im_start|>user\nThe dog.<|im_end|>\n<|im_start|>assistant\n"
  assert made.decode(row, skip_special=False) == text
  assert [i for i in row if i < 3] == [1, 2, 1]
  assert made.prompts(["The dog."], most=99, chat=True) == [row]
  [plain] = made.prompts(["The dog."], most=99, chat=False)
  assert made.decode(plain) == "The dog."


def test_long_texts_are_cut_inside_their_template(made):
  text = "The quick brown fox jumps over the lazy dog, 日本語。 " * 9
  [whole] = made.prompts([text], most=10**6)
  [alone] = made.prompts(["x"], most=10**6)
  for most in (len(whole) - 1, 60, len(alone) + 2):
    [row] = made.prompts([text], most=most)
    assert len(alone) < len(row) <= most
    shown = made.decode(row, skip_special=False)
    kept = shown.removeprefix("<|im_start|>user\n").removesuffix(
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    assert text.startswith(kept.rstrip("\ufffd")) and len(kept) > 1
  [row] = made.prompts([text], most=7, chat=False)
  assert len(row) == 7 and text.startswith(made.decode(row))
  with pytest.raises(UserError, match="max_source_tokens: give more than the"):
    made.prompts([text], most=len(alone) - 3)


def test_conversations(made):
  """Turns of both sides, and the head of the next answer."""
  turns = [
      chat.message("user", "The dog."),
      chat.message("assistant", "It barks."),
      chat.message("user", "Why?"),
  ]
  [row] = made.prompts([turns], most=99)
  whole = (
      "<|im_start|>user\nThe dog.<|im_end|>\n<|im_start|>assistant\nIt barks."
      "<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
  )
  assert made.decode(row, skip_special=False) == whole
  # The longest message gives way.
  turns[1] = chat.message("assistant", "It barks at the quick brown fox.")
  [long] = made.prompts([turns], most=99)
  [cut] = made.prompts([turns], most=len(row))
  assert len(row) - 2 < len(cut) <= len(row) < len(long)
  shown = made.decode(cut, skip_special=False)
  assert "user\nThe dog.<|im_end|>" in shown and "user\nWhy?<|im_" in shown
  assert "assistant\nIt barks" in shown and "fox" not in shown
  with pytest.raises(UserError, match="max_source_tokens: give more than the"):
    made.prompts([turns], most=9)
  [plain] = made.prompts([turns], most=99, chat=False)
  assert made.decode(plain) == "\n\n".join(x["content"] for x in turns)


def test_outputs(made):
  """For counting: nothing in front, an EOS at the end."""
  rows = made.encode_batch(["The dog.", ""])
  assert rows[1] == [2] and rows[0][-1] == 2
  assert made.decode(rows[0]) == "The dog."
  assert made.decode(rows[0] + [999, 1], skip_special=False) == (
      "The dog.<|im_end|><|im_start|>"
  )
  assert made.encode("The dog.") == rows[0]


def test_pieces_for_people(made):
  shown = [made.shown[i] for i in made.encode("The dog,\n twice")]
  assert "\u2581dog" in shown and "\u23ce" in "".join(shown)
  assert shown[-1] == "<|im_end|>"


def test_another_vocabulary_is_told(made, tmp_path):
  other = gguf_files.byte_level(size=399)
  other = text_tokenizer.TextTokenizer(other, (2,))
  with pytest.raises(UserError, match="400 ids against 399"):
    tokenizer_lib.check_same(made, other)
  again = text_tokenizer.TextTokenizer(original("gpt-2"), (2,))
  tokenizer_lib.check_same(made, again)


def with_list(name, values):
  def change(writer):
    gguf_files.add_byte_level(writer, original("gpt-2"), "gpt-2")
    key = f"tokenizer.ggml.{name}"
    for shard in writer.kv_data:
      shard.pop(key, None)
    if values is not None:
      writer.add_array(key, values)

  return change


@pytest.mark.parametrize(
    "write, part",
    (
        (lambda w: None, "tokenizer.ggml.model is missing; it must be one of"),
        (lambda w: w.add_tokenizer_model("bert"), "is 'bert'; it must be one"),
        (
            lambda w: gguf_files.add_byte_level(w, original("gpt-2"), "tekken"),
            "tokenizer.ggml.pre is 'tekken'; it must be one of default, gpt-2",
        ),
        (with_list("tokens", None), "tokens must be a list of str"),
        (with_list("tokens", [1, 2]), "tokens must be a list of str"),
        (with_list("tokens", ["a", "b", "a"]), "lists a token twice"),
        (with_list("tokens", ["a", "b"]), "its tokenizer is faulty ("),
        (with_list("merges", None), "merges must be a list of str"),
        (with_list("merges", ["ab"]), "merges must list pairs"),
        (with_list("merges", ["no where"]), "its tokenizer is faulty ("),
        (with_list("token_type", [1, 1]), "a list of int, 400 of them"),
    ),
)
def test_faulty_tokenizers(tmp_path, write, part):
  with pytest.raises(UserError) as caught:
    build(tmp_path / "t.gguf", write)
  line = str(caught.value)
  assert part in line and "\n" not in line and len(line) < 400
  assert line.startswith(str(tmp_path))


def test_absurd_pieces(tmp_path):
  model = sentencepiece_model()

  def write(writer):
    add_sentencepiece(writer, model)
    for shard in writer.kv_data:
      tokens = shard["tokenizer.ggml.tokens"].value
      tokens[300] = "x" * 5000

  with pytest.raises(UserError, match=r"faulty \(token 300 has 5000 char"):
    build(tmp_path / "t.gguf", write)


# --- folders ----------------------------------------------------------------


@pytest.fixture(name="folder")
def fixture_folder(tmp_path):
  original("gpt-2").save(str(tmp_path / "tokenizer.json"))
  return tmp_path


def test_folders(folder):
  made = text_tokenizer.load(folder, (2,))
  assert made.template is None
  with pytest.raises(UserError, match="^chat: the model has no chat template"):
    made.prompts(["a"], most=9, chat=True)
  assert made.prompts(["dog"], most=9) == [original("gpt-2").encode("dog").ids]


@pytest.mark.parametrize("form", ("string", "list", "file"))
def test_templates_of_folders(folder, form):
  """With special tokens by their names, which may be objects."""
  source = "{{ bos_token }}{{ messages[0].content | trim }}{{ eos_token }}"
  fields = {
      "bos_token": "<|endoftext|>",
      "eos_token": {"content": "<|im_end|>", "special": True},
      "pad_token": None,
      "chat_template": source,
  }
  if form == "list":
    named = {"tool_use": "x", "default": source}
    fields["chat_template"] = [
        {"name": name, "template": text} for name, text in named.items()
    ]
  if form == "file":
    fields["chat_template"] = "not this one"
    (folder / "chat_template.jinja").write_text(source)
  (folder / "tokenizer_config.json").write_text(json.dumps(fields))
  made = text_tokenizer.load(folder, (2,))
  [row] = made.prompts(["  dog "], most=99)
  text = "<|endoftext|>dog<|im_end|>"
  assert made.decode(row, skip_special=False) == text


@pytest.mark.parametrize(
    "source, reason",
    (
        ("{{ messages[0].content.name.more }}", "has no attribute"),
        ("{% for %}", "Expected an expression"),
        ("{{ raise_exception('only\nsystem turns') }}", "only system turns"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "is unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ '\\ud800' }}", "surrogates not allowed"),
        ("{{ raise_exception('x' * 9999) }}", "xxx ..."),
    ),
)
def test_templates_of_strangers(folder, source, reason):
  """They run in a sandbox; what goes wrong in them is one line."""
  (folder / "chat_template.jinja").write_text(source)
  made = text_tokenizer.load(folder, (2,))
  with pytest.raises(UserError) as caught:
    made.prompts(["a"], most=9)
  line = str(caught.value)
  assert reason in line and "\n" not in line
  assert "chat_template.jinja: the chat template fails" in line


def test_tokenizers_that_end_a_text_themselves():
  """As BERT's: a prompt has its beginning, and no end."""
  model = gguf_files.byte_level()
  model.post_processor = processors.TemplateProcessing(
      single="<|im_start|> $A <|im_end|>",
      special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)],
  )
  made = text_tokenizer.TextTokenizer(model, (2,))
  [row] = made.prompts(["dog"], most=9)
  assert row == [1] + original("gpt-2").encode("dog").ids
  assert made.start_id == 1
  # One that the text itself has stays.
  assert made.prompts(["dog<|im_end|>"], most=9) == [row + [2]]


def test_faulty_folders(folder):
  (folder / "tokenizer_config.json").write_text("[]")
  with pytest.raises(UserError, match="must hold a JSON object"):
    text_tokenizer.load(folder, (2,))
  (folder / "tokenizer.json").write_text("{}")
  with pytest.raises(UserError, match="tokenizer.json is no tokenizer"):
    text_tokenizer.load(folder, (2,))


def edit_tokenizer(folder, change):
  path = folder / "tokenizer.json"
  fields = json.loads(path.read_text())
  change(fields)
  path.write_text(json.dumps(fields))


def test_ids_that_no_model_has(folder):
  """A list of all of them would be built."""
  edit_tokenizer(folder, lambda x: x["model"]["vocab"].update(odd=2**32 - 1))
  with pytest.raises(UserError, match=r"is no tokenizer \(it has an id 42949"):
    text_tokenizer.load(folder, (2,))


def test_texts_that_begin_with_no_token(folder):
  model = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
  model.post_processor = processors.TemplateProcessing(
      single="<s> $A", special_tokens=[("<s>", 99_999)]
  )
  model.save(str(folder / "tokenizer.json"))
  with pytest.raises(UserError, match=r"texts begin with \[99999\]"):
    text_tokenizer.load(folder, (2,))


@pytest.mark.parametrize(
    "template",
    ([{"name": [], "template": "x"}], [{"name": {}}, 3, None], [], {}, 3),
)
def test_templates_of_odd_forms(folder, template):
  text = json.dumps({"chat_template": template})
  (folder / "tokenizer_config.json").write_text(text)
  assert text_tokenizer.load(folder, (2,)).template is None


def test_a_file_that_may_not_be_read(folder, monkeypatch):
  def refused(path):
    raise PermissionError(13, "Permission denied", path)

  monkeypatch.setattr(pathlib.Path, "read_bytes", refused)
  with pytest.raises(UserError, match=r"json cannot be read \(Permission den"):
    text_tokenizer.load(folder, (2,))
