"""The scripts that write results/: their tables, and what they exit with."""

import argparse
import json
import pathlib

import pytest

from experiments import all as all_results
from experiments import baseline
from experiments import bigger_draft
from experiments import document
from experiments import figures
from experiments import lossless
from experiments import results
from experiments import table1
from experiments import table2_and_4
from experiments import table3
from experiments import table5
from specjax import errors
from specjax import writing

ON_PAIRS = [table1, table2_and_4, table3, table5, bigger_draft, figures]


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
  monkeypatch.setattr(results, "_PARTS", tmp_path / "parts")

  def run(cells):
    monkeypatch.setattr(lossless, "compare", lambda *_: cells)
    code = lossless.main(["lossless", "--out", str(tmp_path)])
    made = json.loads((tmp_path / "lossless.json").read_text())
    pairs = len(lossless.TASKS) * len(lossless.DRAFTS)
    assert made["cells"] == cells * pairs
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


def test_cells_that_are_done_are_kept(tmp_path, monkeypatch):
  """A run that was stopped goes on; another commit or option starts anew."""
  monkeypatch.setattr(results, "_PARTS", tmp_path / "parts")
  commit = ["a"]
  monkeypatch.setattr(results.environment, "commit", lambda: commit[0])
  options = argparse.Namespace(out=str(tmp_path), rows=3)
  calls = []

  def make(name, fails=False):
    calls.append(name)
    if fails:
      raise errors.UserError("no")
    return {"name": name}

  start = lambda: results.Script.start("mini", options)
  with pytest.raises(errors.UserError):
    start().cells({"a b": lambda: make("a"), "c": lambda: make("c", True)})
  both = {"a b": lambda: make("a"), "c": lambda: make("c")}
  made = start().cells(both)
  assert calls == ["a", "c", "c"]
  assert made == {"a b": {"name": "a"}, "c": {"name": "c"}}
  commit[0] = "b"
  start().cells(both)
  assert calls == ["a", "c", "c", "a", "c"]
  # Of a changed source nothing is kept.
  commit[0] = "b-dirty"
  for _ in range(2):
    script = start()
    script.cells(both)
  assert len(calls) == 9
  script.write({"cells": made}, lambda made: f"# {made['command']}\n")
  table = (tmp_path / "mini.md").read_text()
  assert table == "# python -m experiments.mini --rows 3\n"
  assert not script.parts.exists()
  assert json.loads((tmp_path / "mini.json").read_text())["commit"] == commit[0]


@pytest.mark.parametrize(
    "error, words, code",
    [
        (errors.UserError("rows: give 1"), "rows: give 1", 1),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch.nn"),
            "No module named 'torch': python -m pip install -e '.[parity]'",
            1,
        ),
        (
            ModuleNotFoundError("No module named 'gguf'", name="gguf"),
            "'.[gguf]'",
            1,
        ),
        (KeyboardInterrupt(), "goes on where it stood", 130),
    ],
)
def test_a_script_ends_with_one_line(error, words, code, capsys):
  def work(_):
    raise error

  assert results.door("mini", lambda: "", work, ["mini"]) == code
  line = capsys.readouterr().err
  assert line.startswith("experiments.mini: ") and words in line
  assert line.count("\n") == 1


@pytest.mark.parametrize(
    "script", [baseline, lossless, table3, figures, all_results]
)
@pytest.mark.parametrize(
    "argument, words",
    [
        ("--rwos=3", "--rwos: there is no such option; did you mean --rows?"),
        ("--rows=-1", "--rows: give whole numbers from "),
        ("--rows=x", "got 'x'"),
        ("--rows", "--rows: give a value"),
        ("3", "'3': is not understood; options look like --out"),
        ("--out=FILE/x", "FILE/x: Not a directory; give another folder"),
    ],
)
def test_bad_input_is_one_line(script, argument, words, tmp_path, capsys):
  file = tmp_path / "file"
  file.touch()
  argument = argument.replace("FILE", str(file))
  assert script.main(["script", argument]) == 1
  [line] = capsys.readouterr().err.splitlines()
  assert line.startswith(f"{script.__name__}: ")
  assert words.replace("FILE", str(file)) in line


def test_values_are_checked(capsys):
  assert baseline.main(["script", "--dtype=int8"]) == 1
  assert "--dtype: invalid choice: 'int8'" in capsys.readouterr().err
  # No rows would be no table.
  assert baseline.main(["script", "--rows=0"]) == 1
  assert "from 1 to" in capsys.readouterr().err


@pytest.mark.parametrize("script", ON_PAIRS)
@pytest.mark.parametrize(
    "argument, words",
    [
        ("--config=none.py", "config: none.py is no file here"),
        ("--config.decode.dtype=int8", "decode.dtype: give one of float32"),
        ("--config.decode.dtyp=x", "did you mean decode.dtype?"),
        ("--config.draft.kind=none", "draft.kind: give one of model, bigram"),
        ("--config.mesh.model=2", "mesh: leave it out"),
        ("--config.draft.tree=[[0]]", "draft.tree, draft.dynamic: leave them"),
        ("--config.draft.checkpoint=/no", "checkpoint: '/no' is no folder"),
    ],
)
def test_bad_configs_are_one_line(script, argument, words, tmp_path, capsys):
  assert script.main(["script", argument, f"--out={tmp_path}"]) == 1
  [line] = capsys.readouterr().err.splitlines()
  assert line.startswith(f"{script.__name__}: ") and words in line


@pytest.mark.parametrize(
    "script", [baseline, lossless, document, all_results, *ON_PAIRS]
)
def test_help(script, capsys):
  assert script.main(["script", "--help"]) == 0
  shown = capsys.readouterr().out
  assert f"python -m {script.__name__}" in shown
  assert ("--rows" in shown) == (script is not document)


@pytest.fixture(name="everything")
def fixture_everything(tmp_path, monkeypatch):
  """Runs all scripts, none of them real; codes are of those that fail."""
  monkeypatch.setattr(results, "_PARTS", tmp_path / "parts")
  monkeypatch.setattr(results.environment, "commit", lambda: "a")
  monkeypatch.setattr(document, "FILE", tmp_path / "none.md")
  out = tmp_path / "out"

  def everything(*arguments, **codes):
    calls = []

    def main(argv):
      """A script, which writes a file unless it fails."""
      name = argv[0].removeprefix("experiments.")
      calls.append((name, tuple(argv[1:-1])))
      folder = pathlib.Path(argv[-1].removeprefix("--out="))
      if name not in codes:
        writing.write(folder / f"{name}.json", "{}")
      return codes.get(name, 0)

    for script, *_ in all_results.RUNS:
      monkeypatch.setattr(script, "main", main)
    code = all_results.main(["all", f"--out={out}", *arguments])
    return code, calls, out

  return everything


def test_all_runs_every_script(everything):
  code, calls, out = everything("--config.decode.dtype=bfloat16")
  assert code == 0
  scripts = {path.stem for path in pathlib.Path("experiments").glob("*.py")}
  doors = {name for name in scripts if is_door(name)}
  # Some need a model from elsewhere, one an environment of its own; heads and
  # XLA's flags are no part of the paper.
  assert {name for name, _ in calls} == (
      doors
      - {"all", "document", "side_by_side", "spec_bench", "compiled",
         "full_size", "heads", "flags"}
  )
  assert calls[0] == ("table1", ("--config.decode.dtype=bfloat16",))
  assert calls[-1] == ("baseline", ("--dtype=bfloat16",))
  assert sum(minutes for *_, minutes in all_results.RUNS) < 60
  made = json.loads((out / "all.json").read_text())
  assert made["scripts"][1]["command"] == (
      "python -m experiments.table2_and_4 --config.decode.dtype=bfloat16"
  )
  assert "| `python -m experiments.lossless --rows=4` | 0.0 |" in (
      (out / "all.md").read_text()
  )
  assert (out / "table3.json").exists() and (out / "baseline.json").exists()


def is_door(name):
  text = pathlib.Path(f"experiments/{name}.py").read_text()
  return "\nif __name__ ==" in text


def test_all_with_few_rows(everything):
  _, calls, _ = everything("--rows=2")
  assert calls[0] == ("table1", ("--rows=2",))
  assert ("lossless", ("--rows=2",)) in calls
  assert ("baseline", ("--dtype=float32", "--rows=2")) in calls


@pytest.mark.parametrize("code, ends", [(130, 130), (1, 1)])
def test_all_goes_on_where_it_stood(everything, code, ends, capsys):
  """Nothing is written before everything is there."""
  ended, calls, out = everything(table3=code)
  assert ended == ends and calls[-1][0] == "table3"
  assert not list(out.glob("*.json"))
  last = capsys.readouterr().err.splitlines()[-1]
  assert ("goes on where it stood" in last) == (code == 130)
  assert ("experiments.table3 failed" in last) == (code == 1)
  ended, calls, out = everything()
  assert ended == 0
  assert calls[0][0] == "table3" and len(calls) == len(all_results.RUNS) - 2
  assert (out / "table1.json").exists()


TEXT = """\
Sums:

    >>> x = 2
    >>> x + 1
    7
    >>> for i in range(2):
    ...   print(i)
    0

Words in between.

    >>> [x] * 3
    >>> x
    2
"""
FRESH = TEXT.replace("    7\n", "    3\n").replace("    0\n", "    0\n    1\n")
FRESH = FRESH.replace("* 3\n", "* 3\n    [2, 2, 2]\n")


def test_document(tmp_path, monkeypatch, capsys):
  """What a line prints comes into its place; the rest stays."""
  monkeypatch.setattr(document, "FILE", tmp_path / "text.md")
  document.FILE.write_text(TEXT)
  assert document.main(["document"]) == 0
  assert document.FILE.read_text() == FRESH
  assert "brought up to date" in capsys.readouterr().out
  assert document.main(["document"]) == 0
  assert document.FILE.read_text() == FRESH
  assert "as it was" in capsys.readouterr().out


@pytest.mark.parametrize("content", ("{", "[]", '{"a": 1, "a": 2}', "3"))
def test_results_that_are_damaged(content, tmp_path, monkeypatch):
  monkeypatch.setattr(results, "COMMITTED", tmp_path)
  (tmp_path / "x.json").write_text(content)
  with pytest.raises(errors.UserError, match="damaged .*experiments.x makes"):
    results.read("x")


def test_all_copies_whole_files(everything, tmp_path, monkeypatch):
  """None that a kill left half, and none half where the disk is full."""
  write = writing.write

  def full(path, content):
    if path.parent.name == "out" and path.name == "table3.json":
      raise OSError(28, "No space left on device", str(path))
    write(path, content)

  assert everything(table5=1)[0] == 1
  [folder] = (tmp_path / "parts").glob("*/files")
  (folder / ".table1.json.0123").write_text("{")
  with monkeypatch.context() as patch:
    patch.setattr(writing, "write", full)
    code, _, out = everything()
  assert code == 1 and not (out / "table3.json").exists()
  assert everything()[0] == 0 and (out / "table3.json").exists()
  assert not list(out.glob(".*"))


def test_results_that_are_not_there():
  with pytest.raises(errors.UserError, match="experiments.none makes it"):
    results.read("none")


def test_shares_of_the_bar(tmp_path, monkeypatch, capsys):
  """The bar goes by the time that cells take."""
  monkeypatch.setattr(results, "_PARTS", tmp_path / "parts")
  options = argparse.Namespace(out=str(tmp_path), config=["a", "b"], rows=None)
  script = results.Script.start("table1", options, more=["--config.x=1"])
  assert script.head["command"] == (
      "python -m experiments.table1 --config a --config b --config.x=1"
  )
  made = script.cells({"a": dict, "b": list}, {"a": 3, "b": 9})
  assert made == {"a": {}, "b": []} and script.cell("b") == []
  assert "/12 [" in capsys.readouterr().err
