"""c of the paper's drafts from the shapes of their models."""

import json

import pytest

from experiments import predicted_c


@pytest.fixture(scope="module")
def made():
  return predicted_c.make()


def test_bytes_alone(made):
  """Decoder weights of small, base and large over XXL's."""
  found = [line["bytes"] for line in made["costs"]]
  assert found == pytest.approx([0.007, 0.022, 0.070], abs=6e-4)


def test_one_draft_is_fitted_and_two_follow(made):
  small, base, large = made["costs"]
  on_v4 = lambda line: line["chips"]["v4"]
  assert on_v4(small) == pytest.approx(small["paper"])
  assert small["low"] == pytest.approx(0.015)
  assert small["high"] == pytest.approx(0.025)
  for line in (base, large):
    assert on_v4(line) == pytest.approx(line["paper"], abs=0.005)
    assert line["bytes"] < line["low"] < on_v4(line) < line["high"]
    # More bandwidth: layers weigh more.
    assert line["chips"]["v5e"] < on_v4(line) < line["chips"]["v5p"]


def test_the_verdict(made):
  """By the two that were not fitted."""
  assert made["explains"]
  assert "It explains the rest of c, what" in predicted_c.markdown(
      made | {"command": "c", "commit": "d", "date": "e", "device": "f"}
  )
  other = predicted_c.verdict(made | {"explains": False})
  assert "It does not explain" in other


def test_speedups(made):
  """With the fitted c they are those that the paper expects."""
  assert len(made["rows"]) == 12
  for row in made["rows"]:
    expected = row["paper"]["expected_speedup"]
    assert row["layers"] == pytest.approx(expected, abs=0.16)
    assert row["bytes"] > row["layers"]


def test_files(tmp_path, capsys):
  assert predicted_c.main(["predicted_c", f"--out={tmp_path}"]) == 0
  told = capsys.readouterr().out
  assert "| T5-large |" in told and "| cnndm t5-large | 1 |" in told
  made = json.loads((tmp_path / "predicted_c.json").read_text())
  assert made["command"] == "python -m experiments.predicted_c"
