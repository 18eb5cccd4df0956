"""Breaks a copy of the package, one change at a time: its test must notice.

    python -m tests.mutants --out DIR
    python -m tests.mutants --only "top_p"
    python -m tests.mutants --list

The changes are those of tests.changes. First the tests beside them pass on the
whole copy; then each change is made there, its test alone is run, and the
change is taken back. A test has noticed it where it fails by itself: one that
can not be collected or set up, that takes too long or ends its process has
not, nor has one whose failure says that the change is no working code.

DIR keeps what became of each, so that the same command goes on where it was
stopped; what depends on a file that is another now is done again. `--only`
takes the changes whose description, file, report or test holds these words.
The exit code is 1 where a change went unnoticed.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Iterator, Sequence
from xml.etree import ElementTree

from specjax import kept
from tests import changes

ROOT = pathlib.Path(__file__).parents[1]
_COPIED = ("specjax", "tests", "configs", "experiments", "docs")
_FILES = ("README.md", "pyproject.toml")
# Seconds of one run of pytest.
_PATIENCE = 900
# What fails by these was not broken, but spelt wrong.
_SLIPS = ("NameError", "UnboundLocalError", "ImportError", "SyntaxError")
_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class Ran:
  """What became of some tests.

  Attributes:
    code: of pytest, None where it took too long.
    kinds: (name, "passed", "failed", "error" or "skipped"), in their order.
    reason: of the first failure or error, a line.
  """

  code: int | None
  kinds: tuple[tuple[str, str], ...] = ()
  reason: str = ""

  def missing(self, tests: Sequence[str]) -> list[str]:
    """Those of which nothing has passed, where all should have."""
    passed = {name.partition("[")[0] for name, k in self.kinds if k == "passed"}
    all_good = self.code == 0 and {k for _, k in self.kinds} == {"passed"}
    return [test for test in tests if not all_good or _name(test) not in passed]

  @property
  def verdict(self) -> str:
    """Of one test on a broken copy: "red", or what it is instead."""
    if self.code is None:
      return "takes too long"
    if self.code == 0:
      return "UNNOTICED"
    failed = [kind for _, kind in self.kinds if kind in ("failed", "error")]
    good = self.code == 1 and failed == ["failed"]
    return "red" if good and not self.reason.startswith(_SLIPS) else "no test"


def _name(test: str) -> str:
  """FILE::NAME[PARAMETERS] -> NAME."""
  return test.partition("::")[2].partition("[")[0]


def run(folder: pathlib.Path, tests: Sequence[str]) -> Ran:
  """Runs tests of a copy up to the first that fails."""
  with tempfile.TemporaryDirectory() as made:
    report = pathlib.Path(made) / "report.xml"
    words = ["-x", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    words += [f"tests/{test}" for test in tests]
    try:
      code = _python(folder, "-m", "pytest", *words).returncode
    except subprocess.TimeoutExpired:
      return Ran(None)
    if not report.exists():
      return Ran(code)
    kinds, reason = [], ""
    for case in ElementTree.parse(report).iter("testcase"):
      told = {"failure": "failed", "error": "error", "skipped": "skipped"}
      found = [child for child in case if child.tag in told]
      kind = told[found[0].tag] if found else "passed"
      kinds.append((case.get("name", ""), kind))
      if kind in ("failed", "error") and not reason:
        reason = " ".join(found[0].get("message", "").split())
  return Ran(code, tuple(kinds), reason)


def _python(
    folder: pathlib.Path, *words: str
) -> subprocess.CompletedProcess[str]:
  """A run of Python in a copy, whatever is installed."""
  return subprocess.run(
      [sys.executable, *words],
      cwd=folder,
      env=os.environ | {"PYTHONPATH": str(folder)},
      capture_output=True,
      text=True,
      timeout=_PATIENCE,
      check=False,
  )


def copied(folder: pathlib.Path) -> pathlib.Path:
  """A copy of the repository, as far as tests read it.

  Raises:
    RuntimeError: another package than the copy's would be tested.
  """
  skipped = shutil.ignore_patterns("__pycache__")
  for name in _COPIED:
    shutil.copytree(ROOT / name, folder / name, ignore=skipped)
  for name in _FILES:
    shutil.copy(ROOT / name, folder / name)
  code = "import specjax, tests; print(specjax.__file__, tests.__file__)"
  found = _python(folder, "-c", code).stdout.split()
  wanted = [str(folder / name / "__init__.py") for name in _COPIED[:2]]
  if found != wanted:
    raise RuntimeError(f"imports {found}, not {wanted}")
  return folder


def edited(change: changes.Change, root: pathlib.Path) -> dict:
  """Each file of a change -> its text before and after.

  Raises:
    ValueError: a text does not stand there as often as it should.
  """
  texts = {}
  for edit in change.edits:
    path = root / "specjax" / edit.file
    before, now = texts.get(path) or [path.read_text(encoding="utf-8")] * 2
    found = now.count(edit.old)
    if found != edit.count:
      raise ValueError(f"{edit.file} has {found} times {edit.old!r}")
    texts[path] = before, now.replace(edit.old, edit.new)
  return texts


@contextlib.contextmanager
def broken(change: changes.Change, folder: pathlib.Path) -> Iterator[None]:
  """Makes a change in a copy, and takes it back."""
  texts = edited(change, folder)
  try:
    for path, (_, after) in texts.items():
      path.write_text(after, encoding="utf-8")
    yield
  finally:
    for path, (before, _) in texts.items():
      path.write_text(before, encoding="utf-8")


def sources(file: str) -> list[pathlib.Path]:
  """All that a file of tests may depend on, as far as it is code."""
  known, new = set(), {"conftest.py", file}
  while new:
    known |= new
    text = "".join((ROOT / "tests" / name).read_text("utf-8") for name in new)
    names = re.findall(r"^ *from tests import (\w+)", text, re.M)
    new = {f"{name}.py" for name in names} - known
  paths = [ROOT / "tests" / name for name in known]
  for name in ("specjax", "configs", "experiments"):
    paths += (ROOT / name).rglob("*.py")
  return sorted(paths)


def _digest(file: str, *values: Any) -> str:
  """A name for what is done with tests of a file."""
  hashed = hashlib.sha256(repr(values).encode())
  for path in sources(file):
    hashed.update(path.read_bytes())
  return hashed.hexdigest()[:24]


def _unbroken(
    folder: pathlib.Path, store: kept.Folder, chosen: Sequence[changes.Change]
) -> bool:
  """Whether the tests of some changes pass without them."""
  by_file: dict[str, list[str]] = {}
  for test in sorted({change.test for change in chosen}):
    by_file.setdefault(test.partition("::")[0], []).append(test)
  good = True
  for file, tests in by_file.items():
    name = f"whole_{_digest(file, tests)}"
    ran = lambda: dataclasses.asdict(run(folder, tests))
    made = Ran(**store.kept(name, ran))
    for test in made.missing(tests):
      print(f"fails on the whole copy: {test}  {made.reason[:_SHOWN]}")
      good = False
  return good


def _judged(folder: pathlib.Path, change: changes.Change) -> dict[str, Any]:
  """What becomes of one change."""
  began = time.monotonic()
  with broken(change, folder):
    ran = run(folder, [change.test])
  seconds = time.monotonic() - began
  return {"verdict": ran.verdict, "reason": ran.reason, "seconds": seconds}


def table(
    chosen: Sequence[changes.Change], red: Sequence[changes.Change]
) -> str:
  """How many of some changes were noticed, by the tables of reports."""
  lines = ["| reports | changes | noticed |", "|---|---|---|"]
  for name, every in (changes.TABLES | {"all": changes.CHANGES}).items():
    made = [change for change in every if change in chosen]
    if made:
      noticed = sum(change in red for change in made)
      lines.append(f"| {name} | {len(made)} | {noticed} |")
  return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
  """Makes the changes that the arguments ask for; returns the exit code."""
  parser = argparse.ArgumentParser(
      "python -m tests.mutants",
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("--only", default="", metavar="WORDS")
  parser.add_argument("--list", action="store_true", help="shows them")
  parser.add_argument("--out", type=pathlib.Path, metavar="DIR")
  asked = parser.parse_args(argv[1:])
  told = lambda c: " | ".join((c.what, c.report, c.file, c.test))
  chosen = [change for change in changes.CHANGES if asked.only in told(change)]
  if not chosen:
    parser.error(f"--only: no change is of {asked.only!r}")
  if asked.list:
    print("\n".join(map(told, chosen)))
    return 0
  with tempfile.TemporaryDirectory() as made:
    folder = copied(pathlib.Path(made).resolve() / "copy")
    store = kept.Folder(asked.out or pathlib.Path(made) / "kept")
    if not _unbroken(folder, store, chosen):
      return 1
    red = []
    for change in chosen:
      name = _digest(change.test.partition("::")[0], change)
      found = store.kept(name, lambda: _judged(folder, change))
      if found["verdict"] == "red":
        red.append(change)
      print(
          f"{found['verdict']:9} {found['seconds']:4.0f} s  {change.what}:"
          f" {change.test}  {found['reason'][:_SHOWN]}",
          flush=True,
      )
  print(f"\n{table(chosen, red)}")
  return 0 if red == chosen else 1


if __name__ == "__main__":
  sys.exit(main(sys.argv))
