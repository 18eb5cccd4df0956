"""Shapes of public T5 checkpoints, for what needs no weights of theirs.

Speed is a matter of shapes: `random:google/flan-t5-xxl` is a model with random
weights, for measuring where the real ones are not at hand.
"""

import os
import pathlib
from typing import Any

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp

from specjax import sharding
from specjax.checkpoints import config as config_lib
from specjax.checkpoints import families
from specjax.checkpoints import hf
from specjax.checkpoints import places
from specjax.checkpoints import resolve
from specjax.checkpoints.families import base
from specjax.errors import UserError
from specjax.models import t5

RANDOM = "random:"
# Whose tokenizer such a model has.
TOKENIZER = "mini/target"
_VOCABULARY = 32_128
# Name: d_model, d_kv, d_ff, layers of each side, heads; as their config.json.
_V1_0 = {
    "google-t5/t5-small": (512, 64, 2048, 6, 8),
    "google-t5/t5-base": (768, 64, 3072, 12, 12),
    "google-t5/t5-large": (1024, 64, 4096, 24, 16),
    "google-t5/t5-3b": (1024, 128, 16384, 24, 32),
    "google-t5/t5-11b": (1024, 128, 65536, 24, 128),
}
_V1_1 = {
    "google/flan-t5-small": (512, 64, 1024, 8, 6),
    "google/flan-t5-base": (768, 64, 2048, 12, 12),
    "google/flan-t5-large": (1024, 64, 2816, 24, 16),
    "google/flan-t5-xl": (2048, 64, 5120, 24, 32),
    "google/flan-t5-xxl": (4096, 64, 10240, 24, 64),
}


def config(name: str) -> base.Config:
  """The shape of a model by its name, public T5s without a network.

  Args:
    name: one of those above, with or without RANDOM and its owner; or a
      folder, a shipped model or a Hugging Face name whose files are here.

  Raises:
    UserError: it is none of these.
  """
  name = name.removeprefix(RANDOM)
  known = _V1_0 | _V1_1
  full = {each.partition("/")[2]: each for each in known}
  name = full.get(name, name)
  shape = known.get(name)
  if shape is None:
    return _here(name)
  d_model, d_kv, d_ff, layers, heads = shape
  newer = name in _V1_1
  return t5.T5Config(
      vocab_size=_VOCABULARY,
      d_model=d_model,
      d_kv=d_kv,
      d_ff=d_ff,
      num_layers=layers,
      num_decoder_layers=layers,
      num_heads=heads,
      gated=newer,
      tied=not newer,
  )


def params(config: base.Config, dtype) -> dict[str, Any]:
  """A model's parameters as far as shapes go: a jax.ShapeDtypeStruct each.

  Args:
    config: its shape.
    dtype: of all of them.
  """
  table = families.of(config).table(config)
  flat = {}
  for path, names in places.by_path(table).items():
    shape = table[names[0]].form.shape([table[name].shape for name in names])
    flat[path] = jax.ShapeDtypeStruct(shape, dtype)
  return {"params": traverse_util.unflatten_dict(flat)}


def draw(
    name: str, dtype, layout: sharding.Layout | None = None
) -> tuple[nn.Module, dict[str, Any]]:
  """A module and random parameters, drawn where they lie.

  As training would begin, and the same on any devices.

  Args:
    name: RANDOM and the name of a shape.
    dtype: of parameters and products.
    layout: on several devices.

  Raises:
    UserError: there is no such shape.
  """
  shape = config(name)
  module = hf.make_module(families.of(shape), shape, dtype)
  ids_B1 = jnp.zeros((1, 1), jnp.int32)
  encodes = isinstance(shape, t5.T5Config)
  inputs = (ids_B1, ids_B1 == 0, ids_B1) if encodes else (ids_B1,)

  def init():
    made = module.init(jax.random.key(0), *inputs)
    return jax.tree.map(lambda leaf: leaf.astype(dtype), made)

  where = {}
  if layout:
    where["out_shardings"] = layout.target(params(shape, dtype))
  return module, jax.jit(init, **where)()


def _here(name: str) -> base.Config:
  """What a config.json on this machine says."""
  hint = f"shapes are known of {', '.join(_V1_0 | _V1_1)}"
  folder = pathlib.Path(os.path.expanduser(name))
  # A person's own may have no more than its shape.
  if not (name and os.path.isdir(folder)):
    folder = resolve.find(name, hint=hint)
  if folder is None or not folder.is_dir():
    raise UserError(f"{name}: give a folder with a config.json; {hint}")
  return config_lib.read(folder / config_lib.FILE)
