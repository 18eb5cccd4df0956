"""Runs cases and judges what became of them."""

import contextlib
import dataclasses
import io
import pathlib
import random
import re
import shutil
import time
import warnings
from typing import Iterable, Iterator, Sequence

from specjax import errors
from specjax import options
from tests.fuzz import mutators
from tests.fuzz import readers as readers_lib

READ, REFUSED, FAULT = "read", "refused", "FAULT"
SECONDS = 2.0  # of a core
_SPARE = 2**26  # bytes, beside some for each that the files have
_TIMES = 16
_LONGEST = 4000
_STATUS = pathlib.Path("/proc/self/status")


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What became of a case.

  Attributes:
    case: its number.
    reader: name of what read.
    kind: READ, REFUSED or FAULT.
    text: the damage, and what was said.
    seconds: that it took of a core.
  """

  case: int
  reader: str
  kind: str
  text: str
  seconds: float


class Runner:
  """Cases of a seed, in a folder.

  Args:
    folder: to work in.
    seed: of all cases.
    readers: what reads.
  """

  def __init__(
      self,
      folder: pathlib.Path,
      seed: int,
      readers: Sequence[readers_lib.Reader] = readers_lib.READERS,
  ):
    self._folder, self._seed, self._readers = folder, seed, readers
    self._written: set[str] = set()

  def reader(self, case: int) -> readers_lib.Reader:
    """Whose case it is."""
    if len(self._readers) == 1:
      return self._readers[0]
    rng = random.Random(f"{self._seed} {case}")
    shares = [reader.share for reader in self._readers]
    return rng.choices(self._readers, shares)[0]

  def run(self, cases: Iterable[int]) -> Iterator[Outcome]:
    """Runs some."""
    for case in cases:
      yield self.one(case, self.reader(case))

  def one(self, case: int, reader: readers_lib.Reader) -> Outcome:
    """Damages a reader's files, and has them read."""
    good, work = self._folder / reader.name, self._folder / "work"
    if reader.name not in self._written:
      good.mkdir(parents=True)
      reader.write(good)
      # What is slow the first time is of no file.
      reader.read(good)
      self._written.add(reader.name)
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(good, work / "case")
    rng = random.Random(f"{self._seed} {case} {reader.name}")
    damage = mutators.damage(rng, work / "case")
    size = sum(x.stat().st_size for x in good.rglob("*") if x.is_file())
    before, began = _memory(reset=True), time.process_time()
    kind, text = judged(reader, work, damage)
    seconds, most = time.process_time() - began, _memory() - before
    if kind != FAULT and seconds > SECONDS:
      kind, text = FAULT, f"{seconds:.1f} s, {text}"
    if kind != FAULT and most > _SPARE + _TIMES * size:
      kind, text = FAULT, f"{most / 2**20:.0f} MiB, {text}"
    return Outcome(case, reader.name, kind, f"{damage.what}: {text}", seconds)


def judged(
    reader: readers_lib.Reader, work: pathlib.Path, damage: mutators.Damage
) -> tuple[str, str]:
  """(kind, what was said) of a damaged folder, read behind a door."""
  raised: list[BaseException] = []

  def read(argv):
    del argv
    try:
      reader.read(work / "case")
    except BaseException as error:
      raised.append(error)
      raise

  said = io.StringIO()
  with warnings.catch_warnings(), contextlib.redirect_stderr(said):
    # At a door a warning would be a second line.
    warnings.simplefilter("error")
    try:
      code = options.door("fuzz", lambda: "", read, ["fuzz"])
    except KeyboardInterrupt:
      raise
    except BaseException:
      code = None
  text = said.getvalue()
  if (work / mutators.TRAP).exists():
    return FAULT, "was unpickled"
  good = (errors.UserError, OSError) if reader.writes else errors.UserError
  if raised and not isinstance(raised[0], good):
    return FAULT, f"raises {type(raised[0]).__name__}: {raised[0]}"
  if code == 0 and not text:
    return (FAULT, "was taken") if damage.refused else (READ, "")
  if code != 1 or not re.fullmatch(r"fuzz: .*\S.*\n", text):
    return FAULT, f"exit code {code}, says {text!r}"
  if len(text) > _LONGEST or not text[:-1].isprintable():
    return FAULT, f"says {text!r}"
  return REFUSED, text.strip()


def _memory(reset: bool = False) -> int:
  """Bytes that the process has; after a reset the most that it had."""
  if not _STATUS.exists():
    return 0
  if reset:
    # Forgets the most that there ever was.
    with contextlib.suppress(OSError):
      pathlib.Path("/proc/self/clear_refs").write_text("5")
  field = "VmRSS" if reset else "VmHWM"
  found = re.search(rf"{field}:\s+(\d+) kB", _STATUS.read_text())
  return int(found[1]) * 1024 if found else 0
