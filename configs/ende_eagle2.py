"""The mini family's target with EAGLE-2's trees, on its held-out EN-DE rows.

Not of the paper: a head that goes on from the target's last hidden states
(arXiv 2401.15077), trained on its own translations and summaries, and the 8
likeliest nodes of a tree that is grown each round (arXiv 2406.16858).

Command: python -m specjax.run --config configs/ende_eagle2.py:mini
         --config.draft.heads=FILE for another head, such as that of python -m
         specjax.train --config configs/train_heads.py:ende_eagle;
         `:mini,T1` is temperature 1
         --config.draft.dynamic.nodes=0 drafts a chain of four
Time: a few minutes on two CPU cores.
Expected: acceptance by position near the model card's
(specjax/assets/mini/README.md); no row that differs.
"""

from specjax import config


def get_config(variant: str = "mini"):
  """`variant`: mini, or mini,T1; the head is trained for that target alone."""
  made = config.paper_row(
      variant,
      task="ende",
      draft="small",
      gamma=4,
      gamma_sampled=4,
      gamma_mini=4,
  )
  made.draft.kind = "eagle"
  made.draft.heads = "mini/eagle"
  made.draft.dynamic.nodes = 8
  made.draft.dynamic.top_k = 3
  made.draft.dynamic.depth = 4
  return made
