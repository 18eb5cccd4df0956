"""Layers that more than one family uses."""

from flax import linen as nn
import jax
import jax.numpy as jnp

# Finite, so that a query that sees nothing gives a number and not NaN.
MASKED = -1e30


def precision(dtype) -> jax.lax.Precision | None:
  """float32 means float32: TPUs and GPUs multiply in less unless told."""
  return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


class Linear(nn.Module):
  """y = W x without bias; W is stored [out, in], as torch stores it.

  The contraction runs over the last axis of both operands: for a handful of
  tokens a CPU then reads each row of W once, in order.
  """

  features: int
  stddev: float
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x):
    """[..., in] -> [..., features]."""
    kernel_OI = self.param(
        "kernel",
        nn.initializers.normal(self.stddev),
        (self.features, x.shape[-1]),
    )
    return jax.lax.dot_general(
        x.astype(self.dtype),
        kernel_OI.astype(self.dtype),
        (((x.ndim - 1,), (1,)), ((), ())),
        precision=precision(self.dtype),
    )


class RMSNorm(nn.Module):
  """x / rms(x) * scale, in float32 whatever the input's type."""

  epsilon: float

  @nn.compact
  def __call__(self, x):
    """[..., D] -> [..., D], same dtype."""
    scale_D = self.param("scale", nn.initializers.ones, (x.shape[-1],))
    x32 = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
    y = x32 * jax.lax.rsqrt(mean_square + self.epsilon)
    return (y * scale_D.astype(jnp.float32)).astype(x.dtype)


def attend(query_BTHK, key_BSHK, value_BSHK, bias_BHTS, mask_BTS):
  """softmax(q k + bias) v over the visible slots; scores in float32.

  No scaling by sqrt(K): a family that scales does it to the query.

  Returns:
    [B, T, H * K].
  """
  scores_BHTS = jnp.einsum(
      "BTHK,BSHK->BHTS",
      query_BTHK,
      key_BSHK,
      preferred_element_type=jnp.float32,
      precision=precision(query_BTHK.dtype),
  )
  if bias_BHTS is not None:
    scores_BHTS = scores_BHTS + bias_BHTS
  scores_BHTS = jnp.where(mask_BTS[:, None], scores_BHTS, MASKED)
  weight_BHTS = jax.nn.softmax(scores_BHTS, axis=-1).astype(value_BSHK.dtype)
  out_BTHK = jnp.einsum(
      "BHTS,BSHK->BTHK",
      weight_BHTS,
      value_BSHK,
      precision=precision(value_BSHK.dtype),
  )
  return out_BTHK.reshape(*out_BTHK.shape[:2], -1)
