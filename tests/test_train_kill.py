"""Training through its door, killed at random moments (slow)."""

import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from specjax.training import log as log_lib
from tests import tiny

KILLS = 10
STEPS = 60
_OPTIONS = {
    "models.small.steps": STEPS,
    "models.small.d_model": 16,
    "models.small.d_ff": 16,
    "models.small.d_kv": 8,
    "warmup": 5,
    "micro_batches": 2,
    "cost": 200,
    "source_lengths": "(16,32)",
    "target_lengths": "(8,16)",
    "held_out_rows": 8,
    "evaluate_every": 20,
    "checkpoint_every": 7,
}


@pytest.fixture(name="corpus")
def fixture_corpus(tmp_path) -> pathlib.Path:
  return tiny.write_corpus(tmp_path / "corpus", rows=200)


def start(corpus: pathlib.Path, out: pathlib.Path) -> subprocess.Popen:
  """The training door in a process of its own."""
  options = _OPTIONS | {"corpus": corpus, "out": out}
  return subprocess.Popen(
      [
          sys.executable,
          "-m",
          "specjax.train",
          "--config=configs/train_mini.py:small",
          *(f"--config.{key}={value}" for key, value in options.items()),
      ],
      stderr=subprocess.PIPE,
  )


def finish(process: subprocess.Popen) -> None:
  _, errors = process.communicate(timeout=600)
  assert process.returncode == 0, errors.decode()[-2000:]


@pytest.mark.slow
def test_killed_at_ten_random_moments(corpus, tmp_path):
  """The final weights and the log are those of a run that was left alone."""
  finish(start(corpus, tmp_path / "whole"))
  # Every run compiles the same: that time need not be spent ten times.
  cut = tmp_path / "cut"
  shutil.copytree(tmp_path / "whole" / "compiled", cut / "compiled")
  log = cut / "small" / "log.jsonl"
  rng = random.Random(1)
  for step in sorted(rng.sample(range(1, STEPS), KILLS)):
    process = start(corpus, cut)
    while process.poll() is None and len(log_lib.read(log)) < step:
      time.sleep(0.01)
    # Within a step, within a checkpoint's writing, or between the two.
    time.sleep(rng.uniform(0, 0.2))
    process.send_signal(signal.SIGKILL)
    process.communicate()
  finish(start(corpus, cut))
  runs = [tmp_path / run / "small" for run in ("whole", "cut")]
  weights = [(run / "hf" / "model.safetensors").read_bytes() for run in runs]
  assert weights[0] == weights[1]
  logs = [log_lib.read(run / "log.jsonl") for run in runs]
  assert [entry["step"] for entry in logs[1]] == list(range(1, STEPS + 1))
  for a, b in zip(*logs, strict=True):
    del a["tokens_per_second"], b["tokens_per_second"]
    assert a == b
