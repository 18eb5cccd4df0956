"""Leviathan et al. (arXiv 2211.17192), Table 2: EnDe, T5-small drafts.

Paper row: T5-XXL (11B) with T5-small (77M), WMT14 EnDe, gamma 7, T = 0:
alpha .75, c .02, 3.4x measured (`:T1`, gamma 7: .62, .02, 2.6x); batch 1, one
TPU-v4. The paper fine-tuned T5 v1.1 checkpoints on the task and did not publish
them. flan-t5-xxl and flan-t5-small have their shapes (v1.1) but were tuned on
many instructions; `:t5` takes t5-11b and t5-small, which are v1.0 (another
shape: 128 heads, 65,536 wide) and saw WMT14 EnDe in their own training.

Command: python -m specjax.run --config configs/ende_t5small.py
         variants :T1, :t5 and :mini (the shipped family and its held-out
         rows; :mini,references takes drafts that were trained on references,
         as in the paper), also together: configs/ende_t5small.py:mini,T1
Time: the download of 45 GB first; `:mini` a few minutes on two CPU cores.
Expected: about the paper's row; `:mini` as in results/table2_and_4.md.
"""

from specjax import config


def get_config(variant: str = ""):
  """`variant`: any of T1, t5, mini and references, with commas between."""
  return config.paper_row(
      variant,
      task="ende",
      draft="small",
      gamma=7,
      gamma_sampled=7,
      gamma_mini=2,
  )
