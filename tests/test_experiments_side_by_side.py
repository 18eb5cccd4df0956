"""Both implementations side by side: what times come to, and a tiny run."""

import json

import pytest

from experiments import results
from experiments import side_by_side
from experiments import turns
from tests import tiny

OURS, THEIRS = side_by_side.OURS, side_by_side.THEIRS
LOOKUP, FIRST = side_by_side.LOOKUP, side_by_side.FIRST


def cell(differing=()):
  """Two answers of ten tokens; theirs takes twice as long."""
  sides = (OURS, OURS + LOOKUP, THEIRS, THEIRS + LOOKUP)
  return {
      "answers": 2,
      "tokens": dict.fromkeys(sides, 20),
      "seconds": {
          OURS: [0.5, 0.6, 0.5],
          OURS + LOOKUP: [0.25, 0.25, 0.25],
          OURS + FIRST: [0.1, 0.1, 0.1],
          THEIRS: [1.0, 1.0, 1.0],
          THEIRS + LOOKUP: [0.8, 0.7, 0.75],
          THEIRS + FIRST: [0.28, 0.28, 0.28],
      },
      "differing": {name: list(differing) for name in sides[1:]},
  }


def test_turns():
  order = []
  note = lambda name: lambda row: order.append((name, row))
  runs = {name: note(name) for name in "ab"}
  made = turns.seconds(runs, 2, 2)
  assert [len(values) for values in made.values()] == [2, 2]
  assert order == [
      ("a", 0), ("b", 0), ("a", 1), ("b", 1),
      ("b", 0), ("a", 0), ("b", 1), ("a", 1),
  ]
  assert turns.spread([3.0, 1.0, 2.0]) == {"median": 2, "low": 1, "high": 3}


def test_what_times_come_to():
  """A token of theirs is in the first call, ours are all behind it."""
  made = side_by_side.compared(cell())
  assert made[OURS]["ms_a_token"] == pytest.approx(25.0)
  assert made[OURS]["ms_a_token_after_prompt"] == pytest.approx(20.0)
  assert made[THEIRS]["ms_a_token_after_prompt"] == pytest.approx(40.0)
  assert made[OURS]["tokens_per_second_with_drafts"] == pytest.approx(80.0)
  near = pytest.approx
  assert made["plain_time_after_prompt"] == {
      "median": near(0.5), "low": near(0.5), "high": near(0.625)
  }
  assert made["plain_time"]["median"] == near(0.5)
  assert made["drafts_times_faster"] == {
      "median": near(3.0), "low": near(2.8), "high": near(3.2)
  }
  both = side_by_side.added([cell(), cell([{"near_tie": True}])])
  assert (both["answers"], both["tokens"][OURS]) == (4, 40)
  assert both["seconds"][OURS] == [1.0, 1.2, 1.0]
  assert len(both["differing"][THEIRS]) == 1
  assert side_by_side.compared(both)["plain_time"]["median"] == near(0.5)


def test_options(tmp_path, capsys):
  main = lambda *words: side_by_side.main(["script", *words])
  for words, line in (
      (["--frist=2"], "--frist: there is no such option; did you mean"),
      (["--repeats=0"], "--repeats: give whole numbers from 1"),
      (["--config=none.py"], "config: none.py is no file here"),
      (["--prompts=/none.txt"], "--prompts: /none.txt: No such file"),
      (["--config.sampling.temperature=1.0"], "sampling.temperature: give 0"),
  ):
    config = f"--config={tiny.CONFIGS / 'smollm2.py'}"
    assert main(config, *words) == 1
    [shown] = capsys.readouterr().err.splitlines()
    assert shown.startswith("experiments.side_by_side: ") and line in shown
  assert main("--help") == 0
  assert "python -m experiments.side_by_side" in capsys.readouterr().out


def test_an_encoder_decoder_is_refused(tmp_path, monkeypatch, capsys):
  pytest.importorskip("torch")
  pytest.importorskip("transformers")
  monkeypatch.setattr(results, "_PARTS", tmp_path / "parts")
  family = tiny.write_family(tmp_path)
  _, config, *changes = tiny.arguments(
      family, "smollm2.py", data__chat=False, data__path=""
  )
  prompts = tmp_path / "mine.txt"
  prompts.write_text("a fast editor\n")
  own = [f"--prompts={prompts}", f"--out={tmp_path / 'out'}"]
  words = [f"--config={changes[0]}", *own, *changes[1:]]
  assert side_by_side.main(["script", *words]) == 1
  line = capsys.readouterr().err.splitlines()[-1]
  assert "target.checkpoint: give a decoder-only model, got an enc" in line


@pytest.mark.slow
def test_a_tiny_model(tmp_path, monkeypatch, capsys):
  """Both give the same tokens; files, tables and ratios are there."""
  pytest.importorskip("torch")
  pytest.importorskip("transformers")
  monkeypatch.setattr(results, "_PARTS", tmp_path / "parts")
  monkeypatch.setattr(side_by_side, "_STEPS", 1)
  family = tiny.write_decoders(tmp_path, tiny.LLAMA)
  prompts = tmp_path / "mine.txt"
  prompts.write_text("a fast editor\nverify verify verify\n")
  with tiny.quick_compilation():
    _, config, *changes = tiny.arguments(
        family, "smollm2.py", decode__max_new_tokens=8, draft__gamma=2
    )
    own = [f"--prompts={prompts}", "--repeats=1", f"--out={tmp_path / 'out'}"]
    words = [f"--config={changes[0]}", *own, *changes[1:]]
    code = side_by_side.main(["script", *words])
  assert code == 0, capsys.readouterr().err
  made = json.loads((tmp_path / "out" / "side_by_side.json").read_text())
  assert set(made["categories"]) == {"prompts", "all"}
  rows = made["categories"]["all"]
  assert rows["tokens"][OURS] == rows["tokens"][THEIRS + LOOKUP]
  assert all(not found for found in rows["differing"].values())
  assert set(made["steps"]["time"]) == {"1", "16"}
  table = (tmp_path / "out" / "side_by_side.md").read_text()
  assert "| all | 2 |" in table and "| 0 + 0, 0 + 0, 0 + 0 |" in table
