"""What the scripts measure, on tiny random models."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from experiments import figures
from experiments import intervals
from experiments import pairs
from experiments import rounds
from experiments import table1
from experiments import table3
from experiments import table5
from specjax import errors
from specjax import experiment
from specjax import fetch
from specjax import outputs
from specjax import prepare
from specjax import theory
from specjax.checkpoints import ngrams as ngram_files
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.data import ngrams
from specjax.measure import weights
from tests import tiny

# Whole scripts, each with programs of its own to compile.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
  with tiny.quick_compilation():
    yield


@pytest.fixture(scope="module")
def family(tmp_path_factory):
  return tiny.write_family(tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="module")
def pair(family, tmp_path_factory):
  """A pair whose n-grams were counted with the family's vocabulary."""
  tokenizer = tokenizer_lib.Tokenizer.load(family["target"])
  table = tmp_path_factory.mktemp("table") / "bigram.safetensors"
  train = [pathlib.Path(family["rows.jsonl"])]
  ngram_files.save(table, ngrams.build(train, tokenizer)[0])
  config = tiny.config(
      family,
      draft__table=table,
      draft__gamma=2,
      decode__max_new_tokens=6,
      measure__timed_rows=2,
  )
  return pairs.Pair("ende", "small", config)


def test_a_setup_is_what_prepare_makes(pair):
  """Whatever is shared; sampled rows keep their ids and their budget."""
  config = pair.at(1, gamma=3, lenience=0.5)
  made, alone = pairs.setup(config), prepare.prepare(config)
  assert made.config == alone.config
  assert made.requests == alone.requests
  assert made.examples == alone.examples
  assert made.speculative.loop == alone.speculative.loop
  assert [row.tokens for row in made.output] == [
      row.tokens for row in alone.decode(alone.plain)
  ]


def test_models_are_loaded_once(pair, monkeypatch):
  first = pairs.setup(pair.at(0))
  monkeypatch.setattr(fetch, "fetch", None)
  monkeypatch.setattr(pairs.checkpoints, "load", None)
  other = pairs.setup(pair.at(0, gamma=5, lenience=0.3))
  assert other.target is first.target
  assert other.drafts.params is first.drafts.params
  assert other.output is first.output
  assert other.drafts.drafter.gamma == 5


def test_costs(pair, monkeypatch):
  monkeypatch.setattr(pairs, "GAMMAS", (1, 2))
  costs = pairs.costs([pair], 0)
  assert len(costs["verify_cost"]) == 2 and costs["target_ms"] > 0
  assert costs["c"]["small"] == costs["c_by_gamma"]["small"][1] >= 0
  setup = pairs.setup(pair.at(0))
  assert costs["alpha"]["small"] == experiment.alpha(setup, setup.output)[0]


def test_best_gamma():
  costs = [1 + 0.2 * gamma for gamma in pairs.GAMMAS]
  dear = [0.04 + 0.01 / gamma for gamma in pairs.GAMMAS]
  for alpha in (0.1, 0.5, 0.9):
    best, speedup = pairs.best_gamma(alpha, dear, costs)
    values = [
        theory.speedup(alpha, gamma, c, v)
        for gamma, c, v in zip(pairs.GAMMAS, dear, costs)
    ]
    assert speedup == max(values) == values[best - 1]
  # A v that does not rise has the best gamma of the theory.
  best, _ = pairs.best_gamma(0.6, [0.1] * 8, [1.3] * 8)
  assert best == theory.best_gamma(0.6, 0.1, 1.3)


@pytest.mark.parametrize("temperature", (0, 1))
def test_alpha(pair, temperature):
  """Of all sources; of a model the same as a run's."""
  alphas = {}
  for source in table3.sources([pair]):
    line = table3.alpha(source, temperature)
    alphas[source.draft] = line["alpha"]
    assert 0 <= line["alpha"] <= 1 and line["half_width"] >= 0
    setup = pairs.setup(source.at(temperature))
    assert line["places"] == sum(len(row.tokens) for row in setup.output)
    assert line["alpha"] == pytest.approx(
        experiment.alpha(setup, setup.output)[0]
    )
  assert list(alphas) == ["unigram", "bigram", "small"]
  assert len(set(alphas.values())) > 1 or not temperature


def test_lenience(pair):
  """Four alphas by one pass; the first is the exact rule's."""
  for kind, temperature in (("sampled", 1), ("argmax", 0)):
    made = table5.alphas(pair, kind)
    assert made["alpha"] == sorted(made["alpha"])
    alone = table3.alpha(pair, temperature)
    assert made["alpha"][0] == pytest.approx(alone["alpha"], abs=1e-6)
    assert made["places"] == alone["places"]
  assert made["alpha"][-1] > made["alpha"][0]


def test_counted_acceptance(pair):
  """Overlaps of the loop are those of the teacher-forced pass."""
  made = table3.count(pair)
  total = lambda *keys: sum(made[key]["places"] for key in keys)
  assert total("judged") == total("accepted")
  assert total("own") == total("judged", "not_judged")
  overlap = lambda key: made[key]["mean"] * made[key]["places"]
  assert overlap("own") == pytest.approx(
      overlap("judged") + overlap("not_judged"), abs=1e-4
  )
  assert made["difference"] == pytest.approx(
      made["accepted"]["mean"] - made["plain"]["mean"]
  )


def result(tokens, judged, accepted, overlap, trace=None):
  return outputs.Result(
      text="",
      tokens=tokens,
      finish="eos",
      rounds=1,
      empty=0,
      drafted=0,
      judged=judged,
      accepted=accepted,
      overlap=overlap,
      log_probs=None,
      law_log_probs=None,
      trace=trace,
  )


def test_comparison_by_hand():
  """A text of 4 places, 3 of them judged; one of 2, both judged."""
  plain = intervals.Share([1.0, 1.0], [4, 2])
  own = intervals.Share([2.0, 1.0], [4, 2])
  rows = [
      result((1, 2, 3, 4), (2, 1), (1, 1), (0.75, 0.5)),
      result((1, 2), (2, 0), (0, 0), (1.0, 0.0)),
  ]
  made = table3.compare(plain, own, rows)
  assert made["judged"]["mean"] == pytest.approx(2.25 / 5)
  assert made["accepted"]["mean"] == pytest.approx(2 / 5)
  assert made["not_judged"] == {"mean": 0.75, "half_width": None, "places": 1}
  assert made["difference"] == pytest.approx(2 / 5 - 2 / 6)
  # Texts: (2 - .4 * 3) / 5 - (1 - 4 / 3 / 4 * 4) / 6 and so on.
  moved = np.array([2 - 1.2, 0 - 0.8]) / 5
  moved -= np.array([1 - 4 / 3, 1 - 2 / 3]) / 6
  half_width = 1.96 * np.sqrt(2 * (moved**2).sum())
  assert made["difference_half_width"] == pytest.approx(half_width)
  assert made["agree"]


def test_interval_of_equal_texts_is_that_of_a_mean():
  values = np.array([0.1, 0.5, 0.4, 0.9])
  share = intervals.Share(3 * values, [3] * 4)
  error = values.std(ddof=1) / 2
  assert share.mean == pytest.approx(values.mean())
  assert share.half_width == pytest.approx(1.96 * error)


def test_interval_holds_the_mean_as_often_as_it_says():
  """Texts of all lengths, with a rate each."""
  rng = np.random.default_rng(0)
  hits = 0
  for _ in range(400):
    count_R = rng.integers(5, 60, size=80)
    rate_R = rng.beta(4, 4, size=80)
    share = intervals.Share(rng.binomial(count_R, rate_R), count_R)
    hits += abs(share.mean - 0.5) <= share.half_width
  # 380 expected; five standard deviations are 22.
  assert abs(hits - 380) < 22


def test_one_text_has_no_interval():
  assert intervals.Share([3], [4]).half_width is None
  assert intervals.Share([3, 0], [4, 0]).half_width is None


def rounds_of(*counts):
  """A trace: accepted tokens a round, each with a next token."""
  return tuple(
      outputs.Round((), count, 9, (), (), ()) for count in counts
  )


def test_rounds_that_no_end_cuts():
  """gamma 2: of a text of 7 those that begin at 0 to 4."""
  rows = [
      result(tuple(range(7)), (), (), (), rounds_of(2, 0, 1, 0)),
      result((5,), (), (), (), rounds_of(0)),
  ]
  tokens = table1.whole_rounds(rows, gamma=2)
  assert (tokens.sum_R, tokens.count_R) == ([6, 0], [3, 0])
  cut = result(tuple(range(3)), (), (), (), rounds_of(2)[:1])
  assert table1.whole_rounds([cut], gamma=2).mean == 3


def test_a_line_of_table_1(pair, monkeypatch):
  """Perfect drafts: gamma + 1 tokens a round, one operation a token."""
  report = {
      "c": 0.0,
      "verify_cost": 1.5,
      "predicted_speedup": {"with_verify_cost": 2.0},
      "measured_speedup": {"median": 1.9, "low": 1.8, "high": 2.0},
  }
  monkeypatch.setattr(experiment, "run", lambda _: (report, {}))
  line = table1.run(pair, {"alpha": 1.0, "gamma": 2})
  assert line["tokens"] == 3.0 and line["operations"] == 1.0
  assert line["theory"]["speedup"] == 3.0
  assert line["with_verify_cost"] == 2.0


def test_a_round_is_taken_apart(pair, monkeypatch):
  monkeypatch.setattr(rounds, "_TOKENS", 4)
  made = rounds.measure(pair)
  took = made["milliseconds"]
  assert (made["draft"], made["gamma"]) == ("small", 2)
  for part in ("drafts", "verify", "round", "call"):
    assert took[part] > 0, part
  ratios = made["sum_over_round"]
  assert ratios == sorted(ratios) and len(ratios) == 2
  monkeypatch.setattr(rounds, "_TOKENS", 10**6)
  with pytest.raises(errors.UserError, match="--rows: none of .* take more"):
    rounds.measure(pair)


def test_parts_of_a_round():
  took = {"drafts": 2.0, "verify": 5.0, "both": 8.0, "whole": 9.0}
  assert rounds.parts(took, 9.5) == {
      "drafts": 2.0,
      "verify": 5.0,
      "sharing": 1.0,
      "rest": 1.0,
      "sum": 9.0,
      "round": 9.5,
  }
  line = lambda *ratios: {"sum_over_round": list(ratios)}
  assert rounds.add_up([line(0.9, 0.96, 1.2), line(1.049)])
  assert not rounds.add_up([line(0.9, 0.96, 1.2), line(1.06)])


def test_weights_of_a_step(pair):
  """By the shape: one decoder layer without the source's side, and the head."""
  shape = tiny.SHAPE
  width, inner = shape.d_model, shape.num_heads * shape.d_kv
  layer = 4 * width * inner + 2 * width * inner
  layer += 3 * width * shape.d_ff
  vectors = (3 + 1) * width + 32 * shape.num_heads
  head = width * shape.vocab_size
  target = pairs.setup(pair.at(0)).target
  count = sum(leaf.size for leaf in weights.of_a_step(target.params))
  assert count == layer + vectors + head
  tied = {"params": dict(target.params["params"])}
  del tied["params"]["lm_head"]
  count = sum(leaf.size for leaf in weights.of_a_step(tied))
  assert count == layer + vectors + head


def test_a_point_of_the_curves(pair):
  """A draft of the target's own shape: c-hat 1."""
  made = figures.at_gamma(pair, 2)
  assert made["gamma"] == 2 and made["c_hat"] == 1.0
  assert made["operations"] == pytest.approx(5 / made["block_efficiency"])
  assert len(made["speedups"]) == 2 and json.dumps(made)
  ngram = dataclasses.replace(pair, config=pair.at(0, kind="bigram"))
  assert figures.c_hat(ngram) == 0.0
