"""Tasks: the texts to decode, with their prefixes, and their references.

    load_task("mini_ende", rows=8)           the shipped held-out rows
    load_task("chat_summ", rows=8)           the same, as what a model is told
    load_task("wmt14_ende")                  newstest2014, from Hugging Face
    load_task("cnndm", path="cnndm.jsonl")   the same task, from a local file
    load_task("cnndm", path="cnndm")         from a copy of its repository
    load_task("file", path="mine.jsonl")     any rows, taken as they are
    from_text("translate English to German: Good morning.")

A file is JSON lines with `source` and `reference` (and `id`, the line's number
if it has none), or a pair of text files with a line each, "a.en,a.de".
"""

import contextlib
import dataclasses
import glob
import importlib.resources
import itertools
import os
import pathlib
import re
from typing import Any, Callable, Iterable, Iterator, Sequence

from specjax import errors
from specjax import hub
from specjax import strict_json
from specjax.errors import UserError

TRANSLATE = "translate English to German: "
SUMMARIZE = "summarize: "

Path = str | os.PathLike


@dataclasses.dataclass(frozen=True)
class Example:
  """One text to decode; `source` has its prefix already."""

  id: str
  source: str
  reference: str = ""


@dataclasses.dataclass(frozen=True)
class Task:
  """Where a task's texts come from and how its outputs are judged.

  Attributes:
    prefix: what T5 reads before each source.
    words: what a model that follows instructions is told before each row; a
      person's own text needs none.
    metric: "bleu", "rouge", or "" where there is nothing to judge by.
    shipped: name of the held-out file in the package, for the mini tasks.
    hub: repository and folder of parquet files, for the public tasks.
    columns: row of the hub's dataset -> (source, reference).
    instead: the config that runs without any download.
  """

  prefix: str = ""
  words: str = ""
  metric: str = ""
  shipped: str = ""
  hub: tuple[str, ...] = ()
  columns: Callable[[dict[str, Any]], tuple[str, str]] | None = None
  instead: str = ""


TASKS = {
    "mini_ende": Task(TRANSLATE, metric="bleu", shipped="ende.jsonl"),
    "mini_summ": Task(SUMMARIZE, metric="rouge", shipped="summ.jsonl"),
    "chat_summ": Task(
        words="Summarize in one sentence: ",
        metric="rouge",
        shipped="summ.jsonl",
    ),
    "wmt14_ende": Task(
        TRANSLATE,
        metric="bleu",
        hub=("wmt/wmt14", "de-en"),
        columns=lambda row: tuple(row["translation"][k] for k in ("en", "de")),
        instead="configs/ende_t5small.py:mini",
    ),
    "cnndm": Task(
        SUMMARIZE,
        metric="rouge",
        hub=("abisee/cnn_dailymail", "3.0.0"),
        columns=lambda row: (row["article"], row["highlights"]),
        instead="configs/cnndm_t5small.py:mini",
    ),
    "file": Task(),
}


def get_task(name: str) -> Task:
  """Returns a task by name; raises UserError with the known names."""
  if name not in TASKS:
    known = ", ".join(TASKS)
    raise UserError(
        f"data.task: no task {errors.shown(name)}; the tasks are {known}"
    )
  return TASKS[name]


def load_task(
    name: str,
    *,
    rows: int | None = None,
    path: Path | Sequence[Path] | None = None,
    split: str = "test",
) -> list[Example]:
  """Returns a task's examples, their sources prefixed.

  Args:
    name: a key of TASKS.
    rows: how many examples, from the front; None takes all.
    path: JSON lines, or two text files (a pair, or "sources,references"), read
      in place of what the task would fetch; for a public dataset also a folder
      that its repository was fetched to.
    split: which split of a public dataset; only "test" is shipped.

  Raises:
    UserError: an unknown task, a bad row (file, line and field are named), or
      texts that can be had neither here nor from Hugging Face.
  """
  task = get_task(name)
  if rows is not None and rows < 1:
    raise UserError(f"data.rows: {rows} is no number of rows; give 1 or more")
  if task.hub and (path is None or _is_folder(path)):
    examples = _public(name, task, split, path)
  elif path is not None:
    examples = _read(path)
  elif task.shipped:
    examples = _shipped(name, task, split)
  else:
    raise UserError("data.path: task 'file' needs the path of JSON lines")
  examples = [
      dataclasses.replace(
          example, source=task.prefix + task.words + example.source
      )
      for example in itertools.islice(examples, rows)
  ]
  if not examples:
    raise UserError(f"data.path: {path or name} has no rows")
  return examples


def from_text(text: str, prefix: str = "") -> list[Example]:
  """Returns one example with a person's own text and no reference.

  Raises:
    UserError: the text is empty.
  """
  if not text.strip():
    raise UserError("data.text: the text is empty; give something to decode")
  return [Example("text", prefix + text)]


# --- files ------------------------------------------------------------------


def _is_folder(path: Path | Sequence[Path]) -> bool:
  return isinstance(path, Path) and os.path.isdir(os.path.expanduser(path))


def _read(path: Path | Sequence[Path]) -> Iterator[Example]:
  if isinstance(path, str) and "," in path and not os.path.exists(path):
    path = path.split(",")
  if isinstance(path, (str, os.PathLike)):
    return read_jsonl(path)
  if len(path) != 2:
    raise UserError(f"data.path: one file or two, not {len(path)}: {path}")
  return read_text_pair(*path)


def read_jsonl(path: Path) -> Iterator[Example]:
  """Yields a file's rows; raises UserError at the first bad one."""
  seen: dict[str, int] = {}
  with contextlib.closing(lines(path)) as rows:
    for number, line in rows:
      if not line.strip():
        continue
      try:
        row = strict_json.loads(line)
      except ValueError as error:
        raise _bad(path, number, f"is not JSON ({error})") from None
      example = _example(path, number, row)
      if example.id in seen:
        first = seen[example.id]
        name = errors.shown(example.id)
        raise _bad(path, number, f"field 'id' {name} is line {first}'s")
      seen[example.id] = number
      yield example


def read_text_pair(source: Path, reference: Path) -> Iterator[Example]:
  """Yields examples of two files whose lines correspond.

  Raises:
    UserError: a file can't be read, or has fewer lines than the other.
  """
  with (
      contextlib.closing(lines(source)) as lefts,
      contextlib.closing(lines(reference)) as rights,
  ):
    pairs = itertools.zip_longest(lefts, rights)
    for number, (left, right) in enumerate(pairs, 1):
      if left is None or right is None:
        both = source, reference
        short, long = both if left is None else both[::-1]
        raise _bad(short, number, f"is missing; {long} goes on")
      row = {"source": left[1].strip(), "reference": right[1].strip()}
      yield _example(source, number, row)


def lines(
    path: Path, field: str = "data.path"
) -> Iterator[tuple[int, str]]:
  """Yields (number, line); only a line feed ends a line, as JSON lines ask.

  Raises:
    UserError: the file can't be read, or is not UTF-8; it names `field`.
  """
  try:
    # os.path takes any name, however odd; pathlib does not.
    file = open(os.path.expanduser(path), "rb")
  except OSError as error:
    raise UserError(
        f"{field}: {path}: {error.strerror}; give a file of JSON lines"
    ) from None
  with file:
    for number, line in enumerate(file, 1):
      try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
      except UnicodeDecodeError:
        raise UserError(
            f"{field}: {os.fspath(path)}, line {number} is not UTF-8"
        ) from None
      yield number, text.rstrip("\r\n")


def _example(path: Path, number: int, row: Any) -> Example:
  if not isinstance(row, dict):
    raise _bad(path, number, "is not a JSON object")
  for field in ("source", "reference"):
    if field not in row:
      raise _bad(path, number, f"field '{field}' is missing")
    if not isinstance(row[field], str):
      kind = type(row[field]).__name__
      raise _bad(path, number, f"field '{field}' is {kind}, not a string")
  if not row["source"].strip():
    raise _bad(path, number, "field 'source' is empty")
  name = row.get("id", number)
  if not isinstance(name, (str, int)) or isinstance(name, bool):
    kind = type(name).__name__
    raise _bad(path, number, f"field 'id' is {kind}, not a string")
  return Example(str(name), row["source"], row["reference"])


def _bad(path: Path, number: int, what: str) -> UserError:
  return UserError(f"data.path: {os.fspath(path)}, line {number} {what}")


# --- shipped and public texts -----------------------------------------------


def _shipped(name: str, task: Task, split: str) -> Iterator[Example]:
  if split != "test":
    asked = errors.shown(split)
    raise UserError(f"data.split: {name} has only 'test', not {asked}")
  folder = importlib.resources.files("specjax") / "assets/mini/heldout"
  with importlib.resources.as_file(folder / task.shipped) as path:
    return iter(list(read_jsonl(path)))


def _public(
    name: str, task: Task, split: str, folder: Path | None
) -> Iterator[Example]:
  """Rows of a public dataset: of `folder`, the cache, or the hub."""
  try:
    import datasets
  except ImportError:
    missing = "datasets is not installed: pip install 'specjax[hub]'"
    raise UserError(_cannot(name, task, split, missing)) from None
  try:
    folder = pathlib.Path(folder or _fetched(task, split)).expanduser()
  except hub.Unavailable as error:
    raise UserError(_cannot(name, task, split, str(error))) from None
  files = [folder / file for file in _parts(_inside(folder), task, split)]
  if not files:
    pattern = f"{task.hub[1]}/{split}-*.parquet"
    raise UserError(f"data.path: {folder} does not hold all of {pattern}")
  # datasets takes paths for patterns.
  patterns = [glob.escape(str(file)) for file in files]
  try:
    table = datasets.Dataset.from_parquet(patterns, split=split)
  except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
    raise UserError(
        f"data.path: {files[0]} cannot be read ({hub.reason(error)}):"
        " delete it and fetch it again"
    ) from None
  return _hub_examples(table, task)


def _fetched(task: Task, split: str) -> pathlib.Path:
  """The cache's folder with one split: others can be a thousand times its size.

  Raises:
    hub.Unavailable: it is not there, nor to be had.
  """
  repository = hub.Repository(task.hub[0], "dataset")
  folder = repository.cached()
  if folder is not None and _parts(_inside(folder), task, split):
    return folder
  parts = _parts(repository.files(), task, split)
  if not parts:
    raise hub.Unavailable(f"it has no split {errors.shown(split)}")
  return repository.fetch(parts)


def _inside(folder: pathlib.Path) -> list[str]:
  """Names of the files in a copy of a repository, one folder deep."""
  paths = [path for path in folder.glob("*/*") if path.is_file()]
  return [path.relative_to(folder).as_posix() for path in paths]


def _parts(files: Iterable[str], task: Task, split: str) -> list[str]:
  """A split's files among a repository's; none where not all are there."""
  start = re.escape(f"{task.hub[1]}/{split}")
  part = re.compile(rf"{start}-\d+-of-(\d+)(-\w+)?\.parquet")
  found = {file: part.fullmatch(file) for file in sorted(files)}
  counts = {file: int(match[1]) for file, match in found.items() if match}
  return list(counts) if set(counts.values()) == {len(counts)} else []


def _cannot(name: str, task: Task, split: str, why: str) -> str:
  repository, folder = task.hub
  return (
      f"data.path: {name} is neither on this machine nor to be had ({why}):"
      f" fetch it elsewhere with `hf download {repository} --repo-type dataset"
      f" --include '{folder}/{split}-*' --local-dir DIR` and give"
      " --config.data.path=DIR, or a file of JSON lines with 'source' and"
      " 'reference'; from the checkout, python -m specjax.run --config"
      f" {task.instead} runs the shipped family"
  )


def _hub_examples(table: Iterable[dict[str, Any]], task: Task):
  for number, row in enumerate(table):
    try:
      source, reference = (text.strip() for text in task.columns(row))
    except (AttributeError, LookupError, TypeError):
      raise UserError(
          f"data.path: row {number} is none of {task.hub[0]}: fetch it again"
      ) from None
    yield Example(str(row.get("id", number)), source, reference)
