"""BLEU, ROUGE, and the search for evaluation texts among training texts."""

import pytest

from specjax.data import metrics
from specjax.errors import UserError

REFERENCES = [
    "Das Programm spielt Schach gegen den Benutzer.",
    "Öffnet die Datei und zeigt ihren Inhalt an.",
]


def test_bleu():
  assert metrics.bleu(REFERENCES, REFERENCES) == pytest.approx(100)
  other = ["Die Katze schläft heute.", "Ein Haus steht am Fluss."]
  assert metrics.bleu(other, REFERENCES) < 10
  half = [REFERENCES[0], other[1]]
  assert 10 < metrics.bleu(half, REFERENCES) < 80


def test_rouge_of_a_known_pair():
  scores = metrics.rouge(["the cat sat"], ["the cat ran off"])
  # Two common words of 3 and 4, one common pair of 2 and 3.
  assert scores["rouge1"] == pytest.approx(100 * 4 / 7)
  assert scores["rouge2"] == pytest.approx(100 * 2 / 5)
  assert set(scores) == {"rouge1", "rouge2", "rougeLsum"}


def test_rouge_lsum_does_not_care_for_the_order_of_sentences():
  hypothesis = "A dog ran off. The cat sat down."
  for gap in " \n":
    reference = f"The cat sat down.{gap}A dog ran off."
    score = metrics.rouge([hypothesis], [reference])
    assert score["rougeLsum"] == pytest.approx(100)


@pytest.mark.parametrize("metric", [metrics.bleu, metrics.rouge])
def test_unequal_numbers_of_texts_are_refused(metric):
  with pytest.raises(ValueError, match="1 and 2 texts"):
    metric(["a"], ["a", "b"])
  with pytest.raises(ValueError, match="0 and 0 texts"):
    metric([], [])


def test_leaked_evaluation_texts_are_reported():
  """z-lab/dflash#43: draft training data held benchmark items."""
  evaluation = {f"q{i}": f"Question number {i}: what is it?" for i in range(10)}
  train = [
      "Something else.",
      evaluation["q3"],
      " QUESTION number\t7:  what is\nit? ",
      evaluation["q5"] + " And more.",
  ]
  assert metrics.overlap(train, evaluation) == ["q3", "q7"]
  assert metrics.overlap(train, list(evaluation.values())) == [3, 7]
  with pytest.raises(UserError, match=r"2/10 evaluation .*\(q3, q7\)"):
    metrics.refuse_overlap(train, evaluation)
  assert metrics.refuse_overlap(train, evaluation, allow=True) == ["q3", "q7"]
  assert metrics.refuse_overlap(train[:1], evaluation) == []
