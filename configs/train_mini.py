"""The mini family: one target and three drafts named like the paper's.

Paper row: none; the shapes follow T5, the proportions Leviathan et al. (arXiv
2211.17192): decoder and head of small, base and large are 0.05, 0.14 and 0.35
of the target's. Every draft is trained twice: on references, as in the paper,
and distilled from the target (arXiv 2310.08461).

Steps and lengths are those of the family that ships, whose distilled drafts
learnt from the target of the first sitting, and then some steps from that of
the second: the model card counts both.

Command: python -m specjax.train --config configs/train_mini.py
         (one model alone: configs/train_mini.py:target, :small,
         :small_distilled and so on)
Time: on two CPU cores about three seconds a step of the target and half a
      second of the smallest draft: hours, which may be spread over several
      sittings.
Expected: the shipped family reached held-out losses (EN-DE, summaries) of 1.50
      and 2.58 (target), 4.05 and 4.53 (small), 3.82 and 4.32 (base), 3.14 and
      3.78 (large), all on references; the target BLEU 30.7 and ROUGE-Lsum 31.4.
"""

from ml_collections import config_dict

from specjax import errors

_SHAPES = {
    "target": dict(
        d_model=256, d_kv=64, num_heads=4, d_ff=512, encoder=3, decoder=6
    ),
    "large": dict(
        d_model=144, d_kv=48, num_heads=3, d_ff=288, encoder=1, decoder=5
    ),
    "base": dict(
        d_model=96, d_kv=48, num_heads=2, d_ff=256, encoder=1, decoder=2
    ),
    "small": dict(
        d_model=40, d_kv=20, num_heads=2, d_ff=160, encoder=2, decoder=1
    ),
}
# On references, and from there on what the target writes.
_STEPS = {"small": (1500, 10500), "base": (900, 1200), "large": (1000, 600)}
# The target's, in two sittings: the second begins with the first one's weights
# and reads all texts in another order.
_TARGETS_STEPS = 1700, 2000
# Finer buckets than the drafts', which learn faster than more shapes compile.
_TARGETS_OWN = dict(
    source_lengths=(24, 48, 72, 96),
    target_lengths=(8, 12, 16, 24, 32, 48, 64, 96, 128),
)


def get_config(only: str = ""):
  """`only` names one model, such as small or small_distilled; else all."""
  # `start`: a model of this run, or a checkpoint, whose weights it begins with.
  # `seed`, `decay` and lengths that a model has of its own go before the
  # config's.
  first, second = (
      _SHAPES["target"] | dict(steps=steps, distilled=False, **_TARGETS_OWN)
      for steps in _TARGETS_STEPS
  )
  models = {
      "target_begun": first | dict(start="", decay=0.17647),
      "target": second | dict(start="target_begun", decay=0.22, seed=1),
  }
  for name, (steps, more) in _STEPS.items():
    shape = _SHAPES[name]
    models[name] = shape | dict(steps=steps, distilled=False, start="")
    models[f"{name}_distilled"] = shape | dict(
        steps=more, distilled=True, start=name
    )
  if only and only not in models:
    raise errors.UserError(
        f"config: no model '{only}' in the mini family; use one of "
        f"{', '.join(models)}"
    )
  config = config_dict.ConfigDict()
  config.corpus = "out/corpus"
  config.out = "out/train_mini"
  config.seed = 0
  # Devices: rows over `data` groups, models over `model` devices of each. A
  # run may go on on others.
  config.mesh = dict(data=1, model=1)
  # Processes, each with the devices of its host, as a run has them; `out` must
  # be a folder that all of them see.
  config.hosts = dict(count=1, index=0, coordinator="")
  config.models = {
      name: entry for name, entry in models.items() if only in ("", name)
  }
  config.vocabulary = 8128  # 8,000 pieces, 100 extra ids, padded
  config.tied = True
  # What distilled models learn from: a checkpoint's name or folder; "" is
  # this run's own target. They read its outputs at these temperatures; () are
  # the references.
  config.teacher = ""
  config.teacher_temperatures = (0.0, 1.0)
  config.teacher_rows = 24000  # sources it reads, drawn at random; 0: all
  config.divergence = "forward_kl"
  config.divergence_weight = 0.0  # such as 0.9; 0: only its texts teach
  config.warmup = 100
  config.matrix_rate = 5e-3
  config.embedding_rate = 3e-2
  config.other_rate = 3e-3
  config.decay = 0.25
  config.weight_decay = 0.1
  config.micro_batches = 4
  config.cost = 1200
  config.source_lengths = (32, 96)
  config.target_lengths = (12, 24, 48, 128)
  config.held_out_rows = 200
  config.quality_rows = 0  # of each task for BLEU and ROUGE; 0 takes all
  config.evaluate_every = 200
  config.checkpoint_every = 50
  return config
