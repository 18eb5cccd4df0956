"""The door to training: what it refuses, in one line."""

import dataclasses
import json
import runpy

import jax
import pytest

from specjax import checkpoints
from specjax import errors
from specjax import train
from specjax.training import log as log_lib
from specjax.training import texts
from tests import tiny


_SMALL = "--config=configs/train_mini.py:small"


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "give --config"),
        (["--config=none.py"], "none.py is no file"),
        (["--config=configs/ende_t5small.py:mini"], "names no models"),
        ([_SMALL, "--config.held_out_rows=-3"], "held_out_rows"),
        ([_SMALL, "--config.teacher_temperatures=(-1.0,)"], "temperature"),
        ([_SMALL, "--config.teacher_rows=-1"], "teacher_rows"),
        ([_SMALL, "--config.teacher=/nowhere/none"], "/nowhere/none"),
        (
            [_SMALL, "--config.models.small.start=/nowhere/none"],
            "models.small.start",
        ),
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
        ([_SMALL, "--config.hosts.count=2"], "hosts.coordinator: give the fi"),
        ([_SMALL, "--config.hosts.index=1"], "hosts.index: give a number from"),
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


_FAMILY = """
import runpy
def get_config():
  config = runpy.run_path("configs/train_mini.py")["get_config"]()
  for name in set(config.models) - {"target", "small_distilled"}:
    del config.models[name]
  for name, entry in config.models.items():
    entry.update(d_model=16, d_kv=8, num_heads=2, d_ff=16)
    entry.update(encoder=1, decoder=1, steps=2)
  config.models.target.start = ""
  config.models.small_distilled.start = "target"
  config.update(warmup=1, micro_batches=1, cost=400, held_out_rows=4)
  for section in (config, config.models.target):
    section.update(source_lengths=(32,), target_lengths=(16,))
  config.quality_rows = 2
  config.update(teacher_temperatures=(0.0,), teacher_rows=30)
  config.divergence_weight = 0.9
  return config
"""


def test_the_order_of_a_family(monkeypatch):
  """Each behind what it begins with, and behind its teacher."""
  made = runpy.run_path("configs/train_mini.py")["get_config"]()
  order = []
  monkeypatch.setattr(train.Material, "build", lambda config: None)
  monkeypatch.setattr(
      train, "train_one", lambda config, name, *_: order.append(name)
  )
  before = jax.config.jax_compilation_cache_dir
  try:
    train._train_family(made, None)
  finally:
    jax.config.update("jax_compilation_cache_dir", before)
  assert set(order) == set(made.models)
  for name, entry in made.models.items():
    if entry.start in order:
      assert order.index(entry.start) < order.index(name)
    if entry.distilled:
      assert order.index("target") < order.index(name)
  # A second sitting reads the texts in another order.
  seeds = [train.train_config(made, name).seed for name in order[:4]]
  assert train.train_config(made, "target").seed == 1
  assert seeds.count(0) >= 3


def test_a_target_and_its_distilled_draft(tmp_path, capsys):
  """All that the door does, on a made-up corpus; done again, it is a no-op."""
  tiny.write_corpus(tmp_path / "corpus", rows=20)
  (tmp_path / "family.py").write_text(_FAMILY)
  arguments = [
      "train",
      f"--config={tmp_path / 'family.py'}",
      f"--config.corpus={tmp_path / 'corpus'}",
      f"--config.out={tmp_path / 'out'}",
  ]
  before = jax.config.jax_compilation_cache_dir
  try:
    for _ in range(2):
      assert train.main(arguments) == 0, capsys.readouterr().err
  finally:
    jax.config.update("jax_compilation_cache_dir", before)
  assert "small_distilled: mini_ende bleu" in capsys.readouterr().out
  for name in ("target", "small_distilled"):
    folder = tmp_path / "out" / name
    made = checkpoints.load(str(folder / "hf"))
    assert made.module.config.tied and made.module.config.d_model == 16
    assert (folder / "curves.png").stat().st_size > 1000
    scores = json.loads((folder / "quality.json").read_text())
    assert scores["mini_ende"]["metric"] == "bleu"
    assert len(scores["mini_summ"]["outputs"]) == 2
    assert [e["step"] for e in log_lib.read(folder / "log.jsonl")] == [1, 2]
  written = (tmp_path / "out" / "texts").rglob("*.jsonl")
  lines = [line for path in written for line in path.read_text().split("\n")]
  assert len(list(filter(None, lines))) == 30
  last = log_lib.read(folder / "log.jsonl")[-1]
  assert 0 < last["held_out_ende_overlap"] <= 1
  # It began with the target's weights: random ones have log(8128) = 9.0.
  assert log_lib.read(folder / "log.jsonl")[0]["cross_entropy"] < 7
  # Other outputs of the teacher are other data, and so are references.
  for other in ("(1.0,)", "()"):
    option = f"--config.teacher_temperatures={other}"
    assert train.main([*arguments, option]) == 1
    assert "made with data" in capsys.readouterr().err


@pytest.mark.slow
def test_a_teachers_texts_are_kept_apart_by_what_made_them(tmp_path):
  teacher = checkpoints.load("mini/small")
  writing = texts.Writing(0.0, max_new_tokens=4, max_source_tokens=32, batch=2)
  first = ["summarize: a fast editor", "summarize: verify"]
  run = lambda sources, writing: texts.written(
      teacher, sources, writing, tmp_path
  )
  made = run(first, writing)
  assert run(first, writing) == made
  assert all(0 < len(row) <= 4 for row in made)
  [other] = run(["summarize: tools that draft"], writing)
  assert other != made[0]
  longer = run(first, dataclasses.replace(writing, max_new_tokens=6))
  assert [row[:4] for row in longer] == made and longer != made


@pytest.mark.parametrize(
    "line",
    (
        '{"row": 9, "tokens": [3]}',
        '{"row": 0, "tokens": [500]}',
        '{"row": 0, "tokens": []}',
        '{"row": 0, "tokens": [1.5]}',
        '{"row": 0}',
        '{"row": 0, "tok',
        '3',
        "[" * 99_999,
    ),
    ids=lambda line: line[:20],
)
def test_damaged_texts_of_a_teacher_are_told(tmp_path, line):
  path = tmp_path / "0.jsonl"
  path.write_text('{"row": 2, "tokens": [3, 4]}\n')
  assert texts._read(path, 9, 500) == {2: [3, 4]}
  path.write_text('{"row": 2, "tokens": [3, 4]}\n' + line)
  with pytest.raises(errors.UserError, match="0.jsonl is damaged .*; delete"):
    texts._read(path, 9, 500)
