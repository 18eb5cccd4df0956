"""An output matrix of some ids alone, for heads that draft.

The product with the target's output matrix is most of what a small head costs.
Where drafts are chosen from the commonest ids alone (FR-Spec, Zhao et al.,
arXiv 2502.14856) it is as much smaller; no law changes, as others are then
never drafted. W is how many ids there are.
"""

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from specjax.models import products


@struct.dataclass
class Listed:
  """The ids that heads choose from.

  Attributes:
    ids_W: rising.
    place_V: place of each id among them; W where it has none.
    kernel: the target's output of those alone, as `output_kernel` makes it;
      None where heads have their own.
  """

  ids_W: jax.Array
  place_V: jax.Array
  kernel: jax.Array | None

  def spread(self, logits) -> jax.Array:
    """Logits [..., W] of the ids -> those of all, [..., V]; -inf elsewhere."""
    missing = [(0, 0)] * (logits.ndim - 1) + [(0, 1)]
    # To look all up is far faster than to put some into their places.
    known = jnp.pad(logits, missing, constant_values=-jnp.inf)
    return jnp.take(known, self.place_V, axis=-1, mode="clip")


def output_kernel(target, target_params, ids_W=None):
  """The target's output matrix as a kernel, of some ids or of all.

  Args:
    target: its module.
    target_params: its variables; those of its `head` will do.
    ids_W: ids, or None.

  Returns:
    A kernel of D in and W or V out, see models.products, in float32.
  """
  # What the head makes of the unit vectors is its rows.
  unit_1DD = jnp.eye(target.config.d_model)[None]
  matrix_DV = target.apply(target_params, unit_1DD, method="head")[0]
  if ids_W is not None:
    matrix_DV = matrix_DV[:, ids_W]
  return products.to_kernel(matrix_DV.T)


def rising(ids_W: np.ndarray, size: int) -> bool:
  """Whether these are some of `size` ids, each greater than the one before."""
  inside = (ids_W >= 0) & (ids_W < size)
  return bool(np.all(inside) and np.all(np.diff(ids_W) > 0))


def listed(ids_W, size: int, kernel=None) -> Listed:
  """Some of `size` ids.

  Args:
    ids_W: rising.
    size: V.
    kernel: from `output_kernel`, of these ids.
  """
  ids_W = np.asarray(ids_W, np.int32)
  place_V = np.full((size,), len(ids_W), np.int32)
  place_V[ids_W] = np.arange(len(ids_W))
  return Listed(jnp.asarray(ids_W), jnp.asarray(place_V), kernel)
