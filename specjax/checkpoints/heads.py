"""Draft heads as files: small networks that read a target's states.

A file is safetensors, the heads' parameters by their paths; its metadata
names the kind of heads, their shape, and what they are for: the target's
shape and its vocabulary. `listed` has the ids that they choose from, where
those are not all.
"""

import dataclasses
import json
import pathlib
from typing import Any

from flax import traverse_util
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from specjax import shipped
from specjax import strict_json
from specjax.checkpoints import families
from specjax.checkpoints import files
from specjax.errors import line, reason, shown, UserError
from specjax.models import listed as listed_lib

MAKER = "python -m specjax.train --config configs/train_heads.py"
_KEY = "specjax.heads"
_LISTED = "listed"
_FLOATS = [np.dtype(x) for x in (np.float32, np.float16, jnp.bfloat16)]
# Of a target's shape, what heads depend on.
_FIELDS = ("vocab_size", "d_model", "num_layers", "num_decoder_layers")


@dataclasses.dataclass(frozen=True)
class Heads:
  """Heads as they are stored.

  Attributes:
    kind: of heads, such as "medusa".
    shape: fields of the kind's own config.
    params: variables.
    listed: the ids that they choose from, rising; None where those are all.
  """

  kind: str
  shape: dict[str, Any]
  params: dict[str, Any]
  listed: np.ndarray | None = None


def shape_of(target) -> dict[str, Any]:
  """What a file says of the target that heads are for.

  Args:
    target: a Checkpoint.
  """
  config = target.module.config
  fields = {name: getattr(config, name, None) for name in _FIELDS}
  return {
      "family": families.model_type(config),
      **{name: value for name, value in fields.items() if value is not None},
      "vocabulary": target.tokenizer.fingerprint(),
  }


def save(path, heads: Heads, target, dtype=jnp.bfloat16) -> None:
  """Writes heads; the file is whole or what it was.

  Args:
    path: of the file.
    heads: what is written.
    target: the Checkpoint that they are for.
    dtype: that matrices are stored in; biases and scales stay float32.

  Raises:
    UserError: nothing can be written there.
  """
  flat = traverse_util.flatten_dict(heads.params, sep="/")
  # As in models: what is multiplied is a kernel, all else is small.
  stored = lambda name, x: np.asarray(
      x, dtype if name.endswith("/kernel") else np.float32
  )
  metadata = {
      "kind": heads.kind,
      "shape": heads.shape,
      "target": shape_of(target),
  }
  tensors = {name: stored(name, x) for name, x in flat.items()}
  if heads.listed is not None:
    tensors[_LISTED] = np.asarray(heads.listed, np.int32)
  files.write_tensors(path, tensors, {_KEY: json.dumps(metadata)})


def find(name: str) -> pathlib.Path:
  """The file of heads: a path, or a shipped name such as mini/medusa.

  Raises:
    UserError: there is none; one line.
  """
  if found := shipped.find(name):
    return found
  raise UserError(
      f"heads: {shown(name)} is no file here; give one that {MAKER} wrote"
  )


def load(name: str, target, kind: str) -> Heads:
  """Reads heads and checks whom they are for.

  Args:
    name: as `find` takes it.
    target: the Checkpoint that they are to draft for.
    kind: of heads that is wanted.

  Raises:
    UserError: they can't be had, are damaged, of another kind, or were made
      for another target; one line.
  """
  path = find(name)
  try:
    with safetensors.safe_open(path, framework="np") as file:
      noted = strict_json.loads((file.metadata() or {})[_KEY])
      flat = {key: file.get_tensor(key) for key in file.keys()}
      listed = flat.pop(_LISTED, None)
      # Names of which one goes on where another ends come among the errors.
      params = traverse_util.unflatten_dict(flat, sep="/")
      heads = Heads(noted["kind"], noted["shape"], params, listed)
      made_for = dict(noted["target"])
  except (safetensors.SafetensorError, OSError) as error:
    raise UserError(f"heads: {path} cannot be read ({reason(error)})") from None
  except (LookupError, TypeError, ValueError):
    raise UserError(
        f"heads: {path} holds no heads; give a file that {MAKER} wrote"
    ) from None
  if heads.kind != kind:
    raise UserError(
        f"heads: {path} holds heads of kind {shown(heads.kind)}, not {kind};"
        " give another file, or draft.kind"
    )
  wanted = shape_of(target)
  for field in [*wanted, *made_for]:
    if made_for.get(field) != wanted.get(field):
      raise UserError(
          f"heads: {path} was trained for a target whose {field} is"
          f" {shown(made_for.get(field))}; this one's is"
          f" {shown(wanted.get(field))}: give heads of this target"
      )
  for key, value in flat.items():
    if value.dtype not in _FLOATS or not files.all_finite(value):
      raise UserError(
          f"heads: {path} is damaged ({line(key)} holds what is no number);"
          " give another file"
      )
  if listed is not None:
    size = target.module.config.vocab_size
    good = listed.dtype == np.int32 and listed.ndim == 1
    if not good or not listed_lib.rising(listed, size):
      raise UserError(
          f"heads: {path} is damaged ({_LISTED} holds no rising ids below"
          f" {size}); give another file"
      )
  return heads


def shaped(config, name: str, shape: dict[str, Any]):
  """The config of a kind of heads, from a file's fields.

  Raises:
    UserError: the fields are of another version, or out of their range.
  """
  try:
    return config(**shape)
  except (TypeError, UserError) as error:
    raise UserError(
        f"heads: {name} is damaged ({reason(error)}); give another file"
    ) from None


def listed_of(
    name: str, heads: Heads, count: int, target, own: bool = False
) -> listed_lib.Listed | None:
  """The ids that heads choose from; None where those are all.

  Args:
    name: of the file.
    heads: as they were read.
    count: how many there should be; 0 is all.
    target: the Checkpoint that they are for.
    own: whether heads have an output matrix of their own; else they are given
      the target's of these ids, in bfloat16.

  Raises:
    UserError: there are more, or fewer.
  """
  have = 0 if heads.listed is None else len(heads.listed)
  if have != count:
    raise UserError(
        f"heads: {name} is damaged ({_LISTED} has {have} ids, not {count});"
        " give another file"
    )
  if not count:
    return None
  kernel = None
  if not own:
    kernel = listed_lib.output_kernel(
        target.module, target.params, heads.listed
    )
    # Drafts change no law: half of the bytes will do.
    kernel = kernel.astype(jnp.bfloat16)
  size = target.module.config.vocab_size
  return listed_lib.listed(heads.listed, size, kernel)


def check_params(name: str, params, shapes) -> dict[str, Any]:
  """The parameters, on the device, where they are what a module takes.

  Args:
    name: of the file.
    params: as they were read.
    shapes: the variables' shapes, as jax.eval_shape of the module's init.

  Raises:
    UserError: one is missing, too many, or of another shape.
  """
  flat = traverse_util.flatten_dict(params, sep="/")
  wanted = traverse_util.flatten_dict(shapes, sep="/")
  for key in sorted(flat.keys() | wanted.keys()):
    have = flat[key].shape if key in flat else None
    want = tuple(wanted[key].shape) if key in wanted else None
    if have != want:
      raise UserError(
          f"heads: {name} is damaged ({line(key)} is {have}, not {want});"
          " give another file"
      )
  return traverse_util.unflatten_dict(
      {key: jnp.asarray(value) for key, value in flat.items()}, sep="/"
  )
