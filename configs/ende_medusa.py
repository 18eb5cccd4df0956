"""The mini family's target with Medusa's heads, on its held-out EN-DE rows.

Not of the paper: four heads (arXiv 2401.10774) that read the hidden state of
the target's decoder, trained on its own translations and summaries; the target
stays as it is, and so does its law.

Command: python -m specjax.run --config configs/ende_medusa.py:mini
         --config.draft.heads=FILE for other heads, such as those of python -m
         specjax.train --config configs/train_heads.py:ende_medusa;
         `:mini,T1` is temperature 1; --config.draft.tree="" drafts a chain
Time: a few minutes on two CPU cores.
Expected: acceptance by position near the model card's
(specjax/assets/mini/README.md); no row that differs.
"""

from specjax import config


def get_config(variant: str = "mini"):
  """`variant`: mini, or mini,T1; heads are trained for that target alone."""
  made = config.paper_row(
      variant,
      task="ende",
      draft="small",
      gamma=4,
      gamma_sampled=4,
      gamma_mini=4,
  )
  made.draft.kind = "medusa"
  made.draft.heads = "mini/medusa"
  made.draft.tree = "mini/medusa_tree"
  return made
