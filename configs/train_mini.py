"""The mini family: one target and three drafts named like the paper's.

Paper row: none; the shapes follow T5 v1.1, the proportions Leviathan et al.
(arXiv 2211.17192): decoder and head of small, base and large are 0.08,
0.12 and 0.37 of the target's.

Command: python -m specjax.train --config configs/train_mini.py
         (one model alone: configs/train_mini.py:target, :small, :base, :large)
Time: about two hours on two CPU cores for all four.
Expected: the held-out losses in specjax/assets/mini/README.md.
"""

from ml_collections import config_dict

_SHAPES = {
    "target": dict(
        d_model=256, d_kv=64, num_heads=4, d_ff=512, encoder=3, decoder=6
    ),
    "large": dict(
        d_model=144, d_kv=48, num_heads=3, d_ff=384, encoder=3, decoder=5
    ),
    "base": dict(
        d_model=80, d_kv=40, num_heads=2, d_ff=320, encoder=2, decoder=2
    ),
    "small": dict(
        d_model=64, d_kv=32, num_heads=2, d_ff=384, encoder=2, decoder=1
    ),
}


def get_config(only: str = ""):
  """`only` names one of the four models; all four by default."""
  if only and only not in _SHAPES:
    raise ValueError(
        f"config: no model '{only}' in the mini family; use one of "
        f"{', '.join(_SHAPES)}"
    )
  config = config_dict.ConfigDict()
  config.corpus = "out/corpus"
  config.out = "out/train_mini"
  config.seed = 0
  config.models = {
      name: shape for name, shape in _SHAPES.items() if only in ("", name)
  }
  config.vocabulary = 8128  # 8,000 pieces, 100 extra ids, padded
  config.steps = 800
  config.warmup = 60
  config.matrix_rate = 5e-3
  config.other_rate = 3e-3
  config.weight_decay = 0.01
  config.micro_batches = 2
  config.cost = 1200
  config.source_lengths = (32, 64, 96)
  config.target_lengths = (16, 32, 64, 128)
  config.held_out_rows = 200
  config.evaluate_every = 100
  config.checkpoint_every = 50
  return config
