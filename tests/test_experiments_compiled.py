"""The script that compiles the paper's rows; here without the compiler."""

import json

import pytest

from experiments import compiled
from experiments import paper
from experiments import results
from specjax import command_line
from specjax import roofline
from specjax import theory
from specjax import tpu

# Of a task, a draft and a gamma.
PROGRAMS = len({
    (row["task"], row["draft"], row["gamma"])
    for row in paper.rows("table2_and_4")
})


@pytest.mark.parametrize("row", paper.rows("table2_and_4"), ids=str)
def test_arguments(row):
  """The paper's pair, at its gamma; flan-t5 has the shapes."""
  config = command_line.read(["compiled", *compiled.arguments(row)])
  assert config.target.checkpoint == "google/flan-t5-xxl"
  assert config.draft.checkpoint == f"google/flan-{row['draft']}"
  assert config.draft.gamma == row["gamma"] and config.decode.batch == 1
  assert config.decode.dtype == "bfloat16"


def test_files(tmp_path, monkeypatch, capsys):
  """Both temperatures of a gamma are one program, as the paper has them."""
  step = tpu.Step(
      9 * 10**9,
      10**9,
      counted=3e10,
      read=1e10,
      seconds=9e-3,
      model=roofline.Weights(4.5e9, row_bytes=1e9),
  )
  draft = tpu.Step(
      10**8,
      10**6,
      counted=3e8,
      read=1e8,
      seconds=9e-5,
      model=roofline.Weights(5e7, row_bytes=1e6),
  )
  gammas = []

  def abstract(config, devices):
    gammas.append(config.draft.gamma)
    return config

  def estimate(config, chip):
    return tpu.Estimate(
        memory={
            "weights": 22 * 2**30,
            "state": 2**20,
            "prefill": 2**30,
            "rounds": 2**29,
        },
        rows=1,
        hosts=0,
        steps={"target": step, "verify": step, "draft": draft},
        gamma=config.draft.gamma,
        fixed=True,
        heads=(64, 64),
    )

  monkeypatch.setattr(results, "_PARTS", tmp_path / "parts")
  monkeypatch.setattr(tpu, "abstract", abstract)
  monkeypatch.setattr(tpu, "estimate", estimate)
  monkeypatch.setattr(tpu, "find_devices", lambda topology: None)
  out = tmp_path / "out"
  assert compiled.main(["compiled", f"--out={out}"]) == 0
  told = capsys.readouterr().out
  assert "| cnndm t5-large | 1 | 3 |" in told
  assert "heads of 64 fill 64 of 128 lanes. All it counts" in told
  made = json.loads((out / "compiled_v4.json").read_text())
  assert len(made["lines"]) == 12 and len(gammas) == PROGRAMS
  for line in made["lines"]:
    row, found = line["paper"], line["compiled"]
    assert found["fits"] and found["host_transfers"] == 0
    assert found["c"] == pytest.approx(0.01) and found["v"] == 1
    want = theory.speedup(row["alpha"], row["gamma"], 0.01)
    assert line["speedup"] == pytest.approx(want)
