"""Requests for a target to answer: of what, in which order, unlike what."""

import json

import pytest

from specjax import errors
from specjax.data import asks
from specjax.data import metrics
from tests import tiny


def write_rows(folder):
  """A corpus whose splits can be told apart, as data.corpus names its rows."""
  folder.mkdir()
  words = "reads writes shows sorts draws mails".split()
  for split in ("train", "dev"):
    for task, origin in (("summ", "debian"), ("ende", "libreoffice")):
      rows = [
          {
              "id": f"{origin}/{split}{i}/0",
              "source": f"The tool {split}{i} {words[i]} many files at once.",
              "reference": f"tool that {words[i]}",
          }
          for i in range(6)
      ]
      lines = "".join(json.dumps(row) + "\n" for row in rows)
      (folder / f"{task}.{split}.jsonl").write_text(lines, encoding="utf-8")
  return folder


def test_kinds_by_turns_always_alike(tmp_path):
  folder = write_rows(tmp_path / "corpus")
  made, overlap = asks.choose(asks.chat(folder, "train", 0), 24)
  again, _ = asks.choose(asks.chat(folder, "train", 0), 24)
  other, _ = asks.choose(asks.chat(folder, "train", 1), 24)
  assert made == again != other
  assert set(asks.counts(made).values()) == {4}
  assert set(asks.counts(made)) == {
      "summary", "translation", "explanation", "code", "question", "writing",
  }
  assert len({ask.text for ask in made}) == 24 and not overlap.dropped


def test_splits_share_nothing(tmp_path):
  folder = write_rows(tmp_path / "corpus")
  of = lambda split: asks.choose(asks.chat(folder, split, 0), 200)[0]
  train, dev = of("train"), of("dev")
  assert not any("dev" in ask.text for ask in train if ask.kind != "code")
  assert not any("train" in ask.text for ask in dev if ask.kind != "code")
  modules = lambda made: {
      ask.id.split("/")[-1].rpartition(".")[0]
      for ask in made
      if ask.kind == "code"
  }
  assert modules(train) and modules(dev)
  assert not modules(train) & modules(dev)


def test_what_is_like_an_evaluation_prompt_is_left_out(tmp_path):
  folder = write_rows(tmp_path / "corpus")
  judged = tmp_path / "question.jsonl"
  turns = ["Hello.", "The tool  TRAIN2 shows many files at once, doesn't it?"]
  judged.write_text(json.dumps({"turns": turns}) + "\n", encoding="utf-8")
  known = asks.evaluation_texts(str(judged))
  assert known == turns
  stream = list(asks.prefixed(folder, "train", 0))
  made, overlap = asks.choose(stream, 20, known)
  assert len(overlap.dropped) == 2 and len(made) == len(stream) - 2
  assert not any("train2" in ask.text for ask in made)
  assert str(overlap) == (
      "2 of 12 requests share 8 words in a row with one of 2 evaluation"
      " prompts, and are left out"
  )
  # Fewer words in a row are no overlap.
  fewer = ["the tool train2 shows many files"]
  assert not asks.choose(stream, 20, fewer)[1].dropped
  assert asks.evaluation_texts("") == []
  with pytest.raises(errors.UserError, match="none.jsonl"):
    asks.evaluation_texts("none.jsonl")


def test_a_t5_is_asked_what_it_was_trained_to_do(tmp_path):
  folder = tiny.write_corpus(tmp_path / "corpus", rows=5)
  made, _ = asks.choose(asks.prefixed(folder, "train", 0), 8)
  assert asks.counts(made) == {"ende": 4, "summ": 4}
  prefixes = ("translate English to German: ", "summarize: ")
  assert all(ask.text.startswith(prefixes) for ask in made)


def test_words_in_a_row():
  grams = metrics.word_grams("One, two: THREE four", 3)
  assert grams == {("one", "two", "three"), ("two", "three", "four")}
  assert metrics.word_grams("One two", 3) == {("one", "two")}
