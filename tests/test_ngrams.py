"""Counting, smoothing and storing n-grams, against sums in plain Python."""

import collections
import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from specjax import errors
from specjax.checkpoints import ngrams as files
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.data import ngrams
from specjax.data import tasks
from tests import tiny

V = 6
START = 0
# Ids 0 (start) and 5 never come; 3 is followed by nothing but 1.
ROWS = [[2, 3, 1], [2, 2, 4, 3, 1], [4, 2, 3, 1], [1], [2, 4, 4, 1]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
  return tokenizer_lib.Tokenizer(
      tiny.write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
  )


def neighbours():
  """{token: Counter of what follows it}."""
  follow = collections.defaultdict(collections.Counter)
  for row in ROWS:
    for left, right in zip([START, *row], row):
      follow[left][right] += 1
  return follow


def unigram(x):
  count = sum(row.count(x) for row in ROWS)
  return (count + 0.5) / (sum(map(len, ROWS)) + 0.5 * V)


def bigram(w, x):
  """The unpruned law."""
  follow = neighbours()[w]
  if not follow:
    return unigram(x)
  share = len(follow) * unigram(x)
  return (follow[x] + share) / (follow.total() + len(follow))


def table(**options):
  return ngrams.smooth(ngrams.count(ROWS, START, V), "digest", **options)


def law(made, w, order="bigram"):
  """Dense law of a table after token w, as its logits have it."""
  logits_BV = getattr(made.on_device(), order)(jnp.array([w]))
  return np.exp(np.asarray(jax.nn.log_softmax(logits_BV)))[0]


def test_counts():
  counts = ngrams.count(ROWS, START, V)
  got = {
      (left, right): count
      for left, right, count in zip(
          counts.left_E, counts.right_E, counts.pair_E
      )
  }
  want = {
      (left, right): count
      for left, follow in neighbours().items()
      for right, count in follow.items()
  }
  assert got == want and list(got) == sorted(got)
  np.testing.assert_array_equal(
      counts.token_V, [sum(row.count(x) for row in ROWS) for x in range(V)]
  )


def test_laws():
  """Every id has a probability, after every id and after none."""
  made = table()
  for w in range(V):
    want = [bigram(w, x) for x in range(V)]
    assert sum(want) == pytest.approx(1)
    np.testing.assert_allclose(law(made, w), want, rtol=1e-5)
    want = [unigram(x) for x in range(V)]
    np.testing.assert_allclose(law(made, w, "unigram"), want, rtol=1e-5)
  # No id of the table, and the last entries of its arrays.
  for w in (-1, V, 10**6):
    np.testing.assert_allclose(law(made, w), want, rtol=1e-5)


def kept(pairs, successors):
  """The most useful pairs, by trying them all."""
  follow = neighbours()

  def worth(w, x):
    types, total = len(follow[w]), follow[w].total()
    alone = types * unigram(x) / (total + types)
    return follow[w][x] * math.log(bigram(w, x) / alone)

  listed = []
  for w in follow:
    best = sorted(follow[w], key=lambda x: (-worth(w, x), x))
    listed += [(w, x) for x in best[:successors]]
  return sorted(sorted(listed, key=lambda pair: -worth(*pair))[:pairs])


@pytest.mark.parametrize("pairs", (0, 1, 4, 7, 99))
@pytest.mark.parametrize("successors", (1, 2, 9))
def test_unlisted_pairs_share_what_is_left(pairs, successors):
  made = table(pairs=pairs, successors=successors)
  listed = kept(pairs, successors)
  got = list(zip(made.left_E.tolist(), made.successor_E.tolist()))
  assert got == listed
  for w in range(V):
    got = law(made, w)
    own = [x for left, x in listed if left == w]
    np.testing.assert_allclose(
        got[own], [bigram(w, x) for x in own], rtol=1e-5
    )
    others = [x for x in range(V) if x not in own]
    ratio = got[others] / [unigram(x) for x in others]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)


def test_every_pair_is_listed():
  """Then nothing is left over for others; no 0 / 0 comes of it."""
  rows = [[x for w in (0, 1) for x in (0, 1)], [0, 0, 1, 1]] * 3
  made = ngrams.smooth(ngrams.count(rows, 0, 2), "digest")
  assert made.count_V.tolist() == [2, 2]
  for w in (0, 1):
    assert law(made, w).sum() == pytest.approx(1)
    assert np.all(np.isfinite(law(made, w)))


def test_cross_entropy():
  held_out = [[2, 3, 3, 1], [5, 4, 1], [2, 1]]
  made = table(pairs=5)
  # As a file rounds them: sums of probabilities are no longer 1.
  rounded = {
      name: array.astype(jnp.bfloat16).astype(np.float32)
      for name, array in vars(made).items()
      if name.startswith("log")
  }
  made = dataclasses.replace(made, **rounded)
  seen = ngrams.count(held_out, START, V)
  pairs = [pair for row in held_out for pair in zip([START, *row], row)]
  mean = lambda q: -sum(math.log(q(w, x)) for w, x in pairs) / len(pairs)
  got = ngrams.cross_entropy(made, seen)
  for order, value in zip(("unigram", "bigram"), got):
    want = mean(lambda w, x, order=order: law(made, w, order)[x])
    assert value == pytest.approx(want, rel=1e-5)


def test_memory_of_a_large_vocabulary():
  """50,000 ids, a million neighbours: nothing is [V, V]."""
  size = 50_000
  row = np.random.default_rng(0).zipf(1.3, 1_000_000) % size
  made = ngrams.smooth(ngrams.count([row], 0, size), "digest")
  assert len(made.successor_E) == ngrams.PAIRS
  assert made.count_V.max() <= ngrams.SUCCESSORS
  bytes_ = sum(leaf.nbytes for leaf in jax.tree.leaves(made.on_device()))
  assert bytes_ < 2e6


# --- files ------------------------------------------------------------------


def counted(tokenizer, **options):
  """A table of a tokenizer's own ids."""
  rows = tokenizer.encode_batch(tiny.TEXTS * 3)
  counts = ngrams.count(rows, tokenizer.pad_id, tokenizer.size)
  return ngrams.smooth(counts, tokenizer.fingerprint(), **options)


def test_round_trip(tokenizer, tmp_path):
  """The same bytes twice, and the same laws as far as bfloat16 goes."""
  made = counted(tokenizer)
  path = tmp_path / "new folder" / "bigram.safetensors"
  files.save(path, made)
  first = path.read_bytes()
  files.save(path, counted(tokenizer))
  assert path.read_bytes() == first
  assert len(first) < 4 * len(made.successor_E) + 6 * tokenizer.size + 700
  read = files.load(str(path), tokenizer)
  assert read.vocabulary == tokenizer.fingerprint()
  np.testing.assert_array_equal(read.count_V, made.count_V)
  np.testing.assert_array_equal(read.successor_E, made.successor_E)
  for name in ("log_unigram_V", "log_backoff_V", "log_prob_E"):
    got, want = getattr(read, name), getattr(made, name)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=2**-8)
  files.save(path, read)
  assert path.read_bytes() == first


def refusal(path, tokenizer) -> str:
  with pytest.raises(errors.UserError) as caught:
    files.load(str(path), tokenizer)
  line = str(caught.value)
  assert line.startswith("table: ") and "\n" not in line and len(line) < 400
  assert "python -m specjax.data.ngrams" in line
  return line


def test_another_vocabulary_is_refused(tokenizer, tmp_path):
  path = tmp_path / "bigram.safetensors"
  other = counted(tokenizer)
  files.save(path, files.Ngrams(**(vars(other) | {"vocabulary": "x"})))
  assert "another vocabulary" in refusal(path, tokenizer)


def changed(name, change):
  """A fault: tensor `name` is changed by `change`."""

  def apply(tensors):
    tensors[name] = change(tensors[name])

  return apply


def put(value):
  return lambda array: np.append(array[:-1], np.asarray(value, array.dtype))


FAULTS = {
    "NaN": (changed("log_prob", put(np.nan)), "log_prob holds NaN"),
    "infinity": (changed("log_unigram", put(-np.inf)), "log_unigram holds NaN"),
    "backoff": (changed("log_backoff", put(np.inf)), "log_backoff holds NaN"),
    "above one": (changed("log_prob", put(0.5)), "log_prob holds more than 0"),
    "shorter": (changed("log_prob", lambda x: x[1:]), "log_prob has shape"),
    "two axes": (changed("count", lambda x: x[None]), "count has shape"),
    "no axes": (changed("successor", lambda x: x[0]), "log_prob has shape"),
    "one id less": (changed("log_unigram", lambda x: x[1:]), "log_unigram has"),
    "sum": (changed("count", lambda x: x + x), "count says"),
    "id": (changed("successor", put(60_000)), "not below"),
    "order": (changed("successor", lambda x: x[::-1]), "do not rise"),
    "type": (changed("count", np.float32), "holds no table"),
    "missing": (lambda tensors: tensors.pop("count"), "holds no table"),
}


@pytest.mark.parametrize("fault, part", FAULTS.values(), ids=FAULTS)
def test_damaged_tables_are_refused(tokenizer, tmp_path, fault, part):
  path = tmp_path / "bigram.safetensors"
  files.save(path, counted(tokenizer))
  tensors = safetensors.numpy.load_file(path)
  vocabulary = json.dumps({"vocabulary": tokenizer.fingerprint()})
  fault(tensors)
  tensors = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
  safetensors.numpy.save_file(tensors, path, {"specjax.ngrams": vocabulary})
  assert part in refusal(path, tokenizer)


@pytest.mark.parametrize("size", (0, 7, 100, 900))
def test_truncated_files_are_refused(tokenizer, tmp_path, size):
  path = tmp_path / "bigram.safetensors"
  files.save(path, counted(tokenizer))
  path.write_bytes(path.read_bytes()[:size])
  assert "cannot be read" in refusal(path, tokenizer)


def test_files_that_are_no_tables(tokenizer, tmp_path):
  path = tmp_path / "bigram.safetensors"
  path.write_bytes(b"\x93NUMPY" * 20)
  assert "cannot be read" in refusal(path, tokenizer)
  safetensors.numpy.save_file({"x": np.zeros(3, np.float32)}, path)
  assert "holds no table" in refusal(path, tokenizer)
  files.save(path, counted(tokenizer))
  tensors = safetensors.numpy.load_file(path)
  for metadata in ({}, {"specjax.ngrams": "3"}, {"specjax.ngrams": "{"}):
    safetensors.numpy.save_file(tensors, path, metadata)
    assert "table: " in refusal(path, tokenizer)


@pytest.mark.parametrize(
    "name", ("nowhere.safetensors", "mini/none", "a" * 5000, "", "../x/y")
)
def test_no_such_table(tokenizer, name):
  with pytest.raises(errors.UserError, match="is no file, and does not ship"):
    files.load(name, tokenizer)


def test_shipped_tables(tokenizer, tmp_path, monkeypatch):
  """Found by name under the package's assets."""
  monkeypatch.setattr(files.shipped, "ASSETS", tmp_path / "assets")
  path = tmp_path / "assets" / "mini" / "bigram.safetensors"
  files.save(path, counted(tokenizer))
  assert files.find("mini/bigram") == path
  with pytest.raises(errors.UserError, match=r"\(mini/bigram ships\)"):
    files.find("mini/trigram")


# --- the door ---------------------------------------------------------------


def door(*arguments) -> int:
  """Exit code of python -m specjax.data.ngrams."""
  return ngrams.main(["ngrams", *map(str, arguments)])


@pytest.fixture(scope="module")
def corpus_folder(tmp_path_factory):
  return tiny.write_corpus(tmp_path_factory.mktemp("data") / "corpus", 40)


def test_door(corpus_folder, tmp_path, capsys):
  """Of each task, or of both; what it says of the dev split is right."""
  shipped = tokenizer_lib.Tokenizer(corpus_folder / "spiece.model")
  out = tmp_path / "made" / "bigram.safetensors"
  both = ("--corpus", corpus_folder, "--out", out)
  assert door(*both) == 0
  printed = capsys.readouterr().out
  assert f"{out}: " in printed and "summ.dev.jsonl: " in printed
  of_both = files.load(str(out), shipped)
  assert door(*both, "--task", "ende", "--pairs", "20") == 0
  printed = capsys.readouterr().out
  assert "20 of " in printed and "summ" not in printed
  of_one = files.load(str(out), shipped)
  assert len(of_one.successor_E) == 20 < len(of_both.successor_E)
  assert np.any(of_one.log_unigram_V != of_both.log_unigram_V)
  rows = ngrams.references([corpus_folder / "ende.dev.jsonl"])
  seen = ngrams.count(shipped.encode_batch(rows), 0, shipped.size)
  one, two = ngrams.cross_entropy(of_one, seen)
  assert f"{one:.3f} nats a token by unigrams, {two:.3f} by" in printed
  # Files of one's own, with a model's tokenizer.
  train = corpus_folder / "ende.train.jsonl"
  mine = ("--train", train, "--model", "mini/small", "--out", out)
  assert door(*mine, "--pairs", "20") == 0
  again = files.load(str(out), shipped)
  np.testing.assert_array_equal(again.log_prob_E, of_one.log_prob_E)


def test_door_refuses(corpus_folder, tmp_path, capsys):
  """One line on stderr, and no file."""
  out = tmp_path / "bigram.safetensors"
  rows = tmp_path / "rows.jsonl"
  rows.write_text("")

  def complaint(*arguments):
    assert door("--out", out, *arguments) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert not out.exists()
    assert line.startswith("specjax.data.ngrams: ")
    return line

  corpus = ("--corpus", corpus_folder)
  mine = ("--model", "mini/small", "--train", rows)
  assert "ende.train.jsonl is missing" in complaint("--corpus", tmp_path)
  assert "has no rows" in complaint(*mine)
  assert "model: " in complaint("--train", corpus_folder / "ende.dev.jsonl")
  assert "train: " in complaint(*mine[:-1], tmp_path / "none.jsonl")
  assert "pairs: give 0 or more" in complaint(*corpus, "--pairs", "-1")
  assert "successors: give 1" in complaint(*corpus, "--successors", "0")
  rows.write_text('{"source": "a"}\n')
  assert "train: " in complaint(*mine)
  assert "out: " in complaint(*corpus, "--out", rows / "x")
  assert "did you mean --corpus?" in complaint("--corpse", corpus_folder)
  assert "--corpus --train is required" in complaint()
  assert "--pairs: invalid int value: 'x'" in complaint(*corpus, "--pairs=x")


def test_held_out_references_are_refused(tmp_path, capsys):
  """z-lab/dflash#43: a planted answer, in other case and spaces."""
  answer = tasks.load_task("mini_summ", rows=1)[0]
  planted = {"source": "x", "reference": f" {answer.reference.upper()}  "}
  rows, out = tmp_path / "rows.jsonl", tmp_path / "bigram.safetensors"
  rows.write_text(json.dumps(planted) + "\n")
  mine = ("--train", rows, "--model", "mini/small", "--out", out)
  assert door(*mine) == 1
  assert answer.id in capsys.readouterr().err and not out.exists()
  assert door(*mine, "--allow-overlap") == 0
