"""Two processes on one machine, as if they were hosts.

Each has four of the eight devices that a single process has beside them.
"""

import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

from specjax import checkpoints
from specjax import errors
from specjax import hosts
from specjax import last_words
from specjax import prepare
from specjax.training import log as log_lib
from tests import test_train
from tests import tiny

ROOT = pathlib.Path(__file__).parents[1]
# Keys of a report and its details that no two runs share.
TIMED = {
    "c", "verify_cost", "predicted_speedup", "measured_speedup",
    "end_to_end_speedup", "tokens_per_second", "gap", "break_even",
    "compile_seconds", "commit", "milliseconds", "speedups",
    "end_to_end_speedups", "decode_seconds", "prefill_seconds", "command",
    "date",
}
# Joins the others, says so, and meets them again and again.
JOINED = """
import sys
from jax.experimental import multihost_utils
from specjax import hosts, options, sections

def work(argv):
  hosts._NOTICED = 3
  where = sections.Hosts(2, int(argv[1]), argv[2])
  with hosts.together(where, sections.Mesh(8, 1), "joined"):
    print("in", flush=True)
    while True:
      multihost_utils.sync_global_devices("again")

options.leave(options.door("joined", str, work, sys.argv))
"""


class Process(subprocess.Popen):
  """A process with so many devices; what it says is kept."""

  def __init__(self, devices, *arguments):
    flags = f"--xla_force_host_platform_device_count={devices}"
    super().__init__(
        [sys.executable, *map(str, arguments)],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    self._said = {self.stdout: b"", self.stderr: b""}
    self._more = threading.Condition()
    self._readers = [
        threading.Thread(target=self._read, args=(file,), daemon=True)
        for file in self._said
    ]
    for reader in self._readers:
      reader.start()

  def _read(self, file):
    while part := os.read(file.fileno(), 4096):
      with self._more:
        self._said[file] += part
        self._more.notify_all()

  def wait_for(self, words, timeout=300):
    """Until it has said them."""
    found = lambda: any(words.encode() in said for said in self._said.values())
    with self._more:
      assert self._more.wait_for(found, timeout), self._said

  def end(self, timeout=300):
    """Waits; exit code and the lines of both outputs."""
    self.wait(timeout)
    self.close()
    return self.returncode, *map(lines, self._said.values())

  def close(self):
    """Reads what is left."""
    for reader, file in zip(self._readers, self._said):
      reader.join()
      file.close()


def lines(said):
  """Without bars, and what XLA and its collectives say of themselves."""
  ends = [line.rpartition("\r")[2] for line in said.decode().split("\n")]
  own = lambda line: "[Gloo]" in line or re.match(r"[IWE]\d{4} ", line)
  return [line for line in ends if line.strip() and not own(line)]


@pytest.fixture
def start():
  """Starts a `Process`; none is left over."""
  made = []

  def started(*arguments):
    made.append(Process(*arguments))
    return made[-1]

  yield started
  for process in made:
    process.kill()
    process.wait()
    process.close()


@pytest.fixture(name="family", scope="module")
def fixture_family(tmp_path_factory):
  return tiny.write_family(tmp_path_factory.mktemp("family"))


def address():
  """Where the first process is to be found."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    return f"localhost:{free.getsockname()[1]}"


def on_two(start, *arguments):
  """The same command on both hosts."""
  where = address()
  return [
      start(
          4,
          *arguments,
          "--config.hosts.count=2",
          f"--config.hosts.index={i}",
          f"--config.hosts.coordinator={where}",
      )
      for i in range(2)
  ]


def run(family, **options):
  """The words of a run of the family."""
  return ["-m", "specjax.run", *tiny.arguments(family, **options)[1:]]


def check_lost(told, remedy, door):
  """One line, and another exit code than 0."""
  code, _, said = told
  assert code not in (0, None), told
  assert [door in line for line in said].count(True) == 1, told
  assert said[-1].startswith(f"{door}: hosts: another process has ended"), told
  assert said[-1].endswith(remedy), told


# As XLA has it, shortened.
SCREENFUL = b"""W1130 19:57:01.1 12 cpu.cc:1] Something else.
a line of another library
E1130 19:57:02.1 12 coordination_service.cc:9] These tasks are unhealthy:
/job:jax_worker/replica:0/task:1
E1130 19:57:02.2 12 coordination_service_agent.cc:3] Polled an error.
F1130 19:57:02.3 12 client.h:77] Terminating process because the JAX \
distributed service detected fatal errors. This most likely indicates that \
another task died. absl::Status: UNAVAILABLE: The task is unhealthy.

RPC: /xla.coordination.CoordinationService/PollForError
"""


@pytest.mark.parametrize("cut", (2, None), ids=("goes on", "ends"))
def test_last_words(cut):
  """One line in place of many, and only where there is a loss."""
  done = subprocess.run(
      [sys.executable, last_words.__file__, "door", "do so"],
      input=b"".join(SCREENFUL.splitlines(keepends=True)[:cut]),
      capture_output=True,
  )
  said = done.stderr.decode().split("\n")
  assert done.returncode == 0 and not done.stdout
  assert said[1] == "a line of another library"
  told = [
      "\rdoor: hosts: another process has ended or is out of reach"
      " (UNAVAILABLE: The task is unhealthy.); do so"
  ]
  assert said[2:] == told * (cut is None) + [""]


@pytest.mark.parametrize(
    "lost, sign", ((0, signal.SIGKILL), (1, signal.SIGTERM)), ids=str
)
def test_one_that_is_killed_ends_the_other(start, lost, sign):
  """With one line, whichever it is."""
  where = address()
  both = [start(4, "-c", JOINED, i, where) for i in range(2)]
  for process in both:
    process.wait_for("in\n")
  both[lost].send_signal(sign)
  code, said, line = both[1 - lost].end(60)
  assert code not in (0, None) and said == ["in"], line
  assert len(line) == 1, line
  assert line[0].startswith("joined: hosts: another process has ended or is")
  assert line[0].endswith("nothing was written; start all of them again")


def test_a_mesh_of_some_devices(start, family):
  """Refused by both in the same line."""
  for process in on_two(start, *run(family, mesh__data=4)):
    code, said, line = process.end()
    assert code == 1 and not said
    assert line == [
        "specjax.run: mesh: give data x model of 8, all devices of all hosts,"
        " got '4 x 1'"
    ]


@pytest.mark.slow
def test_one_text(start, family):
  """The same rounds and text; only the first process prints."""
  words = run(
      family,
      mesh__data=8,
      data__text="a fast editor",
      sampling__temperature=1.0,
  )
  one, first, second = (
      process.end() for process in (start(8, *words), *on_two(start, *words))
  )
  assert one[0] == first[0] == second[0] == 0, (one, first, second)
  assert any(line.startswith("output") for line in one[1])
  assert first[1] == one[1] and second[1] == []


def write_rows(path, count):
  """Texts of one padded length, so that they share batches."""
  rng = random.Random(0)
  words = " ".join(tiny.TEXTS).split()
  rows = [
      {"id": f"row{i}", "source": text, "reference": text[::-1]}
      for i in range(count)
      for text in [" ".join(rng.choices(words, k=rng.randint(2, 6)))]
  ]
  path.write_text("\n".join(map(json.dumps, rows)))
  return path


def untimed(value, *, without=frozenset()):
  """A report without what no two runs share."""
  if isinstance(value, dict):
    return {
        key: untimed(each)
        for key, each in value.items()
        if key not in TIMED | without
    }
  return value


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    (
        {"mesh__data": 8},
        {"mesh__data": 4, "mesh__model": 2, "sampling__temperature": 1.0},
        # Whether to draft depends on what a host measured.
        {"mesh__data": 8, "draft__kind": "mixed", "draft__gamma": 3},
    ),
    ids=("rows", "sampled, also split", "switched"),
)
def test_a_report(start, family, tmp_path, options):
  """Tokens, rounds and report of one process, of three batches of texts."""
  options = options | {
      "data__path": write_rows(tmp_path / "rows.jsonl", 20),
      "decode__batch": 8,
      "measure__traced_rows": 20,
  }
  outs = [tmp_path / "one", tmp_path / "two"]
  one, two = (run(family, out=out, **options) for out in outs)
  for process in (start(8, *one), *on_two(start, *two)):
    told = process.end(600)
    assert told[0] == 0, told
  files = "details.json", "report.html", "report.json", "report.md"
  for out in outs:
    assert tuple(sorted(path.name for path in out.iterdir())) == files
  switched = "draft__kind" in options
  reports, details = (
      [json.loads((out / name).read_text()) for out in outs]
      for name in ("report.json", "details.json")
  )
  assert len(details[0]["outputs"]) == len(details[0]["trace"]) == 20
  texts = [
      [(row["id"], row["plain"], row["speculative"]) for row in each["outputs"]]
      for each in details
  ]
  assert texts[0] == texts[1]
  assert len({row[1] for row in texts[0]}) > 5
  where = [report["config"].pop("hosts") for report in reports]
  assert [each["count"] for each in where] == [1, 2]
  for report in reports:
    del report["config"]["out"]
  # Its rounds follow from times.
  if not switched:
    assert untimed(reports[0]) == untimed(reports[1])
    assert untimed(details[0]) == untimed(details[1])


@pytest.mark.slow
@pytest.mark.parametrize("lost", range(2), ids=("first", "second"))
def test_a_run_that_loses_a_host(start, family, tmp_path, lost):
  """Leaves no file, whole or in part."""
  out = tmp_path / "out"
  both = on_two(
      start, *run(family, mesh__data=8, out=out, measure__repeats=10_000)
  )
  both[0].wait_for("timing")
  both[lost].kill()
  check_lost(
      both[1 - lost].end(60),
      "nothing was written; start all of them again",
      "specjax.run",
  )
  assert list(out.iterdir()) == []


@pytest.mark.slow
def test_training(start, tmp_path):
  """Ends as one process does, also where a host was lost on the way."""
  tiny.write_corpus(tmp_path / "corpus", rows=20)
  (tmp_path / "family.py").write_text(test_train._FAMILY)
  words = lambda name: [
      "-m",
      "specjax.train",
      f"--config={tmp_path / 'family.py'}",
      f"--config.corpus={tmp_path / 'corpus'}",
      f"--config.out={tmp_path / name}",
      "--config.mesh.data=4",
      "--config.mesh.model=2",
      "--config.models.target.steps=30",
      "--config.models.small_distilled.steps=4",
      "--config.evaluate_every=10",
      "--config.checkpoint_every=5",
  ]
  told = start(8, *words("one")).end(900)
  assert told[0] == 0, told
  two = on_two(start, *words("two"))
  log = tmp_path / "two" / "target" / "log.jsonl"
  checkpoint = tmp_path / "two" / "target" / "checkpoints" / "5"
  wait_until(lambda: checkpoint.is_dir() or two[0].poll() is not None)
  two[1].kill()
  check_lost(
      two[0].end(60),
      "the same command on all of them goes on from the newest checkpoint",
      "specjax.train",
  )
  assert 5 <= len(log_lib.read(log)) < 30
  assert not (tmp_path / "two" / "target" / "hf").exists()
  first, second = (
      process.end(900) for process in on_two(start, *words("two"))
  )
  assert first[0] == second[0] == 0, (first, second)
  assert len(first[1]) == 2 and second[1] == []
  for name, steps in (("target", 30), ("small_distilled", 4)):
    logs = [
        log_lib.read(tmp_path / run / name / "log.jsonl")
        for run in ("one", "two")
    ]
    for one, other in zip(*logs, strict=True):
      del one["tokens_per_second"], other["tokens_per_second"]
      assert one == pytest.approx(other, rel=1e-3)
    assert [each["step"] for each in logs[1]] == list(range(1, steps + 1))
    models = [
        checkpoints.load(str(tmp_path / run / name / "hf"))
        for run in ("one", "two")
    ]
    close = lambda a, b: np.testing.assert_allclose(
        np.float32(a), np.float32(b), rtol=2**-6, atol=1e-3
    )
    jax.tree.map(close, *(model.params for model in models))
    assert (tmp_path / "two" / name / "curves.png").stat().st_size > 1000
    assert (tmp_path / "two" / name / "quality.json").is_file()


def wait_until(true, timeout=600):
  """Until a condition is met."""
  end = time.monotonic() + timeout
  while not true():
    assert time.monotonic() < end
    time.sleep(0.02)


def test_processes_that_were_asked_for_different_things(monkeypatch):
  """Told what is different; here the other process is the call before."""
  said = []

  def gather(digests):
    said.append(digests)
    return np.stack([said[0], digests])

  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(hosts.multihost_utils, "process_allgather", gather)
  asked = {"options": {"gamma": 1}, "texts": [(1, 2)]}
  for _ in range(2):
    hosts.check_same(**asked)
  for name, other in (("options", {"gamma": 2}), ("texts", [(1, 3)])):
    line = f"^hosts: process 1 has other {name} than process 0; give the same"
    with pytest.raises(errors.UserError, match=line):
      hosts.check_same(**asked | {name: other})


def test_what_must_be_the_same(family, monkeypatch):
  """All but where one of them writes."""
  said = []
  monkeypatch.setattr(hosts, "check_same", lambda **parts: said.append(parts))
  short = {"data__max_source_tokens": 2}
  for how in ({}, {"out": "x"}, {"decode__seed": 1}, short):
    prepare.prepare(tiny.config(family, **how))
  first, *others = map(repr, said)
  assert [other == first for other in others] == [True, False, False]
  texts = [repr(each["texts"]) for each in said]
  assert texts[0] == texts[2] != texts[3]


@pytest.mark.parametrize(
    "options, line",
    (
        ({"hosts__count": 2}, "hosts.coordinator: give the first process's"),
        ({"hosts__count": -1}, "hosts.count: give 0 or more"),
        ({"hosts__index": 1}, "hosts.index: give a number from 0 on, below"),
    ),
)
def test_bad_options(family, options, line):
  with pytest.raises(errors.UserError, match=line):
    tiny.config(family, **options)
