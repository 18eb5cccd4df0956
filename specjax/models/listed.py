"""An output matrix of some ids alone, for heads that draft.

The product with the target's output matrix is most of what a small head costs.
Where drafts are chosen from the commonest ids alone (FR-Spec, Zhao et al.,
arXiv 2502.14856) it is as much smaller; no law changes, as others are then
never drafted.
"""

from flax import struct
import jax
import jax.numpy as jnp

from specjax.models import products


@struct.dataclass
class Listed:
  """The ids that heads choose from.

  Attributes:
    ids_W: rising.
    kernel: the target's output of those alone; None where heads have their
      own.
  """

  ids_W: jax.Array
  kernel: jax.Array | None


def output_kernel(target, target_params, ids_W=None):
  """The target's output matrix as a kernel, of some ids or of all."""
  # What the head makes of the unit vectors is its rows.
  unit_1DD = jnp.eye(target.config.d_model)[None]
  matrix_DV = target.apply(target_params, unit_1DD, method="head")[0]
  if ids_W is not None:
    matrix_DV = matrix_DV[:, ids_W]
  return products.to_kernel(matrix_DV.T)


def of(target, target_params, ids_W) -> Listed:
  """Some ids of a target, and its output of them in bfloat16.

  Drafts change no law: half of the bytes will do.
  """
  kernel = output_kernel(target, target_params, ids_W)
  return Listed(jnp.asarray(ids_W), kernel.astype(jnp.bfloat16))


def spread(logits, ids_W, width: int) -> jax.Array:
  """Logits [..., W] of some ids -> those of all, [..., V]; -inf elsewhere."""
  empty = jnp.full((*logits.shape[:-1], width), -jnp.inf)
  return empty.at[..., ids_W].set(logits)
