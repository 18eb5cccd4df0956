"""The table of heads: tiny ones through all kinds of drafts."""

import json

import jax
import pytest

from experiments import heads
from specjax import checkpoints
from specjax.checkpoints import eagle as eagle_file
from specjax.models import eagle
from tests import tiny


@pytest.fixture(name="main")
def fixture_main(tmp_path, monkeypatch):
  """Runs the script on a tiny T5 and a random head, in a folder of its own."""
  (tmp_path / "models").mkdir()
  family = tiny.write_family(tmp_path / "models")
  target = checkpoints.load(family["target"])
  model = eagle.of(target.module)
  head = jax.jit(model.init)(jax.random.key(0))
  eagle_file.save(tmp_path / "models" / "head", model.head.config, head)
  monkeypatch.chdir(tmp_path)
  config, own = str(tiny.CONFIGS / "ende_eagle2.py"), "draft.dynamic.nodes=0"
  kinds = {
      "EAGLE, chain": (config, (own,)),
      "EAGLE-1's tree": (config, (own, "draft.tree=[[0],[1],[0,0]]")),
      "EAGLE-2's tree": (config, ("draft.dynamic.nodes=3",)),
  }
  monkeypatch.setattr(heads, "KINDS", kinds)
  monkeypatch.setattr(heads, "_PLAIN", (config, ("draft.kind=none", own)))
  monkeypatch.setattr(heads, "TASKS", {"mini_ende": 5})
  words = tiny.arguments(
      family,
      "ende_eagle2.py",
      draft__heads=str(tmp_path / "models" / "head"),
      draft__gamma=2,
      draft__dynamic__top_k=2,
      draft__dynamic__depth=2,
      data__rows=2,
  )
  fixed = "draft.kind", "data.task", "draft.dynamic.nodes"
  changes = [
      word
      for word in words
      if word.startswith("--config.")
      and not word.startswith(tuple(f"--config.{key}" for key in fixed))
  ]
  return lambda *words: heads.main(["heads", *words, *changes])


def test_heads_become_results(main, tmp_path, capsys):
  with tiny.quick_compilation():
    assert main("--rows=2", "--seeds=2") == 0, capsys.readouterr().err
  made = json.loads((tmp_path / "results/heads.json").read_text())
  lines = made["lines"]
  assert [(x["temperature"], x["kind"]) for x in lines] == [
      (temperature, kind) for temperature in (0, 1) for kind in heads.KINDS
  ]
  assert [line["nodes"] for line in lines] == [2, 3, 3] * 2
  assert [line["mismatched_rows"] for line in lines] == [0] * 3 + [None] * 3
  for line in lines:
    cost = line["gamma"] * line["c"] + line["verify_cost"]
    found = line["predicted_speedup"]
    assert found["from_tokens"] == pytest.approx(
        line["block_efficiency"] / cost
    )
    assert line["quality"]["metric"] == "bleu"
  assert len(made["plain"]["mini_ende"]) == 2
  text = (tmp_path / "results/heads.md").read_text()
  assert "| mini_ende | 1 | EAGLE-1's tree | 3 |" in text
  assert "`python -m experiments.heads --rows 2 --seeds 2" in text
