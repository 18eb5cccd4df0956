"""EAGLE's heads: files of this package, and folders as SafeAILab/EAGLE's.

A file is one of checkpoints.heads. In a folder lie config.json and
safetensors: the config is that of a model of the target's kind with one layer,
the tensors are those of this layer, without "model." before their names and
without the norm before its self-attention, and fc.weight and fc.bias. Embedding
and output matrix are the target's; a folder that holds them too may do so.

A folder with d2t [W] is of a head that chooses from W ids: its id i is the
target's i + d2t[i]. A matrix of as many rows, lm_head.weight [W, D], is then
the head's own output.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import config as config_lib
from specjax.checkpoints import families
from specjax.checkpoints import fields
from specjax.checkpoints import files
from specjax.checkpoints import heads as heads_file
from specjax.checkpoints import hf
from specjax.checkpoints import places
from specjax.errors import shown, UserError
from specjax.models import eagle
from specjax.models import listed as listed_lib
from specjax.models import t5

KIND = "eagle"
WEIGHT, BIAS = "fc.weight", "fc.bias"
# Of some ids: offsets to the target's, which of the target's, and the output.
_OFFSETS, _AMONG, _OUTPUT = "d2t", "t2d", "lm_head.weight"
# What the target has, too, by its names in all families.
_TARGETS = re.compile(r"(model\.)?(embed_tokens|norm)\.weight|lm_head\.weight")


def find(name: str) -> pathlib.Path:
  """The file or folder of a head.

  Raises:
    UserError: there is none, or it lacks a file.
  """
  path = pathlib.Path(os.path.expanduser(name))
  if not name or not os.path.isdir(path):
    return heads_file.find(name)
  if not (path / config_lib.FILE).is_file():
    raise UserError(f"heads: {path} has no {config_lib.FILE}: fetch it again")
  if not any(path.glob("model*.safetensors")):
    files.refuse_pickles(path)
    raise UserError(f"heads: {path} has no {hf.WEIGHTS}: fetch it again")
  return path


def load(
    name: str, target, dtype
) -> tuple[eagle.Eagle, eagle.EagleParams]:
  """Reads a head for a target.

  Args:
    name: as `find` takes it.
    target: the Checkpoint that it is for, of whose parameters some serve both.
    dtype: of the head's parameters and products; what is multiplied and stored
      in bfloat16 stays so.

  Raises:
    UserError: a field, file or tensor is wrong, or it is another target's.
  """
  path, module = find(name), target.module
  if path.is_file():
    found = heads_file.load(name, target, KIND)
    shape = heads_file.shaped(eagle.EagleConfig, name, found.shape)
    model = eagle.of(module, shape.layer(module.config), dtype)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    head = heads_file.check_params(name, found.params, shapes)
    listed = heads_file.listed_of(name, found, shape.listed, target)
    return model, model.params(head, target.params, listed)
  get = config_lib.fields(path / config_lib.FILE)
  get = dataclasses.replace(get, path=f"heads: {get.path}")
  with contextlib.ExitStack() as stack:
    tensors = hf.opened(stack, path)
    refuse_eagle_3(get, tensors)
    _check_target(path, config_lib.parse(get)[1], module.config)
    listed = _listed(path, tensors, target)
    config, head = read(get, tensors, dtype, keep_bfloat16=True)
  model = eagle.of(module, config, dtype)
  return model, model.params(head, target.params, listed)


def refuse_eagle_3(get: fields.Getter, tensors: dict[str, Any]) -> None:
  """EAGLE-3's heads are other networks (arXiv 2503.01840).

  Args:
    get: of the config.json.
    tensors: by their names.

  Raises:
    UserError: this is one.
  """
  shape = tuple(getattr(tensors.get(WEIGHT), "shape", ()))
  told = shown(get.fields.get("architectures")).lower()
  if (
      "eagle3" in told
      or any(name.startswith("midlayer.") for name in tensors)
      or len(shape) == 2 and shape[1] == 3 * shape[0]
  ):
    raise UserError(
        f"{get.path}: this is a head of EAGLE-3, which reads three of the"
        " target's hidden states; give one that reads the last, of EAGLE or"
        " EAGLE-2"
    )


def _listed(path, tensors, target) -> listed_lib.Listed | None:
  """The ids that a folder's head chooses from; None where those are all.

  Takes what says so out of its tensors.

  Raises:
    UserError: it says no such ids, or the output matrix is not of them.
  """
  offsets = tensors.pop(_OFFSETS, None)
  if offsets is None:
    return None
  tensors.pop(_AMONG, None)
  cfg, shape = target.module.config, offsets.shape
  good = len(shape) == 1 and 0 < shape[0] <= cfg.vocab_size
  if good:
    offset_W = offsets.read(kinds=hf.WHOLE)
    ids_W = np.arange(shape[0]) + offset_W
    # Sums of great numbers may be anything.
    good = np.all((offset_W >= 0) & (offset_W < cfg.vocab_size))
    good = good and listed_lib.rising(ids_W, cfg.vocab_size)
  if not good:
    raise UserError(
        f"heads: {path} is damaged ({_OFFSETS} gives no rising ids below"
        f" {cfg.vocab_size}); give another one"
    )
  output = tensors.get(_OUTPUT)
  # Drafts change no law: half of the bytes will do.
  if output is not None and output.shape[:1] == shape:
    place = places.Place(("kernel",), (*shape, cfg.d_model), places.KERNEL)
    kernel = hf.placed(
        {_OUTPUT: place}, {_OUTPUT: output}, jnp.bfloat16, f"heads: {path}"
    )["params"]["kernel"]
  else:
    kernel = listed_lib.output_kernel(target.module, target.params, ids_W)
  return listed_lib.listed(
      ids_W, cfg.vocab_size, kernel.astype(jnp.bfloat16)
  )


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
        f"heads: {folder} is another target's head: a {own} of hidden size"
        f" {width} and {ids} ids, and this one is a {other} of {its_width} and"
        f" {its_ids}; give a head that was trained for it"
    )
