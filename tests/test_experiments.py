"""The scripts that write results/: their tables, and what they exit with."""

import json
import sys

import pytest

from experiments import lossless
from experiments import mini


def cell(**entry):
  return {
      "task": "mini_ende",
      "draft": "small",
      "what": "batch 1",
      "rows": 2,
      "differing": [entry] if entry else [],
  }


@pytest.fixture(name="run")
def fixture_run(tmp_path, monkeypatch):
  """Runs the script with given cells; returns its exit code and table."""

  def run(cells):
    monkeypatch.setattr(lossless, "cells", lambda *_: cells)
    monkeypatch.setattr(sys, "argv", ["lossless", "--out", str(tmp_path)])
    code = lossless.main()
    made = json.loads((tmp_path / "lossless.json").read_text())
    assert made["cells"] == cells * len(lossless.TASKS)
    return code, (tmp_path / "lossless.md").read_text()

  return run


def test_near_ties_are_listed_and_pass(run):
  code, table = run([cell(row=1, position=4, gap=3e-5, near_tie=True)])
  assert code == 0
  assert "row 1 (token 4, gap 3.00e-05, near tie: yes)" in table


@pytest.mark.parametrize(
    "entry",
    [dict(row=1, position=4, gap=0.3, near_tie=False), dict(row=0)],
)
def test_other_differences_fail(run, entry):
  code, table = run([cell(), cell(**entry)])
  assert code == 1
  assert f"row {entry['row']}" in table and "| 2 | 0 |" in table


def test_every_pair_has_a_line():
  report = {
      "gamma": 3,
      "alpha": 0.5,
      "block_efficiency": 1.75,
      "c": 0.1,
      "verify_cost": 2.0,
      "predicted_speedup": {"theorem_3_8": 1.44, "with_verify_cost": 0.8},
      "measured_speedup": {"median": 0.7, "low": 0.6, "high": 0.75},
      "mismatched_rows": 0,
      "quality": {"metric": "bleu", "plain": 3.0, "speculative": 3.0},
  }
  made = {
      "command": "x",
      "commit": "y",
      "date": "z",
      "device": "cpu",
      "reports": dict.fromkeys(mini.NAMES, report),
  }
  lines = mini.markdown(made).splitlines()
  head = next(line for line in lines if line.startswith("| config"))
  for name in mini.NAMES:
    row = next(line for line in lines if line.startswith(f"| {name}:mini |"))
    assert row.count("|") == head.count("|")
    assert "0.70 (0.60 to 0.75)" in row
