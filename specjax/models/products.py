"""The matrix product of all layers, as each platform computes it best.

A decoder step reads every weight once, so its time is that of the bytes.
Weights that a checkpoint holds in bfloat16 therefore stay so, also where the
activations are float32: an activation is split into three bfloat16 numbers
whose sum it is, their products with a bfloat16 weight are exact in float32,
and the sums are float32's own. That is the accuracy of a float32 product, for
half of the bytes.
"""

import jax
import jax.numpy as jnp

# How kernels lie: [out, in] or [in, out]. All that depends on it is below.
OUT_IN = False
_PARTS = 3  # of 8 bits each: the 24 of a float32
# On a CPU: with more rows than this the arithmetic counts, not the bytes.
_FEW_ROWS = 16
# And from this width on two rows take half the time of one.
_WIDE = 64


def kernel_shape(inside: int, out: tuple[int, ...]) -> tuple[int, ...]:
  """Shape of a kernel; `out` is (out,), or (M, out) for M products in one."""
  return (*out, inside) if OUT_IN else (inside, *out)


def to_kernel(matrix):
  """A matrix [out, in] or [M, out, in], as files have it -> a kernel."""
  axes = tuple(range(matrix.ndim))
  return matrix if OUT_IN else matrix.transpose(axes[-1:] + axes[:-1])


def from_kernel(kernel):
  """What `to_kernel` was given."""
  axes = tuple(range(kernel.ndim))
  return kernel if OUT_IN else kernel.transpose(axes[1:] + axes[:1])


def precision(dtype) -> jax.lax.Precision | None:
  """float32 means float32: TPUs and GPUs multiply in less unless told."""
  return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


def carried(dtype, platform: str) -> jnp.dtype:
  """Type of activations between products in `dtype`, and of keys and values.

  A CPU knows bfloat16 in products only: all else would be converted there and
  back at every step, keys and values of the whole past among it.

  Args:
    dtype: of the products.
    platform: as jax.default_backend() names it.
  """
  return jnp.dtype(jnp.float32 if platform == "cpu" else dtype)


def product(x, kernel, dtype, *, out_in: bool = OUT_IN):
  """x W, summed in float32.

  Args:
    x: [..., in], of any type.
    kernel: of `kernel_shape`, in `dtype`, or in bfloat16 where `dtype` is
      float32.
    dtype: that x is rounded to, float32 or bfloat16.
    out_in: the kernel is [out, in] or [M, out, in].

  Returns:
    [..., out] or [..., M, out], float32.
  """
  rows = x.reshape(-1, x.shape[-1]).astype(dtype)
  if kernel.dtype != jnp.bfloat16:
    y = _dot(rows, kernel.astype(dtype), out_in)
  else:
    y = jax.lax.platform_dependent(
        rows,
        kernel,
        cpu=lambda rows, kernel: _on_cpu(rows, kernel, out_in),
        default=lambda rows, kernel: _by_parts(rows, kernel, out_in),
    )
  return y.reshape(*x.shape[:-1], *y.shape[1:])


def _dot(rows, kernel, out_in: bool):
  return jax.lax.dot_general(
      rows,
      kernel,
      (((1,), (kernel.ndim - 1 if out_in else 0,)), ((), ())),
      precision=precision(kernel.dtype),
      preferred_element_type=jnp.float32,
  )


def _on_cpu(rows, kernel, out_in: bool):
  count = rows.shape[0]
  if rows.dtype == jnp.float32 and count > _FEW_ROWS:
    return _dot(rows, kernel.astype(jnp.float32), out_in)
  if rows.dtype == jnp.bfloat16 and count == 1 and rows.shape[1] >= _WIDE:
    # XLA has another kernel for one row.
    return _dot(jnp.concatenate([rows, rows]), kernel, out_in)[:1]
  return _by_parts(rows, kernel, out_in)


def _by_parts(rows, kernel, out_in: bool):
  if rows.dtype == jnp.bfloat16:
    return _dot(rows, kernel, out_in)
  parts = []
  for _ in range(_PARTS):
    # Not a cast there and back, which XLA takes for nothing.
    part = jax.lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7)
    parts.append(part.astype(jnp.bfloat16))
    rows = rows - part
  first, second, third = jnp.split(
      _dot(jnp.concatenate(parts), kernel, out_in), _PARTS
  )
  return first + (second + third)
