"""Drafters of heads: small networks that read the target's own states.

specjax.train makes such heads for one target (configs/train_heads.py); a
drafter is made of their file and that target.
"""

from typing import Any

import jax
import jax.numpy as jnp

from specjax import checkpoints
from specjax import errors
from specjax import topology as topology_lib
from specjax.checkpoints import eagle as eagle_file
from specjax.checkpoints import heads as heads_file
from specjax.drafters import eagle as eagle_drafter
from specjax.drafters import medusa as medusa_drafter
from specjax.models import eagle
from specjax.models import medusa


def draft_medusa(
    target: checkpoints.Checkpoint,
    name: str,
    gamma: int,
    shape: topology_lib.Topology | None = None,
) -> tuple[medusa_drafter.MedusaDrafter, medusa.MedusaParams]:
  """Medusa's drafter and what it reads.

  Args:
    target: the model that the heads were trained for.
    name: of their file, as checkpoints.heads.find takes it.
    gamma: tokens a round, where there is no tree.
    shape: of the trees; None is a chain.

  Raises:
    errors.UserError: the heads can't be had, are another target's, or fewer
      than the drafts are deep.
  """
  found = heads_file.load(name, target, "medusa")
  config = heads_file.shaped(medusa.MedusaConfig, name, found.shape)
  width, size = target.module.config.d_model, target.module.config.vocab_size
  if (config.d_model, config.vocab_size) != (width, size):
    raise errors.UserError(
        f"heads: {name} is damaged (its heads are not as wide as its target);"
        " give another file"
    )
  module = medusa.Medusa(
      config, target.module.dtype, target.module.carried
  )
  shapes = jax.eval_shape(
      lambda: module.init(
          jax.random.key(0),
          jnp.zeros((1, 1, config.d_model)),
          method="everything",
      )
  )
  heads = heads_file.check_params(name, found.params, shapes)
  drafter = medusa_drafter.MedusaDrafter(
      heads=module, target=target.module, gamma=gamma, topology=shape
  )
  listed = heads_file.listed_of(
      name, found, config.listed, target, own=config.own
  )
  return drafter, medusa.MedusaParams(heads, target.params, listed)


def draft_eagle(
    target: checkpoints.Checkpoint,
    name: str,
    gamma: int,
    *,
    dtype=jnp.float32,
    **options,
) -> tuple[eagle_drafter.EagleDrafter, eagle.EagleParams]:
  """EAGLE's drafter and what it reads.

  Args:
    target: the model that the head was trained for.
    name: of its file or folder, as checkpoints.eagle.find takes it.
    gamma: tokens a round.
    dtype: of the head.
    **options: further fields of drafters.eagle.EagleDrafter.

  Raises:
    errors.UserError: the head can't be had, or is another target's.
  """
  model, params = eagle_file.load(name, target, dtype)
  return eagle_drafter.EagleDrafter(model, gamma, **options), params


def placed(params: Any, target_params: Any) -> Any:
  """A drafter's parameters, the target's among them where the target's lie."""
  reads_target = hasattr(params, "target")
  return params.replace(target=target_params) if reads_target else params
