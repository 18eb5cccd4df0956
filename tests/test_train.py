"""The door to training: what it refuses, in one line."""

import pytest

from specjax import train


_SMALL = "--config=configs/train_mini.py:small"


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "give --config"),
        (["--config=none.py"], "none.py is no file"),
        (["--config=configs/ende_t5small.py:mini"], "names no models"),
        ([_SMALL, "--config.held_out_rows=-3"], "held_out_rows"),
        ([_SMALL, "--config.teacher_temperatures=(-1.0,)"], "temperature"),
        ([_SMALL, "--config.teacher=/nowhere/none"], "/nowhere/none"),
        (["--config=configs/train_mini.py:huge"], "no model 'huge'"),
        (["--config=configs/train_mini.py", "--config.stepz=3"], "stepz"),
        (["--config=configs/train_mini.py", "--config.warmup=a"], "warmup=a"),
        (["--config=configs/train_mini.py", "extra"], "extra"),
        ([_SMALL, "--config.source_lengths=(8,'x')"], "source_lengths"),
        ([_SMALL, "--config.target_lengths=(8,8)"], "target_lengths"),
        ([_SMALL, "--config.matrix_rate=0.0"], "matrix_rate"),
        ([_SMALL, "--config.decay=1.5"], "decay"),
        ([_SMALL, "--config.checkpoint_every=0"], "checkpoint_every"),
        ([_SMALL, "--config.seed=-1"], "seed"),
        ([_SMALL, "--config.divergence=kl"], "divergence"),
        ([_SMALL, "--config.models.small.steps=0"], "models.small.steps"),
    ],
)
def test_bad_arguments_are_one_line(arguments, words, capsys):
  assert train.main(["train", *arguments]) == 1
  line = capsys.readouterr().err
  assert words in line and line.startswith("specjax.train: ")
  assert line.count("\n") == 1


def test_interrupt_says_how_to_go_on(monkeypatch, capsys):
  def interrupted(_):
    raise KeyboardInterrupt

  monkeypatch.setattr(train, "train", interrupted)
  assert train.main(["train", "--config=configs/train_mini.py"]) == 130
  assert "newest checkpoint" in capsys.readouterr().err
