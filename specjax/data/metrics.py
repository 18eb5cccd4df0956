"""How good outputs are (BLEU, ROUGE) and whether they were seen in training."""

import re
import unicodedata
from typing import Iterable, Mapping, Sequence

from specjax.errors import UserError


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
  """Returns corpus BLEU, 0 to 100, of one reference each.

  Args:
    hypotheses: detokenised outputs.
    references: detokenised references, in the same order.

  Raises:
    ValueError: no texts, or unequally many.

  Source: Post (2018), sacrebleu's default signature (13a, exp smoothing).
  """
  import sacrebleu

  _check(hypotheses, references)
  return sacrebleu.corpus_bleu(list(hypotheses), [list(references)]).score


def rouge(
    hypotheses: Sequence[str], references: Sequence[str]
) -> dict[str, float]:
  """Returns mean F1 of rouge1, rouge2 and rougeLsum, 0 to 100.

  rougeLsum compares sentence by sentence; where a text has no line breaks, they
  are put after its sentences' ends. No stemming, as T5 was evaluated.

  Args:
    hypotheses: outputs.
    references: references, in the same order.

  Raises:
    ValueError: no texts, or unequally many.

  Source: Lin (2004), by the package rouge-score.
  """
  from rouge_score import rouge_scorer

  _check(hypotheses, references)
  names = ["rouge1", "rouge2", "rougeLsum"]
  scorer = rouge_scorer.RougeScorer(names)
  scores = [
      scorer.score(_sentences(reference), _sentences(hypothesis))
      for hypothesis, reference in zip(hypotheses, references)
  ]
  count = len(scores)
  return {
      name: 100 * sum(score[name].fmeasure for score in scores) / count
      for name in names
  }


# What the scores of a task's metric are called.
NAMES = {"bleu": "bleu", "rouge": "rougeLsum"}


def score(
    metric: str, hypotheses: Sequence[str], references: Sequence[str]
) -> float:
  """The score, 0 to 100, that a task's metric ("bleu", "rouge") is told by."""
  if metric == "bleu":
    return bleu(hypotheses, references)
  return rouge(hypotheses, references)[NAMES[metric]]


def overlap(
    train_texts: Iterable[str], eval_texts: Mapping[str, str] | Iterable[str]
) -> list:
  """Returns the ids of evaluation texts that occur among the training texts.

  Texts are the same when they differ in case, spaces and Unicode form only.

  Args:
    train_texts: what a draft was trained on, or a store was filled with.
    eval_texts: {id: text}; of a plain list the places are the ids.
  """
  if not isinstance(eval_texts, Mapping):
    eval_texts = dict(enumerate(eval_texts))
  wanted = {name: normalised(text) for name, text in eval_texts.items()}
  searched = set(wanted.values())
  found = {
      text for text in map(normalised, train_texts) if text in searched
  }
  return [name for name, text in wanted.items() if text in found]


def refuse_overlap(
    train_texts: Iterable[str],
    eval_texts: Mapping[str, str] | Sequence[str],
    allow: bool = False,
) -> list:
  """Returns `overlap`'s ids; raises UserError if there are any, unless allowed.
  """
  ids = overlap(train_texts, eval_texts)
  if ids and not allow:
    shown = ", ".join(map(str, ids[:10])) + (", ..." if len(ids) > 10 else "")
    raise UserError(
        f"data: {len(ids)}/{len(eval_texts)} evaluation texts occur in the"
        f" training texts ({shown}); take them out, or allow the overlap"
    )
  return ids


def word_grams(text: str, n: int) -> set[tuple[str, ...]]:
  """Returns the n-grams of a text's words, in small letters, marks put aside.

  A shorter text is one n-gram of its own.
  """
  words = re.findall(r"\w+", normalised(text))
  return {tuple(words[i : i + n]) for i in range(max(1, len(words) - n + 1))}


def normalised(text: str) -> str:
  """Returns text case-folded, in one Unicode form, with single spaces."""
  return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _sentences(text: str) -> str:
  return text if "\n" in text else re.sub(r"(?<=[.!?])\s+", "\n", text)


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
  if len(hypotheses) != len(references) or not len(hypotheses):
    raise ValueError(
        f"hypotheses and references: {len(hypotheses)} and {len(references)}"
        " texts; equally many are needed, and at least one"
    )
