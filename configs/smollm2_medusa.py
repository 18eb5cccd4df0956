"""SmolLM2-135M-Instruct with Medusa's heads (arXiv 2401.10774).

Not of the paper: four heads that read the target's last hidden state, trained
on its own answers; the target stays as it is, and so does its law. `:T1` is
temperature 1, `:typical` Medusa's own rule of acceptance at temperature .7,
which is lossy.

Command: python -m specjax.train --config configs/train_heads.py:smollm2_medusa
         python -m specjax.run --config configs/smollm2_medusa.py
         --config.draft.heads=FILE for other heads
         python -m specjax.tree --config configs/smollm2_medusa.py \\
             --out out/tree.json
         --config.draft.tree=out/tree.json for that tree
Time: a quarter of an hour on two CPU cores, once there are heads.
Expected: acceptance by position near that of acceptance.json beside the heads;
rows that differ only at near ties.
"""

from specjax import config


def get_config(variant: str = ""):
  """`variant`: T1 or typical."""
  made = config.smollm2("medusa", variant, "typical")
  made.draft.heads = "out/train_heads/smollm2_medusa/heads.safetensors"
  if variant == "typical":
    made.verify.rule, made.sampling.temperature = "typical", 0.7
  return made
