"""Shapes of public models, and models that have no more than a shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import checkpoints
from specjax import errors
from specjax import prepare
from specjax.checkpoints import published
from tests import mocks
from tests import tiny

# As their own files have it.
SIZES = {
    "google-t5/t5-small": 60_506_624,
    "google-t5/t5-base": 222_903_552,
    "google-t5/t5-large": 737_668_096,
    "google-t5/t5-3b": 2_851_598_336,
    "google-t5/t5-11b": 11_307_321_344,
    "google/flan-t5-small": 76_961_152,
    "google/flan-t5-base": 247_577_856,
    "google/flan-t5-large": 783_150_080,
    "google/flan-t5-xl": 2_849_757_184,
    "google/flan-t5-xxl": 11_135_332_352,
}


@pytest.mark.parametrize("name", SIZES)
def test_public_shapes(name):
  params = published.params(published.config(name), jnp.bfloat16)
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == SIZES[name]


@pytest.mark.parametrize(
    "model",
    [mocks.tiny_t5(), *map(mocks.tiny_decoder, ("llama", "gpt2"))],
    ids=["t5", "llama", "gpt2"],
)
def test_shapes_are_those_of_the_module(model):
  module, params = model
  config = module.config
  shape = lambda tree: jax.tree.map(lambda leaf: leaf.shape, tree)
  assert shape(published.params(config, jnp.float32)) == shape(params)


def test_a_name_without_files_is_refused():
  with pytest.raises(errors.UserError, match="shapes are known of google-t5"):
    published.config("/no/such/folder")


def test_random_weights(monkeypatch, tmp_path):
  """The same each time, of the shape and the type; a run takes them."""
  monkeypatch.setitem(published._V1_1, "tiny", (8, 4, 16, 1, 2))
  first, second = (
      checkpoints.load("random:tiny", jnp.bfloat16) for _ in range(2)
  )
  jax.tree.map(np.testing.assert_array_equal, first.params, second.params)
  shapes = published.params(first.module.config, jnp.bfloat16)
  like = lambda leaf: (leaf.shape, leaf.dtype)
  same = lambda leaf, wanted: like(leaf) == like(wanted)
  assert all(jax.tree.leaves(jax.tree.map(same, first.params, shapes)))
  kernel = first.params["params"]["lm_head"]["kernel"]
  assert np.std(kernel.astype(np.float32)) == pytest.approx(8**-0.5, rel=0.01)
  rows = {"rows.jsonl": tiny.write_rows(tmp_path)}
  family = rows | {"target": "random:tiny", "draft": "random:tiny"}
  setup = prepare.prepare(tiny.config(family))
  assert setup.target.tokenizer.decode(setup.requests[0].source)
