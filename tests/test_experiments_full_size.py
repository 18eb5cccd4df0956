"""The paper's shapes: a tiny one measured, and what is refused."""

import json

import pytest

from experiments import full_size
from specjax.checkpoints import published
from tests import tiny


@pytest.fixture(name="main")
def fixture_main(tmp_path, monkeypatch):
  """Runs the script in a folder of its own; knows a tiny shape."""
  monkeypatch.setitem(published._V1_1, "google/flan-t5-tiny", (8, 4, 16, 1, 2))
  monkeypatch.setattr(full_size, "_CONFIG", str(tiny.CONFIGS / PATH))
  monkeypatch.setattr(full_size, "_TOKENS", 9)
  monkeypatch.setattr(full_size, "bandwidth", lambda: 1e9)
  monkeypatch.chdir(tmp_path)
  return lambda *words: full_size.main(["full_size", *words])


PATH = "ende_t5small.py:mini"
TINY = "--target=flan-t5-tiny", "--draft=flan-t5-tiny"


def test_a_pair(main, tmp_path, capsys):
  changes = [
      f"--config.measure.{key}=1" for key in ("repeats", "warmup", "steps")
  ]
  with tiny.quick_compilation():
    assert main(*TINY, "--rows=1", *changes) == 0
  made = json.loads((tmp_path / "results/full_size.json").read_text())
  [line] = made["pairs"]
  assert line["synthetic"].startswith("random weights and drafts")
  assert (line["gamma"], line["paper"]) == (7, {})
  assert line["c"] > 0 and line["mismatched_rows"] == 0
  assert line["draft_bytes"] == line["target_bytes"]
  text = (tmp_path / "results/full_size.md").read_text()
  assert "SYNTHETIC" in text and "| flan-t5-tiny | 7 |" in text
  assert (tmp_path / "results/full_size.png").stat().st_size > 1000


def test_what_is_refused(main, capsys):
  assert main("--target=flan-t5-huge") == 1
  line = capsys.readouterr().err
  assert line.startswith("experiments.full_size: --target, --draft: ")
  assert main(*TINY, "--rows=0") == 1
  assert "--rows: " in capsys.readouterr().err
