"""SmolLM2-135M-Instruct with drafts from suffix trees (arXiv 2411.04975).

Not of the paper: drafts go on as the same words went on in the prompt, in the
answer so far and in earlier answers, and a row stops drafting while that does
not pay at the measured c and v. `:cold` knows no earlier answers, `:T1` is
temperature 1.

Command: python -m specjax.run --config configs/smollm2_suffix.py
         python -m specjax.bench --config configs/smollm2_suffix.py \\
             --prompts agent --config.decode.max_new_tokens=128
         --config.draft.suffix.save=FILE keeps the answers for another run,
         --config.draft.suffix.load=FILE begins with them
Time: a quarter of an hour on two CPU cores.
Expected: the more a request is like earlier ones, the more tokens a pass; rows
that differ only at near ties.
"""

from specjax import config


def get_config(variant: str = ""):
  """`variant`: cold or T1."""
  made = config.smollm2("suffix", variant, "cold")
  made.draft.switch.on = True
  made.draft.suffix.memory = 0 if variant == "cold" else 2**16
  return made
