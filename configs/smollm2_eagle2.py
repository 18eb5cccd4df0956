"""SmolLM2-135M-Instruct with EAGLE-2's trees (arXiv 2406.16858).

Not of the paper: the head of configs/smollm2_eagle.py, and in place of a
static tree the 16 likeliest nodes of one that is grown each round. `:T1` is
temperature 1: a tree that was chosen is of point masses.

Command: python -m specjax.train --config configs/train_heads.py:smollm2_eagle
         python -m specjax.run --config configs/smollm2_eagle2.py
         --config.draft.heads=FILE for another head
Time: a quarter of an hour on two CPU cores, once there is a head.
Expected: more tokens a pass than configs/smollm2_eagle.py at as many nodes;
rows that differ only at near ties.
"""

from specjax import config


def get_config(variant: str = ""):
  """`variant`: T1."""
  made = config.smollm2("eagle", variant)
  made.draft.heads = "out/train_heads/smollm2_eagle/heads.safetensors"
  made.draft.dynamic.nodes = 16
  made.draft.dynamic.top_k = 4
  made.draft.dynamic.depth = 5
  return made
