"""Leviathan et al. (arXiv 2211.17192), Table 3: LM1B, GPT-like, 97M and 6M.

Paper row: unconditional generation, target of 97M, draft of 6M: alpha .88 at
T = 0, .89 at T = 1 (`:T1`). Weights were not published; configs/lm1b holds the
shapes as a Hugging Face config.json each: 12 layers of 768 (ff 3072, 12 heads)
and 2 of 256 (ff 1024, 4 heads), GELU, a vocabulary of 8000 by BERT's
tokenisation; heads apart from the embedding make 97.4M and 5.7M parameters.

A model's directory is what transformers' save_pretrained writes, with a
tokenizer.json, of one that was trained on the One Billion Word Benchmark. Rows
of data.path are beginnings to go on with.

Command: python -m specjax.run --config configs/lm1b_gpt.py \\
             --config.data.path=beginnings.jsonl
         --config.target.checkpoint and --config.draft.checkpoint for
         directories elsewhere
Time: a few minutes on two CPU cores.
Expected: about the paper's alpha, from models as good as its own.
"""

from specjax import config
from specjax import errors


def get_config(variant: str = ""):
  """`variant` is T1 (temperature 1) or nothing."""
  if variant not in ("", "T1"):
    raise errors.UserError(
        f"config: no variant {errors.shown(variant)}; there is T1"
    )
  made = config.default()
  made.target.checkpoint = "out/lm1b/gpt97m"
  made.draft.checkpoint = "out/lm1b/gpt6m"
  # Eq. 1 at alpha .88 and what a sixteenth of the target costs.
  made.draft.gamma = 5
  made.data.task = "file"
  made.data.path = "out/lm1b/beginnings.jsonl"
  made.sampling.temperature = float(variant == "T1")
  # Fig. 1's sample has 38 tokens.
  made.decode.max_new_tokens = 64
  return made
