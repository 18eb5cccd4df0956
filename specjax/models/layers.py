"""Layers that more than one family uses."""

import dataclasses
import functools
from typing import Callable

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
  """y = x W, or x W + b; products.kernel_shape says how W is stored.

  M products of one input are one: features (M, out).

  Attributes:
    features: out, or (M, out).
    stddev: of the initial weights; one for each M.
    types: of the product, and of what comes out.
    bias: whether there is a b.
  """

  features: int | tuple[int, int]
  stddev: float | tuple[float, ...]
  types: Types
  bias: bool = False

  @nn.compact
  def __call__(self, x):
    """[..., in] -> [..., features]."""

    def init(key, shape):
      spread = products.to_kernel(jnp.array(self.stddev)[..., None, None])
      return jax.random.normal(key, shape) * spread

    out = self.features
    out = out if isinstance(out, tuple) else (out,)
    shape = products.kernel_shape(x.shape[-1], out)
    kernel = self.param("kernel", init, shape)
    y = products.product(x, kernel, self.types.product)
    if self.bias:
      y += self.param("bias", nn.initializers.zeros, out).astype(jnp.float32)
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


class LayerNorm(nn.Module):
  """(x - mean) / deviation * scale + bias, in float32 whatever the type."""

  epsilon: float

  @nn.compact
  def __call__(self, x):
    """[..., D] -> [..., D], same dtype."""
    scale_D = self.param("scale", nn.initializers.ones, (x.shape[-1],))
    bias_D = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
    x32 = x.astype(jnp.float32)
    x32 -= jnp.mean(x32, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
    y = x32 * jax.lax.rsqrt(variance + self.epsilon)
    y = y * scale_D.astype(jnp.float32) + bias_D.astype(jnp.float32)
    return y.astype(x.dtype)


def gelu(x):
  """GELU by its tanh formula, which T5 v1.1 and GPT-2 were trained with."""
  return jax.nn.gelu(x, approximate=True)


class FeedForward(nn.Module):
  """activation(x W) V, or gated: (activation(x W) * x U) V.

  Attributes:
    features: F.
    activation: of the first, or the gate.
    types: of products and what they give.
    gated: W and U are one product of two parts.
    bias: whether the products have one.
  """

  features: int
  activation: Callable[[jax.Array], jax.Array]
  types: Types
  gated: bool
  bias: bool = False

  @nn.compact
  def __call__(self, x_BTD):
    linear = functools.partial(Linear, types=self.types, bias=self.bias)
    width, wide = x_BTD.shape[-1], self.features
    into = width**-0.5
    if self.gated:
      x_BTMF = linear((2, wide), stddev=(into, into), name="wi")(x_BTD)
      hidden_BTF = self.activation(x_BTMF[:, :, 0]) * x_BTMF[:, :, 1]
    else:
      hidden_BTF = self.activation(linear(wide, into, name="wi")(x_BTD))
    return linear(width, stddev=wide**-0.5, name="wo")(hidden_BTF)


def embed(table_VD, ids, types: Types):
  """Rows of a table; ids beyond it read the last one: drafts may have some."""
  if table_VD.dtype != jnp.bfloat16:
    rows = jnp.take(table_VD, ids, axis=0, mode="clip")
    return rows.astype(types.carried)
  # As plain bits: a CPU does not index bfloat16, and XLA would convert the
  # whole table first. The barrier: it would read all of the bits, too, once a
  # decoding, before its loop.
  table_VD, ids = jax.lax.optimization_barrier((table_VD, ids))
  bits = jax.lax.bitcast_convert_type(table_VD, jnp.uint16)
  rows = jnp.take(bits, ids, axis=0, mode="clip")
  rows = jax.lax.bitcast_convert_type(rows, jnp.bfloat16)
  return rows.astype(types.carried)


def split_heads(x_BTE, heads: int):
  """[B, T, H * K] -> [B, H, T, K]."""
  x_BTHK = x_BTE.reshape(*x_BTE.shape[:2], heads, -1)
  return jnp.swapaxes(x_BTHK, 1, 2)


def attend(query_BHTK, key_BHKS, value_BHSK, bias_BHTS, mask_BTS):
  """softmax(q k + bias) v over the visible slots; scores in float32.

  No scaling by sqrt(K): a family that scales does it to the query. Heads come
  before slots and keys are [K, S], so that no product has to move a cache
  about first.

  Keys and values may have fewer heads, each of which serves as many queries'
  in a row (arXiv 2305.13245); those are read as more tokens of one head.

  Returns:
    [B, T, H * K].
  """
  heads = key_BHKS.shape[1]
  grouped = lambda x: x.reshape(x.shape[0], heads, -1, x.shape[-1])
  apart = lambda x: x.reshape(*query_BHTK.shape[:3], x.shape[-1])
  scores_BHTS = apart(
      jnp.einsum(
          "BHTK,BHKS->BHTS",
          grouped(query_BHTK),
          key_BHKS,
          preferred_element_type=jnp.float32,
          precision=products.precision(query_BHTK.dtype),
      )
  )
  if bias_BHTS is not None:
    scores_BHTS = scores_BHTS + bias_BHTS
  scores_BHTS = jnp.where(mask_BTS[:, None], scores_BHTS, MASKED)
  weight_BHTS = jax.nn.softmax(scores_BHTS, axis=-1).astype(value_BHSK.dtype)
  out_BHTK = apart(
      jnp.einsum(
          "BHTS,BHSK->BHTK",
          grouped(weight_BHTS),
          value_BHSK,
          precision=products.precision(value_BHSK.dtype),
      )
  )
  out_BTHK = jnp.swapaxes(out_BHTK, 1, 2)
  return out_BTHK.reshape(*out_BTHK.shape[:2], -1)
