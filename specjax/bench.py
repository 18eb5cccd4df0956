"""The benchmark door: prompts by category, several kinds of drafts at once.

    python -m specjax.bench --config configs/smollm2.py \\
        --prompts question.jsonl --drafters lookup,suffix,suffix:cold,mixed
    python -m specjax.bench --config configs/smollm2.py --prompts agent
    python -m specjax.bench --config configs/smollm2.py:mixed \\
        --prompts mine.txt --first 5 --config.decode.max_new_tokens=64

Prompts are Spec-Bench's question.jsonl, other JSON lines with "prompt", a text
file with a prompt a line, or "agent": the project's own edits, corrections and
similar requests. Model, drafts and sampling are the config's; its texts are
not read.

Kinds of drafts are draft.kind's, each with options of the config's section
draft behind colons: mixed:mixed.copies=suffix:gamma=8. "cold" stands for a
suffix tree that knows no earlier response; else it learns from each prompt
for those after it.

Prints tokens a second, speed-up over plain decoding, tokens a target pass and
rows that differ, by category and in all, and writes report.json, report.md,
report.html and details.json under `out`. A run that was stopped goes on where
it stood.
"""

import argparse
import dataclasses
import re
import shlex
import sys
from typing import Sequence

from specjax import benchmark
from specjax import command_line
from specjax import draft_section
from specjax import errors
from specjax import kept
from specjax import options
from specjax import prepare
from specjax import sections
from specjax.data import prompts as prompts_lib
from specjax.measure import output
from specjax.measure import tables

_CONFIG = re.compile(r"--?(no)?config([.=]|$)")
# Before an option of a kind; a tree of a file goes by FILE:NODES.
_COLON = re.compile(r":(?!\d+(?::|$))")
_COLD = "cold"
# Stands for options that make a suffix tree begin, and stay, empty.
_EMPTY = ("suffix.memory=0", "suffix.load=", "suffix.save=")


def main(argv: Sequence[str]) -> int:
  """Runs what the arguments ask for; returns the exit code."""
  return options.door(
      "specjax.bench",
      lambda: command_line.usage_below(_parser().format_help()),
      work,
      argv,
      interrupted="interrupted; the same command goes on where it stood",
  )


def work(argv: Sequence[str]) -> None:
  """Measures, prints the report and writes its files.

  Raises:
    errors.UserError: the arguments can't be run here; mostly one line.
  """
  own, rest = _split(argv)
  arguments = _parser().read(own)
  if not arguments.prompts:
    raise errors.UserError(
        "--prompts: which? give a file, or agent for the project's own"
    )
  config = _config(rest, arguments)
  only = [name for name in arguments.only.split(",") if name]
  prompts = prompts_lib.choose(
      prompts_lib.load(arguments.prompts), arguments.first, only
  )
  names = arguments.drafters or config.draft.kind
  drafts = {name: _drafts(name, rest) for name in _kinds(names)}
  if len(drafts) > 1:
    # Plain decoding is among the sides in any case.
    drafts.pop("none", None)
  folder = output.folder(config.out)
  with prepare.enough_memory():
    made, details = benchmark.run(
        config,
        drafts,
        prompts,
        folder / "parts",
        shlex.join(["python", "-m", "specjax.bench", *argv[1:]]),
    )
  output.save(folder, made, details)
  kept.drop(folder / "parts")
  print(tables.text(made, details))
  print(f"\nwritten: {folder / 'report.json'}, report.md, report.html")


def _parser() -> options.Parser:
  made = options.Parser("specjax.bench", __doc__)
  made.add_argument(
      "--prompts", metavar="FILE", help='JSON lines, text lines, or "agent"'
  )
  made.add_argument(
      "--drafters",
      metavar="KIND,...",
      help="kinds of drafts; the config's own where not given",
  )
  made.add_argument(
      "--first",
      type=options.whole(0, 10**6),
      default=0,
      help="prompts of each category, from the front; 0 takes all",
  )
  made.add_argument(
      "--only",
      default="",
      metavar="CATEGORY,...",
      help="categories; all where not given",
  )
  return made


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
  """The door's own arguments, and those of the config."""
  own, rest = [argv[0]], [argv[0]]
  words = iter(argv[1:])
  for word in words:
    if not _CONFIG.match(word):
      own.append(word)
      continue
    rest.append(word)
    if word in ("--config", "-config"):
      rest.append(next(words, ""))
  return own, rest


def _config(
    rest: Sequence[str], arguments: argparse.Namespace
) -> sections.Experiment:
  """Of all but the drafts."""
  config = command_line.read(rest)
  for field, value, wanted in (
      ("data.text", config.data.text, ""),
      ("decode.batch", config.decode.batch, 1),
  ):
    errors.require(
        value == wanted,
        field,
        f"give {wanted!r}: each of --prompts is decoded alone",
        value,
    )
  data = dataclasses.replace(
      config.data, task="file", path=arguments.prompts, rows=0
  )
  out = config.out or output.default(f"bench_{config.name}")
  return dataclasses.replace(config, data=data, out=out)


def _kinds(names: str) -> list[str]:
  """Their names: between commas, of which a tree's paths have some, too."""
  kinds, depth = [""], 0
  for letter in names:
    depth += (letter == "[") - (letter == "]")
    if letter == "," and not depth:
      kinds.append("")
    else:
      kinds[-1] += letter
  return kinds


def _drafts(name: str, rest: Sequence[str]) -> draft_section.Draft:
  """One kind of drafts by its name.

  Raises:
    errors.UserError: it is not understood, or no benchmark's.
  """
  kind, *words = _COLON.split(name)
  if _COLD in words:
    at = words.index(_COLD)
    words[at : at + 1] = _EMPTY
  for word in words:
    if "=" not in word:
      raise errors.UserError(
          f"--drafters: {errors.shown(word)} of {errors.shown(name)} is not"
          f" understood; give KEY=VALUE, or {_COLD}"
      )
  changes = [f"--config.draft.{word}" for word in (f"kind={kind}", *words)]
  try:
    draft = command_line.read([*rest, *changes]).draft
  except errors.UserError as error:
    raise errors.UserError(
        f"--drafters: {errors.line(name)}: {error}"
    ) from None
  known = [k for k in draft_section.KINDS if k != "simulated"]
  errors.require(
      draft.kind in known,
      "--drafters",
      f"give some of {', '.join(known)}",
      name,
  )
  errors.require(
      _COLD not in name.split(":") or draft.copied == "suffix",
      "--drafters",
      f"only suffix trees can be {_COLD}; leave it out",
      name,
  )
  return draft


if __name__ == "__main__":
  options.leave(main(sys.argv))
