"""Sequence-level distillation: the texts that a teacher writes itself.

A draft is asked to go on with what its target has written, so that is what it
should learn from, not references (Kim and Rush, arXiv 1606.07947; DistillSpec,
arXiv 2310.08461). Outputs are kept as ids: sampled ids are not always those
that the tokenizer would make of their text.
"""

import dataclasses
import hashlib
import json
import pathlib
from typing import Callable, Sequence

from specjax import checks
from specjax import errors
from specjax import pipeline
from specjax import settings as settings_lib
from specjax import strict_json
from specjax import writing as writing_lib

PART = 1024  # rows of a file: what a kill can cost


@dataclasses.dataclass(frozen=True)
class Writing:
  """How a teacher's texts are made.

  Attributes:
    temperature: 0 is greedy.
    max_new_tokens: longer outputs are cut, without EOS.
    max_source_tokens: longer sources are cut.
    batch: rows decoded at a time.
  """

  temperature: float
  max_new_tokens: int
  max_source_tokens: int
  batch: int = 64


def written(
    teacher,
    sources: Sequence[str],
    writing: Writing,
    folder: pathlib.Path,
    tick: Callable[[int], None] = lambda rows: None,
    part: int = PART,
) -> list[list[int]]:
  """The teacher's output ids for each source.

  What is in `folder` already is read, not made again; a run that was killed
  goes on with the rows that are missing.

  Args:
    teacher: a checkpoints.Checkpoint.
    sources: texts with their task's prefix.
    writing: how.
    folder: of this teacher's texts; those of other sources or of another
      `writing` lie in folders of their own below it.
    tick: called with the number of rows done.
    part: rows of a file.

  Raises:
    errors.UserError: a file in the folder is damaged.
  """
  folder = folder / digest(sources, dataclasses.astuple(writing))
  decoder = pipeline.Decoder(teacher, batch=writing.batch)
  settings = settings_lib.Settings(temperature=writing.temperature)
  # By length, so that a batch holds little padding.
  order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
  out: dict[int, list[int]] = {}
  vocabulary = teacher.module.config.vocab_size
  for path in folder.glob("*.jsonl"):
    out |= _read(path, len(sources), vocabulary)
  tick(len(out))
  missing = [(place, row) for place, row in enumerate(order) if row not in out]
  for start in range(0, len(missing), part):
    places, rows = zip(*missing[start : start + part])
    results = decoder(
        [sources[i] for i in rows],
        settings,
        max_new_tokens=writing.max_new_tokens,
        max_source_tokens=writing.max_source_tokens,
        ids=rows,
    )
    made = {i: list(result.tokens) for i, result in zip(rows, results)}
    lines = [json.dumps({"row": i, "tokens": made[i]}) + "\n" for i in rows]
    # No other file has a row's place.
    path = folder / f"{places[0]:07d}.jsonl"
    writing_lib.write(path, "".join(lines))
    out |= made
    tick(len(rows))
  return [out[i] for i in range(len(sources))]


def _read(path: pathlib.Path, rows: int, size: int) -> dict[int, list[int]]:
  """The rows of a file, by their places.

  Args:
    path: of the file.
    rows: how many there are in all.
    size: V.

  Raises:
    errors.UserError: it is damaged.
  """
  out = {}
  try:
    for line in path.read_bytes().splitlines():
      entry = strict_json.loads(line)
      row, tokens = entry["row"], entry["tokens"]
      good = checks.is_whole(row, 0, rows - 1) and checks.are_ids(tokens)
      if not good or max(tokens, default=size) >= size:
        raise ValueError("a row of it is none")
      out[row] = tokens
  except (LookupError, TypeError, ValueError) as error:
    raise errors.UserError(
        f"{path} is damaged ({errors.reason(error)}); delete it, and the same"
        " command makes its rows anew"
    ) from None
  return out


def digest(*values) -> str:
  """A short name for values that are told apart by their JSON."""
  hashed = hashlib.sha256(json.dumps(values).encode())
  return hashed.hexdigest()[:12]


def digest_of_files(paths) -> str:
  """A short name for the contents of some files."""
  return digest([
      hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)
  ])
