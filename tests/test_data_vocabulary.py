"""The vocabulary, trained on a few made-up lines."""

import json
import random

import sentencepiece as spm

from specjax import writing
from specjax.data import corpus
from specjax.data import vocabulary


def test_vocabulary_follows_t5_and_is_the_same_twice(tmp_path):
  rng = random.Random(0)
  letters = "abcdefghijklmnopqrstuvwxyz"
  words = ["".join(rng.choices(letters, k=6)) for _ in range(300)]
  text = lambda: " ".join(rng.choices(words, k=10))
  for task in corpus.TASKS:
    path = corpus.split_file(tmp_path, task, "train")
    rows = ({"source": text(), "reference": text()} for _ in range(200))
    writing.write(path, "".join(json.dumps(row) + "\n" for row in rows))
  path = vocabulary.build(tmp_path, size=300)
  model = spm.SentencePieceProcessor(model_file=str(path))
  assert model.get_piece_size() == 300
  assert [model.id_to_piece(i) for i in range(3)] == ["<pad>", "</s>", "<unk>"]
  assert (model.pad_id(), model.eos_id(), model.unk_id()) == (0, 1, 2)
  assert model.bos_id() == -1
  # Capital umlauts are rare enough to fall out of the coverage.
  text = "Öffnen Sie Ähnliches: 100 % {x} – „Übung“"
  assert model.decode(model.encode(text)) == text
  first = path.read_bytes()
  assert vocabulary.train(vocabulary.train_texts(tmp_path), 300) == first


def complaint(capsys, *arguments) -> str:
  """The one line of a command that fails."""
  assert vocabulary.main(["vocabulary", *map(str, arguments)]) == 1
  [line] = capsys.readouterr().err.splitlines()
  assert line.startswith("specjax.data.vocabulary: ")
  return line


def test_what_is_no_corpus_is_one_line(tmp_path, capsys):
  line = complaint(capsys, "--corpus", tmp_path / "nowhere")
  assert "ende.train.jsonl is missing; python -m specjax.data.corpus" in line
  path = corpus.split_file(tmp_path, "ende", "train")
  path.write_text("{")
  corpus.split_file(tmp_path, "summ", "train").touch()
  line = complaint(capsys, "--corpus", tmp_path)
  assert f"{path}, line 1 is not JSON" in line
  path.write_text('{"source": "a b", "reference": "c"}\n')
  line = complaint(capsys, "--corpus", tmp_path)
  assert "no vocabulary of 8000 pieces" in line
  assert [p.name for p in tmp_path.glob("*spiece*")] == []
  assert "--corpus: give a value" in complaint(capsys, "--corpus")


def test_the_command_keeps_what_is_there(tmp_path, capsys):
  path = tmp_path / "spiece.model"
  path.write_bytes(b"pieces")
  assert vocabulary.main(["vocabulary", "--corpus", str(tmp_path)]) == 0
  assert capsys.readouterr().out == f"{path}\n"
  assert path.read_bytes() == b"pieces"
