"""Two processes on one machine, as if they were hosts.

Each has four of the eight devices that a single process has beside them.
"""

import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

from specjax import errors
from tests import tiny

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def family(tmp_path_factory):
  return tiny.write_family(tmp_path_factory.mktemp("family"))


def start(family, devices, *more, **options):
  """A run on that many devices, in a process of its own."""
  arguments = tiny.arguments(family, mesh__data=8, **options)
  flags = f"--xla_force_host_platform_device_count={devices}"
  return subprocess.Popen(
      [sys.executable, "-m", "specjax.run", *arguments[1:], *more],
      env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
      cwd=ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
  )


def start_two(family, **options):
  """The same on two hosts."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
  return [
      start(
          family,
          4,
          hosts__count=2,
          hosts__index=i,
          hosts__coordinator=address,
          **options,
      )
      for i in range(2)
  ]


def printed(out):
  """Lines, without what the collectives say of themselves."""
  return [line for line in out.splitlines() if "[Gloo]" not in line]


@pytest.mark.slow
def test_two_give_what_one_gives(family):
  """The same rounds and text; only the first process prints."""
  text = {"data__text": "a fast editor", "sampling__temperature": 1.0}
  processes = [start(family, 8, **text), *start_two(family, **text)]
  told = [process.communicate(timeout=300) for process in processes]
  codes = [process.returncode for process in processes]
  assert codes == [0, 0, 0], told
  one, first, second = (printed(out) for out, _ in told)
  assert any(line.startswith("output") for line in one)
  assert first == one and second == []


@pytest.mark.slow
def test_one_that_is_lost_ends_the_other(family, tmp_path):
  """With one line, and without a report."""
  out = tmp_path / "out"
  first, second = start_two(family, out=out, measure__repeats=10_000)
  try:
    # Compiling and timing take longer.
    time.sleep(60)
    assert first.poll() is None and second.poll() is None
    second.kill()
    told = first.communicate(timeout=120)[1]
  finally:
    for process in (first, second):
      process.kill()
      process.wait()
  assert first.returncode not in (0, None)
  assert "hosts: another process has ended" in told
  assert not (out / "report.json").exists()


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
