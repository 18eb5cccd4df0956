"""Layers that more than one family uses."""

import dataclasses

from flax import linen as nn
import jax
import jax.numpy as jnp

from specjax.models import products

# Finite, so that a query that sees nothing gives a number and not NaN.
MASKED = -1e30


@dataclasses.dataclass(frozen=True)
class Types:
  """Number types of a pass.

  Attributes:
    product: of what is multiplied with weights.
    carried: of activations between the products, and of keys and values.
  """

  product: jnp.dtype
  carried: jnp.dtype


class Linear(nn.Module):
  """y = x W without bias; W is stored [in, out].

  M products of one input are one: features (M, out), W stored [in, M, out].

  Attributes:
    features: out, or (M, out).
    stddev: of the initial weights; one for each M.
    types: of the product, and of what comes out.
  """

  features: int | tuple[int, int]
  stddev: float | tuple[float, ...]
  types: Types

  @nn.compact
  def __call__(self, x):
    """[..., in] -> [..., features]."""

    def init(key, shape):
      return jax.random.normal(key, shape) * jnp.array(self.stddev)[..., None]

    out = self.features
    out = out if isinstance(out, tuple) else (out,)
    kernel = self.param("kernel", init, (x.shape[-1], *out))
    y = products.product(x, kernel, self.types.product)
    return y.astype(self.types.carried)


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


def split_heads(x_BTE, heads: int):
  """[B, T, H * K] -> [B, H, T, K]."""
  x_BTHK = x_BTE.reshape(*x_BTE.shape[:2], heads, -1)
  return jnp.swapaxes(x_BTHK, 1, 2)


def attend(query_BHTK, key_BHKS, value_BHSK, bias_BHTS, mask_BTS):
  """softmax(q k + bias) v over the visible slots; scores in float32.

  No scaling by sqrt(K): a family that scales does it to the query. Heads come
  before slots and keys are [K, S], so that no product has to move a cache
  about first.

  Returns:
    [B, T, H * K].
  """
  scores_BHTS = jnp.einsum(
      "BHTK,BHKS->BHTS",
      query_BHTK,
      key_BHKS,
      preferred_element_type=jnp.float32,
      precision=products.precision(query_BHTK.dtype),
  )
  if bias_BHTS is not None:
    scores_BHTS = scores_BHTS + bias_BHTS
  scores_BHTS = jnp.where(mask_BTS[:, None], scores_BHTS, MASKED)
  weight_BHTS = jax.nn.softmax(scores_BHTS, axis=-1).astype(value_BHSK.dtype)
  out_BHTK = jnp.einsum(
      "BHTS,BHSK->BHTK",
      weight_BHTS,
      value_BHSK,
      precision=products.precision(value_BHSK.dtype),
  )
  out_BTHK = jnp.swapaxes(out_BHTK, 1, 2)
  return out_BTHK.reshape(*out_BTHK.shape[:2], -1)
