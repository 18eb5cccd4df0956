"""Files of earlier responses."""

import json
import pathlib

import numpy as np
import pytest
import safetensors.numpy

from specjax import errors
from specjax.checkpoints import resolve
from specjax.checkpoints import responses
from specjax.checkpoints import tokenizer as tokenizer_lib

TEXTS = [np.array(ids, np.int32) for ids in ((5, 6, 1), (7,), (8, 9, 9, 1))]


@pytest.fixture(scope="module", name="tokenizer")
def fixture_tokenizer():
  return tokenizer_lib.Tokenizer.load(resolve.resolve("mini/small", hint=""))


def as_lists(texts):
  return [ids.tolist() for ids in texts]


def test_there_and_back(tokenizer, tmp_path):
  """In folders that are made for it; over an older file, byte for byte."""
  path = tmp_path / "a" / "responses.safetensors"
  for texts in ([], TEXTS, TEXTS[:1], TEXTS):
    responses.save(path, texts, tokenizer)
    assert as_lists(responses.load(path, tokenizer, 8128)) == as_lists(texts)
  first = path.read_bytes()
  responses.save(str(path), responses.load(path, tokenizer, 8128), tokenizer)
  assert path.read_bytes() == first
  assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_an_older_file_survives_a_write_that_fails(
    tokenizer, tmp_path, monkeypatch
):
  path = tmp_path / "responses.safetensors"
  responses.save(path, TEXTS, tokenizer)

  def fail(*_):
    raise OSError(28, "No space left on device")

  with monkeypatch.context() as patch:
    patch.setattr(pathlib.Path, "write_bytes", fail)
    with pytest.raises(errors.UserError, match="^save: .*No space left"):
      responses.save(path, [], tokenizer)
  assert as_lists(responses.load(path, tokenizer, 8128)) == as_lists(TEXTS)
  assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_nowhere_to_write(tokenizer, tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(errors.UserError, match="^save: .*give another file"):
    responses.save(tmp_path / "file" / "x", TEXTS, tokenizer)


def refusal(path, tokenizer) -> str:
  with pytest.raises(errors.UserError) as caught:
    responses.load(path, tokenizer, 8128)
  line = str(caught.value)
  assert line.startswith("load: ") and "\n" not in line and len(line) < 400
  return line


GOOD = {
    "tokens": np.array([5, 6, 1, 7], np.int32),
    "length": np.array([3, 1], np.int32),
}
FAULTS = {
    "too few": dict(length=np.array([3], np.int32)),
    "too many": dict(length=np.array([3, 2], np.int32)),
    "negative": dict(length=np.array([5, -1], np.int32)),
    "wraps around": dict(length=np.array([2**31 - 1, 2**31 - 1], np.int32)),
    "an id": dict(tokens=np.array([5, 6, 1, 60_000], np.int32)),
    "below 0": dict(tokens=np.array([5, 6, 1, -1], np.int32)),
    "two axes": dict(tokens=np.zeros((2, 2), np.int32)),
    "no axis": dict(length=np.array(4, np.int32)),
    "type": dict(tokens=np.zeros(4, np.float32)),
}


@pytest.mark.parametrize("change", FAULTS.values(), ids=FAULTS)
def test_damaged_files_are_refused(tokenizer, tmp_path, change):
  path = tmp_path / "x"
  note = {
      "specjax.responses": json.dumps({"vocabulary": tokenizer.fingerprint()})
  }
  safetensors.numpy.save_file(GOOD, path, note)
  assert as_lists(responses.load(path, tokenizer, 8128)) == [[5, 6, 1], [7]]
  safetensors.numpy.save_file(GOOD | change, path, note)
  assert "holds no responses" in refusal(path, tokenizer) or (
      "is damaged" in refusal(path, tokenizer)
  )


def test_files_that_are_something_else(tokenizer, tmp_path):
  path = tmp_path / "x"
  for nothing in (path, "a" * 5000, tmp_path, "", "\udcff"):
    assert "is no file" in refusal(nothing, tokenizer)
  responses.save(path, TEXTS, tokenizer)
  whole = path.read_bytes()
  for size in (0, 7, 100, len(whole) - 1):
    path.write_bytes(whole[:size])
    assert "cannot be read" in refusal(path, tokenizer)
  safetensors.numpy.save_file(GOOD, path)
  assert "holds no responses" in refusal(path, tokenizer)
  for note in ("3", "{", json.dumps({"vocabulary": "x"}), "[" * 100_000):
    safetensors.numpy.save_file(GOOD, path, {"specjax.responses": note})
    assert "another vocabulary" in refusal(path, tokenizer)
