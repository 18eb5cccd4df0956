"""XLA's flags against none: what a line is made of, and a flag unknown."""

import json
import pathlib
import shlex
import types

import pytest

from experiments import flags
from specjax import errors


def test_lines():
  of = lambda plain, drafts: {"plain": plain, "speculative": drafts}
  made = {
      "turn 0 set 0": of(2.0, 1.0),
      "turn 1 set 0": of(4.0, 1.0),
      "turn 0 set 1": of(1.0, 2.0),
      "turn 1 set 1": of(4.0, 1.0),
      "turn 0 set 2": of(1.0, 1.0),
      "turn 1 set 2": {"refused": "Unknown flag in XLA_FLAGS: --b=1"},
  }
  none, a, b = flags.lines(made, ("", "--a=1", "--b=1"))
  assert none["plain"]["over_none"] == {"median": 1, "low": 1, "high": 1}
  assert a["plain"]["milliseconds"] == 2.5
  assert a["plain"]["over_none"] == {"median": 0.75, "low": 0.5, "high": 1}
  assert a["speculative"]["over_none"]["high"] == 2
  assert "Unknown" in b["refused"] and "plain" not in b


@pytest.fixture(name="runs")
def fixture_runs(monkeypatch, tmp_path):
  """Stands for the main door, whose processes are slow; notes its calls."""
  calls = []

  def run(command, *, env, **_):
    calls.append((env["XLA_FLAGS"], command))
    if "unknown" in env["XLA_FLAGS"]:
      said = "F0000 Unknown flag in XLA_FLAGS: --xla_unknown=1"
      return types.SimpleNamespace(returncode=-6, stderr=f"x\n{said}\nstack")
    [out] = [x for x in command if x.startswith("--config.out=")]
    speed = {"plain": 500.0, "speculative": 1000.0}
    path = pathlib.Path(out.partition("=")[2]) / "report.json"
    path.write_text(json.dumps({"tokens_per_second": speed}))
    return types.SimpleNamespace(returncode=0, stderr="")

  monkeypatch.setattr(flags, "subprocess", types.SimpleNamespace(run=run))
  monkeypatch.chdir(tmp_path)
  return calls


def test_sets_take_turns(runs, tmp_path, capsys):
  arguments = ["--flags=--xla_unknown=1", "--flags=--a=1"]
  words = ["flags", *arguments, "--config.data.rows=3"]
  assert flags.main(words) == 0, capsys.readouterr().err
  order = ["", "--xla_unknown=1", "--a=1"]
  assert [name for name, _ in runs] == order + order[::-1]
  # The user's change goes behind the script's own.
  assert runs[0][1].index("--config.data.rows=3") > runs[0][1].index(
      "--config.data.rows=12"
  )
  table = (tmp_path / "results/flags.md").read_text()
  assert "| none | 2.000 | 1.00 (1.00 to 1.00) | 1.000 |" in table
  assert "| `--xla_unknown=1` | refused: F0000 Unknown flag in XLA_" in table
  # What is noted can be run.
  made = json.loads((tmp_path / "results/flags.json").read_text())
  noted = shlex.split(made["command"])[2:]
  assert noted[1:-1] == arguments
  assert flags.main([*noted, "--config.data.rows=3"]) == 0


def test_the_run_itself_fails(monkeypatch):
  failed = types.SimpleNamespace(returncode=1, stderr="config: wrong\n")
  run = types.SimpleNamespace(run=lambda *_, **__: failed)
  monkeypatch.setattr(flags, "subprocess", run)
  with pytest.raises(errors.UserError, match="with no flags fails: config: w"):
    flags.measure("", ())
  with pytest.raises(errors.UserError, match="with --a=1 fails: config: w"):
    flags.measure("--a=1", ())
