"""SmolLM2-135M-Instruct with prompt lookup, as many drafts as pay.

Not of the paper: drafts are copied from the prompt and the text (prompt lookup
decoding), and a row stops drafting while that does not pay at the measured c
and v. `:T1` is temperature 1.

Command: python -m specjax.run --config configs/smollm2_lookup.py
         python -m specjax.bench --config configs/smollm2_lookup.py \\
             --prompts question.jsonl --config.decode.max_new_tokens=128
Time: a quarter of an hour on two CPU cores; Spec-Bench's prompts some hours.
Expected: a speed-up where answers repeat their prompts (summaries, edits), and
next to no loss elsewhere; rows that differ only at near ties.
"""

from specjax import config


def get_config(variant: str = ""):
  """`variant`: T1."""
  made = config.smollm2("lookup", variant)
  made.draft.switch.on = True
  return made
