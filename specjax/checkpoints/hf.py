"""Hugging Face directories: config.json and safetensors, read and written.

    module, params = load_model("flan-t5-small", jnp.float32)
    logits_BTV = module.apply(params, source_BL, mask_BL, inputs_BT)

`params` has the form that `module.init` gives. Names and shapes are checked
against one table, built from the config, before a single weight is read.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import shutil
from typing import Any, Callable, Iterator, Sequence

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from specjax import errors
from specjax.checkpoints import config as config_lib
from specjax.checkpoints import families
from specjax.checkpoints import files
from specjax.checkpoints import places
from specjax.checkpoints.families import base
from specjax.errors import UserError
from specjax.models import products

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Parameters that are multiplied with.
_MATRICES = ("kernel", "shared", "embedding")
_HEAD = "lm_head.weight"
_FLOATS = ("F32", "F16", "BF16")
# What numbers of ids are stored in.
WHOLE = ("I64", "I32")
_SHARD_BYTES = 5 * 10**9
# A parameter's path, with slashes between, and its weights -> the parameter.
Put = Callable[[str, np.ndarray], jax.Array]


@dataclasses.dataclass(frozen=True)
class Tensor:
  """One stored tensor: its shape is known, its weights are still unread."""

  shape: tuple[int, ...]
  read: Callable[..., np.ndarray]
  bfloat16: bool = False


def load_model(
    directory,
    dtype=jnp.float32,
    *,
    keep_bfloat16: bool = False,
    put: Put | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
  """Reads a directory.

  Args:
    directory: holds config.json and model.safetensors or its shards, in
      float32, bfloat16 or float16.
    dtype: of the parameters and of the module's products.
    keep_bfloat16: matrices that are stored in bfloat16 stay so, whatever the
      dtype: half the memory, and the same law (models.products).
    put: takes each parameter to its devices as soon as it is read, so that a
      host holds no more than one of them; to the first device where None.

  Returns:
    The module and its parameters, ready for `module.apply(params, ...)`.

  Raises:
    UserError: a field, file or tensor is wrong; the line names it.
  """
  directory = pathlib.Path(directory)
  get = config_lib.fields(directory / config_lib.FILE)
  family, config = config_lib.parse(get)
  with contextlib.ExitStack() as stack:
    tensors = family.tidy(get, config, opened(stack, directory))
    params = params_from_tensors(
        config,
        tensors,
        dtype,
        directory,
        keep_bfloat16=keep_bfloat16,
        put=put,
    )
  return make_module(family, config, dtype), params


def opened(
    stack: contextlib.ExitStack, directory: pathlib.Path
) -> dict[str, Tensor]:
  """The tensors of a directory by name, to be read while `stack` is open.

  Raises:
    UserError: a file is missing or damaged.
  """
  tensors = {}
  for file, expected in _weight_files(directory).items():
    tensors |= _open(stack, file, expected)
  return tensors


def make_module(family: base.Family, config: base.Config, dtype) -> nn.Module:
  """The module of a config, with products in `dtype`."""
  carried = products.carried(dtype, jax.default_backend())
  return family.module(config, dtype=dtype, carried=carried)


def params_from_tensors(
    config: base.Config,
    tensors: dict[str, Tensor],
    dtype,
    where,
    *,
    keep_bfloat16: bool = False,
    put: Put | None = None,
) -> dict[str, Any]:
  """Stored tensors -> parameters.

  Args:
    config: shape of the model.
    tensors: by stored name, tidied by the family. Copies under other names are
      accepted where they are equal.
    dtype: of the parameters.
    where: the directory, for messages.
    keep_bfloat16: matrices that are stored in bfloat16 stay so.
    put: see `load_model`.

  Raises:
    UserError: names missing, surplus and wrongly shaped tensors, a copy that
      differs, or a tensor with NaN or infinity.
  """
  family = families.of(config)
  tensors = _drop_copies(family.copies(config), tensors, where)
  return placed(
      family.table(config),
      tensors,
      dtype,
      where,
      keep_bfloat16=keep_bfloat16,
      put=put,
  )


def placed(
    table: places.Table,
    tensors: dict[str, Tensor],
    dtype,
    where,
    *,
    keep_bfloat16: bool = False,
    put: Put | None = None,
) -> dict[str, Any]:
  """Stored tensors -> parameters, by a table; see `params_from_tensors`."""
  _check_shapes(
      {name: tensor.shape for name, tensor in tensors.items()}, table, where
  )

  def read(name, matrix):
    keep = keep_bfloat16 and matrix and tensors[name].bfloat16
    wanted = jnp.bfloat16 if keep else dtype
    return _cast(name, tensors[name].read(), wanted, where)

  flat = {}
  for path, names in places.by_path(table).items():
    parts = [read(name, path[-1] in _MATRICES) for name in names]
    # A file may keep only some in bfloat16.
    wide = functools.reduce(jnp.promote_types, [part.dtype for part in parts])
    form = table[names[0]].form
    weights = form.join([part.astype(wide, copy=False) for part in parts])
    flat[path] = put("/".join(path), weights) if put else jnp.asarray(weights)
  return {"params": traverse_util.unflatten_dict(flat)}


def _drop_copies(copies: dict[str, str], tensors, where):
  """Leaves one tensor of those that writers store under several names."""
  tensors = dict(tensors)
  for name, original in copies.items():
    if original not in tensors or name not in tensors:
      continue
    kept, copy = tensors[original], tensors.pop(name)
    if copy is kept:
      continue
    if copy.shape != kept.shape or not np.array_equal(copy.read(), kept.read()):
      remedy = "must be equal or left out"
      if name == _HEAD:
        remedy += ", or the config's tie_word_embeddings be false"
      raise UserError(
          f"{where}: tensor {name} differs from {original}; it {remedy}"
      )
  return tensors


def _check_shapes(shapes, table, where):
  """One line with missing, surplus and wrongly shaped tensors."""
  missing = [f"missing {name}" for name in table if name not in shapes]
  surplus = [
      f"surplus {errors.line(name)}" for name in shapes if name not in table
  ]
  other = [
      f"{name} has shape {list(shapes[name])}, not {list(place.shape)}"
      for name, place in table.items()
      if tuple(shapes.get(name, place.shape)) != place.shape
  ]
  kinds = [errors.several(x, "; ") for x in (missing, surplus, other) if x]
  if kinds:
    raise UserError(
        f"{where}: the tensors do not fit the config: {'; '.join(kinds)}"
    )


def _cast(name, value, dtype, where) -> np.ndarray:
  """`value` in another type, where NaN and infinity are refused."""
  with np.errstate(all="ignore"):
    value = value.astype(dtype, copy=False)
  if not files.all_finite(value):
    raise UserError(
        f"{where}: tensor {name} holds NaN or infinity (as {value.dtype})"
    )
  return value


def _weight_files(directory) -> dict[pathlib.Path, set[str] | None]:
  """Weight files, each with the names that an index puts there."""
  if (directory / WEIGHTS).is_file():
    return {directory / WEIGHTS: None}
  if (directory / INDEX).is_file():
    return files.find_shards(directory / INDEX, ".safetensors")
  files.refuse_pickles(directory)
  raise UserError(f"{directory} holds neither {WEIGHTS} nor {INDEX}")


def _open(stack, path, expected) -> dict[str, Tensor]:
  """Tensors of one safetensors file, unread."""
  try:
    file = stack.enter_context(safetensors.safe_open(path, framework="np"))
    views = {name: file.get_slice(name) for name in file.keys()}
  except (safetensors.SafetensorError, OSError) as error:
    raise UserError(
        f"{path} cannot be read ({errors.reason(error)}): fetch it again"
    ) from None
  if expected is not None and expected != set(views):
    odd = map(errors.line, sorted(expected ^ set(views)))
    raise UserError(
        f"{path} and {INDEX} disagree about {errors.several(odd)}"
    )
  return {
      name: Tensor(
          tuple(view.get_shape()),
          functools.partial(_read, file, path, name, view.get_dtype()),
          bfloat16=view.get_dtype() == "BF16",
      )
      for name, view in views.items()
  }


def _read(file, path, name: str, kind: str, kinds=_FLOATS) -> np.ndarray:
  """One tensor's weights, or its numbers of other kinds."""
  if kind not in kinds:
    raise UserError(
        f"{path}: tensor {name} is of type {kind}; supported are"
        f" {', '.join(kinds)}"
    )
  return file.get_tensor(name)


def save_model(
    directory,
    module: nn.Module,
    params: dict[str, Any],
    *,
    dtype=jnp.bfloat16,
    max_shard_bytes: int = _SHARD_BYTES,
    tokenizer_file=None,
    beside: Sequence[pathlib.Path] = (),
) -> None:
  """Writes a directory that this package and transformers can read.

  The directory is complete or not there: it is built beside its place and then
  renamed. An older one is replaced if it holds only files of this kind.

  Args:
    directory: where to.
    module: gives the config.
    params: as `module.init` returns them.
    dtype: of the stored weights, bfloat16 or float32.
    max_shard_bytes: weights beyond this are split over several files.
    tokenizer_file: a spiece.model or tokenizer.json to copy in.
    beside: more files to copy in, under their own names.

  Raises:
    UserError: a tensor does not fit the config or is not finite, or the
      directory holds something else.
  """
  table = families.of(module.config).table(module.config)
  text = config_lib.dumps(module.config, dtype)
  with written(
      directory, table, params, text, dtype, max_shard_bytes
  ) as part:
    if tokenizer_file is not None:
      is_json = pathlib.Path(tokenizer_file).suffix == ".json"
      name = "tokenizer.json" if is_json else "spiece.model"
      shutil.copyfile(tokenizer_file, part / name)
    for path in beside:
      shutil.copyfile(path, part / path.name)


@contextlib.contextmanager
def written(
    directory,
    table: places.Table,
    params: dict[str, Any],
    config: str,
    dtype,
    max_shard_bytes: int = _SHARD_BYTES,
) -> Iterator[pathlib.Path]:
  """A new directory with config.json and weights, at its place in the end.

  Args:
    directory: where to; see `save_model`.
    table: of the parameters.
    params: as `module.init` returns them.
    config: text of the config.json.
    dtype: of the stored weights, bfloat16 or float32.
    max_shard_bytes: see `save_model`.

  Raises:
    UserError: as `save_model`.
  """
  if jnp.dtype(dtype) not in (jnp.bfloat16, jnp.float32):
    raise UserError(f"dtype is {dtype}; it must be bfloat16 or float32")
  leaves = _stored(table, traverse_util.flatten_dict(params["params"]))
  _check_shapes(
      {name: leaf.shape for name, leaf in leaves.items()}, table, directory
  )
  with files.fresh_directory(directory) as part:
    (part / config_lib.FILE).write_text(config, encoding="utf-8")
    _write_weights(part, leaves, table, dtype, max_shard_bytes)
    yield part


def _stored(table: places.Table, flat) -> dict[str, Any]:
  """Parameters by path -> stored tensors by name.

  What has no name keeps its path, and a parameter of another form its shape,
  so that the message about the shapes shows them.
  """
  leaves = {}
  by_path = places.by_path(table)
  for path, names in by_path.items():
    if path not in flat:
      continue
    leaf, form = flat[path], table[names[0]].form
    shapes = [table[name].shape for name in names]
    fits = leaf.shape == form.shape(shapes)
    parts = form.split(leaf, shapes) if fits else [leaf] * len(names)
    leaves |= dict(zip(names, parts))
  rest = {"/".join(path): flat[path] for path in flat.keys() - by_path.keys()}
  return leaves | rest


def _write_weights(part, leaves, table, dtype, max_shard_bytes):
  """Writes the shards, one at a time in memory, and their index."""
  size = jnp.dtype(dtype).itemsize
  sizes = {name: place.size * size for name, place in table.items()}
  weight_map = {}
  shards = _split(sizes, max_shard_bytes)
  for i, shard in enumerate(shards, 1):
    file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
    file = file if len(shards) > 1 else WEIGHTS
    arrays = {}
    for name in shard:
      value = _cast(name, np.asarray(leaves[name]), dtype, "params")
      arrays[name] = np.ascontiguousarray(value)
    safetensors.numpy.save_file(arrays, part / file, {"format": "pt"})
    # The library makes files that only their owner can read.
    (part / file).chmod((part / config_lib.FILE).stat().st_mode)
    weight_map |= dict.fromkeys(shard, file)
  if len(shards) > 1:
    index = {
        "metadata": {"total_size": sum(sizes.values())},
        "weight_map": weight_map,
    }
    (part / INDEX).write_text(
        json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )


def _split(sizes: dict[str, int], most: int) -> list[list[str]]:
  """Names in order, in groups of at most `most` bytes or a single name."""
  shards, room = [], 0
  for name, size in sizes.items():
    if not shards or size > room:
      shards.append([])
      room = most
    shards[-1].append(name)
    room -= size
  return shards
