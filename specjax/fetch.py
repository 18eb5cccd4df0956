"""What a config names, brought onto this machine before weights are read."""

import os
import pathlib
from typing import Sequence

from specjax import draft_section
from specjax import errors
from specjax import sections
from specjax import topology
from specjax import writing
from specjax.checkpoints import eagle as eagle_file
from specjax.checkpoints import heads as heads_file
from specjax.checkpoints import ngrams
from specjax.checkpoints import published
from specjax.checkpoints import resolve
from specjax.checkpoints import responses
from specjax.data import tasks

HINT = (
    "from the checkout, python -m specjax.run --config"
    " configs/ende_t5small.py:mini runs the shipped family"
)


def load_examples(data: sections.Data) -> list[tasks.Example]:
  """The texts, each with its task's prefix."""
  if data.text:
    prefixes = [task.prefix for task in tasks.TASKS.values() if task.prefix]
    known = data.text.startswith(tuple(prefixes))
    prefix = "" if known else tasks.get_task(data.task).prefix
    return tasks.from_text(data.text, prefix)
  return tasks.load_task(
      data.task,
      rows=data.rows or None,
      path=data.path or None,
      split=data.split,
  )


def fetch(
    config: sections.Experiment,
    examples: Sequence[tasks.Example] | None = None,
) -> list[tasks.Example]:
  """Brings what the config names onto this machine, the biggest last.

  Args:
    config: of the run.
    examples: in place of the texts that it names.

  Returns:
    The texts.

  Raises:
    errors.UserError: a line for each of draft, target and texts that can't be
      had; no weights were fetched then.
  """
  draft = config.draft
  models = {"target.checkpoint": config.target.checkpoint}
  if draft.has_model:
    models = {"draft.checkpoint": draft.checkpoint} | models
  models = {
      field: name
      for field, name in models.items()
      if not name.startswith(published.RANDOM)
  }
  lines = []
  if draft.kind in ("bigram", "unigram"):
    try:
      errors.within("draft", lambda: ngrams.find(draft.table))
    except errors.UserError as error:
      lines.append(str(error))
  if draft.kind in draft_section.HEADS:
    try:
      errors.within("draft", lambda: _heads_file(draft))
    except errors.UserError as error:
      lines.append(str(error))
  lines += _response_files(draft)
  for field, name in models.items():
    try:
      resolve.find(name, hint="")
    except errors.UserError as error:
      lines.append(f"{field}: {error}")
  try:
    if examples is None:
      examples = load_examples(config.data)
  except errors.UserError as error:
    # Public texts end in a hint of their own.
    lines.append(str(error))
  else:
    if lines:
      lines[-1] += f"; {HINT}"
  if lines:
    raise errors.UserError("\n".join(lines))
  for name in models.values():
    resolve.resolve(name, hint=HINT)
  return list(examples)


def contents(config: sections.Experiment) -> dict[str, list[int]]:
  """Size and date of the files that models and drafts are read from.

  Args:
    config: whose files were fetched.
  """
  draft = config.draft
  names = [config.target.checkpoint, *[draft.checkpoint] * draft.has_model]
  paths = [
      resolve.resolve(name, hint=HINT)
      for name in names
      if not name.startswith(published.RANDOM)
  ]
  if draft.kind in ("bigram", "unigram"):
    paths.append(ngrams.find(draft.table))
  if draft.kind in draft_section.HEADS:
    paths.append(_heads_file(draft))
  if draft.copied == "suffix" and draft.suffix.load:
    paths.append(responses.find(draft.suffix.load))
  if tree := topology.find(draft.tree)[0]:
    paths.append(tree)
  found = {}
  for path in map(pathlib.Path, paths):
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
      if file.is_file():
        stat = file.stat()
        found[str(file)] = [stat.st_size, stat.st_mtime_ns]
  return found


def _heads_file(draft: draft_section.Draft) -> pathlib.Path:
  """Where heads lie; raises UserError where they don't."""
  finder = eagle_file if draft.kind == "eagle" else heads_file
  return finder.find(draft.heads)


def _response_files(draft: draft_section.Draft) -> list[str]:
  """A line for each file of responses that can't be had or written."""
  if draft.copied != "suffix":
    return []
  lines, files = [], draft.suffix
  if files.load:
    try:
      errors.within("draft.suffix", lambda: responses.find(files.load))
    except errors.UserError as error:
      lines.append(str(error))
  if files.save:
    path = pathlib.Path(os.path.expanduser(files.save))
    try:
      # Told now, not after minutes of work.
      writing.write(path.with_name(f"{path.name}.test"), "")
      path.with_name(f"{path.name}.test").unlink()
    except OSError as error:
      lines.append(
          f"draft.suffix.save: {files.save}: {error.strerror}; give another"
          " file"
      )
  return lines
