"""Doors that are stopped, or have no room to write (slow)."""

import contextlib
import json
import os
import shutil
import subprocess

import pytest

from tests import kills
from tests import works

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", name="home")
def fixture_home(tmp_path_factory):
  home = tmp_path_factory.mktemp("home") / "kept"
  works.prepare(home)
  return home


@pytest.mark.parametrize("sign, count", (("KILL", 12), ("INT", 6)))
def test_stopped_at_random_moments(home, sign, count, capsys):
  words = [f"--home={home}", f"--kills={count}", f"--signal={sign}"]
  code = kills.main(["kills", *words])
  assert code == 0, capsys.readouterr().out


@contextlib.contextmanager
def disk(folder, options):
  """A small disk of its own; gives what changes its options."""
  folder.mkdir(parents=True)
  mount = lambda words: subprocess.run(
      ["mount", "-t", "tmpfs", "-o", words, "tmpfs", str(folder)],
      capture_output=True,
      check=False,
  )
  if not shutil.which("mount") or mount(options).returncode:
    pytest.skip("nothing may be mounted here")
  try:
    yield lambda words: mount(f"remount,{words}")
  finally:
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    "work, options, words",
    (
        (works.WORKS[0], "size=16k", "No space left on device"),
        (works.WORKS[0], "size=2m", "No space left on device"),
        (works.WORKS[0], "size=9m,ro", "Read-only file system"),
        (works.WORKS[1], "size=16k", "No space left on device"),
        (works.WORKS[1], "size=9m,ro", "Read-only file system"),
        (works.WORKS[2], "size=16k", "No space left on device"),
        (works.WORKS[2], "size=200k", "No space left on device"),
        (works.WORKS[2], "size=9m,ro", "Read-only file system"),
    ),
    ids=lambda value: getattr(value, "name", None),
)
def test_a_disk_without_room(home, work, options, words):
  """One line; with room, the same command ends as if nothing had been."""
  _, results = kills.whole(work, home)
  folder = home / "disk" / f"{work.name}_{options}"
  with disk(folder, options.removesuffix(",ro")) as remount:
    if options.endswith(",ro"):
      (folder / "compiled").symlink_to(home / "compiled" / work.name)
      remount("ro")
    said = home / "said.txt"
    with said.open("wb") as errors:
      code = work.start(home, folder, errors).wait()
    text = said.read_text(errors="replace")
    assert code == 1 and "Traceback" not in text, text
    last = text.rstrip("\n").splitlines()[-1]
    assert words in last and ": " in last
    assert not works.half_files(folder)
    remount("rw,size=400m")
    kills.run(work, home, folder)
    assert json.loads(json.dumps(work.results(folder))) == results
    os.unlink(folder / "compiled")
