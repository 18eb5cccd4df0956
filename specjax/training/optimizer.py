"""Muon on the matrices inside the layers, AdamW on everything else."""

import dataclasses
import math

import jax
import optax
from optax import contrib

from specjax import checks
from specjax import errors

# Where a target's variables stand among those of its heads.
TARGET = "target"


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """Learning rates and their course.

  Attributes:
    matrix_rate: peak rate of Muon (its updates have AdamW's usual size).
    embedding_rate: peak rate of AdamW on the embedding.
    other_rate: peak rate of AdamW on head, norms and biases.
    warmup: steps from 0 to the peak.
    steps: the last one.
    decay: share of the steps, at the end, in which the rate falls linearly to
      0; before that it stays at its peak, so that a run can be prolonged.
    weight_decay: on Muon's matrices only.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  matrix_rate: float = 3e-3
  embedding_rate: float = 3e-3
  other_rate: float = 3e-3
  warmup: int = 100
  steps: int = 1000
  decay: float = 1.0
  weight_decay: float = 0.01

  def __post_init__(self):
    for field in ("matrix_rate", "embedding_rate", "other_rate"):
      _require_number(self, field, lambda rate: rate > 0, "above 0")
    _require_number(self, "decay", lambda x: 0 <= x <= 1, "from 0 to 1")
    _require_number(self, "weight_decay", lambda x: x >= 0, "0 or more")
    for field in ("warmup", "steps"):
      value = getattr(self, field)
      good = checks.is_whole(value, 1)
      errors.require(good, field, "give 1 or more", value)


def _require_number(config, field: str, fits, words: str) -> None:
  value = getattr(config, field)
  good = checks.is_number(value) and math.isfinite(value) and fits(value)
  errors.require(good, field, f"give a number {words}", value)


def _names(path) -> list[str]:
  return [getattr(key, "key", "") for key in path]


def _dimensions(params):
  """Marks layer kernels as Muon's; the rest is AdamW's.

  They are stored [in, out], or [in, M, out]: M matrices, each for itself.
  """

  def mark(path, value):
    inside = any("layers_" in name for name in _names(path))
    if inside and value.ndim > 1:
      return contrib.MuonDimensionNumbers(
          reduction_axis=0, output_axis=value.ndim - 1
      )
    return None

  return jax.tree_util.tree_map_with_path(mark, params)


def _scaled(config: OptimizerConfig, head_width: int, target_share: float):
  """Slows down the updates of queries, and sets those of the embedding.

  T5 does not divide scores by sqrt(K): its queries are born that much smaller
  instead. Muon's updates all have one size, so queries would outgrow it within
  a hundred steps and every softmax would saturate.
  """

  def scale(path, update):
    names = _names(path)
    if names[0] == TARGET:
      update = update * target_share
    if "q" in names:
      return update * head_width**-0.5
    if "qkv" in names:
      return update.at[:, 0].multiply(head_width**-0.5)
    if "shared" in names:
      return update * (config.embedding_rate / config.other_rate)
    return update

  return optax.stateless(
      lambda updates, _: jax.tree_util.tree_map_with_path(scale, updates)
  )


def schedule(config: OptimizerConfig, peak: float):
  """Rises over `warmup` steps, stays, and falls to 0 over the last ones.

  Arxiv 2405.18392 calls it a cooldown; with decay 1 it never stays.
  """
  flat_end = max(config.warmup, round(config.steps * (1 - config.decay)))
  rise = optax.schedules.linear_schedule(0.0, peak, config.warmup)
  flat = optax.schedules.constant_schedule(peak)
  fall = optax.schedules.linear_schedule(
      peak, 0.0, max(1, config.steps - flat_end)
  )
  return optax.schedules.join_schedules(
      [rise, flat, fall], [config.warmup, flat_end]
  )


def make_optimizer(
    config: OptimizerConfig, head_width: int, target_share: float = 1.0
) -> optax.GradientTransformation:
  """Muon and AdamW.

  Muon: arXiv 2502.16982 (update size matched to AdamW's by the factor 0.2).

  Args:
    config: rates.
    head_width: K of the model; queries learn slower by sqrt(K).
    target_share: of the rates, what a TARGET takes that is trained with heads.
  """
  return optax.chain(
      optax.clip_by_global_norm(1.0),
      contrib.muon(
          schedule(config, config.matrix_rate),
          weight_decay=config.weight_decay,
          adam_b2=0.98,
          adam_learning_rate=schedule(config, config.other_rate),
          muon_weight_dimension_numbers=_dimensions,
          consistent_rms=0.2,
      ),
      _scaled(config, head_width, target_share),
  )
