"""The main door, in this process, on tiny random models."""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from specjax import command_line
from specjax import drafts as drafts_lib
from specjax import experiment
from specjax import fetch
from specjax import prepare
from specjax import run
from specjax import sections
from specjax import theory
from specjax.checkpoints import ngrams as ngram_files
from specjax.checkpoints import responses
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.data import ngrams
from specjax.decoding import requests as requests_lib
from specjax.decoding import side as side_lib
from specjax.measure import lossless
from specjax.measure import timing
from specjax.models import t5
from specjax.verify import block
from specjax.verify import token as token_rule
from specjax.verify import tree as rules
from specjax.verify import typical
from tests import test_measure_page
from tests import test_measure_report
from tests import tiny


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
  with tiny.quick_compilation():
    yield


@pytest.fixture(scope="module")
def family(tmp_path_factory):
  """Paths of a target, another model as draft, and rows."""
  return tiny.write_family(tmp_path_factory.mktemp("family"))


def drafts_for_itself(family, out):
  """Arguments of a full run whose draft is the target."""
  return tiny.arguments(
      family,
      draft__checkpoint=family["target"],
      draft__gamma=7,
      decode__min_new_tokens=16,
      out=out,
      measure__timed_rows=3,
      measure__repeats=3,
      measure__traced_rows=2,
  )


@pytest.fixture(scope="module")
def self_draft(family, tmp_path_factory):
  """Such a run: its folder, and what it printed."""
  out = tmp_path_factory.mktemp("out") / "run"
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    assert run.main(drafts_for_itself(family, out)) == 0
  return out, printed.getvalue()


def read(out, name="report.json"):
  return json.loads((out / name).read_text())


def test_self_draft_report(self_draft):
  """float32, greedy: alpha exactly 1, nothing differs."""
  out, printed = self_draft
  report, details = read(out), read(out, "details.json")
  assert set(report) == set(test_measure_report.KEYS)
  assert report["alpha"] == 1.0
  assert set(report["acceptance_by_position"]) <= {1.0, None}
  assert report["mismatched_rows"] == 0
  quality = report["quality"]
  assert quality["metric"] == "bleu"
  assert quality["plain"] == quality["speculative"]
  assert (report["gamma"], report["batch"], report["dtype"]) == (
      7, 2, "float32"
  )
  product = report["predicted_speedup"]["theorem_3_8"]
  for factor in report["gap"].values():
    product *= factor
  assert product == pytest.approx(report["measured_speedup"]["median"])
  assert report["gap"]["idle_rows"] > 0
  # 16 tokens are two rounds of 8: no end is cut.
  for key in ("sample", "ends", "tokens"):
    assert report["gap"][key] == pytest.approx(1.0)
  assert details["rows"] == len(tiny.TEXTS) == len(details["outputs"])
  assert (details["timed_rows"], len(details["speedups"])) == (3, 3)
  for row in details["outputs"]:
    assert (row["tokens"], row["rounds"]) == (16, 2)
  assert details["command"].startswith("python -m specjax.run --config ")
  assert "alpha                 1.00" in printed
  assert str(out / "report.json") in printed


def test_timed_rows_have_an_alpha_of_their_own(
    family, self_draft, tmp_path, monkeypatch
):
  """Those in front; the gap's sample is Eq. 1 at theirs over that at all's."""
  del self_draft  # Its programs are compiled.
  ones = [np.array([float(i < 3)]) for i in range(len(tiny.TEXTS))]
  monkeypatch.setattr(experiment, "_places", lambda *_: ones)
  assert run.main(drafts_for_itself(family, tmp_path / "out")) == 0
  report = read(tmp_path / "out")
  alpha = 3 / len(ones)
  assert report["alpha"] == pytest.approx(alpha) and alpha < 1
  assert report["gap"]["sample"] == pytest.approx(
      8 / theory.expected_tokens(alpha, 7)
  )
  assert report["gap"]["tokens"] == pytest.approx(1.0)


def test_self_draft_files(self_draft):
  out, _ = self_draft
  assert {path.name for path in out.iterdir()} == {
      "report.json", "details.json", "report.md", "report.html"
  }
  page = test_measure_page.read((out / "report.html").read_text())
  figures = "16 tokens in 2 rounds: 8.00 a round, cut at decode.max_new_tokens"
  assert page.words.count(figures) == 2


def test_self_draft_trace(self_draft):
  """Untimed, and yet the same tokens; each is in a round, with p and q."""
  details = read(self_draft[0], "details.json")
  assert [row["id"] for row in details["trace"]] == ["row0", "row1"]
  for row, outputs in zip(details["trace"], details["outputs"]):
    assert row["text"] == outputs["speculative"]
    assert (row["tokens"], row["finish"]) == (16, "length")
    assert [len(round_["judged"]) for round_ in row["rounds"]] == [7, 7]
    for round_ in row["rounds"]:
      assert round_["accepted"] == 7 and round_["next"]["piece"]
      for token in round_["judged"]:
        assert (token["p"], token["q"]) == (1.0, 1.0)
        assert 0 <= token["coin"] < 1


@pytest.mark.slow
def test_tree_run(family, tmp_path, capsys):
  """A whole report; along first children the target drafts for itself."""
  arguments = tiny.arguments(
      family,
      draft__checkpoint=family["target"],
      draft__tree="[[0],[1],[0,0],[0,1],[0,0,0]]",
      decode__min_new_tokens=16,
      data__rows=2,
      measure__traced_rows=1,
      out=tmp_path,
  )
  assert run.main(arguments) == 0
  report, details = read(tmp_path), read(tmp_path, "details.json")
  assert set(report) == set(test_measure_report.KEYS)
  assert (report["gamma"], report["nodes"], report["rule"]) == (3, 5, "tree")
  assert (report["mismatched_rows"], report["lossless"]) == (0, True)
  assert (report["alpha"], report["block_efficiency"]) == (1.0, 4.0)
  assert set(report["acceptance_by_position"]) == {1.0}
  assert details["drafted"] == 5 * details["rounds"]
  assert report["c"] >= 0 and report["verify_cost"] > 0
  product = report["predicted_speedup"]["theorem_3_8"]
  for factor in report["gap"].values():
    product *= factor
  assert product == pytest.approx(report["measured_speedup"]["median"])
  assert "trees of 5 nodes, depth 3" in capsys.readouterr().out


def test_rules_and_trees_arrive(family):
  """What they do is tested with rules and drafters."""
  tree = dict(draft__tree="[[0],[1],[0,0]]", draft__siblings="distinct")
  setup = setup_of(family, **tree)
  drafter = setup.drafts.drafter
  assert (drafter.nodes, drafter.siblings) == (3, "distinct")
  assert setup.drafts.tree == drafter.topology
  assert setup.speculative.loop.rule == rules.TreeRule()
  lossy = dict(verify__rule="typical", verify__epsilon=0.5, verify__delta=0.9)
  rule = setup_of(family, **lossy).speculative.loop.rule
  assert rule == typical.TypicalRule(epsilon=0.5, delta=0.9)
  # Acceptance is measured by the token rule all the same.
  assert experiment.pair(setup).rules == (token_rule.TokenRule(),)
  block_setup = setup_of(family, verify__rule="block")
  assert block_setup.speculative.loop.rule == block.BlockRule()


def test_sampled_run_without_drafts(family, tmp_path, capsys):
  """Both sides are plain decoding then; T = 1 claims nothing per row."""
  arguments = tiny.arguments(
      family,
      draft__kind="none",
      draft__checkpoint="not/looked-at",
      sampling__temperature=1,
      data__rows=2,
      out=tmp_path,
  )
  assert run.main(arguments) == 0
  report = read(tmp_path)
  assert (report["alpha"], report["gamma"]) == (None, 0)
  assert (report["c"], report["verify_cost"]) == (0.0, 1.0)
  assert report["mismatched_rows"] is None
  assert report["block_efficiency"] == 1.0
  assert report["predicted_speedup"]["theorem_3_8"] == 1.0
  printed = capsys.readouterr()
  assert "sampled: laws are tested by the test suite" in printed.out
  assert "timing" in printed.err


def test_simulated_run(family, tmp_path):
  """A whole report at a prescribed alpha, of random weights."""
  arguments = tiny.arguments(
      family,
      draft__kind="simulated",
      draft__alpha=1.0,
      draft__gamma=7,
      draft__checkpoint="not/looked-at",
      decode__min_new_tokens=16,
      measure__timed_rows=3,
      out=tmp_path,
  )
  assert run.main(arguments) == 0
  report, details = read(tmp_path), read(tmp_path, "details.json")
  assert set(report) == set(test_measure_report.KEYS)
  assert report["drafter"] == "simulated:alpha=1.0"
  assert report["alpha"] == pytest.approx(1, abs=1e-6)
  assert set(report["acceptance_by_position"]) <= {1.0, None}
  assert (report["mismatched_rows"], report["block_efficiency"]) == (0, 8.0)
  assert report["c"] >= 0 and report["verify_cost"] > 0  # 0: under the clock
  for outputs in details["outputs"]:
    assert (outputs["tokens"], outputs["rounds"]) == (16, 2)
    assert outputs["plain"] == outputs["speculative"]


def test_simulated_drafts_replay_what_comes_out(family):
  """Plain output that another rounding would give is put right first."""
  setup = setup_of(
      family,
      draft__kind="simulated",
      draft__alpha=1.0,
      draft__gamma=7,
      decode__min_new_tokens=16,
  )
  tokens = list(setup.output[1].tokens)
  tokens[4] += 1
  other = dataclasses.replace(setup.output[1], tokens=tuple(tokens))
  output = [setup.output[0], other, *setup.output[2:]]
  drafts = prepare.DRAFTS["simulated"](
      dataclasses.replace(setup, output=output)
  )
  for got, want in zip(
      jax.tree.leaves(drafts.params), jax.tree.leaves(setup.drafts.params)
  ):
    assert (got == want).all()


@pytest.fixture(scope="module")
def table(family, tmp_path_factory):
  """Path of a table that was counted with the family's vocabulary."""
  tokenizer = tokenizer_lib.Tokenizer.load(family["target"])
  path = tmp_path_factory.mktemp("table") / "bigram.safetensors"
  train = [pathlib.Path(family["rows.jsonl"])]
  ngram_files.save(path, ngrams.build(train, tokenizer)[0])
  return path


@pytest.mark.slow
def test_ngram_run(family, table, tmp_path):
  """c, v and alpha as for any other drafts; the target is not disturbed."""
  arguments = tiny.arguments(
      family,
      draft__kind="bigram",
      draft__table=table,
      sampling__temperature=1,
      measure__timed_rows=3,
      out=tmp_path,
  )
  assert run.main(arguments) == 0
  report = read(tmp_path)
  assert report["drafter"] == f"bigram:{table}"
  assert report["gamma"] == 2 and 0 < report["alpha"] < 1
  assert report["c"] >= 0 and report["verify_cost"] > 0
  # As many as were asked for: none.
  assert read(tmp_path, "details.json")["trace"] == []


def test_lookup_run(family, tmp_path, capsys):
  """A whole report of drafts without an alpha."""
  arguments = tiny.arguments(
      family,
      draft__kind="lookup",
      draft__gamma=1,
      draft__checkpoint="not/looked-at",
      data__rows=2,
      out=tmp_path,
  )
  assert run.main(arguments) == 0
  report, details = read(tmp_path), read(tmp_path, "details.json")
  assert set(report) == set(test_measure_report.KEYS)
  assert (report["drafter"], report["gamma"]) == ("lookup", 1)
  assert report["alpha"] is None and report["mismatched_rows"] == 0
  assert set(report["predicted_speedup"].values()) == {None}
  assert report["measured_speedup"]["median"] > 0
  assert report["c"] >= 0 and report["verify_cost"] > 0
  drafted = details["rounds"] - details["empty_rounds"]
  assert 0 < details["drafted"] == drafted < details["rounds"]
  assert "drafted a round" in capsys.readouterr().out


def test_suffix_trees_run(family, tmp_path, capsys):
  """Trees without a shape that holds for every round."""
  arguments = tiny.arguments(
      family,
      draft__kind="suffix",
      draft__gamma=2,
      draft__suffix__nodes=3,
      draft__suffix__offset=2,
      draft__suffix__reach=8,
      data__rows=2,
      out=tmp_path,
  )
  assert run.main(arguments) == 0
  report, details = read(tmp_path), read(tmp_path, "details.json")
  assert (report["gamma"], report["nodes"], report["rule"]) == (2, 3, "tree")
  assert report["mismatched_rows"] == 0 and details["tree"] is None
  assert details["drafted"] > 0
  assert "trees of 3 nodes, depth 2, grown" in capsys.readouterr().out


def test_responses_are_kept_and_used(family, tmp_path):
  """Row after row within a run; then from a file, in another."""
  path = tmp_path / "responses.safetensors"
  options = dict(
      draft__kind="suffix",
      draft__gamma=1,
      draft__suffix__memory=500,
      decode__batch=1,
  )
  setup = setup_of(family, **options, draft__suffix__save=path)
  results, side = setup.decode_and_learn(setup.speculative)
  setup.save_responses(side)
  tokens = [list(row.tokens) for row in results]
  assert tokens == [list(row) for row in plain_tokens(setup)]
  known = lambda drafts: [ids.tolist() for ids in drafts_lib.responses(drafts)]
  assert known(setup.drafts) == []
  later = setup_of(family, **options, draft__suffix__load=path)
  assert known(later.drafts) == tokens
  again = later.decode(later.speculative)
  assert [list(row.tokens) for row in again] == tokens
  rounds = lambda rows: sum(row.rounds for row in rows)
  assert rounds(again) < rounds(results)


def test_costs_of_drafts_are_measured(family, monkeypatch):
  """Where they are not given; with the target and each source alone."""
  asked = []

  def measure(plain, speculative, batch, **how):
    asked.append((speculative.loop.drafter, how))
    return prepare.steps_lib.Steps(draft=0.5, target=2.0, verify=3.0)

  def verify_costs(plain, batch, widths, **how):
    asked.append((plain.loop.drafter.kind.value, widths, how))
    return [1.0, *[1.75] * (len(widths) - 1)]

  monkeypatch.setattr(prepare.steps_lib, "measure", measure)
  monkeypatch.setattr(prepare.steps_lib, "verify_costs", verify_costs)
  mixed = dict(draft__kind="mixed", draft__gamma=3, data__rows=1)
  setup = setup_of(family, **mixed)
  drafter, costs = setup.drafts.drafter, setup.drafts.params.costs
  # What governs every round is timed five times at least.
  how = dict(steps=2, repeats=5)
  assert asked == [
      (drafter.model, how),
      (drafter.copies, how),
      ("none", drafter.widths, how),
  ]
  assert float(costs.draft) == 0.25 and float(costs.matching) == 0.75
  assert costs.verify_W.tolist() == [1.0] + [1.75] * (len(drafter.widths) - 1)
  del asked[:]
  given = dict(draft__switch__matching=0.0, draft__switch__v=1.5)
  setup_of(family, **mixed, **given, draft__switch__c=0.1)
  setup_of(family, **mixed, draft__switch__on=False)
  setup_of(family, **mixed, **given, draft__mixed__model=False)
  plain = mixed | dict(draft__kind="lookup")
  raw = setup_of(family, **plain).drafts.drafter
  assert not asked
  own = setup_of(family, **plain, draft__switch__on=True).drafts.drafter
  assert asked == [(raw, how), ("none", own.widths, how)]
  assert own.copies == raw and own.model is None and own.widths == raw.widths


def test_options_of_copies(family, tmp_path):
  """Each reaches what drafts."""
  drafter = lambda **options: setup_of(
      family, data__rows=1, **options
  ).drafts.drafter
  lookup = dict(draft__kind="lookup")
  base = drafter(**lookup)
  for key, value in (
      ("min_n", 2), ("max_n", 5), ("latest", True), ("source", False)
  ):
    changed = drafter(**lookup, **{f"draft__lookup__{key}": value})
    assert getattr(changed, key) == value != getattr(base, key)
  suffix = dict(draft__kind="suffix")
  base = drafter(**suffix)
  for key, value in (
      ("reach", 9), ("factor", 2.0), ("offset", 1.0), ("least", 0.3),
      ("source", False), ("learns", False), ("nodes", 5),
  ):
    changed = drafter(**suffix, **{f"draft__suffix__{key}": value})
    assert getattr(changed, key) == value != getattr(base, key)
  mixed = dict(
      draft__kind="mixed",
      draft__switch__v=1.5,
      draft__switch__c=0.1,
      draft__switch__matching=0.2,
  )
  setup = setup_of(family, data__rows=1, **mixed)
  base, costs = setup.drafts.drafter, setup.drafts.params.costs
  assert base.model.gamma == 3 and base.copies == drafter(**lookup)
  assert float(costs.draft) == pytest.approx(0.1)
  assert float(costs.matching) == pytest.approx(0.2)
  assert costs.verify_W.tolist() == pytest.approx(
      [1 + 0.5 * (width - 1) / base.gamma for width in base.widths]
  )
  for key, value in (("credit", 3.0), ("share", 0.5), ("margin", 0.1)):
    changed = drafter(**mixed, **{f"draft__switch__{key}": value})
    assert getattr(changed.switch, key) == value != getattr(base.switch, key)
  alone = drafter(**mixed, draft__mixed__model=False)
  assert alone.model is None and alone.switch
  assert drafter(**mixed, draft__switch__on=False).switch is None
  assert drafter(**mixed, draft__mixed__model_gamma=1).model.gamma == 1
  none = setup_of(family, data__rows=1, **suffix, draft__suffix__memory=0)
  assert none.drafts.params is None and not none.drafts.drafter.learns
  some = setup_of(family, data__rows=1, **suffix, draft__suffix__memory=77)
  assert some.drafts.params.capacity == 77


def test_responses_that_hold_the_answers(family, tmp_path):
  """z-lab/dflash#43: planted, in other case and spaces."""
  setup = setup_of(family)
  answer = setup.examples[2].reference
  path = tmp_path / "responses.safetensors"
  ids = setup.target.tokenizer.encode(f"  {answer}")
  responses.save(path, [np.array(ids)], setup.target.tokenizer)
  load = dict(draft__kind="suffix", draft__suffix__load=path)
  with pytest.raises(ValueError, match="1 of 5 references .*row2"):
    setup_of(family, **load)
  with pytest.raises(ValueError, match="draft.suffix.load: .* is no file"):
    setup_of(family, **load | dict(draft__suffix__load=tmp_path))
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match="draft.suffix.save: .*another file"):
    setup_of(
        family,
        draft__kind="suffix",
        draft__suffix__save=tmp_path / "file" / "x",
    )


# --- every option changes something -----------------------------------------


def setup_of(family, **options):
  return prepare.prepare(tiny.config(family, **options))


def plain_tokens(setup):
  return [row.tokens for row in setup.decode(setup.plain)]


def test_gamma(family, self_draft):
  """16 tokens of a perfect draft: 4 rounds at gamma 3, 2 at gamma 7.

  unslothai/unsloth#10452, and ml-explore/mlx-lm#1297: an option that is
  parsed, but never used.
  """
  setup = setup_of(
      family,
      draft__checkpoint=family["target"],
      draft__gamma=3,
      decode__min_new_tokens=16,
  )
  result = experiment.trace(setup)
  assert (len(result.tokens), result.rounds) == (16, 4)
  at_7 = read(self_draft[0], "details.json")["outputs"][0]
  assert (at_7["tokens"], at_7["rounds"]) == (16, 2)


def test_draft_options(family, table):
  """Each changes how well the drafts fit, and the drafter that is run."""
  common = dict(sampling__temperature=1)
  base = setup_of(family, **common)
  plain = base.decode(base.plain)
  alpha = lambda setup: experiment.alpha(setup, plain)[0]
  assert alpha(base) == alpha(setup_of(family, **common))
  changed = lambda **options: setup_of(family, **common, **options)
  assert alpha(changed(draft__checkpoint=family["target"])) > 2 * alpha(base)
  for name, value in (("temperature", 0.1), ("top_k", 2), ("top_p", 0.1)):
    setup = changed(**{f"draft__{name}": value})
    assert alpha(setup) != pytest.approx(alpha(base), rel=1e-3), name
    assert getattr(setup.drafts.drafter, name) == value
    assert setup.speculative.loop != base.speculative.loop
  setup = changed(draft__argmax="true")
  assert setup.drafts.drafter.argmax and experiment.pair(setup).argmax
  kinds = {}
  for kind in ("bigram", "unigram"):
    setup = changed(draft__kind=kind, draft__table=table, draft__top_k=9)
    assert setup.drafts.drafter.top_k == 9
    kinds[kind] = alpha(changed(draft__kind=kind, draft__table=table))
    assert kinds[kind] != alpha(setup)
  assert len({*kinds.values(), alpha(base)}) == 3
  for rate in (0.2, 0.7):
    setup = setup_of(family, draft__kind="simulated", draft__alpha=rate)
    measured = experiment.alpha(setup, setup.output)[0]
    assert measured == pytest.approx(rate, abs=1e-6)
  none = setup_of(family, **common, draft__kind="none")
  assert none.speculative.loop == none.plain.loop == base.plain.loop


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_that_differ(family, dtype):
  """Where, and whether that type's rounding explains it.

  huggingface/transformers#39421: a pass over several tokens rounds otherwise.
  """
  setup = setup_of(family, data__rows=2, decode__dtype=dtype)
  texts = lambda *rows: [types.SimpleNamespace(tokens=row) for row in rows]
  [found] = experiment.mismatches(
      setup, texts((3, 4), (5, 6, 7)), texts((3, 4), (5, 8, 7))
  )
  assert (found.row, found.position) == (1, 1)
  assert found.bound == lossless.NEAR_TIE[dtype]
  assert found.gap > 0 and found.near_tie == (found.gap < found.bound)


def test_verify_options(family):
  """What they do is tested with the rule."""
  options = dict(verify__lenience=0.3, verify__residual="lenient")
  setup = setup_of(family, **options)
  for rule in (setup.speculative.loop.rule, *experiment.pair(setup).rules):
    assert (rule.lenience, rule.residual) == (0.3, "lenient")


def test_sampling_options(family):
  tokens = lambda **options: plain_tokens(setup_of(family, **options))
  greedy, sampled = tokens(), tokens(sampling__temperature=1)
  assert greedy != sampled
  assert tokens(sampling__temperature=1, sampling__top_k=1) == greedy
  assert tokens(sampling__temperature=1, sampling__top_p=0.001) == greedy
  assert tokens(sampling__temperature=1, decode__seed=1) != sampled
  two = tuple(i for i in range(160) if i not in (1, 7))
  assert set(sum(tokens(decode__suppressed=two), ())) <= {1, 7}
  short = tokens(sampling__temperature=1, decode__suppressed=two)
  assert min(map(len, short)) < 6
  long = tokens(
      sampling__temperature=1,
      decode__suppressed=two,
      decode__min_new_tokens=6,
  )
  assert min(map(len, long)) >= 6
  assert {row[0] for row in tokens(decode__forced_first=9)} == {9}


def test_shapes_and_types(family):
  base = setup_of(family)
  other = setup_of(
      family,
      target__checkpoint=family["draft"],
      decode__batch=3,
      decode__dtype="bfloat16",
      decode__max_new_tokens=4,
      data__rows=4,
      data__max_source_tokens=5,
  )
  leaf = lambda setup: jax.tree.leaves(setup.target.params)[-1]
  assert (leaf(base).dtype, leaf(other).dtype) == ("float32", "bfloat16")
  assert (leaf(base) != leaf(other).astype("float32")).any()
  assert jax.tree.leaves(other.drafts.params)[0].dtype == "bfloat16"
  assert [len(group.rows) for group in base.groups(9)] == [2, 2, 1]
  assert [len(group.rows) for group in other.groups(9)] == [3, 1]
  assert {len(g.batch.budget_B) for g in other.groups(9)} == {3}
  assert max(len(request.source) for request in base.requests) > 5
  assert max(len(request.source) for request in other.requests) == 5
  assert {request.max_new_tokens for request in other.requests} == {4}
  assert all(request.source[-1] == 1 for request in other.requests)


def test_data_options():
  load = lambda **fields: fetch.load_examples(sections.Data(**fields))
  assert len(load()) == 200 and len(load(rows=3)) == 3
  translate, summarize = load(rows=1)[0], load(task="mini_summ", rows=1)[0]
  assert translate.source.startswith("translate English to German: ")
  assert summarize.source.startswith("summarize: ")
  with pytest.raises(ValueError, match="data.split"):
    load(split="train")
  with pytest.raises(ValueError, match="data.path: nowhere"):
    load(path="nowhere.jsonl")


def test_measure_options(family):
  """Calls: (warmup + repeats) of each timed batch, and steps a timing."""
  calls, counts = [], []

  class Spy(side_lib.Side):

    def run(self, state):
      calls.append(1)
      return super().run(state)

  setup = setup_of(
      family, measure__warmup=2, measure__repeats=3, measure__timed_rows=4
  )
  measure = setup.config.measure
  spy = Spy(setup.plain.loop, setup.target.params, (), 16)
  timing.interleave(
      {"plain": spy},
      [group.batch for group in setup.groups(measure.timed_rows)],
      repeats=measure.repeats,
      warmup=measure.warmup,
  )
  assert len(calls) == 2 * (2 + 3)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
        experiment.timing,
        "interleave",
        lambda *_, **kw: calls.append(kw) or sys.exit("enough"),
    )
    patch.setattr(
        experiment.steps_lib,
        "Turns",
        lambda _, steps, *__, **kw: counts.append((steps, kw["every"])),
    )
    with pytest.raises(SystemExit):
      experiment.run(setup)
  assert (calls[-1]["warmup"], calls[-1]["repeats"]) == (2, 3)
  assert counts == [(2, 1)]


def test_default_out(family, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(
      experiment, "run", lambda *_: experiment.report_lib.make(
          test_measure_report.measured()
      )
  )
  assert run.main(tiny.arguments(family)) == 0
  assert (tmp_path / "out" / "ende_t5small_mini" / "report.json").is_file()
  assert "out/ende_t5small_mini/report.json" in capsys.readouterr().out


# --- a person's own text ----------------------------------------------------


def test_text(family, capsys, monkeypatch):
  """Every round is shown; the pieces are those of the output."""
  monkeypatch.delenv("NO_COLOR", raising=False)
  arguments = tiny.arguments(family, data__text="verify tools")
  assert run.main(arguments) == 0
  out = capsys.readouterr().out
  assert "input   translate English to German: verify tools\n" in out
  assert "\x1b" not in out
  setup = prepare.prepare(tiny.config(family, data__text="verify tools"))
  result = experiment.trace(setup)
  assert f"output  {result.text}\n" in out
  assert f"{len(result.tokens)} tokens in {result.rounds} rounds" in out
  shown = []
  for round_ in result.trace:
    shown += round_.drafted[: round_.accepted]
    shown += [] if round_.next is None else [round_.next]
  assert tuple(shown) == result.tokens
  assert result.tokens == setup.decode(setup.plain)[0].tokens


def test_text_prefix():
  """Added where the text has none."""
  load = lambda text, **fields: fetch.load_examples(
      sections.Data(text=text, **fields)
  )[0].source
  assert load("Hi.") == "translate English to German: Hi."
  assert load("Hi.", task="mini_summ") == "summarize: Hi."
  assert load("summarize: Hi.") == "summarize: Hi."
  assert load("Hi.", task="file") == "Hi."


# --- what goes wrong --------------------------------------------------------


def complaint(capsys, arguments, code=1) -> str:
  """The one line on stderr of a run that fails."""
  assert run.main(arguments) == code
  printed = capsys.readouterr()
  assert printed.out == ""
  [line] = printed.err.strip().splitlines()
  assert line.startswith("specjax.run: ")
  return line


def test_unknown_option(family, capsys):
  arguments = tiny.arguments(family, decode__gama=4)
  assert "decode.gama" in complaint(capsys, arguments)


def test_parts_refuse(family, capsys, tmp_path):
  """Found only once the models are there; the key is still named."""
  arguments = tiny.arguments(family, decode__suppressed="(160,)", out=tmp_path)
  assert "decode.suppressed: " in complaint(capsys, arguments)
  arguments = tiny.arguments(family, data__path="nowhere.jsonl", out=tmp_path)
  assert "data.path: nowhere.jsonl" in complaint(capsys, arguments)


def test_tables_that_do_not_fit(family, table, capsys, tmp_path, monkeypatch):
  """No table, before any weights; or that of another vocabulary."""
  ngram_run = dict(draft__kind="unigram", out=tmp_path / "out")
  with monkeypatch.context() as patch:
    patch.setattr(prepare.checkpoints, "load", None)
    arguments = tiny.arguments(family, draft__table="no/such", **ngram_run)
    line = complaint(capsys, arguments)
  assert "draft.table: 'no/such' is no file, and does not ship" in line
  assert line.endswith("runs the shipped family")
  other = tmp_path / "other.safetensors"
  counted = ngram_files.load(str(table), setup_of(family).target.tokenizer)
  ngram_files.save(other, dataclasses.replace(counted, vocabulary="x"))
  arguments = tiny.arguments(family, draft__table=other, **ngram_run)
  line = complaint(capsys, arguments)
  assert f"draft.table: {other} was counted with another vocabulary" in line


def test_folder_is_tried_first(family, capsys, tmp_path):
  """Not after minutes of work."""
  (tmp_path / "file").write_text("")
  arguments = tiny.arguments(
      family, target__checkpoint="no/such", out=tmp_path / "file"
  )
  assert "out: " in complaint(capsys, arguments)


def test_interrupt(family, capsys, tmp_path, monkeypatch):
  def stop(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(prepare, "prepare", stop)
  line = complaint(capsys, tiny.arguments(family, out=tmp_path), code=130)
  assert "interrupted" in line
  assert not list(tmp_path.iterdir())


def test_too_little_memory(family, capsys, tmp_path, monkeypatch):
  def fail(*_):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

  monkeypatch.setattr(experiment, "run", fail)
  line = complaint(capsys, tiny.arguments(family, out=tmp_path))
  assert "decode.batch" in line and "decode.dtype" in line


def test_nothing_can_be_had(tmp_path):
  """Offline: what to fetch, where to put it, what runs without.

  A line each for draft, target and texts.
  """
  done = subprocess.run(
      [
          sys.executable, "-m", "specjax.run",
          "--config", str(tiny.CONFIGS / "ende_t5small.py"),
          f"--config.out={tmp_path / 'out'}",
      ],
      cwd=tiny.CONFIGS.parent,
      env=os.environ | {
          "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")
      },
      capture_output=True,
      text=True,
  )
  assert done.returncode == 1
  draft, target, texts = done.stderr.splitlines()
  assert draft.startswith("specjax.run: draft.checkpoint: google/flan-t5-small")
  assert "hf download google/flan-t5-xxl --local-dir DIR" in target
  assert "wmt/wmt14" in texts and "--config.data.path=DIR" in texts
  assert "configs/ende_t5small.py:mini runs the shipped family" in texts


def test_help(capsys):
  assert run.main(["run", "--help"]) == 0
  assert "--config.draft.gamma=3" in capsys.readouterr().out


# --- shipped and full-sized models ------------------------------------------


PAIRS = pytest.mark.parametrize(
    "task,draft",
    [(t, d) for t in ("ende", "cnndm") for d in ("small", "base", "large")],
)


def mini(task, draft, out, *options):
  """argv of a shipped pair's config."""
  config = f"{tiny.CONFIGS / f'{task}_t5{draft}.py'}:mini"
  return ["run", "--config", config, f"--config.out={out}", *options]


@PAIRS
def test_mini_pairs_load(tmp_path, task, draft):
  """One vocabulary, and rows that are there; the draft is the smaller."""
  config = command_line.read(mini(task, draft, tmp_path))
  setup = prepare.prepare(config)
  assert len(setup.requests) == 200
  widths = {len(request.source) for request in setup.requests}
  assert len(set(map(requests_lib.source_width, widths))) <= 5
  size = lambda params: sum(leaf.size for leaf in jax.tree.leaves(params))
  assert size(setup.drafts.params) < size(setup.target.params) / 2


def test_mini(tmp_path):
  """The shipped target on two shipped rows, plainly, to be quick."""
  options = (
      "--config.draft.kind=none",
      "--config.data.rows=2",
      "--config.decode.max_new_tokens=24",
      "--config.measure.repeats=1",
      "--config.measure.warmup=1",
      "--config.measure.steps=5",
  )
  assert run.main(mini("ende", "small", tmp_path, *options)) == 0
  report = read(tmp_path)
  assert report["mismatched_rows"] == 0
  assert report["quality"]["metric"] == "bleu"
  assert report["config"]["data"]["task"] == "mini_ende"


@pytest.mark.slow
@PAIRS
def test_mini_pairs(tmp_path, task, draft):
  """Each shipped pair as its config has it, two rows."""
  assert run.main(mini(task, draft, tmp_path, "--config.data.rows=2")) == 0
  report = read(tmp_path)
  assert report["drafter"] == f"model:mini/{draft}_distilled"
  for mismatch in read(tmp_path, "details.json")["mismatches"]:
    assert mismatch["near_tie"]


FLAN_T5_SMALL = t5.T5Config(
    vocab_size=32128,
    d_model=512,
    d_kv=64,
    d_ff=1024,
    num_layers=8,
    num_decoder_layers=8,
    num_heads=6,
    gated=True,
    tied=False,
)
T5_SMALL = t5.T5Config(
    vocab_size=32128,
    d_model=512,
    d_kv=64,
    d_ff=2048,
    num_layers=6,
    num_decoder_layers=6,
    num_heads=8,
    gated=False,
    tied=True,
)


@pytest.mark.slow
def test_paper_shapes(family, tmp_path):
  """flan-t5-small and t5-small, weights random, by the paper's own config.

  Either drafts for the other; 16 tokens a row.
  """
  spiece = fetch.resolve.resolve("mini/target", hint="") / "spiece.model"
  assert tokenizer_lib.Tokenizer(spiece).size < 32128
  for name, shape in (("flan", FLAN_T5_SMALL), ("t5", T5_SMALL)):
    tiny.write_random_t5(tmp_path / name, shape, tokenizer_file=spiece)
  for target, draft in (("flan", "t5"), ("t5", "flan")):
    out = tmp_path / f"out-{target}"
    arguments = [
        "run",
        "--config",
        str(tiny.CONFIGS / "ende_t5small.py"),
        f"--config.target.checkpoint={tmp_path / target}",
        f"--config.draft.checkpoint={tmp_path / draft}",
        f"--config.data.path={family['rows.jsonl']}",
        "--config.data.rows=2",
        "--config.decode.dtype=float32",
        "--config.decode.max_new_tokens=16",
        "--config.measure.repeats=2",
        "--config.measure.steps=5",
        f"--config.out={out}",
    ]
    assert run.main(arguments) == 0
    report = read(out)
    assert report["gamma"] == 7
    for mismatch in read(out, "details.json")["mismatches"]:
      assert mismatch["near_tie"]
