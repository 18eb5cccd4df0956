"""Benchmarks for results/: a tiny run, and what is refused."""

import json

import pytest

from experiments import spec_bench
from specjax.measure import steps as steps_lib
from tests import test_bench
from tests import tiny


@pytest.fixture(name="main")
def fixture_main(tmp_path, monkeypatch):
  """Runs the script on a tiny Llama, in a folder of its own."""
  (tmp_path / "models").mkdir()
  family = tiny.write_decoders(tmp_path / "models", tiny.LLAMA)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(steps_lib, "measure", lambda *_, **how: test_bench.STEPS)
  monkeypatch.setattr(
      spec_bench,
      "LOADS",
      {
          name: spec_bench.Load(str(tiny.CONFIGS / "smollm2.py"), drafters)
          for name, drafters in (
              ("copies", ("lookup", "suffix:cold")), ("agent", ("lookup",))
          )
      },
  )
  words = tiny.arguments(
      family,
      "smollm2.py",
      data__path="",
      data__max_source_tokens=400,
      decode__batch=1,
      decode__max_new_tokens=4,
      draft__gamma=2,
      draft__suffix__reach=8,
      measure__repeats=1,
  )
  changes = [word for word in words if word.startswith("--config.")]
  return lambda *words: spec_bench.main(["spec_bench", *words, *changes])


def test_a_benchmark_becomes_results(main, tmp_path, capsys):
  path = tmp_path / "question.jsonl"
  path.write_text("\n".join(map(json.dumps, test_bench.ROWS)))
  with tiny.quick_compilation():
    assert main("--load=copies", f"--prompts={path}", "--first=1") == 0
  made = json.loads((tmp_path / "results/bench_copies.json").read_text())
  assert set(made["report"]["drafters"]) == {"lookup", "suffix:cold"}
  assert set(made["report"]["categories"]) == {"a", "b"}
  assert not set(spec_bench._TEXTS) & set(made["details"])
  text = (tmp_path / "results/bench_copies.md").read_text()
  for words in (
      "`python -m experiments.spec_bench --first 1 --load copies",
      "by `python -m specjax.bench",
      "| a | lookup |",
      "1x at suffix:cold",
  ):
    assert words in text
  assert not list((tmp_path / "out/experiments").iterdir())


def test_what_is_refused(main, capsys):
  assert main("--load=copies") == 1
  assert capsys.readouterr().err == (
      "experiments.spec_bench: --prompts: which for copies? give Spec-Bench's"
      " question.jsonl\n"
  )
  assert main("--load=heads") == 1
  assert "--load: " in capsys.readouterr().err
