"""EAGLE's heads in a folder: config.json and safetensors.

Both are as SafeAILab/EAGLE has them: the config is that of a model of the
target's kind with one layer, the tensors are those of this layer, without
"model." before their names and without the norm before its self-attention, and
fc.weight and fc.bias. Embedding and output matrix are the target's; a file
that holds them too may do so.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
from typing import Any

from flax import linen as nn
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import config as config_lib
from specjax.checkpoints import families
from specjax.checkpoints import fields
from specjax.checkpoints import files
from specjax.checkpoints import hf
from specjax.checkpoints import places
from specjax.errors import shown, UserError
from specjax.models import eagle
from specjax.models import t5

WEIGHT, BIAS = "fc.weight", "fc.bias"
# What the target has, too, by its names in all families.
_TARGETS = re.compile(r"(model\.)?(embed_tokens|norm)\.weight|lm_head\.weight")


def find(name: str) -> pathlib.Path:
  """The folder of a head.

  Raises:
    UserError: there is none, or it lacks a file.
  """
  folder = pathlib.Path(os.path.expanduser(name))
  if not name or not os.path.isdir(folder):
    raise UserError(
        f"checkpoint: {shown(name)} is no folder; give one that holds an EAGLE"
        " head, of a public one what `hf download NAME --local-dir DIR` fetches"
    )
  files_of = lambda pattern: [*folder.glob(pattern)]
  if not files_of(config_lib.FILE):
    raise UserError(
        f"checkpoint: {folder} has no {config_lib.FILE}: fetch it again"
    )
  if not files_of("model*.safetensors"):
    files.refuse_pickles(folder)
    raise UserError(f"checkpoint: {folder} has no {hf.WEIGHTS}: fetch it again")
  return folder


def load(
    name: str, target: nn.Module, target_params: dict[str, Any], dtype
) -> tuple[eagle.Eagle, eagle.EagleParams]:
  """Reads a head for a target.

  Args:
    name: of its folder.
    target: the module of the model that it is for.
    target_params: its variables, of which some serve both.
    dtype: of the head's parameters and products.

  Raises:
    UserError: a field, file or tensor is wrong, or it is another target's.
  """
  folder = find(name)
  get = config_lib.fields(folder / config_lib.FILE)
  _check_target(folder, config_lib.parse(get)[1], target.config)
  with contextlib.ExitStack() as stack:
    tensors = hf.opened(stack, folder)
    config, head = read(get, tensors, dtype, keep_bfloat16=True)
  model = eagle.of(target, config, dtype)
  return model, model.params(head, target_params)


def read(get: fields.Getter, tensors: dict[str, hf.Tensor], dtype, **how):
  """Fields and stored tensors -> the layer's config and the head's variables.

  Args:
    get: of its config.json.
    tensors: by their names.
    dtype: of the parameters.
    **how: see hf.placed.

  Raises:
    UserError: a field or tensor is wrong.
  """
  _, config = config_lib.parse(get)
  rows = table(config)
  tensors = {
      name: tensor
      for name, tensor in tensors.items()
      if name in rows or not _TARGETS.fullmatch(name)
  }
  if not get.boolean("bias", True):
    zeros = np.zeros((config.d_model,), np.float32)
    tensors.setdefault(BIAS, hf.Tensor(zeros.shape, lambda: zeros))
  return config, hf.placed(rows, tensors, dtype, get.path, **how)


def save(
    directory, config, head: dict[str, Any], *, dtype=jnp.bfloat16
) -> None:
  """Writes a head; see hf.save_model.

  Args:
    directory: where to.
    config: shape of its layer: the head module's.
    head: its variables.
    dtype: of the stored weights, bfloat16 or float32.

  Raises:
    UserError: as hf.save_model.
  """
  held = json.loads(config_lib.dumps(_one_layer(config), dtype))
  text = json.dumps(held | {"bias": True}, indent=2, sort_keys=True) + "\n"
  with hf.written(directory, table(config), head, text, dtype):
    pass


def table(config) -> places.Table:
  """Stored name -> Place, of a head whose layer has this shape."""
  config = _one_layer(config)
  width = config.d_model
  entries = {
      WEIGHT: places.Place(
          ("fc", "kernel"), (width, 2 * width), places.KERNEL
      ),
      BIAS: places.Place(("fc", "bias"), (width,)),
  }
  kept = re.compile(r"(decoder_)?layers_0|decoder_bias")
  for name, place in families.of(config).table(config).items():
    if kept.fullmatch(place.path[0]) and place.path[1] != "attention_norm":
      entries[name.removeprefix("model.")] = place
  return entries


def _one_layer(config):
  """The config of a model of one layer."""
  if isinstance(config, t5.T5Config):
    return dataclasses.replace(config, num_layers=1, num_decoder_layers=1)
  return dataclasses.replace(config, num_layers=1)


def _check_target(folder, config, target) -> None:
  """Refuses heads of another target, as far as shapes tell."""
  kind = lambda config: (
      families.model_type(config),
      config.d_model,
      config.vocab_size,
  )
  (own, width, ids), (other, its_width, its_ids) = kind(config), kind(target)
  if kind(config) != kind(target):
    raise UserError(
        f"checkpoint: {folder} is another target's head: a {own} of hidden size"
        f" {width} and {ids} ids, and this one is a {other} of {its_width} and"
        f" {its_ids}; give a head that was trained for it"
    )
