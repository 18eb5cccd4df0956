"""Leviathan et al. (arXiv 2211.17192), Table 2: CNNDM, T5-small drafts.

Paper row: T5-XXL (11B) with T5-small (77M), CNN/DM, gamma 5, T = 0:
alpha .65, c .02, 3.1x measured (`:T1`, gamma 5: .53, .02, 2.3x); batch 1, one
TPU-v4. The paper fine-tuned T5 v1.1 checkpoints on the task and did not publish
them. flan-t5-xxl and flan-t5-small have their shapes (v1.1) but were tuned on
many instructions; `:t5` takes t5-11b and t5-small, which are v1.0 (another
shape: 128 heads, 65,536 wide) and saw CNN/DM in their own training.

Command: python -m specjax.run --config configs/cnndm_t5small.py
         variants :T1, :t5 and :mini (the shipped family and its held-out
         rows; :mini,references takes drafts that were trained on references,
         as in the paper), also together: configs/cnndm_t5small.py:mini,T1
Time: the download of 45 GB first; `:mini` a few minutes on two CPU cores.
Expected: about the paper's row; `:mini` as in results/table2_and_4.md.
"""

from specjax import config


def get_config(variant: str = ""):
  """`variant`: any of T1, t5, mini and references, with commas between."""
  return config.paper_row(
      variant,
      task="cnndm",
      draft="small",
      gamma=5,
      gamma_sampled=5,
      gamma_mini=2,
  )
