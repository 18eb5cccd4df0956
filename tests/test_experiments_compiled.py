"""The script that compiles the paper's rows; here, tiny ones for the CPU."""

import json

import jax
import pytest

from experiments import compiled
from experiments import paper
from experiments import results
from specjax import command_line
from specjax import tpu
from tests import tiny


@pytest.mark.parametrize("row", paper.rows("table2_and_4"), ids=str)
def test_arguments(row):
  """The paper's pair, at its gamma; flan-t5 has the shapes."""
  config = command_line.read(["compiled", *compiled.arguments(row)])
  assert config.target.checkpoint == "google/flan-t5-xxl"
  assert config.draft.checkpoint == f"google/flan-{row['draft']}"
  assert config.draft.gamma == row["gamma"] and config.decode.batch == 1
  assert config.decode.dtype == "bfloat16"


def test_files(tmp_path, monkeypatch, capsys):
  """One program for both temperatures of a gamma."""
  family = tiny.write_family(tmp_path)
  words = tiny.arguments(family)[1:]
  calls = []
  once = None

  def one(row):
    calls.append(row)
    return words

  def estimate(setup, chip):
    nonlocal once
    with tiny.quick_compilation():
      once = once or real(setup, chip)
    return once

  real = tpu.estimate
  monkeypatch.setattr(results, "_PARTS", tmp_path / "parts")
  monkeypatch.setattr(compiled, "arguments", one)
  monkeypatch.setattr(tpu, "estimate", estimate)
  monkeypatch.setattr(tpu, "find_devices", lambda topology: jax.devices())
  out = tmp_path / "out"
  assert compiled.main(["compiled", f"--out={out}"]) == 0
  assert "| cnndm t5-large | 1 | 3 |" in capsys.readouterr().out
  made = json.loads((out / "compiled_v4.json").read_text())
  assert len(made["lines"]) == 12 == len(calls)
  for line in made["lines"]:
    assert line["compiled"]["fits"] and line["compiled"]["host_transfers"] == 0
    assert line["speedup"] > 0
