"""The benchmark door, on tiny random models, from prompts to reports."""

import json
import os
import shutil

import pytest

from specjax import bench
from specjax import benchmark
from specjax import errors
from specjax import pipeline
from specjax import prepare
from specjax.checkpoints import chat
from specjax.checkpoints import responses
from specjax.drafters import suffix_array
from specjax.measure import steps as steps_lib
from specjax.measure import tables
from specjax.measure import timing
from tests import test_measure_page
from tests import test_measure_report
from tests import tiny

DRAFTERS = "lookup,suffix"
ROWS = (
    {"question_id": 7, "category": "a", "turns": ["draft", "verify"]},
    {"question_id": 8, "category": "b", "turns": ["drafts are small"]},
    {"question_id": 9, "category": "b", "turns": ["drafts are fast"]},
    {"question_id": 10, "category": "b", "turns": ["verify"]},
)
TOKENS = 8
STEPS = steps_lib.Steps(draft=1e-5, target=1e-3, verify=2e-3)


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
  with tiny.quick_compilation():
    yield


@pytest.fixture(scope="module", name="door")
def fixture_door(tmp_path_factory):
  """Runs the door in a folder of its own; options as for tiny.arguments."""
  folder = tmp_path_factory.mktemp("bench")
  family = tiny.write_decoders(folder, tiny.LLAMA)
  path = folder / "question.jsonl"
  path.write_text("\n".join(map(json.dumps, ROWS)))

  def door(out, *words, drafters=DRAFTERS, **options):
    argv = tiny.arguments(
        family,
        "smollm2.py",
        **{
            "data__path": "",
            "decode__batch": 1,
            "decode__max_new_tokens": TOKENS,
            "draft__gamma": 2,
            "data__max_source_tokens": 400,
            "draft__suffix__reach": 8,
            "out": out,
        } | options,
    )
    own = [f"--prompts={path}", "--first=2", f"--drafters={drafters}"]
    return bench.main([*argv, *own, *words])

  door.family = family
  return door


@pytest.fixture(autouse=True, scope="module")
def fixture_steps():
  """Single steps are tested elsewhere; the source has not changed."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(steps_lib, "measure", lambda *_, **how: STEPS)
    patch.setattr(benchmark.environment, "commit", lambda: "1" * 40)
    yield


@pytest.fixture(scope="module", name="whole")
def fixture_whole(door, tmp_path_factory):
  """The files of a run that nothing stopped."""
  out = tmp_path_factory.mktemp("whole")
  assert door(out) == 0
  return out


def read(folder, name="report"):
  return json.loads((folder / f"{name}.json").read_text())


def test_report(whole):
  """A run's keys for the first kind, and all kinds by category and turn."""
  report, details = read(whole), read(whole, "details")
  keys = set(test_measure_report.KEYS)
  assert keys | {"categories", "turns", "drafters"} <= set(report)
  assert (report["drafter"], report["gamma"], report["alpha"]) == (
      "lookup", 2, None
  )
  assert report["nodes"] == 2
  names = DRAFTERS.split(",")
  assert list(report["drafters"]) == names
  assert {k: set(v) for k, v in report["categories"].items()} == {
      "a": set(names), "b": set(names)
  }
  for name in names:
    whole_, parts = report["drafters"][name], report["categories"]
    assert whole_["mismatched_rows"] == whole_["near_ties"] == 0
    assert [parts[x][name]["answers"] for x in "ab"] == [2, 2]
    assert sum(parts[x][name]["tokens"] for x in "ab") == whole_["tokens"]
    assert 1 <= whole_["block_efficiency"] <= 3
    assert whole_["verify_cost"] == 2.0
    assert whole_["draft"]["kind"] == name.partition(":")[0]
  turns = report["turns"]
  assert [turns[i]["lookup"]["answers"] for i in "12"] == [3, 1]
  assert [row["id"] for row in details["answers"]] == [
      "7 turn 1", "7 turn 2", "8", "9"
  ]
  assert not (whole / "parts").exists()


def test_figures_are_those_of_the_answers(whole):
  report, details = read(whole), read(whole, "details")
  rows = [row for row in details["answers"] if row["category"] == "b"]
  seconds = lambda side: [
      sum(x) for x in zip(*(row["decode_seconds"][side] for row in rows))
  ]
  ratios = [a / b for a, b in zip(seconds("plain"), seconds("suffix"))]
  made = report["categories"]["b"]["suffix"]
  assert made["measured_speedup"]["high"] == pytest.approx(max(ratios))
  assert made["measured_speedup"]["median"] == pytest.approx(min(ratios))
  rounds = sum(row["rounds"]["suffix"] for row in rows)
  assert made["block_efficiency"] == made["tokens"] / rounds
  assert made["tokens"] == sum(row["tokens"]["plain"] for row in rows)


def test_tables_and_page(whole, capsys):
  table = (whole / "report.md").read_text()
  assert "| texts | " in table and "question.jsonl | 4 rows |" in table
  for words in (
      "| a | lookup | 2 |", "| turn 2 | lookup | 1 |", "| in all | loo"
  ):
    assert words in table
  page = test_measure_page.read((whole / "report.html").read_text())
  assert "By category" in page.words and "suffix" in page.words
  assert not page.outside


def test_rows_that_differ_are_listed(whole):
  """Of every kind of drafts; near ties apart from others."""
  report, details = read(whole), read(whole, "details")
  row = {"row": 2, "id": "8", "position": 3, "gap": 2e-5, "bound": 1e-4}
  other = row | {"gap": 0.5, "near_tie": False}
  details["drafters"]["suffix"]["mismatches"] = [
      row | {"near_tie": True}, other
  ]
  report["drafters"]["suffix"] |= {"mismatched_rows": 2, "near_ties": 1}
  shown = tables.text(report, details)
  line = "  row 2 suffix        token 3   gap of plain's two best 0.5: NOT"
  assert line in shown
  assert "gap of plain's two best 2e-05: a near tie; id 8" in shown
  assert shown.splitlines()[-1].endswith("1 (1 near ties)")


def test_later_turns_stand_behind_the_answers(door, whole):
  """As the whole conversation, said at once, is answered."""
  decoder = pipeline.Decoder(pipeline.load(door.family["target"]), batch=1)
  answer = lambda said: decoder([said], max_new_tokens=TOKENS)[0]
  said = [chat.message("user", "draft")]
  first = answer(said)
  said += [
      chat.message("assistant", first.text), chat.message("user", "verify")
  ]
  outputs = read(whole, "details")["outputs"]
  assert [row["plain"] for row in outputs[:2]] == [
      first.text, answer(said).text
  ]
  assert outputs[1]["speculative"] == outputs[1]["plain"]


class Stopped:
  """Counts timings and stops a run after some; notes what was warmed up."""

  def __init__(self, monkeypatch, after):
    self.after, self.warmups, self.known = after, [], []
    self.turns = []
    self.own = timing.interleave
    monkeypatch.setattr(timing, "interleave", self)

  def __call__(self, sides, batches, **options):
    if len(self.warmups) == self.after:
      raise KeyboardInterrupt
    self.warmups.append(options["warmup"])
    self.turns.append(options["turn"])
    self.known.append({
        name: len(side.drafter_params.responses())
        for name, side in sides.items()
        if isinstance(side.drafter_params, suffix_array.SuffixArray)
    })
    return self.own(sides, batches, **options)


def test_a_stopped_run_goes_on(door, whole, tmp_path, monkeypatch, capsys):
  """With what its drafts had learnt; other options are refused."""
  run = Stopped(monkeypatch, after=3)
  assert door(tmp_path) == 130
  [line] = capsys.readouterr().err.splitlines()[-1:]
  assert line.endswith("interrupted; the same command goes on where it stood")
  assert not (tmp_path / "report.json").exists()
  assert run.warmups == [1, 0, 0]
  # Of two turns and of the next prompt.
  assert run.turns == [0, 1, 1]
  assert run.known == [{"suffix": 0}, {"suffix": 1}, {"suffix": 2}]
  assert door(tmp_path, "--drafters=lookup,suffix:gamma=3") == 1
  assert (
      "waits a run with another drafters (['lookup', 'suffix'], now ['lookup',"
  ) in capsys.readouterr().err
  assert door(tmp_path, decode__seed=1) == 1
  assert "another config.decode.seed (0, now 1)" in capsys.readouterr().err
  run.after = 9
  assert door(tmp_path) == 0
  assert len(run.warmups) == 4 and run.known[3] == {"suffix": 3}
  old, new = read(whole, "details"), read(tmp_path, "details")
  assert new["outputs"] == old["outputs"]
  counts = lambda made: [(row["tokens"], row["rounds"]) for row in made]
  assert counts(new["answers"]) == counts(old["answers"])


def test_what_differs_of_a_run_that_waits(tmp_path):
  """And nothing that only looks so: JSON has no tuples."""
  asked = {"prompts": [{"turns": ("a", "b")}], "commit": "1"}
  for _ in range(2):
    benchmark.Store.open(tmp_path, asked)
  words = r"another commit \('1', now '2'\)"
  with pytest.raises(errors.UserError, match=words):
    benchmark.Store.open(tmp_path, asked | {"commit": "2"})
  # Nobody knows whether such a source is the same.
  with pytest.raises(errors.UserError, match="^out: .* is not committed"):
    benchmark.Store.open(tmp_path, asked | {"commit": "1-dirty"})
  benchmark.Store.open(tmp_path / "new", asked | {"commit": "1-dirty"})


def test_other_contents_are_another_run(door, tmp_path, monkeypatch, capsys):
  """Of a checkpoint, of responses, of a table, of a tree."""
  target = tmp_path / "target"
  shutil.copytree(door.family["target"], target)
  load, tree = tmp_path / "known.safetensors", tmp_path / "tree.json"
  tokenizer = pipeline.load(str(target)).tokenizer
  responses.save(load, [], tokenizer)
  tree.write_text(json.dumps({"trees": {"1": [[0]]}}))
  table = tmp_path / "table.safetensors"
  table.write_bytes(b"1")
  files = {
      "suffix": target / "model.safetensors",
      f"suffix:suffix.load={load}": load,
      f"model:tree={tree}:1": tree,
      f"bigram:table={table}": table,
  }
  stop = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
  monkeypatch.setattr(benchmark, "_prepare", stop)
  for i, (drafters, file) in enumerate(files.items()):
    run = lambda: door(
        tmp_path / str(i), drafters=drafters, target__checkpoint=target
    )
    assert run() == run() == 130
    date = file.stat().st_mtime_ns
    os.utime(file, ns=(date, date + 10**9))
    capsys.readouterr()
    assert run() == 1
    [line] = capsys.readouterr().err.splitlines()
    assert f"waits a run with another size and date of {file} ([" in line


def test_conversations_that_outgrow_the_model(door, tmp_path, capsys):
  """Told before the first prompt; single turns are told apart."""
  longest = tiny.LLAMA.max_positions - TOKENS
  assert door(tmp_path, data__max_source_tokens=longest + 1) == 1
  [line] = capsys.readouterr().err.splitlines()
  assert "data.max_source_tokens: a conversation may grow to so many" in line
  assert line.endswith(f"give {longest} or less, got {longest + 1}")


def test_sampled_and_saved(door, tmp_path):
  """No row has to be like plain decoding's; what was learnt goes to a file."""
  file = tmp_path / "known.safetensors"
  sampled = {"sampling__temperature": 1.0, "draft__suffix__save": file}
  assert door(tmp_path, "--only=a", drafters="suffix", **sampled) == 0
  report, details = read(tmp_path), read(tmp_path, "details")
  assert report["categories"]["a"]["suffix"]["mismatched_rows"] is None
  assert report["mismatched_rows"] is None
  assert "| in all | suffix | 2 |" in (tmp_path / "report.md").read_text()
  tokenizer = pipeline.load(door.family["target"]).tokenizer
  known = responses.load(file, tokenizer, tiny.LLAMA.vocab_size)
  assert [tokenizer.decode(ids.tolist()) for ids in known] == [
      row["speculative"] for row in details["outputs"]
  ]


def test_costs_are_measured_once(door, tmp_path, monkeypatch):
  """For all mixed drafts of one shape, and what they are goes to each."""
  calls = []

  def costs(plain, batch, widths, **how):
    calls.append(widths)
    assert how["repeats"] == 5
    return [1.0, 3.0, 2.0]

  seen = {}

  def run(setups, steps, kept, where):
    for name, setup in setups.items():
      seen[name] = setup.drafts.params.costs.verify_W.tolist()
    raise KeyboardInterrupt

  monkeypatch.setattr(prepare.steps_lib, "verify_costs", costs)
  monkeypatch.setattr(benchmark, "_steps", lambda *_: {})
  monkeypatch.setattr(benchmark._Asker, "ask", lambda *_: [])
  monkeypatch.setattr(benchmark, "_report", run)
  two = "mixed,mixed:mixed.copies=suffix"
  for _ in range(2):
    assert door(tmp_path, drafters=two) == 130
  assert calls == [(1, 2, 3)]
  # A wider pass is not taken to be the cheaper one.
  assert seen == {name: [1.0, 3.0, 3.0] for name in two.split(",")}


def test_a_shape_is_warmed_up_once(door, tmp_path, monkeypatch):
  """Prompts are padded to few lengths; a cold tree learns nothing."""
  run = Stopped(monkeypatch, after=9)
  path = tmp_path / "lengths.txt"
  path.write_text("\n".join(["draft", "x " * 50, "a fast", "z " * 50]))
  assert door(tmp_path, f"--prompts={path}", "--first=0", drafters="none") == 0
  assert run.warmups == [1, 1, 0, 0]
  report = read(tmp_path)
  assert list(report["drafters"]) == ["none"]
  assert report["categories"]["prompts"]["none"]["block_efficiency"] == 1.0


def test_kinds_of_drafts(door):
  """By name: options of the section, and trees that stay empty."""
  config = f"--config={tiny.CONFIGS / 'smollm2.py'}"
  made = lambda name: bench._drafts(name, ["", config])
  assert made("lookup:gamma=3:lookup.max_n=5").lookup.max_n == 5
  assert made("suffix").suffix.memory > 0
  tree = "eagle:tree=[[0], [1],[0,0]]:siblings=distinct"
  names = f"lookup:gamma=3,{tree},medusa:tree=mini/eagle_tree:8"
  assert bench._kinds(names) == [
      "lookup:gamma=3", tree, "medusa:tree=mini/eagle_tree:8"
  ]
  draft = made(tree)
  assert draft.topology().nodes == 3 and draft.siblings == "distinct"
  with pytest.raises(errors.UserError, match="none of 8 nodes"):
    made("medusa:tree=mini/eagle_tree:8")
  for name in ("suffix:cold", "mixed:mixed.copies=suffix:cold"):
    draft = made(name)
    assert draft.kind == name.partition(":")[0] and not draft.suffix.memory


@pytest.mark.parametrize(
    "words, line",
    [
        (["--prompts="], "--prompts: which? give a file, or agent"),
        (["--prompts=/none.jsonl"], "--prompts: /none.jsonl: No such file"),
        (["--only=c"], "--only: no category 'c'; give a, b"),
        (["--first=-1"], "--first: give whole numbers from 0"),
        (["--frist=1"], "--frist: there is no such option; did you mean --fi"),
        (["--drafters=look"], "--drafters: look: draft.kind: give one of"),
        (["--drafters=simulated:alpha=0.5"], "--drafters: give some of model,"),
        (["--drafters=lookup:cold"], "--drafters: only suffix trees can be co"),
        (["--drafters=lookup:x"], "--drafters: 'x' of 'lookup:x' is not under"),
        (["--drafters=lookup:gama=3"], "did you mean draft.gamma?"),
        (["--config.decode.batch=2"], "decode.batch: give 1: each of --prompt"),
        (["--config.data.text=Hi"], "data.text: give '': each of --prompts is"),
        (["--config.decode.dtype=x"], "decode.dtype: give one of float32"),
    ],
)
def test_bad_input_is_one_line(words, line, door, tmp_path, capsys):
  assert door(tmp_path, *words) == 1
  [shown] = capsys.readouterr().err.splitlines()
  assert shown.startswith("specjax.bench: ") and line in shown


def test_help(capsys):
  assert bench.main(["bench", "--help"]) == 0
  shown = capsys.readouterr().out
  assert "--drafters" in shown and "--config.draft.gamma=3" in shown


def test_a_damaged_part_is_one_line(door, tmp_path, monkeypatch, capsys):
  Stopped(monkeypatch, after=2)
  assert door(tmp_path) == 130
  path = tmp_path / "parts" / "prompt_0.kept"
  path.write_bytes(path.read_bytes().replace(b"tokens", b"tokenz", 1))
  capsys.readouterr()
  assert door(tmp_path) == 1
  assert f"{path} is damaged; delete it" in capsys.readouterr().err
