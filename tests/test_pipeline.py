"""Text in, text out, on tiny random T5 directories."""

import importlib.resources
import pathlib
import textwrap

import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

from specjax import drafts as drafts_lib
from specjax import pipeline
from specjax.data import tasks
from specjax.errors import UserError
from specjax.models import t5
from specjax.settings import Settings
from tests import tiny

_ASSETS = importlib.resources.files("specjax") / "assets" / "mini"
_TEXTS = ["translate English to German: A fast editor.", "summarize: Hello."]


def _write(path, seed, width):
  config = t5.T5Config(
      vocab_size=8128,
      d_model=width,
      d_kv=8,
      d_ff=32,
      num_layers=1,
      num_decoder_layers=1,
      num_heads=2,
      gated=True,
      tied=False,
  )
  tiny.write_random_t5(
      path, config, seed, tokenizer_file=_ASSETS / "target" / "spiece.model"
  )
  return str(path)


@pytest.fixture(scope="module", name="names")
def fixture_names(tmp_path_factory):
  folder = tmp_path_factory.mktemp("models")
  return _write(folder / "target", 0, 32), _write(folder / "draft", 1, 16)


@pytest.fixture(scope="module", name="decoder")
def fixture_decoder(names):
  target = pipeline.load(names[0])
  return pipeline.Decoder(
      target, drafts_lib.draft_model(target, names[1], gamma=2), batch=4
  )


def test_ten_lines_of_the_readme(capsys):
  """The block itself, on the shipped family."""
  readme = pathlib.Path(__file__).parents[1] / "README.md"
  section = readme.read_text("utf-8").split("\n## From Python\n")[1]
  block = section.split("\n## ")[0]
  lines = [line for line in block.splitlines() if line.startswith("    ")]
  names = {}
  exec(textwrap.dedent("\n".join(lines)), names)
  result = names["result"]
  assert result.finish == "eos" and result.text.startswith("Dieses Paket")
  assert capsys.readouterr().out.splitlines() == [
      result.text,
      f"{result.rounds} target passes for {len(result.tokens)} tokens",
      f"log-probabilities under its law: {result.law_log_probs}",
      # In pieces.
      result.text,
  ]
  assert result.rounds < len(result.tokens) == len(result.law_log_probs)


def test_results(decoder):
  results = decoder(
      _TEXTS, Settings(temperature=0.0), max_new_tokens=6, log_probs=True
  )
  assert len(results) == 2
  for result in results:
    assert isinstance(result.text, str)
    assert result.text == decoder.target.tokenizer.decode(result.tokens)
    assert result.finish in ("eos", "length")
    assert len(result.tokens) == len(result.log_probs) <= 6
    assert all(value < 0 for value in result.log_probs)
    assert result.law_log_probs == (0.0,) * len(result.tokens)
    # Each round adds one token of its own, but for a last one that was cut.
    extra = sum(result.accepted) + result.rounds - len(result.tokens)
    assert extra in (0, 1)


def test_speculative_texts_are_those_of_plain_decoding(decoder):
  plain = pipeline.Decoder(decoder.target, batch=4)
  a = plain(_TEXTS, max_new_tokens=6)
  b = decoder(_TEXTS, max_new_tokens=6)
  assert [r.tokens for r in a] == [r.tokens for r in b]
  assert all(r.rounds == len(r.tokens) and r.drafted == 0 for r in a)


def test_a_text_keeps_its_numbers_with_its_id(decoder):
  settings = Settings(temperature=1.0)
  both = decoder(_TEXTS, settings, max_new_tokens=6, ids=[7, 3])
  swapped = decoder(_TEXTS[::-1], settings, max_new_tokens=6, ids=[3, 7])
  other = decoder(_TEXTS, settings, max_new_tokens=6, ids=[7, 3], seed=1)
  assert [r.tokens for r in both] == [r.tokens for r in swapped[::-1]]
  assert [r.tokens for r in both] != [r.tokens for r in other]


def test_more_texts_than_rows_come_back_in_order(decoder):
  texts = [f"summarize: {word}" for word in "one two three four five".split()]
  results = decoder(texts, max_new_tokens=6)
  assert len(results) == 5
  again = decoder(texts[1:], max_new_tokens=6)
  assert results[4].tokens == again[3].tokens


def test_trace_spells_the_tokens(decoder):
  settings = Settings(temperature=1.0)
  result = decoder(_TEXTS[:1], settings, max_new_tokens=6, trace=True)[0]
  spelled = []
  for entry in result.trace:
    spelled += entry.drafted[: entry.accepted]
    spelled += [] if entry.next is None else [entry.next]
    for i, (p, q, coin) in enumerate(zip(entry.p, entry.q, entry.coin)):
      assert (coin * q < p) == (i < entry.accepted)
  assert tuple(spelled) == result.tokens


@pytest.fixture(scope="module", name="mini")
def fixture_mini():
  """The shipped family's smallest, and summaries, which copy."""
  target = pipeline.load("mini/small")
  texts = [row.source for row in tasks.load_task("mini_summ", rows=40)]
  length = lambda text: len(target.tokenizer.encode(text))
  # All padded to one length.
  texts = [text for text in texts if 64 < length(text) <= 96][:4]
  plain = pipeline.Decoder(target, batch=4)(texts, max_new_tokens=24)
  return target, texts, [row.tokens for row in plain]


def copies_of(mini, drafts):
  """Greedy results of the summaries."""
  target, texts, _ = mini
  return pipeline.Decoder(target, drafts, batch=4)(texts, max_new_tokens=24)


def test_looked_up_texts_are_those_of_plain_decoding(mini):
  results = copies_of(mini, drafts_lib.draft_lookup(1))
  assert [row.tokens for row in results] == mini[2] and len(results) == 4
  assert sum(row.rounds for row in results) < sum(map(len, mini[2]))
  assert all(0 < row.empty < row.rounds for row in results)


def test_suffix_drafts_learn_from_call_to_call(mini, tmp_path):
  """And from a file of what others have learnt."""
  target = mini[0]
  drafts = drafts_lib.draft_suffix(target, 2, reach=8, memory=400)
  first, second = copies_of(mini, drafts), copies_of(mini, drafts)
  for results in (first, second):
    assert [row.tokens for row in results] == mini[2]
  rounds = lambda results: sum(row.rounds for row in results)
  assert rounds(second) < 0.7 * rounds(first)
  path = str(tmp_path / "responses.safetensors")
  drafts_lib.save_responses(target, drafts, path)
  loaded = drafts_lib.draft_suffix(target, 2, reach=8, memory=400, load=path)
  known = [tuple(ids.tolist()) for ids in drafts_lib.responses(loaded)]
  assert sorted(known) == sorted(2 * mini[2])
  third = copies_of(mini, loaded)
  assert [row.tokens for row in third] == mini[2]
  assert rounds(third) <= rounds(second)


def switched(target, v):
  """Copies, and a draft model; both rest in rows where they do not pay."""
  return drafts_lib.draft_mixed(
      drafts_lib.draft_lookup(1),
      drafts_lib.draft_model(target, "mini/small", gamma=1, temperature=1.0),
      c=0.1,
      matching=0.01,
      v=v,
  )


def test_mixed_texts_are_those_of_plain_decoding(mini):
  """A bad draft model fills in; both are switched off where they don't pay."""
  drafts = switched(mini[0], 1.2)
  results = copies_of(mini, drafts)
  assert [row.tokens for row in results] == mini[2]
  assert drafts_lib.responses(drafts) == []
  assert sum(row.rounds for row in results) < sum(map(len, mini[2]))


def test_a_second_call_begins_as_the_first_did(mini):
  """huggingface/transformers#28759: how much to draft outlived the call.

  What is switched off in a row is known to that row alone. At a v of 2 nothing
  pays, at 1.2 some does.
  """

  def counts(drafts):
    results = copies_of(mini, drafts)
    return [(row.rounds, row.empty, row.drafted) for row in results]

  for v in (1.2, 2.0):
    drafts = switched(mini[0], v)
    first = counts(drafts)
    assert counts(drafts) == counts(drafts) == first
    assert any(drafted for *_, drafted in first) == (v < 2)
  assert any(empty for _, empty, _ in first)


@pytest.mark.parametrize(
    "field, make",
    (
        ("memory", lambda t: drafts_lib.draft_suffix(t, 2, memory=1)),
        ("memory", lambda t: drafts_lib.draft_suffix(t, 2, memory=-1)),
        ("load", lambda t: drafts_lib.draft_suffix(t, 2, memory=0, load="x")),
        ("load", lambda t: drafts_lib.draft_suffix(t, 2, load="no/such")),
        ("max_n", lambda t: drafts_lib.draft_lookup(2, max_n=0)),
        (
            "v",
            lambda t: drafts_lib.draft_mixed(
                drafts_lib.draft_lookup(2), v=-1
            ),
        ),
        (
            "v",
            lambda t: drafts_lib.draft_mixed(
                drafts_lib.draft_lookup(2), v=[1, 2]
            ),
        ),
        (
            "matching",
            lambda t: drafts_lib.draft_mixed(
                drafts_lib.draft_lookup(2), matching=-1, v=1.0
            ),
        ),
        (
            "c",
            lambda t: drafts_lib.draft_mixed(
                drafts_lib.draft_lookup(2), c=None, v=1.0
            ),
        ),
    ),
)
def test_refused_options_of_copies(mini, field, make):
  with pytest.raises(UserError, match=f"^{field}: "):
    make(mini[0])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_ids_are_decoded_as_their_texts(decoder, side):
  """ndif-team/nnsight#673: as tokenizers pad them, at either end."""
  texts = [*_TEXTS, _TEXTS[0] + " and more"]
  rows = decoder.target.tokenizer.encode_batch(texts)
  width = max(map(len, rows))
  ids, mask = np.full((2, len(rows), width), 3)
  for row, own, there in zip(rows, ids, mask):
    place = slice(width - len(row), None) if side == "left" else slice(len(row))
    there[:] = 0
    own[place], there[place] = row, 1
  assert np.any(mask == 0)
  for own, there in ((ids, mask), (jnp.asarray(ids), jnp.asarray(mask != 0))):
    results = decoder(own, max_new_tokens=6, mask=there)
    assert results == decoder(texts, max_new_tokens=6)
  with pytest.raises(UserError, match="^mask_BP: give each row its tokens"):
    decoder(ids, mask=0 * mask)
  with pytest.raises(UserError, match="^chat: token ids stay"):
    decoder(ids, mask=mask, chat=True)


def test_long_sources_are_cut_before_their_end(decoder):
  request = pipeline.make_requests(
      decoder.target,
      ["summarize: " + "word " * 50],
      Settings(),
      max_new_tokens=3,
      max_source_tokens=10,
  )[0]
  assert len(request.source) == 10 and request.source[-1] == 1


@pytest.mark.parametrize("texts", [[""], [" "], [None], ["ok", 3]])
def test_texts_that_are_none_are_refused(decoder, texts):
  with pytest.raises(UserError, match=f"texts: number {len(texts) - 1}"):
    decoder(texts)


def test_no_texts_give_no_results(decoder):
  assert decoder([]) == []


def test_a_draft_with_another_tokenizer_is_refused(decoder, names, tmp_path):
  """A wrong pair would only show as acceptance near zero (vllm#7252)."""
  text = tmp_path / "text"
  text.write_text("\n".join(f"word{i} and other" for i in range(200)))
  sentencepiece.SentencePieceTrainer.train(
      input=str(text),
      model_prefix=str(tmp_path / "spiece"),
      vocab_size=60,
      hard_vocab_limit=False,
      pad_id=0,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
      minloglevel=2,
  )
  config = decoder.target.module.config
  tiny.write_random_t5(
      tmp_path / "draft", config, tokenizer_file=tmp_path / "spiece.model"
  )
  with pytest.raises(UserError, match="draft: its tokenizer is not"):
    drafts_lib.draft_model(decoder.target, str(tmp_path / "draft"), gamma=2)


def test_gamma_must_be_positive(decoder, names):
  with pytest.raises(ValueError, match="gamma"):
    drafts_lib.draft_model(decoder.target, names[1], gamma=0)


def test_dtype_reaches_parameters_and_activations(names):
  target = pipeline.load(names[0], jnp.bfloat16)
  assert target.module.dtype == jnp.bfloat16
  assert target.params["params"]["shared"].dtype == jnp.bfloat16


def test_a_generator_of_texts_and_the_models_own_eos():
  """The texts are read once; an EOS that was given stays."""
  target = pipeline.load("mini/small")
  make = lambda settings: pipeline.make_requests(
      target, (text for text in ["a", "b"]), settings, max_new_tokens=3
  )
  own = target.module.config.eos_token_id
  assert [row.settings.eos for row in make(Settings())] == [(own,)] * 2
  assert [row.settings.eos for row in make(Settings(eos=(7,)))] == [(7,)] * 2


@pytest.mark.parametrize("limit", (0, -3, 1, 2.5))
def test_source_limits_are_refused(limit):
  target = pipeline.load("mini/small")
  with pytest.raises(UserError, match="^max_source_tokens: give 2 or more"):
    pipeline.make_requests(
        target, ["a"], Settings(), max_new_tokens=3, max_source_tokens=limit
    )


def test_names_in_place_of_models_are_refused():
  with pytest.raises(UserError, match="^target: give load"):
    pipeline.Decoder("mini/target")
  with pytest.raises(UserError, match="^drafts: give draft_model"):
    pipeline.Decoder(pipeline.load("mini/small"), "mini/small")
