"""What a model that follows instructions is asked, for it to learn from.

Drafts are to go on with what their target writes, so all that has to be
found is something to ask it. The corpus (data.corpus: Debian's descriptions,
LibreOffice's help) and the documentation in Python's own library are put into
requests of several kinds:

- summary, explanation and question, about a package or a page of the help
- translation, either way between English and German
- code, about a function of Python's library, or to write one
- writing: an e-mail, a story, a list

A T5 of the mini family is asked what it was trained to do.

The same corpus, seed and Python give the same requests. Those of `dev` are
about packages, pages and modules that `train` has nothing of, and no text of
the corpus's test split is in either.
"""

import dataclasses
import importlib
import inspect
import itertools
import pathlib
import re
from typing import Iterable, Iterator, Sequence

import numpy as np

from specjax.data import corpus
from specjax.data import metrics
from specjax.data import prompts
from specjax.data import tasks

# Longer texts would be most of what a target reads, and nothing it writes.
_WORDS = range(6, 121)
# So many words in a row are no accident.
_GRAM = 8

_SUMMARIES = (
    "Give me a short summary of the following text.\n\n{text}",
    "{text}\n\nWhat is the main point of this text?",
    "Shorten this to one or two sentences: {text}",
    "Summarise the following description as a list of key points.\n\n{text}",
)
_EXPLANATIONS = (
    "Explain the following to someone who is new to computers.\n\n{text}",
    "What does this mean, and when would I need it?\n\n{text}",
    "{text}\n\nExplain step by step what this is about.",
    "Who would use this software, and what for?\n\n{text}",
)
_QUESTIONS = (
    "Answer the question with the help of the text.\n\nText: {text}\n\n"
    "Question: What can {name} be used for?",
    "What is {name}?",
    "What are the advantages and the disadvantages of {name}? This is how it"
    " describes itself: {text}",
    "Which words in this text are technical terms? Explain each of them."
    "\n\n{text}",
)
_TRANSLATIONS = (
    "Translate the following English text into German: {text}",
    "Translate the following German text into English: {german}",
    "How do you say this in German? {text}",
    "What does this mean in English? {german}",
)
_CODE = (
    "Explain what the Python function {name} does, and show how it is used."
    "\n\n{text}",
    "Write a Python function that does the following, with an example of its"
    " use.\n\n{text}",
    "Write three unit tests for the Python function {name}.\n\n{text}",
    "When would I use {name} in Python, and what should I look out for?",
)
_WRITINGS = (
    "Write an e-mail to a colleague that recommends the following: {text}",
    "Write a short story in which this plays a part: {text}",
    "Give ten ideas for what one could build with this: {text}",
    "Write the introduction of a blog post about the following: {text}",
)
_MODULES = (
    "argparse array ast base64 bisect calendar cmath codecs collections"
    " colorsys configparser contextlib copy csv datetime decimal difflib dis"
    " email.message enum fileinput fnmatch fractions functools getpass glob"
    " gzip hashlib heapq hmac html http.client inspect io ipaddress itertools"
    " json keyword linecache locale logging lzma mailbox math mimetypes"
    " multiprocessing numbers operator os os.path pathlib pickle platform"
    " plistlib pprint queue random re sched secrets select selectors shelve"
    " shlex shutil signal smtplib socket sqlite3 statistics string struct"
    " subprocess sys tarfile tempfile textwrap threading time timeit token"
    " tokenize traceback types unicodedata unittest urllib.parse"
    " urllib.request uuid warnings wave weakref xml.etree.ElementTree zipfile"
    " zlib"
).split()


@dataclasses.dataclass(frozen=True)
class Ask:
  """One request.

  Attributes:
    id: of what it is about, and how it is asked.
    kind: summary, explanation, question, translation, code or writing; of a
      T5's, the task.
    text: what is said to the model.
  """

  id: str
  kind: str
  text: str


@dataclasses.dataclass(frozen=True)
class Overlap:
  """Requests that share words in a row with texts to be judged by.

  Attributes:
    known: texts that were looked into.
    looked: requests that were compared.
    dropped: ids of those that were left out.
  """

  known: int
  looked: int
  dropped: tuple[str, ...]

  def __str__(self):
    return (
        f"{len(self.dropped)} of {self.looked} requests share {_GRAM} words in"
        f" a row with one of {self.known} evaluation prompts, and are left out"
    )


def chat(folder: pathlib.Path, split: str, seed: int) -> Iterator[Ask]:
  """Requests to a model that follows instructions, the kinds by turns.

  Args:
    folder: of the corpus.
    split: "train" or "dev".
    seed: fixes the order.

  Raises:
    errors.UserError: the corpus can't be read.
  """
  return _by_turns(_sources(folder, split), seed)


def prefixed(folder: pathlib.Path, split: str, seed: int) -> Iterator[Ask]:
  """The corpus as a T5 reads it, its tasks by turns; arguments as `chat`."""

  def of(task):
    sources = [source for source, _ in corpus.read_split(folder, task, split)]
    rng = np.random.default_rng([seed, *task.encode()])
    for row in rng.permutation(len(sources)):
      yield Ask(f"{task}/{row}", task, sources[row])

  return _turns([of(task) for task in corpus.TASKS])


# What texts a config may name -> where they come from.
TEXTS = {"chat": chat, "prefixed": prefixed}


def choose(
    stream: Iterable[Ask], count: int, known: Sequence[str] = ()
) -> tuple[list[Ask], Overlap]:
  """The first requests that are not too much like others, each text once.

  Args:
    stream: of requests.
    count: how many, at most.
    known: texts that drafts will be judged by.
  """
  taken = set().union(*(metrics.word_grams(text, _GRAM) for text in known))
  made: dict[str, Ask] = {}
  looked, dropped = 0, []
  for ask in stream:
    if len(made) == count:
      break
    if ask.text in made:
      continue
    looked += 1
    if taken & metrics.word_grams(ask.text, _GRAM):
      dropped.append(ask.id)
    else:
      made[ask.text] = ask
  return list(made.values()), Overlap(len(known), looked, tuple(dropped))


def evaluation_texts(names: str) -> list[str]:
  """What is said in files of prompts, turn by turn.

  Args:
    names: as data.prompts.load takes them, with commas between; or "".

  Raises:
    errors.UserError: one can't be read.
  """
  files = [name for name in names.split(",") if name]
  rows = itertools.chain.from_iterable(map(prompts.load, files))
  return [turn for row in rows for turn in row.turns]


def _by_turns(
    sources: dict[str, tuple[list[dict[str, str]], Sequence[str]]], seed: int
) -> Iterator[Ask]:
  """One request of each kind after another, until all are used up."""

  def of(kind, rows, words):
    rng = np.random.default_rng([seed, *kind.encode()])
    for i, row in enumerate(rng.permutation(len(rows))):
      parts, form = rows[row], i % len(words)
      text = words[form].format(**parts)
      yield Ask(f"{kind}/{form}/{parts['id']}", kind, text)

  return _turns([of(kind, *source) for kind, source in sources.items()])


def _turns(streams: Sequence[Iterator[Ask]]) -> Iterator[Ask]:
  """One of each after another, until all are used up."""
  rounds = itertools.zip_longest(*streams)
  return filter(None, itertools.chain.from_iterable(rounds))


def _sources(folder: pathlib.Path, split: str):
  """Kind -> the parts of its requests, and how they are asked."""
  read = lambda task: [
      row
      for row in tasks.read_jsonl(corpus.split_file(folder, task, split))
      if len(row.source.split()) in _WORDS
  ]
  packages = [
      dict(
          id=row.id,
          text=row.source,
          name=row.id.split("/")[1] if "/" in row.id else row.reference,
          synopsis=row.reference,
      )
      for row in read("summ")
  ]
  pairs = [
      dict(id=row.id, text=row.source, german=row.reference)
      for row in read("ende")
  ]
  helps = [row for row in pairs if row["id"].startswith("libreoffice/")]
  synopses = [row | dict(text=row["synopsis"]) for row in packages]
  return {
      "summary": (packages, _SUMMARIES),
      "translation": (pairs, _TRANSLATIONS),
      "explanation": (_merged(packages, helps), _EXPLANATIONS),
      "code": (list(_functions(split)), _CODE),
      "question": (packages, _QUESTIONS),
      "writing": (synopses, _WRITINGS),
  }


def _merged(packages, helps):
  """As many of the one as of the other, as far as they go."""
  count = min(len(packages), len(helps)) or max(len(packages), len(helps))
  return packages[:count] + helps[:count]


def _functions(split: str) -> Iterator[dict[str, str]]:
  """Functions and classes of Python's library, with their documentation."""
  for module in _MODULES:
    if corpus.split_of("python:" + module) != split:
      continue
    try:
      found = importlib.import_module(module)
    except ImportError:  # Some pythons are built without it.
      continue
    for name, value in sorted(vars(found).items()):
      public = not name.startswith("_") and callable(value)
      if public and getattr(value, "__module__", None) == module:
        text = _documentation(value)
        if len(text.split()) in _WORDS:
          full = f"{module}.{name}"
          yield dict(id=f"python/{full}", name=full, text=text)


def _documentation(value) -> str:
  """The first paragraphs of what is written about something in Python."""
  text = inspect.getdoc(value) or ""
  # A class without documentation of its own shows another's.
  if inspect.isclass(value) and not vars(value).get("__doc__"):
    return ""
  kept, words = [], 0
  for paragraph in re.split(r"\n\s*\n", text):
    words += len(paragraph.split())
    if kept and words >= _WORDS.stop:
      break
    kept.append(paragraph)
  return "\n\n".join(kept).strip()


def counts(asks: Iterable[Ask]) -> dict[str, int]:
  """How many there are of each kind."""
  out: dict[str, int] = {}
  for ask in asks:
    out[ask.kind] = out.get(ask.kind, 0) + 1
  return out
