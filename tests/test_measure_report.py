"""Reports: keys, tables, pages, files."""

import dataclasses
import json
import os
import pathlib
import subprocess

import pytest

from specjax import draft_section
from specjax import errors
from specjax import outputs
from specjax import sections
from specjax import writing
from specjax.data import tasks
from specjax.measure import environment
from specjax.measure import lossless
from specjax.measure import output
from specjax.measure import report as report_lib
from specjax.measure import steps as steps_lib
from specjax.measure import tables
from specjax.measure import timing
from specjax.measure.page import html as html_lib

# Other tools rely on these.
KEYS = {
    "alpha": None,
    "acceptance_by_position": None,
    "block_efficiency": None,
    "c": None,
    "verify_cost": None,
    "predicted_speedup": {"theorem_3_8", "with_verify_cost", "from_tokens"},
    "measured_speedup": {"median", "low", "high"},
    "end_to_end_speedup": None,
    "gap": {"sample", "ends", "tokens", "verify", "overhead", "idle_rows"},
    "break_even": {"tokens", "c", "verify_cost", "lost"},
    "mismatched_rows": None,
    "quality": {"plain", "speculative", "metric"},
    "tokens_per_second": {"plain", "speculative"},
    "compile_seconds": None,
    "device": None,
    "dtype": None,
    "batch": None,
    "gamma": None,
    "nodes": None,
    "rule": None,
    "lossless": None,
    "drafter": None,
    "synthetic": None,
    "sampling": {"temperature", "top_k", "top_p"},
    "commit": None,
    "config": {
        "name", "target", "draft", "data", "sampling", "decode", "verify",
        "measure", "mesh", "hosts", "out",
    },
}
PIECES = ["<pad>", "</s>", "▁Ein", "▁schnell", "er", "▁<b>Editor", "▁ist", "."]
# A rejection and its correction, an extra token, a cut; a first rejection.
TRACES = [
    (
        outputs.Round(
            (2, 5), (0, 1), 1, 3, (0.5, 0.125), (0.25, 0.75), (0.625, 0.875)
        ),
        outputs.Round(
            (4, 5), (0, 1), 2, 6, (0.9, 0.8), (0.9, 0.8), (0.1, 0.2)
        ),
        outputs.Round(
            (7, 1), (0, 1), 2, None, (1.0, 1.0), (1.0, 1.0), (0.3, 0.4)
        ),
    ),
    (outputs.Round((9,), (0,), 0, 7, (0.0,), (0.375,), (0.0,)),),
]


def result(text, tokens, rounds, judged, accepted, trace=None):
  return outputs.Result(
      text,
      tokens,
      "eos",
      rounds,
      1,
      3,
      judged,
      accepted,
      (),
      None,
      None,
      trace,
  )


def measured(**fields) -> report_lib.Measured:
  """Two rows, gamma 2, figures that are easy to follow."""
  texts = ["Ein schneller <b>Editor</b> ist da.", "Gut."]
  side = lambda rounds: [
      result(texts[0], (5, 6, 7, 1), rounds, (2, 1), (1, 1)),
      result(texts[1], (5, 1), 1, (1, 1), (1, 0)),
  ]
  values = dict(
      config=sections.Experiment(name="mine & <yours>"),
      examples=[
          tasks.Example("a", "translate: x", texts[0]),
          tasks.Example("b", "translate: y", "Schlecht."),
      ],
      plain=side(4),
      speculative=side(2),
      mismatches=[],
      alpha=0.5,
      positions=6,
      timed_alpha=0.6,
      gamma=2,
      nodes=2,
      widths=(3,),
      tree=None,
      steps=steps_lib.Steps(draft=0.1, target=1.0, verify=1.5),
      times=timing.Times(
          compiling={"plain": 5.0, "speculative": 7.0},
          prefill={"plain": [3.0] * 3, "speculative": [2.0] * 3},
          decode={"plain": [6.0, 7.0, 8.0], "speculative": [4.0] * 3},
          counts={
              "plain": timing.Counts(6, 6, 6, 6),
              "speculative": timing.Counts(6, 3, 3, 3),
          },
      ),
      timed_rows=2,
      traced=[
          result(texts[0], (2, 3, 4, 5, 6, 7, 1), 3, (), (), TRACES[0]),
          result(texts[1], (7,), 1, (), (), TRACES[1]),
      ],
      pieces=PIECES,
      where={
          "command": "python -m specjax.run --config 'a|b'",
          "commit": "c" * 40,
          "date": "2022-11-30",
          "device": "cpu: 2 x test",
      },
  )
  return report_lib.Measured(**(values | fields))


def test_keys():
  report, details = report_lib.make(measured())
  assert set(report) == set(KEYS)
  for key, inner in KEYS.items():
    if inner:
      assert set(report[key]) == inner
  read = json.loads(output.dumps(report))
  assert read.pop("config")["decode"]["suppressed"] == []
  del report["config"]
  assert read == report
  assert json.loads(output.dumps(details)) == details


def test_figures():
  report, details = report_lib.make(measured())
  assert report["acceptance_by_position"] == [2 / 3, 1 / 2]
  assert report["block_efficiency"] == 2.0
  assert (report["c"], report["verify_cost"]) == (0.1, 1.5)
  assert report["predicted_speedup"] == {
      "theorem_3_8": pytest.approx(1.75 / 1.2),
      "with_verify_cost": pytest.approx(1.75 / 1.7),
      "from_tokens": pytest.approx(2.0 / 1.7),
  }
  assert report["measured_speedup"] == pytest.approx(
      {"median": 7 / 4, "low": 6 / 4, "high": 8 / 4}
  )
  assert report["end_to_end_speedup"] == pytest.approx(10 / 6)
  assert report["compile_seconds"] == 5.0 + 7.0
  assert report["tokens_per_second"] == {"plain": 6 / 7, "speculative": 1.5}
  assert report["mismatched_rows"] == 0
  product = report["predicted_speedup"]["theorem_3_8"]
  for factor in report["gap"].values():
    product *= factor
  assert product == pytest.approx(report["measured_speedup"]["median"])
  # alpha .6 of the timed rows against .5 of all.
  assert report["gap"]["sample"] == pytest.approx(1.96 / 1.75)
  assert details["milliseconds"]["speculative_round"] == pytest.approx(4e3 / 3)
  assert (details["rows"], details["timed_rows"]) == (2, 2)
  assert details["judged_by_position"] == [3, 2]
  assert details["tokens_per_second"] == {
      "plain": [1.0, 6 / 7, 0.75], "speculative": [1.5] * 3
  }


def test_what_it_takes_to_be_as_fast_as_plain():
  """What the measured values would be at a speed-up of 1, and what costs."""
  report, details = report_lib.make(measured())
  found = report["break_even"]
  tokens = measured().times.counts[timing.SPECULATIVE].tokens_per_round
  assert found["tokens"] == pytest.approx(tokens / 1.75)
  assert found["verify_cost"] == pytest.approx(1.75 * 1.7 - 0.2)
  assert found["lost"]["verify_cost"] == pytest.approx(1.7 / 1.2)
  rows = {name.strip(): words for name, *words in tables.rows(report, details)}
  assert rows["1x at"][0] == f"v {found['verify_cost']:.2f}"
  assert rows["most lost to"][0] == "tokens"
  none = dict(gamma=0, nodes=0, alpha=None)
  report, details = report_lib.make(measured(**none))
  assert report["break_even"] is None
  assert "1x at" not in tables.text(report, details)


def test_trace():
  """Ids, pieces and numbers of every round."""
  _, details = report_lib.make(measured())
  first, second = details["trace"]
  assert (first["id"], first["source"]) == ("a", "translate: x")
  assert (first["tokens"], first["finish"]) == (7, "eos")
  assert [round_["accepted"] for round_ in first["rounds"]] == [1, 2, 2]
  assert first["rounds"][0]["judged"][1] == {
      "id": 5, "piece": "▁<b>Editor", "p": 0.125, "q": 0.75, "coin": 0.875
  }
  assert first["rounds"][0]["next"] == {"id": 3, "piece": "▁schnell"}
  assert first["rounds"][2]["next"] is None
  # An id beyond the tokenizer.
  assert second["rounds"][0]["judged"][0]["piece"] == "<9>"
  _, details = report_lib.make(measured(traced=[]))
  assert details["trace"] == []


def test_quality():
  report, _ = report_lib.make(measured())
  assert report["quality"]["metric"] == "bleu"
  assert 0 < report["quality"]["plain"] == report["quality"]["speculative"]
  config = sections.Experiment(data=sections.Data(task="mini_summ"))
  report, _ = report_lib.make(measured(config=config))
  assert report["quality"] == {
      "plain": 50.0, "speculative": 50.0, "metric": "rougeLsum"
  }
  config = sections.Experiment(data=sections.Data(task="file"))
  report, details = report_lib.make(measured(config=config))
  assert report["quality"] == dict.fromkeys(report["quality"])
  assert "BLEU" not in tables.text(report, details)


def test_mismatches_are_listed():
  """Near ties apart, after the others."""
  found = [
      lossless.Mismatch(0, 3, 2e-5),
      lossless.Mismatch(1, 0, 0.25),
  ]
  report, details = report_lib.make(measured(mismatches=found))
  assert report["mismatched_rows"] == 2
  assert details["mismatches"][0] == {
      "row": 0,
      "position": 3,
      "gap": 2e-5,
      "bound": 1e-4,
      "near_tie": True,
      "id": "a",
  }
  text = tables.text(report, details)
  first, second = text.index("NOT a near tie; id b"), text.index("2e-05")
  assert first < second
  assert "1 at near ties" in text


def test_sampled_rows_are_not_compared():
  config = sections.Experiment(sampling=sections.Sampling(temperature=1.0))
  report, details = report_lib.make(measured(config=config, mismatches=None))
  assert report["mismatched_rows"] is None
  text = tables.text(report, details)
  assert "sampled: laws are tested by the test suite" in text
  assert "temperature 1" in text


def test_what_is_made_up_is_told():
  """Random weights say nothing, so no quality is theirs."""
  config = dataclasses.replace(
      measured().config,
      target=sections.Target(checkpoint="random:flan-t5-xxl"),
  )
  assert report_lib.make(measured())[0]["synthetic"] == ""
  report, details = report_lib.make(measured(config=config))
  assert report["synthetic"] == "random weights"
  assert set(report["quality"].values()) == {None}
  assert "SYNTHETIC" in tables.text(report, details)
  draft = draft_section.Draft(kind="simulated", alpha=0.5)
  config = dataclasses.replace(config, draft=draft)
  assert "a rate which was prescribed" in config.synthetic


def test_without_drafts():
  report, details = report_lib.make(
      measured(
          alpha=None,
          positions=0,
          gamma=0,
          nodes=0,
          steps=steps_lib.Steps(0.0, 1.0, 1.0),
          speculative=[result("x", (1,), 1, (), ())] * 2,
      )
  )
  assert (report["alpha"], report["drafter"]) == (None, "none")
  assert report["predicted_speedup"]["from_tokens"] is None
  assert report["predicted_speedup"]["theorem_3_8"] == 1.0
  assert report["acceptance_by_position"] == []
  for make in (tables.text, tables.markdown, html_lib.page):
    assert make(report, details)


def test_drafts_without_an_alpha():
  """What is copied: no prediction, and how often there was nothing."""
  copied = dict(alpha=None, positions=0, widths=(1, 2, 3))
  config = dataclasses.replace(
      measured().config, draft=draft_section.Draft(kind="lookup")
  )
  report, details = report_lib.make(measured(**copied, config=config))
  assert report["alpha"] is None and report["gamma"] == 2
  assert set(report["predicted_speedup"].values()) == {None}
  assert set(report["gap"]) == KEYS["gap"]
  assert set(report["gap"].values()) == {None}
  assert report["acceptance_by_position"] == [2 / 3, 1 / 2]
  assert (details["rounds"], details["empty_rounds"]) == (3, 2)
  text = tables.text(report, details)
  assert "drafted a round       2.00      2 of 3 rounds were without" in text
  assert "predicted" not in text and "x tokens" not in text
  page = html_lib.page(report, details)
  assert page.count(tables.NONE) == 4
  assert "pass over fewer tokens" in page
  assert "None" not in page.split("<h2>Settings")[0]


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_heads_are_predicted_from_their_tokens(kind):
  """They have no alpha, but as many drafts in every round."""
  config = dataclasses.replace(
      measured().config, draft=draft_section.Draft(kind=kind)
  )
  fields = dict(alpha=None, positions=0, config=config)
  report, details = report_lib.make(measured(**fields))
  assert report["predicted_speedup"] == {
      "theorem_3_8": None,
      "with_verify_cost": None,
      "from_tokens": pytest.approx(2.0 / 1.7),
  }
  for made in (tables.text, tables.markdown, html_lib.page):
    words = made(report, details)
    assert "1.18x" in words and "(gamma c + v)" in words
    assert tables.READS in words and tables.NONE not in words
  page = html_lib.page(report, details)
  assert "over fewer tokens" not in page and "pass, both timed" in page
  # A report of its alpha has the factors instead.
  assert "(gamma c + v)" not in tables.text(*report_lib.make(measured()))


def test_each_kind_of_drafts_is_predicted():
  """Beside the first one's theorem, what others' tokens let one expect."""
  first, details = report_lib.make(measured())
  other = report_lib.make(measured(alpha=None, positions=0))[0]
  copied = report_lib.make(measured(alpha=None, widths=(1, 3)))[0]
  kinds = {"model": first, "eagle": other, "lookup": copied}
  report = first | {"drafters": kinds}
  rows = {name: figure for name, figure, _ in tables.rows(report, details)}
  assert rows["predicted eagle"] == "1.18x"
  assert not {"predicted model", "predicted lookup"} & set(rows)


def test_markdown():
  report, details = report_lib.make(measured())
  lines = tables.markdown(report, details).splitlines()
  assert lines[0] == "# mine & <yours>"
  assert lines[2].startswith("`python -m specjax.run --config 'a|b'`, 20")
  assert all(line.count("|") == 4 for line in lines[4:])


def test_files_are_whole_or_not_there(tmp_path, monkeypatch):
  """An older report survives a failing write; no temporary file is left."""
  folder = output.folder(str(tmp_path / "a" / "b"))
  output.save(folder, *report_lib.make(measured()))
  names = {path.name for path in folder.iterdir()}
  assert names == {"report.json", "report.md", "report.html", "details.json"}
  old = (folder / "report.json").read_text()
  monkeypatch.setattr(
      pathlib.Path, "write_bytes", lambda *_, **__: (_ for _ in ()).throw(
          OSError(28, "No space left on device")
      )
  )
  with pytest.raises(OSError):
    writing.write(folder / "report.json", "{}")
  assert (folder / "report.json").read_text() == old
  assert {path.name for path in folder.iterdir()} == names


def test_folder_that_cannot_be(tmp_path):
  (tmp_path / "file").write_text("")
  for path in ("file", "file/below"):
    with pytest.raises(errors.UserError, match="^out: "):
      output.folder(str(tmp_path / path))


def test_commit(tmp_path, monkeypatch):
  """None outside git, and where git is another project's."""

  def package(root):
    (root / "specjax" / "measure").mkdir(parents=True)
    monkeypatch.setattr(
        environment, "__file__", str(root / "specjax/measure/environment.py")
    )

  package(tmp_path / "alone")
  assert environment.commit() is None
  git = lambda *words: subprocess.run(
      ["git", "-C", str(tmp_path / "mine"), "-c", "user.name=a", "-c",
       "user.email=a@b", *words],
      check=True,
      capture_output=True,
      text=True,
  ).stdout.strip()
  package(tmp_path / "mine")
  git("init")
  assert environment.commit() is None
  (tmp_path / "mine" / "x").write_text("1")
  git("add", "x")
  git("commit", "-m", "x")
  assert environment.commit() == git("rev-parse", "HEAD")
  (tmp_path / "mine" / "x").write_text("2")
  assert environment.commit() == git("rev-parse", "HEAD") + "-dirty"
  package(tmp_path / "mine" / "venv" / "site-packages")
  assert environment.commit() is None


def test_device():
  assert environment.device().startswith("cpu: ")


@pytest.mark.parametrize("name", ("report.json", "report.md", "details.json"))
def test_files_of_a_run_are_of_one_run(tmp_path, monkeypatch, name):
  """A disk that is full at any of them leaves the older ones, all of them."""
  folder = output.folder(str(tmp_path))
  output.save(folder, *report_lib.make(measured()))
  old = {path.name: path.read_bytes() for path in folder.iterdir()}
  write = pathlib.Path.write_text

  def full(path, *words, **how):
    if f".{name}." in path.name:
      raise OSError(28, "No space left on device")
    return write(path, *words, **how)

  monkeypatch.setattr(pathlib.Path, "write_text", full)
  with pytest.raises(OSError) as caught:
    output.save(folder, *report_lib.make(measured(timed_rows=1)))
  assert caught.value.filename == str(folder / name)
  assert {path.name: path.read_bytes() for path in folder.iterdir()} == old


@pytest.mark.parametrize("stop", range(4))
def test_where_the_report_is_the_others_are_its_own(
    tmp_path, monkeypatch, stop
):
  """Stopped between any two of the files."""
  folder = output.folder(str(tmp_path))
  output.save(folder, *report_lib.make(measured()))
  replace, calls = os.replace, []

  def stopped(source, target):
    calls.append(target)
    if len(calls) > stop:
      raise KeyboardInterrupt
    replace(source, target)

  monkeypatch.setattr(os, "replace", stopped)
  with pytest.raises(KeyboardInterrupt):
    output.save(folder, *report_lib.make(measured(timed_rows=1)))
  assert not (folder / "report.json").exists()
  assert not [path for path in folder.iterdir() if path.name[0] == "."]
