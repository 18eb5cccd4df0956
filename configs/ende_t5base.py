"""Leviathan et al. (arXiv 2211.17192), Table 2: EnDe, T5-base drafts.

Paper row: T5-XXL (11B) with T5-base (250M), WMT14 EnDe, gamma 7, T = 0:
alpha .80, c .04, 2.8x measured (`:T1`, gamma 5: .68, .04, 2.4x); batch 1, one
TPU-v4. The paper fine-tuned T5 v1.1 checkpoints on the task and did not publish
them. flan-t5-xxl and flan-t5-base have their shapes (v1.1) but were tuned on
many instructions; `:t5` takes t5-11b and t5-base, which are v1.0 (another
shape: 128 heads, 65,536 wide) and saw WMT14 EnDe in their own training.

Command: python -m specjax.run --config configs/ende_t5base.py
         variants :T1, :t5 and :mini (the shipped family and its held-out
         rows; :mini,references takes drafts that were trained on references,
         as in the paper), also together: configs/ende_t5base.py:mini,T1
Time: the download of 46 GB first; `:mini` a few minutes on two CPU cores.
Expected: about the paper's row; `:mini` as in results/table2_and_4.md.
"""

from specjax import config


def get_config(variant: str = ""):
  """`variant`: any of T1, t5, mini and references, with commas between."""
  return config.paper_row(
      variant,
      task="ende",
      draft="base",
      gamma=7,
      gamma_sampled=5,
      gamma_mini=2,
  )
