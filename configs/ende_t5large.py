"""Leviathan et al. (arXiv 2211.17192), Table 2: EnDe, T5-large drafts.

Paper row: T5-XXL (11B) with T5-large (800M), WMT14 EnDe, gamma 7, T = 0:
alpha .82, c .11, 1.7x measured (`:T1`, gamma 3: .71, .11, 1.4x); batch 1, one
TPU-v4. The paper fine-tuned T5 v1.1 checkpoints on the task and did not publish
them. flan-t5-xxl and flan-t5-large have their shapes (v1.1) but were tuned on
many instructions; `:t5` takes t5-11b and t5-large, which are v1.0 (another
shape: 128 heads, 65,536 wide) and saw WMT14 EnDe in their own training.

Command: python -m specjax.run --config configs/ende_t5large.py
         variants :T1, :t5 and :mini (the shipped family and its held-out
         rows; :mini,references takes drafts that were trained on references,
         as in the paper), also together: configs/ende_t5large.py:mini,T1
Time: the download of 48 GB first; `:mini` a few minutes on two CPU cores.
Expected: about the paper's row; `:mini` as in results/table2_and_4.md.
"""

from specjax import config


def get_config(variant: str = ""):
  """`variant`: any of T1, t5, mini and references, with commas between."""
  return config.paper_row(
      variant,
      task="ende",
      draft="large",
      gamma=7,
      gamma_sampled=3,
      gamma_mini=2,
  )
