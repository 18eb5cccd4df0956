"""What a run goes on from: made once, and never taken where it is damaged."""

import os
import shutil

import pytest

from specjax import errors
from specjax import kept

VALUE = {"a": [1, 0.1, None, "ö"], "b": {"c": True}}


def fail():
  raise AssertionError("made again")


def test_made_once(tmp_path):
  store = kept.Folder(tmp_path / "parts")
  assert not store.has("x")
  assert store.kept("x", lambda: VALUE) == VALUE
  assert store.has("x") and store.get("x") == VALUE
  assert store.kept("x", fail) == VALUE
  with pytest.raises(ValueError):
    store.kept("y", lambda: float("nan"))
  assert not store.has("y")


@pytest.mark.parametrize("place", (0, 3, 64, 65, 70, -1))
def test_a_damaged_file_is_told(tmp_path, place):
  store = kept.Folder(tmp_path)
  store.kept("x", lambda: VALUE)
  [path] = tmp_path.iterdir()
  whole = path.read_bytes()
  other = bytearray(whole)
  other[place] ^= 1
  for content in (bytes(other), whole[:place], b"", whole + b"\n"):
    path.write_bytes(content)
    with pytest.raises(errors.UserError, match="x.kept is damaged; delete it"):
      store.kept("x", fail)
  path.unlink()
  assert store.kept("x", lambda: VALUE) == VALUE


def test_what_is_over_is_gone_at_once(tmp_path, monkeypatch):
  """Stopped in the middle, nothing lies where a run would look."""
  folder = tmp_path / "parts"
  kept.Folder(folder).kept("x", lambda: VALUE)

  def stopped(path):
    os.unlink(next(path.iterdir()))
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(shutil, "rmtree", stopped)
    with pytest.raises(KeyboardInterrupt):
      kept.drop(folder)
  assert not folder.exists()
  kept.Folder(folder).kept("x", lambda: VALUE)
  kept.drop(folder)
  kept.drop(folder)
  assert not folder.exists()
