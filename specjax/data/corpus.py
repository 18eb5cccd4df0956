"""Builds the parallel and summary texts that the mini family learns from.

    python -m specjax.data.corpus --out DIR

Two sources, both from Debian bookworm's main archive, fetched by apt into a
state directory of its own under DIR (what is there already is kept, so an
interrupted run goes on where it stopped); the machine's apt sources must name
bookworm:

  debian       package descriptions in English and German (`Translation-en`,
               `Translation-de`), joined by Description-md5; synopses,
               paragraphs and list items become pairs (`ende`), and every
               English description with its synopsis a summary (`summ`)
  libreoffice  the LibreOffice help, joined by page and element id (`ende`)

Splits are made by group: packages of one source package (numbers in its name
put aside: gcc-11 and gcc-12 are one group) and pages stay together, in both
tasks. Needs Debian's apt and dpkg-deb; the same indices give the same bytes.
"""

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import re
import sys
from typing import Iterable, Iterator, Sequence

from specjax import options
from specjax import writing
from specjax.data import apt
from specjax.data import metrics
from specjax.data import sources
from specjax.data import tasks
from specjax.data.sources import Row, normalised
from specjax.errors import UserError

TASKS = ("ende", "summ")
SPLITS = ("train", "dev", "test")
DEV_ROWS = 1000
TEST_ROWS = 200
# Shares of the 200 test rows of `ende`: (origin, kind).
TEST_MIX = {
    ("debian", "synopsis"): 40,
    ("debian", "paragraph"): 90,
    ("libreoffice", "element"): 70,
}
_PREFIXES = {"ende": tasks.TRANSLATE, "summ": tasks.SUMMARIZE}


def _digest(text: str) -> int:
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def split_of(group: str) -> str:
  """Returns a group's split, from a hash of its name: 4 % dev, 5 % test."""
  bucket = _digest(group) % 100
  return "test" if bucket < 5 else "dev" if bucket < 9 else "train"


def unique(rows: Iterable[Row]) -> list[Row]:
  """Drops rows that repeat a source text, the first by id order staying."""
  seen: dict[str, Row] = {}
  for row in sorted(rows):
    seen.setdefault(normalised(row.source), row)
  return sorted(seen.values())


def _proper(row: Row) -> bool:
  """Whether a row is fit for the shipped test set."""
  source, reference = len(row.source.split()), len(row.reference.split())
  text = row.source + " " + row.reference
  if re.search(r"https?:|www\.|[{}<>|=_\\]|\w\(\)|:$", text):
    return False
  if sources.BOILERPLATE.search(text):
    return False
  if row.kind == "summary":
    return 30 <= source <= 120 and 5 <= reference <= 16
  if min(map(sources.letters, row[1:3])) < 0.9:
    return False
  if row.kind == "synopsis":
    return 8 <= source <= 30
  return 12 <= source <= 32 and 12 <= reference <= 28 and text[-1] in ".!?"


def _familiar(rows: list[Row], known: list[str], n: int = 8) -> set[str]:
  """Returns the ids of rows that share over a quarter of n-grams with known."""
  grams = lambda text: metrics.word_grams(normalised(text), n)
  own = {row.id: grams(row.source) for row in rows}
  wanted = set().union(*own.values())
  found = set()
  for text in known:
    found |= grams(text) & wanted
  return {i for i, each in own.items() if len(each & found) > len(each) / 4}


def _choose(rows: list[Row], count: int) -> list[Row]:
  """Takes rows in hash order, going through the groups in turn."""
  turns = collections.Counter()
  ordered = []
  for row in sorted(rows, key=lambda row: _digest(row.id)):
    ordered.append((turns[row.group], len(ordered), row))
    turns[row.group] += 1
  return [row for _, _, row in sorted(ordered)[:count]]


def split_rows(
    rows_of: dict[str, list[Row]], dev: int = DEV_ROWS, test: int = TEST_ROWS
) -> dict[str, dict[str, list[Row]]]:
  """Returns {task: {split: rows}}, no text of one split being in another.

  Rows of dev and test are in the order of a hash, so that the first n of them
  are a fair sample.

  Args:
    rows_of: rows by task.
    dev: rows wanted in each dev split.
    test: rows wanted in each test split; `ende` mixes kinds as TEST_MIX says.
  """
  result = {task: {} for task in rows_of}
  taken: set[str] = set()
  for split in SPLITS:
    used = set()
    for task, rows in rows_of.items():
      rows = [
          row
          for row in unique(rows)
          if split_of(row.group) == split
          and normalised(row.source) not in taken
          and normalised(row.reference) not in taken
      ]
      if split == "dev":
        rows = _choose(rows, dev)
      elif split == "test":
        rows = [row for row in rows if _proper(row)]
        familiar = _familiar(rows, [r.source for r in result[task]["train"]])
        rows = [row for row in rows if row.id not in familiar]
        rows = _test_rows(rows, task, test)
      order = None if split == "train" else lambda row: _digest(row.id)
      result[task][split] = sorted(rows, key=order)
      for row in rows:
        used |= {normalised(row.source), normalised(row.reference)}
    taken |= used
  return result


def _test_rows(rows: list[Row], task: str, count: int) -> list[Row]:
  if task != "ende":
    return _choose(rows, count)
  chosen = []
  for (origin, kind), share in TEST_MIX.items():
    fit = [row for row in rows if (row.origin, row.kind) == (origin, kind)]
    chosen += _choose(fit, share * count // TEST_ROWS)
  return chosen


def _json_lines(rows: Iterable[Row], fields: Iterable[str]) -> str:
  picked = ({name: getattr(row, name) for name in fields} for row in rows)
  lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in picked)
  return "".join(lines)


_README = """# Texts for the specjax mini family

Built by `python -m specjax.data.corpus` from Debian bookworm (main): {archive}.

| file | rows | source words | reference words |
|---|---|---|---|
{table}

- `ende`: English to German. Debian package descriptions (origin `debian`) and
  the LibreOffice help (origin `libreoffice`: {help_packages}).
- `summ`: an English package description and its synopsis.

Licences: package descriptions are part of their packages and stand under the
packages' own free licences; the German ones are by the Debian Description
Translation Project. The LibreOffice help is under the Mozilla Public License
2.0 (https://www.mozilla.org/MPL/2.0/), by the contributors of LibreOffice.

Rows: id, source, reference, origin, group. Splits are by group (source package,
help page), the same for both tasks; no text of train is in dev or test, and
none of dev in test, small and capital letters, spaces and numbers aside.
"""


def split_file(folder: pathlib.Path, task: str, split: str) -> pathlib.Path:
  """Returns where a split of the corpus lies."""
  return pathlib.Path(folder) / f"{task}.{split}.jsonl"


def split_files(
    folder: pathlib.Path, chosen: Iterable[str], split: str
) -> list[pathlib.Path]:
  """Returns the files of one split of some tasks.

  Raises:
    UserError: one is missing.
  """
  paths = [split_file(folder, task, split) for task in chosen]
  for path in paths:
    if not path.is_file():
      raise UserError(
          f"corpus: {path} is missing; python -m specjax.data.corpus --out"
          f" {folder} makes it"
      )
  return paths


def read_split(
    folder: pathlib.Path, task: str, split: str
) -> list[tuple[str, str]]:
  """Returns (source with T5's prefix, reference) of each row, in file order.

  Raises:
    UserError: the split can't be read, or a line of it is no row.
  """
  examples = tasks.read_jsonl(split_file(folder, task, split))
  return [(_PREFIXES[task] + e.source, e.reference) for e in examples]


def read_rows(state: pathlib.Path) -> dict[str, list[Row]]:
  """Returns all rows of both tasks, from what apt.fetch brought.

  Raises:
    UserError: an index is missing or damaged, or a task has no rows.
  """
  english, german, packages = (
      apt.index(state, name) for name in apt.INDICES
  )
  owners = sources.source_packages(packages)
  ende = list(sources.debian_pairs(english, german, owners))
  ende += sources.help_pairs(apt.help_pages(state))
  summ = list(sources.debian_summaries(english, owners))
  for task, rows in zip(TASKS, (ende, summ)):
    if not rows:
      raise UserError(
          f"corpus: the indices in {state} give no rows of {task}; delete that"
          " folder and try again"
      )
  return {"ende": ende, "summ": summ}


def build(folder: pathlib.Path) -> None:
  """Writes {ende,summ}.{train,dev,test}.jsonl and README.md, if not there.

  Raises:
    UserError: apt is missing, the archive can't be reached or gave what is no
      archive, or nothing can be written to the folder.
  """
  with plain_errors():
    folder = pathlib.Path(os.path.realpath(folder))
    files = [split_file(folder, t, s) for t in TASKS for s in SPLITS]
    if not all(path.exists() for path in files):
      state = folder / "apt"
      apt.fetch(state)
      # All is read before anything is written.
      archive = apt.archive(state)
      _write_splits(folder, split_rows(read_rows(state)), archive)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
  """Says in one line what the file system refused.

  Raises:
    UserError: in place of an OSError.
  """
  try:
    yield
  except OSError as error:
    where = f"{error.filename}: " if error.filename else ""
    raise UserError(f"corpus: {where}{error.strerror or error}") from None


def _write_splits(folder: pathlib.Path, splits, archive: str) -> None:
  """Writes the rows and a README that counts them."""
  table = []
  for task in TASKS:
    for split in SPLITS:
      rows = splits[task][split]
      path = split_file(folder, task, split)
      writing.write(path, _json_lines(rows, Row._fields[:-1]))
      words = [sum(len(row[i].split()) for row in rows) for i in (1, 2)]
      counts = (path.name, f"{len(rows):,}", *(f"{n:,}" for n in words))
      table.append(f"| {' | '.join(counts)} |")
  archives = (folder / "apt").glob("*.deb")
  packages = ", ".join(sorted(path.name for path in archives))
  text = _README.format(
      archive=archive, table="\n".join(table), help_packages=packages
  )
  writing.write(folder / "README.md", text)


def write_heldout(folder: pathlib.Path, heldout: pathlib.Path) -> None:
  """Writes the test splits as the package ships them: id, source, reference.

  Raises:
    UserError: a split can't be read, or nothing can be written to `heldout`.
  """
  with plain_errors():
    for task in TASKS:
      rows = tasks.read_jsonl(split_file(folder, task, "test"))
      lines = _json_lines(rows, ("id", "source", "reference"))
      writing.write(pathlib.Path(heldout) / f"{task}.jsonl", lines)


def _parser() -> options.Parser:
  parser = options.Parser("specjax.data.corpus", __doc__)
  parser.add_argument("--out", type=pathlib.Path, required=True)
  parser.add_argument(
      "--heldout", type=pathlib.Path, help="where to write the shipped rows"
  )
  return parser


def main(argv: Sequence[str]) -> int:
  """Builds a corpus and prints its README; returns the exit code."""
  return options.door("specjax.data.corpus", _parser().format_help, work, argv)


def work(argv: Sequence[str]) -> None:
  """What the arguments ask for."""
  asked = _parser().read(argv)
  build(asked.out)
  if asked.heldout:
    write_heldout(asked.out, asked.heldout)
  readme = asked.out / "README.md"
  # It may have been removed from a corpus that is complete without it.
  print(readme.read_text("utf-8") if readme.is_file() else asked.out)


if __name__ == "__main__":
  options.leave(main(sys.argv))
