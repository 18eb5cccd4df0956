"""Files of a model's directory: what cannot be read or written, and how told.

The suite may run as root, whom no permission stops: a system call that is
refused is played.
"""

import errno
import json
import os
import pathlib

import pytest
import safetensors

from specjax.checkpoints import files
from specjax.errors import UserError


def refuse(monkeypatch, owner, name, number=errno.EACCES):
  """Makes a function of the file system fail with an error number."""

  def refused(*_, **__):
    raise OSError(number, os.strerror(number))

  monkeypatch.setattr(owner, name, refused)


def refusal(call, *arguments) -> str:
  with pytest.raises(UserError) as caught:
    call(*arguments)
  assert "\n" not in str(caught.value)
  return str(caught.value)


def test_json_that_is_not_there(tmp_path):
  assert "does not exist" in refusal(files.read_json, tmp_path / "a.json")
  (tmp_path / "file").touch()
  path = tmp_path / "file" / "a.json"
  assert f"{path} does not exist" in refusal(files.read_json, path)
  line = refusal(files.read_json, tmp_path)
  assert line == f"{tmp_path} cannot be read (Is a directory)"


def test_json_that_may_not_be_read(tmp_path, monkeypatch):
  path = tmp_path / "config.json"
  path.write_text("{}")
  assert files.read_json(path) == {}
  refuse(monkeypatch, pathlib.Path, "read_bytes")
  line = refusal(files.read_json, path)
  assert line == f"{path} cannot be read (Permission denied)"


@pytest.mark.parametrize(
    "content",
    (b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5000, b'{"a": ' + b"9" * 5000),
    ids=("empty", "open", "no UTF-8", "deep", "long", "long inside"),
)
def test_json_that_is_none(tmp_path, content):
  path = tmp_path / "größe.json"
  path.write_bytes(content)
  assert "größe.json is not JSON (" in refusal(files.read_json, path)


def test_shard_that_cannot_be_reached(tmp_path, monkeypatch):
  path = tmp_path / "index.json"
  path.write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
  line = refusal(files.find_shards, path, ".safetensors")
  assert "model.safetensors is missing, though index.json names it" in line
  (tmp_path / "model.safetensors").touch()
  assert files.find_shards(path, ".safetensors")
  refuse(monkeypatch, os, "stat")
  line = refusal(files.find_shards, path, ".safetensors")
  assert "model.safetensors is missing" in line


def write(directory, text="new", after=lambda: None):
  """Replaces a model's directory by one with this config."""
  with files.fresh_directory(directory) as part:
    (part / "config.json").write_text(text)
    after()


def test_directory_that_cannot_be_made(tmp_path):
  (tmp_path / "file").write_text("text")
  for out in (tmp_path / "file" / "out", tmp_path / "file" / "a" / "out"):
    line = refusal(write, out)
    assert f"{out} cannot be written ({tmp_path / 'file'}" in line
    assert line.endswith("); give another directory")
  assert "is a file" in refusal(write, tmp_path / "file")
  assert "cannot be replaced" in refusal(write, "/")
  assert "File name too long" in refusal(write, tmp_path / ("a" * 250))
  assert os.listdir(tmp_path) == ["file"]


def test_directory_that_may_not_be_made(tmp_path, monkeypatch):
  refuse(monkeypatch, pathlib.Path, "mkdir")
  assert "Permission denied" in refusal(write, tmp_path / "out")


@pytest.mark.parametrize(
    "error",
    (
        OSError(errno.ENOSPC, "No space left on device"),
        safetensors.SafetensorError("No space left on device"),
    ),
    ids=("ours", "of the library"),
)
def test_full_disk_leaves_the_older_one(tmp_path, error):
  out = tmp_path / "out"
  write(out, "old")

  def fill():
    raise error

  line = refusal(lambda: write(out, after=fill))
  assert f"{out} cannot be written (" in line and "No space left" in line
  assert (out / "config.json").read_text() == "old"
  assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    "error", (OSError(errno.EIO, "x"), KeyboardInterrupt())
)
def test_stopped_between_the_renames(tmp_path, monkeypatch, error):
  """The older directory is moved back, not removed with its replacement."""
  out = tmp_path / "out"
  write(out, "old")
  rename, calls = os.rename, []

  def stopped(source, target):
    calls.append(target)
    if len(calls) == 2:
      raise error
    rename(source, target)

  monkeypatch.setattr(os, "rename", stopped)
  with pytest.raises((UserError, KeyboardInterrupt)):
    write(out)
  assert (out / "config.json").read_text() == "old"
  assert os.listdir(tmp_path) == ["out"]


def test_link_stays_a_link(tmp_path):
  write(tmp_path / "real", "old")
  (tmp_path / "link").symlink_to(tmp_path / "real")
  write(tmp_path / "link", "new")
  assert (tmp_path / "link").is_symlink()
  assert (tmp_path / "real" / "config.json").read_text() == "new"
  assert sorted(os.listdir(tmp_path)) == ["link", "real"]
