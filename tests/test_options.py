"""Doors: what the system refuses, and an end by Ctrl-C, are one line, too."""

import errno
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import pytest

from specjax import errors
from specjax import options
from specjax import writing


def end_of(error, capsys) -> tuple[int, str]:
  """Exit code and line of a door whose work raises."""

  def work(argv):
    del argv
    raise error

  code = options.door("x", lambda: "", work, ["x"], interrupted="goes on")
  out, line = capsys.readouterr()
  assert not out and line.startswith("x: ") and line.count("\n") == 1
  return code, line.removeprefix("x: ").removesuffix("\n")


@pytest.mark.parametrize(
    "error, code, words",
    (
        (errors.UserError("a: give b"), 1, "a: give b"),
        (KeyboardInterrupt(), 130, "goes on"),
        (MemoryError(), 1, "this machine has too little memory"),
        (
            OSError(errno.ENOSPC, "No space left on device", "out/a"),
            1,
            "out/a: No space left on device; make room there, or give another",
        ),
        (
            OSError(errno.EROFS, "Read-only file system"),
            1,
            "Read-only file system; make room there, or give another place",
        ),
        (OSError("two\nlines"), 1, "two lines; make room"),
    ),
    ids=repr,
)
def test_ends(error, code, words, capsys):
  ended, line = end_of(error, capsys)
  assert ended == code and line.startswith(words)


def test_faults_are_not_hidden():
  def work(argv):
    return argv["x"]

  with pytest.raises(TypeError):
    options.door("x", lambda: "", work, ["x"])


def test_a_write_that_is_refused_names_its_file(tmp_path, capsys):
  """Not the temporary one beside it; what was there before stays."""
  path = tmp_path / "report.json"
  path.write_text("old")
  big = "x" * 2**20
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
  try:
    with pytest.raises(OSError) as caught:
      writing.write(path, big)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)
  code, line = end_of(caught.value, capsys)
  assert code == 1 and line.startswith(f"{path}: File too large; make room")
  assert path.read_text() == "old" and os.listdir(tmp_path) == ["report.json"]


@pytest.mark.skipif(
    not pathlib.Path("/dev/full").exists(), reason="no full device"
)
def test_a_full_disk_below_the_output():
  """One line, and no other at Python's end."""
  command = [sys.executable, "-m", "specjax.advise", "--alpha=1", "--c=0"]
  with open("/dev/full", "w") as full:
    done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE)
  assert done.returncode == 1
  line = done.stderr.decode()
  assert line.startswith("specjax.advise: No space left on device; make room")
  assert line.count("\n") == 1


@pytest.mark.parametrize("door", ("specjax.advise", "experiments.document"))
def test_an_interrupt_among_the_imports_is_one_line(door, tmp_path):
  (tmp_path / "difflib.py").write_text("raise KeyboardInterrupt")
  done = subprocess.run(
      [sys.executable, "-m", door],
      env=os.environ | {"PYTHONPATH": str(tmp_path)},
      stderr=subprocess.PIPE,
  )
  # A shell makes 130 of that.
  assert done.returncode == -signal.SIGINT
  assert done.stderr == b"interrupted\n"


@pytest.mark.parametrize("code", (0, 1, 130))
def test_after_ctrl_c_the_end_is_at_once(code, monkeypatch):
  """Python's own way down is where threads of libraries abort."""
  ended = []
  monkeypatch.setattr(os, "_exit", ended.append)
  with pytest.raises(SystemExit) as left:
    options.leave(code)
  assert left.value.code == code
  assert ended == [130] * (code == 130)


def test_ctrl_c_in_a_callback_is_not_lost(capsys):
  """Python only notes what is raised in a finaliser, say."""

  class Stopped:

    def __del__(self):
      raise KeyboardInterrupt

  def work(_):
    made = Stopped()
    del made
    for _ in range(1000):
      time.sleep(0.01)
    raise AssertionError("it went on")

  before = sys.unraisablehook
  assert options.door("mini", lambda: "", work, ["mini"]) == 130
  assert capsys.readouterr().err == "mini: interrupted\n"
  assert sys.unraisablehook is before
