"""What a person sees of one decoding, round by round."""

import io

import pytest

from specjax import outputs
from specjax.measure import show

PIECES = ["<pad>", "</s>", "<unk>", "▁a", "b", "▁c", "\x1b[2J"]
ROUND = outputs.Round((3, 4, 5), (0, 1, 2), 2, 3, (), (), ())


class Terminal(io.StringIO):

  def isatty(self):
    return True


def test_marks():
  assert show.line(ROUND, PIECES, False) == " ab[- c-]{+ a+}"


def test_colours():
  """Green, red and blue."""
  text = show.line(ROUND, PIECES, True)
  assert text == (
      "\x1b[32m a\x1b[0m\x1b[32mb\x1b[0m\x1b[31m c\x1b[0m\x1b[34m a\x1b[0m"
  )


def test_cut_round():
  """The cut may leave out the extra token; ids may lie past the tokenizer."""
  cut = outputs.Round((3, 9), (0, 1), 2, None, (), (), ())
  assert show.line(cut, PIECES, False) == " a<9>"


def test_pieces_do_not_steer_the_terminal():
  round_ = outputs.Round((6,), (0,), 1, 1, (), (), ())
  assert show.line(round_, PIECES, False) == "?[2J{+</s>+}"


def test_when_to_colour(monkeypatch):
  monkeypatch.delenv("NO_COLOR", raising=False)
  assert show.wants_colour(Terminal())
  assert not show.wants_colour(io.StringIO())
  monkeypatch.setenv("NO_COLOR", "1")
  assert not show.wants_colour(Terminal())


@pytest.mark.parametrize("colour", (True, False))
def test_render(colour):
  result = outputs.Result(
      text="a b a a",
      tokens=(3, 4, 3, 3),
      finish="length",
      rounds=2,
      empty=0,
      drafted=6,
      judged=(2, 1, 1),
      accepted=(1, 1, 0),
      overlap=(),
      log_probs=None,
      law_log_probs=None,
      trace=(ROUND, outputs.Round((5,), (0,), 0, 3, (), (), ())),
  )
  text = show.render(result, PIECES, colour)
  assert text.count("\n") == 4
  for word in ("accepted", "rejected", "corrected or extra"):
    assert word in text
  assert "4 tokens in 2 rounds: 2.00 tokens per target pass" in text
  assert "2 of 4 judged drafts accepted" in text
  assert ("\x1b" in text) == colour
