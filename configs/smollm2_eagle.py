"""SmolLM2-135M-Instruct with an EAGLE head (arXiv 2401.15077).

Not of the paper: one layer that goes on from the target's last hidden states,
trained on its own answers, and a static tree of 16 nodes. `:chain` drafts a
chain of four tokens, `:T1` is temperature 1, siblings drawn without
replacement.

Command: python -m specjax.train --config configs/train_heads.py:smollm2_eagle
         python -m specjax.run --config configs/smollm2_eagle.py
         --config.draft.heads=FILE for another head
         python -m specjax.tree --config configs/smollm2_eagle.py \\
             --out out/tree.json
         --config.draft.tree=out/tree.json for that tree
Time: a quarter of an hour on two CPU cores, once there is a head.
Expected: acceptance by position near that of acceptance.json beside the head;
rows that differ only at near ties.
"""

from specjax import config

# Mostly first choices, four levels deep.
_TREE = (
    "[[0], [1], [2], [0, 0], [0, 1], [0, 2], [1, 0], [2, 0], [0, 0, 0],"
    " [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1],"
    " [0, 0, 1, 0], [0, 1, 0, 0]]"
)


def get_config(variant: str = ""):
  """`variant`: chain or T1."""
  made = config.smollm2("eagle", variant, "chain")
  made.draft.heads = "out/train_heads/smollm2_eagle/heads.safetensors"
  made.draft.tree = "" if variant == "chain" else _TREE
  if variant == "T1":
    # Siblings are drawn, none twice, and judged one after the other.
    made.draft.siblings = "distinct"
  return made
