"""Trains the mini family's SentencePiece vocabulary.

    python -m specjax.data.vocabulary --corpus DIR

One unigram model for both languages and both tasks, with T5's conventions: pad
0, end of sequence 1, unknown 2, no beginning of sequence, nmt_nfkc. T5's 100
extra ids aren't pieces; the tokenizer counts them from the vocabulary's end.
"""

import io
import pathlib
import sys
from typing import Iterable, Sequence

from specjax import errors
from specjax import hub
from specjax import options
from specjax import writing
from specjax.data import corpus
from specjax.data import tasks

SIZE = 8000
# Rare in the texts, so coverage would drop them, but plain in both languages.
REQUIRED = (
    "".join(map(chr, range(33, 127))) + "ÄÖÜäöüßéèàáí„“”‚‘’«»–—€°×·"
)


def train_texts(folder: pathlib.Path) -> list[str]:
  """Every source and reference text of the train splits, in order.

  Raises:
    errors.UserError: a split is missing, or a line of it is no row.
  """
  texts = []
  for path in corpus.split_files(folder, corpus.TASKS, "train"):
    for row in tasks.read_jsonl(path):
      texts += [row.source, row.reference]
  return texts


def train(texts: Iterable[str], size: int = SIZE) -> bytes:
  """Returns a serialised unigram model of `size` pieces, T5's ids in front.

  Args:
    texts: lines of text; the same lines in the same order give the same bytes.
    size: number of pieces, the three control ids included.

  Returns:
    The bytes of a spiece.model (Kudo and Richardson, 2018).

  Raises:
    errors.UserError: the texts do not give so many pieces.
  """
  import sentencepiece

  model = io.BytesIO()
  try:
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
        # Sums of floats depend on how lines fall to threads: so many.
        num_threads=2,
        shuffle_input_sentence=False,
        minloglevel=2,
    )
  except RuntimeError as error:
    raise errors.UserError(
        f"corpus: makes no vocabulary of {size} pieces ({hub.reason(error)})"
    ) from None
  return model.getvalue()


def build(folder: pathlib.Path, size: int = SIZE) -> pathlib.Path:
  """Trains the vocabulary of a corpus, if not there; returns spiece.model.

  Raises:
    errors.UserError: the corpus is not whole or too small, or nothing can be
      written to its folder.
  """
  path = pathlib.Path(folder) / "spiece.model"
  with corpus.plain_errors():
    if not path.exists():
      writing.write(path, train(train_texts(folder), size))
  return path


def _parser() -> options.Parser:
  parser = options.Parser("specjax.data.vocabulary", __doc__)
  parser.add_argument("--corpus", type=pathlib.Path, required=True)
  return parser


def main(argv: Sequence[str]) -> int:
  """Trains a vocabulary and prints its path; returns the exit code."""
  work = lambda argv: print(build(_parser().read(argv).corpus))
  usage = _parser().format_help
  return options.door("specjax.data.vocabulary", usage, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
