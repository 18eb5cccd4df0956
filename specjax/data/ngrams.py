"""Counts unigrams and bigrams of a training split, for drafts without a model.

    python -m specjax.data.ngrams --corpus out/corpus \\
        --out out/bigram.safetensors
    python -m specjax.data.ngrams --corpus out/corpus --task ende --out FILE
    python -m specjax.data.ngrams --train mine.jsonl --out FILE \\
        --model google/flan-t5-small

Counts the references, each behind the decoder's start token and with its EOS;
with a corpus, says what the table makes of its dev split. The file serves both
--config.draft.kind=unigram and =bigram, as --config.draft.table=FILE.

Every id has a probability: bigrams are interpolated with unigrams (Witten and
Bell, 1991), unigrams with a uniform law. Of the pairs that were seen, the most
useful ones are listed; in the others' place the unigram stands. 60,000 pairs
of 8,100 ids take 289 KB.
"""

import dataclasses
import pathlib
import sys
from typing import Iterable, Sequence

import numpy as np

from specjax import checkpoints
from specjax import checks
from specjax import errors
from specjax import options
from specjax.checkpoints import ngrams
from specjax.checkpoints import resolve
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.data import corpus
from specjax.data import metrics
from specjax.data import tasks

PAIRS, SUCCESSORS = 60_000, 512
# Added to each id's count: what was never seen keeps a probability.
_EACH = 0.5


@dataclasses.dataclass(frozen=True)
class Counts:
  """What was seen; E is for different pairs, in the order of (left, right).

  Attributes:
    token_V: how often each id came, start tokens aside.
    left_E: ids of each pair's first token.
    right_E: ids of its second.
    pair_E: how often the pair came.
  """

  token_V: np.ndarray
  left_E: np.ndarray
  right_E: np.ndarray
  pair_E: np.ndarray


def count(rows: Iterable[Sequence[int]], start: int, size: int) -> Counts:
  """Counts ids and neighbours.

  Args:
    rows: ids of each text, EOS included.
    start: the decoder's start token, which stands before each text.
    size: V.
  """
  rows = [np.asarray(row, np.int64) for row in rows]
  right = np.concatenate(rows)
  left = np.concatenate([np.append(start, row[:-1]) for row in rows])
  code_E, pair_E = np.unique(left * size + right, return_counts=True)
  token_V = np.bincount(right, minlength=size)
  return Counts(token_V, code_E // size, code_E % size, pair_E)


def smooth(
    counts: Counts,
    vocabulary: str,
    *,
    pairs: int = PAIRS,
    successors: int = SUCCESSORS,
) -> ngrams.Ngrams:
  """A table of what was counted.

  Unigram u(x) = (c(x) + 1/2) / (N + V/2); bigram q(x | w) =
  (c(w, x) + t(w) u(x)) / (c(w) + t(w)), where t(w) counts the different
  successors of w. A pair is worth c(w, x) log(q(x | w) / q0(x | w)), where q0
  lacks the pair's own count. What is not listed has the unigram's law, scaled
  to the mass that the listed ones leave.

  Args:
    counts: from `count`.
    vocabulary: fingerprint of the tokenizer.
    pairs: how many to list at most.
    successors: how many of one token.
  """
  left_E, right_E, pair_E = counts.left_E, counts.right_E, counts.pair_E
  size = len(counts.token_V)
  sums = lambda weight_E: np.bincount(left_E, weight_E, minlength=size)
  u_V = (counts.token_V + _EACH) / (counts.token_V + _EACH).sum()
  types_V = np.bincount(left_E, minlength=size)
  share_E = types_V[left_E] * u_V[right_E]
  prob_E = (pair_E + share_E) / (sums(pair_E) + types_V)[left_E]
  worth_E = pair_E * np.log1p(pair_E / share_E)
  kept = _most_useful(left_E, worth_E, pairs, successors)
  left_E, right_E, prob_E = left_E[kept], right_E[kept], prob_E[kept]
  count_V = np.bincount(left_E, minlength=size)
  # Where every id is listed nothing is left, and nothing asks for it.
  some_V = count_V < size
  left_over = lambda weight_E: np.where(some_V, 1 - sums(weight_E), 1.0)
  log_backoff_V = np.log(left_over(prob_E) / left_over(u_V[right_E]))
  return ngrams.Ngrams(
      vocabulary,
      np.float32(np.log(u_V)),
      np.float32(log_backoff_V),
      count_V,
      right_E,
      np.float32(np.log(prob_E)),
  )


def _most_useful(left_E, worth_E, pairs: int, successors: int) -> np.ndarray:
  """Places of the pairs to list, rising; of equals the first."""
  order = np.lexsort((-worth_E, left_E))
  first = np.searchsorted(left_E, left_E)
  order = order[np.arange(len(order)) - first < successors]
  best = np.argsort(-worth_E[order], kind="stable")[:pairs]
  return np.sort(order[best])


def cross_entropy(
    table: ngrams.Ngrams, seen: Counts
) -> tuple[float, float]:
  """Nats a token of counted texts, under the unigram and under the bigram."""
  size = len(table.count_V)
  exp = lambda log: np.exp(log, dtype=np.float64)
  u_V, backoff_V = exp(table.log_unigram_V), exp(table.log_backoff_V)
  left_E, right_E = table.left_E, table.successor_E
  prob_E = exp(table.log_prob_E)
  unlisted = lambda left, right: backoff_V[left] * u_V[right]
  # Logarithms are rounded in a file, so the laws' sums are not quite 1.
  mass_V = backoff_V * u_V.sum() + np.bincount(
      left_E, prob_E - unlisted(left_E, right_E), minlength=size
  )
  code_E = np.append(left_E * size + right_E, -1)
  wanted = seen.left_E * size + seen.right_E
  place = np.searchsorted(code_E[:-1], wanted)
  law = np.where(
      code_E[place] == wanted,
      np.append(prob_E, 0)[place],
      unlisted(seen.left_E, seen.right_E),
  )
  mean = lambda count, q: -float(np.sum(count * np.log(q)) / count.sum())
  return (
      mean(seen.token_V, u_V / u_V.sum()),
      mean(seen.pair_E, law / mass_V[seen.left_E]),
  )


def references(paths: Iterable[pathlib.Path]) -> list[str]:
  """The references of files of JSON lines.

  Raises:
    errors.UserError: a file is missing, has no rows, or a line that is none.
  """
  texts = []
  for path in paths:
    try:
      rows = [example.reference for example in tasks.read_jsonl(path)]
    except errors.UserError as error:
      line = str(error).removeprefix("data.path: ")
      raise errors.UserError(f"train: {line}") from None
    if not rows:
      raise errors.UserError(f"train: {path} has no rows")
    texts += rows
  return texts


def build(
    train: Sequence[pathlib.Path],
    tokenizer: tokenizer_lib.Pieces,
    *,
    pairs: int = PAIRS,
    successors: int = SUCCESSORS,
    allow_overlap: bool = False,
) -> tuple[ngrams.Ngrams, Counts]:
  """Counts training splits.

  Args:
    train: files of JSON lines.
    tokenizer: of the target that is drafted for.
    pairs: see `smooth`.
    successors: likewise.
    allow_overlap: take texts that are among the shipped held-out references.

  Raises:
    errors.UserError: a file can't be read or holds a held-out reference, or a
      number is out of its range.
  """
  for field, value, least in (
      ("pairs", pairs, 0), ("successors", successors, 1)
  ):
    good = checks.is_whole(value, least)
    errors.require(good, field, f"give {least} or more", value)
  texts = references(train)
  for task in corpus.TASKS:
    held_out = tasks.load_task(f"mini_{task}")
    known = {row.id: row.reference for row in held_out}
    metrics.refuse_overlap(texts, known, allow_overlap)
  counts = _count(texts, tokenizer)
  table = smooth(
      counts, tokenizer.fingerprint(), pairs=pairs, successors=successors
  )
  return table, counts


def _count(texts: list[str], tokenizer: tokenizer_lib.Pieces) -> Counts:
  rows = tokenizer.encode_batch(texts)
  return count(rows, tokenizer.start_id, tokenizer.size)


def _tokenizer(asked) -> tokenizer_lib.Pieces:
  """The named model's tokenizer, else the corpus's own."""
  if asked.model:
    hint = "or give the folder of a model of the same vocabulary"
    model = resolve.resolve(asked.model, hint=hint)
    return checkpoints.load_tokenizer(model)
  if asked.corpus:
    return tokenizer_lib.Tokenizer.load(asked.corpus)
  raise errors.UserError("model: name the target that --train is for")


def work(argv: Sequence[str]) -> None:
  """What the arguments ask for."""
  asked = _parser().read(argv)
  chosen = asked.task or list(corpus.TASKS)
  train = asked.train or corpus.split_files(asked.corpus, chosen, "train")
  tokenizer = _tokenizer(asked)
  table, counts = build(
      train,
      tokenizer,
      pairs=asked.pairs,
      successors=asked.successors,
      allow_overlap=asked.allow_overlap,
  )
  ngrams.save(asked.out, table)
  table = ngrams.load(str(asked.out), tokenizer)
  print(
      f"{asked.out}: {asked.out.stat().st_size / 1e3:.0f} KB;"
      f" {counts.token_V.sum():,} tokens,"
      f" {len(table.successor_E):,} of {len(counts.pair_E):,} pairs listed"
  )
  for task in [] if asked.train else chosen:
    [dev] = corpus.split_files(asked.corpus, [task], "dev")
    seen = _count(references([dev]), tokenizer)
    unigram, bigram = cross_entropy(table, seen)
    print(
        f"{dev.name}: {unigram:.3f} nats a token by unigrams, {bigram:.3f} by"
        f" bigrams ({seen.token_V.sum():,} tokens)"
    )


def _parser() -> options.Parser:
  parser = options.Parser("specjax.data.ngrams", __doc__)
  source = parser.add_mutually_exclusive_group(required=True)
  source.add_argument("--corpus", type=pathlib.Path, help="folder of a corpus")
  source.add_argument(
      "--train", type=pathlib.Path, nargs="+", help="files of JSON lines"
  )
  parser.add_argument("--out", type=pathlib.Path, required=True)
  parser.add_argument(
      "--task", choices=corpus.TASKS, action="append", help="default: all"
  )
  parser.add_argument("--model", help="whose tokenizer; default: the corpus's")
  parser.add_argument(
      "--pairs", type=int, default=PAIRS, help="to list; default: %(default)s"
  )
  parser.add_argument(
      "--successors",
      type=int,
      default=SUCCESSORS,
      help="of one token; default: %(default)s",
  )
  parser.add_argument(
      "--allow-overlap",
      action="store_true",
      help="count held-out references, too",
  )
  return parser


def main(argv: Sequence[str]) -> int:
  """Counts, writes and says what came of it; returns the exit code."""
  return options.door("specjax.data.ngrams", _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
