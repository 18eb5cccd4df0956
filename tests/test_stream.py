"""Texts in pieces: all that is held back, and that nothing else changes."""

import functools

import hypothesis
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from specjax import drafts as drafts_lib
from specjax import pipeline
from specjax.checkpoints import text_tokenizer
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.decoding import side as side_lib
from specjax.drafters import dynamic
from specjax.drafters import eagle as eagle_drafter
from specjax.errors import UserError
from specjax.models import eagle
from specjax.settings import Settings
from tests import drawn
from tests import gguf_files
from tests import mocks
from tests import test_checkpoints_tokenizer
from tests import test_decoder_tokenizer
from tests import test_loop_program
from tests import tiny
from tests import varied

quick_compiles = mocks.quick_compiles
folder = test_checkpoints_tokenizer.folder

# --- what is held back ------------------------------------------------------


def of_bytes(folder):
  """A T5's, with a piece for each byte."""
  texts = test_checkpoints_tokenizer.TEXTS * 20
  model = test_checkpoints_tokenizer.train(texts, 340, byte_fallback=True)
  (folder / "bytes.model").write_bytes(model)
  return tokenizer_lib.Tokenizer(folder / "bytes.model")


def of_llama(folder):
  """SentencePiece's in a GGUF file, rebuilt: it has bytes, too."""
  model = test_decoder_tokenizer.sentencepiece_model()
  return test_decoder_tokenizer.build(
      folder / "llama.gguf",
      lambda writer: test_decoder_tokenizer.add_sentencepiece(writer, model),
  )


TOKENIZERS = {
    "T5": lambda folder: tokenizer_lib.Tokenizer(folder / "a.model"),
    "T5 in JSON": lambda folder: tokenizer_lib.Tokenizer(
        folder / "tokenizer.json"
    ),
    "T5 with bytes": of_bytes,
    "bytes": lambda folder: text_tokenizer.TextTokenizer(
        gguf_files.byte_level(), (2,)
    ),
    "Llama": of_llama,
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request, folder):
  return TOKENIZERS[request.param](folder)


def check_pieces(tokenizer, ids, settled=None):
  """No piece is taken back, and all of them are the text."""
  settled, told = settled or tokenizer.settled, ""
  whole = tokenizer.decode(ids)
  for n in range(len(ids) + 1):
    text = settled(ids[:n])
    assert text.startswith(told) and whole.startswith(text)
    told = text


def test_pieces_of_any_ids_are_their_text(tokenizer):
  """google/sentencepiece#1043: sentinels, ends and halves of characters."""
  ids = st.integers(-1, tokenizer.size + 1)
  texts = [tokenizer.decode([i]) for i in range(tokenizer.size)]
  halves = [i for i, text in enumerate(texts) if "\ufffd" in text]
  if halves:
    ids |= st.sampled_from(halves)

  @drawn.examples(300)
  @hypothesis.given(ids=st.lists(ids, max_size=16))
  def holds(ids):
    check_pieces(tokenizer, ids)

  holds()


def test_pieces_of_texts(tokenizer):
  """Whole characters come at once, but for blanks that end a piece."""
  for text in varied.strings():
    ids = tokenizer.encode(text.replace("\0", ""))
    check_pieces(tokenizer, ids)
    if text.isascii() and "<0x0A>" not in tokenizer.pieces:
      for n in range(len(ids)):
        want = tokenizer.decode(ids[:n])
        assert tokenizer.settled(ids[:n]).rstrip() == want.rstrip()


def test_what_is_not_held_back_is_missed(tokenizer):
  """Else the tests above would show little."""
  ids = tokenizer.encode("fox 🦊")
  if tokenizer.decode(ids) != "fox 🦊":
    pytest.skip("it knows no such character")
  assert tokenizer.settled(ids[:-2]).startswith("fox")
  with pytest.raises(AssertionError):
    check_pieces(tokenizer, ids, tokenizer.decode)


# --- rounds -----------------------------------------------------------------


def slow_but(quick, cases):
  """Parameters of a test, all but some of which are slow."""
  return [
      pytest.param(
          *(case if isinstance(case, tuple) else (case,)),
          marks=() if case in quick else pytest.mark.slow,
      )
      for case in cases
  ]


@pytest.mark.parametrize(
    "sort",
    slow_but(
        ["plain", "suffix", "dynamic"], test_loop_program.SORTS
    ),
)
def test_rounds_a_few_at_a_time_are_those_at_once(sort):
  """All of the state, whatever drafts carry from round to round."""
  loop, tables = test_loop_program.SORTS[sort]()
  budget = test_loop_program.BUDGET
  for batch in test_loop_program.batches(loop):
    want = mocks.decode(loop, *tables, batch, budget)
    state, until = loop.prefill(*tables, batch, budget), 0
    while not np.all(state.done_B):
      until = 3 * until + 1
      state = loop.run(*tables, state, until)
      going_B = ~np.asarray(state.done_B)
      assert np.all(state.tallies.rounds_B <= until)
      assert np.all(state.tallies.rounds_B[going_B] == until)
    assert until > 1
    without = lambda state: jax.tree.leaves(state.replace(key_B=None))
    for got, right in zip(without(state), without(want), strict=True):
      np.testing.assert_array_equal(got, right)


# --- text in, pieces out ----------------------------------------------------

TEXTS = ("a fast editor", "tools that draft tools that draft", "verify")
BUDGET = 24


@functools.cache
def _target(path):
  return pipeline.load(path)


@pytest.fixture(scope="module", name="families")
def fixture_families(tmp_path_factory):
  make = lambda name, write: write(tmp_path_factory.mktemp(name))
  return {
      "t5": make("t5", tiny.write_family),
      "llama": make(
          "llama", lambda folder: tiny.write_decoders(folder, tiny.LLAMA)
      ),
  }


def eagle_of(target, wide):
  """A random head."""
  model = eagle.of(target.module)
  own = jax.jit(model.init)(jax.random.key(0))
  source = eagle_drafter.EagleDrafter(model, 2)
  if wide:
    source = dynamic.DynamicTreeDrafter(
        source=source, top_k=2, depth=2, nodes=4
    )
  return drafts_lib.Drafts(source, model.params(own, target.params))


def mixed_of(target, draft):
  """Copies and a model, each where it pays."""
  return drafts_lib.draft_mixed(
      drafts_lib.draft_lookup(1),
      drafts_lib.draft_model(target, draft, gamma=1),
      c=0.1,
      matching=0.01,
      v=1.2,
  )


def suffixes(target, draft, **options):
  """Of what was answered before."""
  del draft
  return drafts_lib.draft_suffix(target, 2, reach=8, memory=200, **options)


DRAFTS = {
    "none": lambda target, draft: drafts_lib.NO_DRAFTS,
    "model": lambda target, draft: drafts_lib.draft_model(target, draft, 2),
    "suffix": suffixes,
    "suffix tree": functools.partial(suffixes, nodes=4),
    "mixed": mixed_of,
    "eagle": lambda target, draft: eagle_of(target, False),
    "eagle tree": lambda target, draft: eagle_of(target, True),
}


def decoders_of(families, family, kind, count=2):
  """Some alike, each with drafts of its own."""
  names = families[family]
  target = _target(names["target"])
  drafts = [DRAFTS[kind](target, names["draft"]) for _ in range(count)]
  return [pipeline.Decoder(target, each) for each in drafts]


@pytest.mark.parametrize(
    "family, kind",
    slow_but(
        [("t5", "mixed"), ("llama", "eagle tree")],
        [(family, kind) for family in ("t5", "llama") for kind in DRAFTS],
    ),
)
def test_pieces_are_the_text_of_a_call(families, family, kind):
  """google/sentencepiece#1043: and all else is that of a call.

  What drafts have learnt, too: the next texts have as many rounds.
  """
  called, streamed = decoders_of(families, family, kind)
  many = 0
  for temperature in (0.0, 1.0):
    settings = Settings(temperature=temperature, eos=(1,), min_new_tokens=9)
    for text, every in zip(TEXTS, (1, 4, 1000)):
      how = dict(max_new_tokens=BUDGET, seed=5, ids=[7])
      [want] = called([text], settings, **how)
      stream = streamed.stream(text, settings, every=every, **how)
      assert stream.result is None
      pieces = list(stream)
      assert "".join(pieces) == want.text and all(pieces)
      assert stream.result == want
      assert len(pieces) <= -(-want.rounds // every)
      many += len(pieces)
  # More than one a call.
  assert many > 6


def test_two_at_once_are_both_learnt(families):
  [decoder] = decoders_of(families, "llama", "suffix", 1)
  streams = [decoder.stream(text, max_new_tokens=BUDGET) for text in TEXTS]
  for stream in reversed(streams):
    next(stream)
  for stream in streams:
    list(stream)
  known = [tuple(ids.tolist()) for ids in drafts_lib.responses(decoder.drafts)]
  assert sorted(known) == sorted(stream.result.tokens for stream in streams)


def test_who_stops_asking_stops_the_rounds(families, monkeypatch):
  """And what is half an answer is not learnt."""
  [decoder] = decoders_of(families, "llama", "suffix", 1)
  bounds, run = [], side_lib.Side.run

  def counted(self, state, until=None):
    bounds.append(until)
    return run(self, state, until)

  monkeypatch.setattr(side_lib.Side, "run", counted)
  stream = decoder.stream(
      TEXTS[0], Settings(min_new_tokens=BUDGET), max_new_tokens=BUDGET
  )
  assert not bounds
  for _ in stream:
    break
  assert bounds == list(range(1, len(bounds) + 1)) and len(bounds) < BUDGET / 2
  assert stream.result is None
  assert drafts_lib.responses(decoder.drafts) == []


def test_a_second_stream_compiles_nothing(families, caplog):
  [decoder] = decoders_of(families, "llama", "none", 1)
  settings = Settings(temperature=1.0)
  list(decoder.stream(TEXTS[0], settings, max_new_tokens=BUDGET))
  caplog.clear()
  with jax.log_compiles():
    list(decoder.stream(TEXTS[1], settings, every=3, max_new_tokens=BUDGET))
  assert not [x for x in caplog.records if "Compiling" in x.message]


def test_log_probs_and_traces_come_with_the_result(families):
  [decoder] = decoders_of(families, "t5", "model", 1)
  how = dict(max_new_tokens=BUDGET, log_probs=True, trace=True)
  stream = decoder.stream(TEXTS[0], **how)
  list(stream)
  assert [stream.result] == decoder(TEXTS[:1], **how)
  assert stream.result.log_probs and stream.result.trace


@pytest.mark.parametrize(
    "change, part",
    [
        (dict(every=0), "every: give 1 or more"),
        (dict(every=1.5), "every: give 1 or more"),
        (dict(max_new_tokens=0), "max_new_tokens: give 1 or more"),
        (dict(text=""), "texts: number 0 is empty"),
        (dict(text=list(TEXTS)), "texts: number 0 is empty or not a string"),
        (dict(seed=-1), "seed: give 0"),
    ],
)
def test_refusals_come_before_the_first_piece(families, change, part):
  [decoder] = decoders_of(families, "t5", "none", 1)
  with pytest.raises(UserError, match=f"^{part}"):
    decoder.stream(**dict(text=TEXTS[0]) | change)
