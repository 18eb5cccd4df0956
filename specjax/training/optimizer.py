"""Muon on the matrices inside the layers, AdamW on everything else."""

import dataclasses

import jax
import optax
from optax import contrib


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """Learning rates and their course.

  Attributes:
    matrix_rate: peak rate of Muon (its updates have AdamW's usual size).
    other_rate: peak rate of AdamW on embedding, head, norms and biases.
    warmup: steps from 0 to the peak.
    steps: the rate falls linearly to 0 at this step.
    weight_decay: on Muon's matrices only.
  """

  matrix_rate: float = 3e-3
  other_rate: float = 3e-3
  warmup: int = 100
  steps: int = 1000
  weight_decay: float = 0.01


def _dimensions(params):
  """Marks layer kernels, stored [out, in], as Muon's; the rest is AdamW's."""

  def mark(path, value):
    names = [getattr(key, "key", "") for key in path]
    inside = any("layers_" in name for name in names)
    if inside and value.ndim == 2:
      return contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0)
    return None

  return jax.tree_util.tree_map_with_path(mark, params)


def _slow_queries(head_width: int) -> optax.GradientTransformation:
  """Divides the updates of query projections by sqrt(K).

  T5 does not divide scores by sqrt(K): its queries are born that much smaller
  instead. Muon's updates all have one size, so queries would outgrow it within
  a hundred steps and every softmax would saturate.
  """

  def scale(path, update):
    is_query = any(getattr(key, "key", "") == "q" for key in path)
    return update * head_width**-0.5 if is_query else update

  return optax.stateless(
      lambda updates, _: jax.tree_util.tree_map_with_path(scale, updates)
  )


def make_optimizer(
    config: OptimizerConfig, head_width: int
) -> optax.GradientTransformation:
  """Muon and AdamW with a linear warm-up and a linear fall to 0.

  Muon: arXiv 2502.16982 (update size matched to AdamW's by the factor 0.2).

  Args:
    config: rates.
    head_width: K of the model; queries learn slower by sqrt(K).
  """

  def schedule(peak):
    rise = optax.schedules.linear_schedule(0.0, peak, config.warmup)
    fall = optax.schedules.linear_schedule(
        peak, 0.0, config.steps - config.warmup
    )
    return optax.schedules.join_schedules([rise, fall], [config.warmup])

  return optax.chain(
      optax.clip_by_global_norm(1.0),
      contrib.muon(
          schedule(config.matrix_rate),
          weight_decay=config.weight_decay,
          adam_b2=0.98,
          adam_learning_rate=schedule(config.other_rate),
          muon_weight_dimension_numbers=_dimensions,
          consistent_rms=0.2,
      ),
      _slow_queries(head_width),
  )
