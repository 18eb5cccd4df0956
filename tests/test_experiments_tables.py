"""The scripts on pairs: what they ask for, and what their tables say.

Reports, costs and alphas are made up here; what makes them is tested on tiny
models in test_experiments_pairs.py.
"""

import json
import re

import pytest

from experiments import bigger_draft
from experiments import curves
from experiments import figures
from experiments import pairs
from experiments import paper
from experiments import results
from experiments import rounds
from experiments import table1
from experiments import table2_and_4
from experiments import table3
from experiments import table5
from specjax import theory
from specjax.measure import report as report_lib
from tests import test_measure_report

ALPHA = {"unigram": 0.1, "bigram": 0.2, "small": 0.4, "base": 0.5, "large": 0.6}
C = {"small": 0.02, "base": 0.04, "large": 0.11}
V = [1 + 0.01 * gamma for gamma in pairs.GAMMAS]


def name_of(config):
  """The draft that a config is of: "small" of mini/small_distilled."""
  return config.draft.checkpoint.removeprefix("mini/").partition("_")[0]


def report_of(config):
  """A report as of a run of this config."""
  made = test_measure_report.measured(
      config=config, alpha=ALPHA[name_of(config)], gamma=config.draft.gamma
  )
  report, details = report_lib.make(made)
  return report | {key: details[key] for key in pairs._KEPT}


def costs_of(chosen, temperature):
  del temperature
  return {
      "target_ms": 2.0,
      "verify_cost": V,
      "c": {pair.draft: C[pair.draft] for pair in chosen},
      "c_by_gamma": {pair.draft: [C[pair.draft]] * len(V) for pair in chosen},
      "alpha": {pair.draft: ALPHA[pair.draft] for pair in chosen},
  }


@pytest.fixture(name="run")
def fixture_run(tmp_path, monkeypatch):
  """Runs a script; returns the configs asked for, the JSON and the table."""
  asked = []

  def measured(config):
    asked.append(config)
    return report_of(config)

  monkeypatch.setattr(results, "_PARTS", tmp_path / "parts")
  monkeypatch.setattr(results.environment, "commit", lambda: "a")
  monkeypatch.setattr(pairs, "measured", measured)
  monkeypatch.setattr(pairs, "costs", costs_of)
  monkeypatch.setattr(pairs.fetch, "fetch", lambda config: [])

  def run(script, *arguments):
    asked.clear()
    code = script.main(["script", f"--out={tmp_path}", *arguments])
    assert code == 0
    made = json.loads((tmp_path / f"{script.NAME}.json").read_text())
    table = (tmp_path / f"{script.NAME}.md").read_text()
    check(table, tmp_path)
    return list(asked), made, table

  run.folder = tmp_path
  return run


def check(table, folder):
  """Every row has its head's columns; every picture is there."""
  for block in table.split("\n\n"):
    if block.startswith("|"):
      assert len({line.count("|") for line in block.splitlines()}) == 1
  shown = re.findall(r"!\[\]\((.*?)\)", table)
  assert shown
  for name in shown:
    assert (folder / name).read_bytes()[:4] == b"\x89PNG"


def row(table, *cells):
  """The cells of the first row that begins like this."""
  start = "| " + " | ".join(cells) + " |"
  line = next(line for line in table.splitlines() if line.startswith(start))
  return [cell.strip() for cell in line.strip("|").split("|")]


def test_table_2_and_4(run):
  """2 tasks x 3 drafts x 2 temperatures, at the paper's gamma and the best."""
  asked, made, table = run(table2_and_4)
  lines = made["lines"]
  assert len(lines["paper"]) == len(lines["best"]) == 12
  published = paper.rows("table2_and_4")
  for theirs in published:
    [ours] = [
        x
        for x in lines["paper"]
        if (x["task"], f"t5-{x['draft']}", x["temperature"])
        == (theirs["task"], theirs["draft"], theirs["temperature"])
    ]
    assert ours["paper"] == theirs and ours["gamma"] == theirs["gamma"]
    assert ours["sampling"]["temperature"] == theirs["temperature"]
  for line in lines["best"]:
    alpha, c = ALPHA[line["draft"]], C[line["draft"]]
    speedup = lambda gamma: theory.speedup(alpha, gamma, c, V[gamma - 1])
    assert line["gamma"] == max(pairs.GAMMAS, key=speedup)
  # Where the best gamma is the paper's there is no second run.
  same = sum(a["gamma"] == b["gamma"] for a, b in zip(*lines.values()))
  assert same and len(asked) == 24 - same
  assert "alpha rises with the draft in 4 of 4 pairs" in table
  cells = row(table, "ende", "large", "0", "7 / 7")
  assert cells[4:6] == ["0.82 / 0.60", "0.110 / 0.100"]
  assert cells[8].startswith("2.5 / ") and cells[10].startswith("1.7 / 1.75 (")


def test_a_table_goes_on_where_it_stood(run, monkeypatch):
  whole, calls = pairs.measured, []

  def stopped(config):
    calls.append(config)
    if len(calls) == 5:
      raise KeyboardInterrupt
    return whole(config)

  monkeypatch.setattr(pairs, "measured", stopped)
  assert table2_and_4.main(["script", f"--out={run.folder}"]) == 130
  assert not (run.folder / "table2_and_4.json").exists()
  asked, made, _ = run(table2_and_4)
  assert asked == calls[5:] and asked[0] == calls[4]
  assert not set(asked) & set(calls[:4])
  assert len(made["lines"]["paper"]) == 12


def test_other_configs(run):
  """Changes go to every pair; what the paper does not have is a dash."""
  options = ["--config=configs/ende_t5base.py:mini,T1"]
  options += ["--config.decode.dtype=bfloat16", "--rows=3", "--timed-rows=2"]
  asked, made, table = run(table2_and_4, *options)
  assert len(made["lines"]["paper"]) == 2
  for config in asked:
    assert (config.decode.dtype, config.data.rows) == ("bfloat16", 3)
    assert config.measure.timed_rows == 2
    assert name_of(config) == "base"
  assert made["command"] == (
      "python -m experiments.table2_and_4 --config"
      " configs/ende_t5base.py:mini,T1 --rows 3 --timed-rows 2"
      " --config.decode.dtype=bfloat16"
  )
  assert "alpha rises" not in table
  own = run.folder / "mine.py"
  own.write_text(
      "from specjax import config\n\n\ndef get_config():\n"
      "  made = config.default()\n  made.draft.checkpoint = 'mini/small'\n"
      "  return made\n"
  )
  _, made, table = run(table2_and_4, f"--config={own}", "--rows=2")
  assert made["lines"]["paper"][0]["paper"] == {}
  assert row(table, "mine", "small", "0", "- / 3")[4] == "- / 0.40"


def fake_alpha(source, temperature):
  size = source.draft.partition(" ")[0]
  alpha = ALPHA[size] + 0.01 * temperature
  name = size if "gram" in size else f"t5-{size}"
  theirs = paper.find("table3", task=source.task, draft=name)
  return {
      "task": source.task,
      "draft": source.draft,
      "temperature": temperature,
      "alpha": alpha,
      "half_width": 0.02,
      "places": 100,
      "paper": theirs.get(f"alpha_T{temperature}"),
  }


def fake_count(pair):
  entry = {"mean": ALPHA[pair.draft], "half_width": 0.03, "places": 50}
  keys = ("plain", "own", "judged", "accepted", "not_judged")
  return dict.fromkeys(keys, entry) | {
      "task": pair.task,
      "draft": pair.draft,
      "gamma": 3,
      "difference": -0.02,
      "difference_half_width": 0.03,
      "agree": True,
  }


def test_table_3(run, monkeypatch):
  """Unigram, bigram, three drafts of two kinds; both tasks, temperatures."""
  monkeypatch.setattr(table3, "alpha", fake_alpha)
  monkeypatch.setattr(table3, "count", fake_count)
  _, made, table = run(table3)
  assert len(made["alphas"]) == 32 and len(made["counts"]) == 6
  assert row(table, "ende", "bigram")[2:6] == [
      "0.20", "0.200 +- 0.020", "0.19", "0.210 +- 0.020"
  ]
  assert row(table, "cnndm", "large", "0.74")[4] == "0.56"
  assert "with the draft in 4 of 4 pairs" in table
  assert "with the draft on references in 4 of 4 pairs" in table
  _, made, _ = run(table3, "--config.draft.table=")
  sizes = "small", "base", "large"
  assert {line["draft"] for line in made["alphas"]} == {
      *sizes, *(f"{size} on references" for size in sizes)
  }


def fake_alphas(source, kind):
  alphas = [ALPHA[source.draft] + 0.1 * i for i in range(4)]
  theirs = [
      table5._published(kind, source, lenience).get("alpha")
      for lenience in table5.LENIENCES
  ]
  return {
      "draft": source.draft, "alpha": alphas, "places": 9, "paper": theirs
  }


def test_table_5(run, monkeypatch):
  """Four leniences, sampled and argmax; the paper's figures beside ours."""
  monkeypatch.setattr(table5, "alphas", fake_alphas)
  asked, made, table = run(table5)
  assert [(x.sampling.temperature, x.verify.lenience) for x in asked] == [
      (temperature, lenience)
      for temperature in (1.0, 0.0)
      for lenience in (1.0, 0.5, 0.3, 0.1)
  ]
  assert all(name_of(config) == "small" for config in asked)
  for kind, temperature in (("sampled", 1), ("argmax", 0)):
    for alpha, line in zip((0.4, 0.5, 0.6, 0.7), made["lines"][kind]):
      assert line["alpha"] == pytest.approx(alpha)
      assert line["sampling"]["temperature"] == temperature
      c = [C["small"]] * len(V)
      gamma, best = pairs.best_gamma(line["alpha"], c, V)
      assert line["gamma"] == gamma
      assert line["with_verify_cost"] == best
  moved = [line["moved"] for line in made["lines"]["sampled"]]
  assert moved == pytest.approx([0, 0.1, 0.2, 0.3])
  sampled, argmax = table.split("\nArgmax, temperature 0")
  assert row(sampled, "unigram")[1:] == [
      "0.07 / 0.100", "0.10 / 0.200", "0.11 / 0.300", "0.16 / 0.400"
  ]
  assert row(argmax, "small")[4] == "0.87 / 0.700"
  printed = lambda part: [
      row(part, lenience)[1] for lenience in ("1", "0.5", "0.3", "0.1")
  ]
  assert printed(sampled) == [
      "2.5 / 2.33", "3.1 / 2.94", "3.6 / 3.45", "5.0 / 4.79"
  ]
  assert printed(argmax) == [
      "3.3 / 3.30", "3.3 / 3.30", "3.9 / 3.87", "4.9 / 4.91"
  ]


@pytest.mark.parametrize("holds", (True, False))
def test_bigger_draft(run, monkeypatch, holds):
  """Better beyond its interval, and every repeat slower."""
  measured = pairs.measured

  def slower(config):
    made = measured(config)
    if name_of(config) == "large":
      factor = 0.7 if holds else 0.9
      made["measured_speedup"] = {
          key: factor * value for key, value in made["measured_speedup"].items()
      }
    return made

  found = {
      "alpha": [0.4, 0.6],
      "half_width": [0.02, 0.02],
      "difference": 0.2,
      "difference_half_width": 0.03,
  }
  monkeypatch.setattr(pairs, "measured", slower)
  monkeypatch.setattr(bigger_draft, "alphas", lambda _: found)
  asked, made, table = run(bigger_draft)
  assert [name_of(config) for config in asked] == ["small", "large"] * 2
  assert asked[0].draft.gamma == asked[1].draft.gamma
  for choice in made["lines"]:
    assert f"- {choice}: {'yes' if holds else 'no'}" in table
  cells = row(table, "best gamma", "large")
  assert cells[3] == "0.82 / 0.600" and cells[8].startswith("1.7 / ")
  made["alphas"]["difference_half_width"] = 0.3
  assert not bigger_draft.holds(made, "best gamma")


def test_bigger_draft_takes_two(capsys, tmp_path):
  arguments = ["script", f"--out={tmp_path}"]
  arguments += ["--config", "configs/ende_t5small.py:mini"]
  assert bigger_draft.main(arguments) == 1
  assert "give two drafts of one task" in capsys.readouterr().err
  assert bigger_draft.main(arguments + ["--config", arguments[-1]]) == 1
  assert "give each task and draft once" in capsys.readouterr().err


def fake_round(pair, temperature):
  parts = {"drafts": 1.0, "verify": 3.0, "sharing": 0.5, "rest": 0.5}
  return {
      "task": pair.task,
      "draft": pair.draft,
      "temperature": temperature,
      "gamma": 3,
      "milliseconds": parts | {"sum": 5.0, "round": 5.1, "call": 0.4},
      "sum_over_round": [0.9, 0.97, 1.2],
      "overhead": 0.042,
  }


def test_figures(run, monkeypatch):
  def at_gamma(pair, gamma):
    made = pairs.measured(pair.at(0, gamma=gamma))
    return made | {
        "draft": pair.draft,
        "c_hat": C[pair.draft],
        "operations": 2.0,
        "acceptance_by_position": [0.5] * (gamma - 1) + [None],
        "judged_by_position": [9] * (gamma - 1) + [0],
    }

  monkeypatch.setattr(figures, "at_gamma", at_gamma)
  asked, made, table = run(figures, "--batch-rows=9")
  assert len(made["gammas"]) == 12
  batches = asked[12:]
  assert [config.decode.batch for config in batches] == [1, 2, 4, 8, 16, 32, 64]
  assert {config.measure.timed_rows for config in batches} == {9}
  assert [x.measure.steps for x in batches] == [25, 12, 6, 5, 5, 5, 5]
  assert {config.measure.timed_rows for config in asked[:12]} == {8}
  assert [line["gamma"] for line in curves.last_of_each(made["gammas"])] == (
      [7] * 3
  )
  assert row(table, "small", "0.40")[2:] == ["0.50 of 9"] * 6 + ["- of 0"]
  assert row(table, "t5-large", "7") == [
      "t5-large", "7", "2.5", "2.50", "1.7"
  ]


def test_rounds(run, monkeypatch):
  monkeypatch.setattr(rounds, "measure", fake_round)
  _, made, table = run(rounds)
  # Every config greedily, and the first draft of both tasks sampled.
  temperatures = [line["temperature"] for line in made["lines"]]
  assert temperatures == [0] * 6 + [1] * 2
  assert "Their sum is within 5% of a round of the loop" in table
  of_a_round = row(table, "ende", "small", "0", "3", "1.000")
  assert of_a_round[-3:] == ["0.970 (0.900 to 1.200)", "4.2%", "0.400"]
  made["lines"][0]["sum_over_round"] = [0.9, 0.94, 1.2]
  assert "Their sum is NOT within 5% of" in rounds.markdown(made)


def fake_line(pair, row):
  del pair
  return {
      "paper": row,
      "theory": {
          "tokens": theory.expected_tokens(row["alpha"], row["gamma"]),
          "operations": theory.operations(row["alpha"], row["gamma"]),
          "speedup": theory.speedup(row["alpha"], row["gamma"], 0),
      },
      "tokens": 2.0,
      "tokens_half_width": 0.1,
      "operations": 1.5,
      "c": 0.0,
      "verify_cost": 1.2,
      "with_verify_cost": 1.6,
      "measured_speedup": {"median": 1.5, "low": 1.4, "high": 1.6},
  }


def test_table_1(run, monkeypatch):
  monkeypatch.setattr(table1, "run", fake_line)
  _, made, table = run(table1)
  assert len(made["lines"]) == 6
  cells = row(table, "0.9", "10")
  assert cells[2] == "1.60 / 1.60 / 1.50" and cells[4] == "6.86 / 6.86"
  assert "first row's operations would be 2.55" in table
