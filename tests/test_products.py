"""The matrix product: float32's accuracy from bfloat16 weights."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import checkpoints
from specjax.checkpoints import hf
from specjax.models import layers
from specjax.models import products
from tests import tiny

F32, BF16 = jnp.float32, jnp.bfloat16


def in_out(dtype):
  """The product with kernels that lie [in, out]."""
  return functools.partial(products.product, dtype=dtype, out_in=False)


def case(rows, dtype, seed=0, width=96):
  """x [rows, 64] of many magnitudes, a bfloat16 kernel [64, width]."""
  rng = np.random.default_rng(seed)
  normal = lambda: rng.standard_normal((rows, 64))
  x = normal() * np.exp(3 * normal())
  kernel = jnp.asarray(rng.standard_normal((64, width)), BF16)
  return jnp.asarray(x, dtype), kernel


def worst(got, x, kernel) -> float:
  """Largest error over the size of what was added up."""
  x, kernel = np.asarray(x, np.float64), np.asarray(kernel, np.float64)
  size = np.abs(x) @ np.abs(kernel)
  return float(np.max(np.abs(np.asarray(got, np.float64) - x @ kernel) / size))


@pytest.mark.parametrize("rows", (1, 4, 16, 17, 40))
@pytest.mark.parametrize("out_in", (False, True))
def test_bfloat16_weights_give_float32_products(rows, out_in):
  """For few rows and for many; a bfloat16 activation would err by 1e-3."""
  x, kernel = case(rows, F32)
  run = jax.jit(functools.partial(products.product, dtype=F32, out_in=out_in))
  got = run(x, kernel.T if out_in else kernel)
  assert got.shape == (rows, 96) and got.dtype == F32
  assert worst(got, x, kernel) < 1e-6


def test_other_platforms_split_too():
  x, kernel = case(40, F32)
  got = jax.jit(products._by_parts, static_argnums=2)(x, kernel, False)
  assert worst(got, x, kernel) < 1e-6


@pytest.mark.parametrize("rows", (1, 2, 40))
def test_bfloat16_activations_are_summed_in_float32(rows):
  x, kernel = case(rows, BF16)
  got = jax.jit(in_out(BF16))(x, kernel)
  assert got.shape == (rows, 96) and got.dtype == F32
  assert worst(got, x, kernel) < 1e-6


@pytest.mark.parametrize("rows", (1, 2, 40))
def test_float32_activations_are_rounded_to_the_products_type(rows):
  x, kernel = case(rows, F32)
  got = jax.jit(in_out(BF16))(x, kernel)
  assert worst(got, x.astype(BF16), kernel) < 1e-6


def test_a_cpu_carries_float32(tmp_path):
  """The cache of a bfloat16 model is not converted at every step."""
  assert products.carried(BF16, "tpu") == BF16
  assert products.carried(F32, "tpu") == F32
  tiny.write_random_t5(tmp_path / "m", tiny.SHAPE)
  module, params = hf.load_model(tmp_path / "m", BF16)
  assert module.dtype == BF16
  assert module.empty_cache(1, 4).key[0].dtype == F32
  source = jnp.array([[5, 6, 1]])
  program = jax.make_jaxpr(module.apply)(
      params, source, source > 0, jnp.array([[0, 5, 9]])
  )
  # What is multiplied with weights is bfloat16.
  assert "bf16[3,8]" in str(program)


def test_leading_axes_and_other_types_of_kernels():
  x, kernel = case(6, F32)
  x_BTI = x.reshape(2, 3, 64)
  run = jax.jit(in_out(F32))
  np.testing.assert_allclose(
      run(x_BTI, kernel),
      run(x, kernel.astype(F32)).reshape(2, 3, 96),
      rtol=1e-4,
      atol=1e-4,
  )


def test_matrices_keep_their_stored_type_where_asked(tmp_path):
  spiece = tiny.write_tokenizer(tmp_path)
  for stored in (BF16, F32):
    tiny.write_random_t5(
        tmp_path / "m", tiny.SHAPE, dtype=stored, tokenizer_file=spiece
    )
    params = checkpoints.load(str(tmp_path / "m")).params["params"]
    layer = params["decoder_layers_0"]
    assert layer["attention"]["qkv"]["kernel"].dtype == stored
    assert params["shared"].dtype == stored
    assert layer["cross_norm"]["scale"].dtype == F32
    upcast = checkpoints.load(str(tmp_path / "m"), keep_bfloat16=False)
    assert all(leaf.dtype == F32 for leaf in jax.tree.leaves(upcast.params))


def test_kept_weights_have_the_same_law(tmp_path):
  spiece = tiny.write_tokenizer(tmp_path)
  tiny.write_random_t5(
      tmp_path / "m", tiny.SHAPE, dtype=BF16, tokenizer_file=spiece
  )
  source = jnp.array([[5, 6, 7, 1]])
  kept, upcast = (
      checkpoints.load(str(tmp_path / "m"), keep_bfloat16=keep)
      for keep in (True, False)
  )
  logits = [
      jax.jit(each.module.apply)(
          each.params, source, source > 0, jnp.array([[0, 5, 9]])
      )
      for each in (kept, upcast)
  ]
  np.testing.assert_allclose(*logits, rtol=0, atol=1e-5)


def test_an_embedding_is_read_row_by_row():
  """A bfloat16 table is never converted whole."""
  table = jnp.arange(6.0).reshape(3, 2).astype(BF16)
  types = layers.Types(BF16, F32)
  read = jax.jit(lambda table, ids: layers.embed(table, ids, types))
  ids = jnp.array([[2, 0, 7]])
  np.testing.assert_array_equal(read(table, ids), [[[4, 5], [0, 1], [4, 5]]])
  assert "f32[3,2]" not in read.lower(table, ids).compile().as_text()


def test_a_table_is_not_read_before_a_loop():
  """Every decoding would begin with a pass over all of the vocabulary."""
  types = layers.Types(F32, F32)
  # As users compile; conftest.py says why tests don't.
  flag = "xla_cpu_use_fusion_emitters"
  options = {flag: True} if flag in os.environ.get("XLA_FLAGS", "") else {}

  @jax.jit
  def total(table_VD, count):
    row = lambda i: layers.embed(table_VD, i[None] % 8192, types)[0]
    return jax.lax.fori_loop(
        0, count, lambda i, sum_D: sum_D + row(i), jnp.zeros(16)
    )

  table_VD = jnp.ones((8192, 16), BF16)
  program = total.lower(table_VD, 5).compile(options)
  needed = program.memory_analysis().temp_size_in_bytes
  assert needed < table_VD.nbytes / 10
  np.testing.assert_array_equal(program(table_VD, 5), np.full(16, 5))
