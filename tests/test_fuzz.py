"""A few hundred damaged files for each run of the suite, and faults played.

`python -m tests.fuzz` takes many more, in processes whose memory is bounded.
"""

import collections
import pickle
import random
import time
import warnings

import numpy as np
import pytest

from specjax import errors
from tests.fuzz import mutators
from tests.fuzz import readers
from tests.fuzz import runner

CASES = 400


def test_damaged_files_are_read_or_refused_in_one_line(tmp_path):
  some = [each for each in readers.READERS if each.share]
  made = list(runner.Runner(tmp_path, 7, some).run(range(CASES)))
  assert not [each for each in made if each.kind == runner.FAULT]
  kinds = collections.Counter(each.kind for each in made)
  assert min(kinds[runner.READ], kinds[runner.REFUSED]) > CASES / 10
  assert {each.reader for each in made} == {each.name for each in some}


def refuse(folder):
  del folder
  raise errors.UserError("x: give another")


def unpickle(folder):
  pickle.loads((folder / "x.bin").read_bytes())


def warn(folder):
  del folder
  warnings.warn("odd")


def wait(folder):
  del folder
  began = time.process_time()
  while time.process_time() < began + 0.2:
    pass


def fill(folder):
  del folder
  np.ones(2**24).sum()


def lines(text):
  def read(folder):
    del folder
    raise errors.UserError(text)

  return read


def fail(folder):
  raise KeyError(folder)


@pytest.mark.parametrize(
    "read, kind, words",
    (
        (lambda folder: None, runner.READ, ""),
        (refuse, runner.REFUSED, "x: give another"),
        (fail, runner.FAULT, "raises KeyError"),
        (lambda folder: 1 / 0, runner.FAULT, "raises ZeroDivisionError"),
        (lambda folder: (folder / "none").read_text(), runner.FAULT, "raises"),
        (lambda folder: exit(3), runner.FAULT, "raises SystemExit"),
        (warn, runner.FAULT, "raises UserWarning"),
        (unpickle, runner.FAULT, "was unpickled"),
        (lines("two\nlines"), runner.FAULT, "says"),
        (lines("a\x1b[31m"), runner.FAULT, "says"),
        (lines("a" * 9000), runner.FAULT, "says"),
        (lines(""), runner.FAULT, "says"),
    ),
)
def test_faults_are_seen(read, kind, words, tmp_path):
  (tmp_path / "case").mkdir()
  path = tmp_path / "case" / "x.bin"
  path.write_bytes(b"abc")
  mutators.trap(random.Random(0), path)
  reader = readers.Reader("x", None, read)
  found, text = runner.judged(reader, tmp_path, mutators.Damage(""))
  assert found == kind and words in text


@pytest.mark.parametrize(
    "read, words",
    ((lambda folder: None, "taken"), (wait, " s,"), (fill, "MiB")),
)
def test_what_is_taken_or_takes_much_is_a_fault(
    read, words, tmp_path, monkeypatch
):
  monkeypatch.setattr(runner, "SECONDS", 0.1)
  damaged = mutators.Damage("damage", words == "taken")
  monkeypatch.setattr(mutators, "damage", lambda rng, folder: damaged)
  reader = readers.Reader("x", lambda folder: None, read)
  [made] = runner.Runner(tmp_path, 0, [reader]).run([0])
  assert made.kind == runner.FAULT and words in made.text
