"""Trains the mini family's SentencePiece vocabulary.

    python -m specjax.data.vocabulary --corpus DIR

One unigram model for both languages and both tasks, with T5's conventions: pad
0, end of sequence 1, unknown 2, no beginning of sequence, nmt_nfkc. T5's 100
extra ids aren't pieces; the tokenizer counts them from the vocabulary's end.
"""

import argparse
import io
import json
import pathlib
from typing import Iterator

from specjax import writing
from specjax.data import corpus

SIZE = 8000
# Rare in the texts, so coverage would drop them, but plain in both languages.
REQUIRED = (
    "".join(map(chr, range(33, 127))) + "ÄÖÜäöüßéèàáí„“”‚‘’«»–—€°×·"
)


def train_texts(folder: pathlib.Path) -> Iterator[str]:
  """Yields every source and reference text of the train splits, in order."""
  for task in corpus.TASKS:
    path = corpus.split_file(folder, task, "train")
    with open(path, encoding="utf-8") as lines:
      for line in lines:
        row = json.loads(line)
        yield row["source"]
        yield row["reference"]


def train(texts: Iterator[str], size: int = SIZE) -> bytes:
  """Returns a serialised unigram model of `size` pieces, T5's ids in front.

  Args:
    texts: lines of text; the same lines in the same order give the same bytes.
    size: number of pieces, the three control ids included.

  Returns:
    The bytes of a spiece.model (Kudo and Richardson, 2018).
  """
  import sentencepiece

  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(texts),
      model_writer=model,
      model_type="unigram",
      vocab_size=size,
      pad_id=0,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
      pad_piece="<pad>",
      eos_piece="</s>",
      unk_piece="<unk>",
      character_coverage=0.9995,
      required_chars=REQUIRED,
      normalization_rule_name="nmt_nfkc",
      split_digits=True,
      byte_fallback=False,
      max_sentence_length=1 << 14,
      # Sums of floats depend on how lines fall to threads: the number is fixed.
      num_threads=2,
      shuffle_input_sentence=False,
      minloglevel=2,
  )
  return model.getvalue()


def build(folder: pathlib.Path, size: int = SIZE) -> pathlib.Path:
  """Trains the vocabulary of a corpus, if not there; returns spiece.model."""
  path = pathlib.Path(folder) / "spiece.model"
  if not path.exists():
    writing.write(path, train(train_texts(folder), size))
  return path


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--corpus", type=pathlib.Path, required=True)
  print(build(parser.parse_args().corpus))


if __name__ == "__main__":
  main()
