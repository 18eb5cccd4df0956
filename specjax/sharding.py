"""Where arrays lie on several devices: rows on `data`, models on `model`.

The devices are a mesh of two axes. Rows of a batch, with their caches, are
spread over `data`. Each of those groups holds a whole model, spread over
`model`: attention by heads, the feed-forward by its width, embedding and head
by the vocabulary (Shoeybi et al., arXiv 1909.08053); keys and values follow
their heads. So no cache ever moves; what a layer's devices add up is one
hidden state.

The table below is the only list of what is split. XLA's partitioner makes the
rest of it, collectives included (arXiv 2105.04663).
"""

import dataclasses
import math
import re
from typing import Any, Sequence

import jax
from jax.experimental import multihost_utils
import numpy as np

from specjax import errors
from specjax.models import products

DATA, MODEL = "data", "model"
# How a draft model lies: whole in each device, or as the target does.
REPLICATED, SHARDED = "replicated", "sharded"
DRAFTS = (REPLICATED, SHARDED)
_Spec = jax.sharding.PartitionSpec


def _kernel(inside, *out) -> _Spec:
  """Of a layers.Linear, by its axes."""
  return _Spec(*products.kernel_shape(inside, out))


# Parameter: how its last axes are spread, and what it is that is split. What
# is in no line is whole in every device.
PARAMETERS = (
    (r"shared|embedding", _Spec(MODEL, None), "ids of the vocabulary"),
    (r"lm_head/kernel", _kernel(None, MODEL), "ids of the vocabulary"),
    (r"(en|de)coder_bias/table", _Spec(MODEL), "heads"),
    (
        r"(en|de)coder_layers_\d+/(attention/qkv|cross/(q|kv))/kernel",
        _kernel(None, MODEL),
        "columns of the heads",
    ),
    (
        r"layers_\d+/attention/qkv/kernel",
        _kernel(None, MODEL, None),
        "heads of keys and values",
    ),
    (
        r"layers_\d+/attention/qkv/bias",
        _Spec(MODEL, None),
        "heads of keys and values",
    ),
    (r".*/o/kernel", _kernel(MODEL, None), "columns of the heads"),
    (
        r".*/feed_forward/wi/kernel",
        _kernel(None, MODEL),
        "columns of the feed-forward",
    ),
    (
        r".*/feed_forward/wi/bias",
        _Spec(MODEL),
        "columns of the feed-forward",
    ),
    (
        r".*/feed_forward/wo/kernel",
        _kernel(MODEL, None),
        "columns of the feed-forward",
    ),
)
# Keys and values, which have rows and heads; group 1 are those of drafts.
_BY_HEAD = re.compile(r"(drafter/.*)?(cache|memory)/(key|value)/\d+")
_WHOLE = "sampling/suppressed_V"


def parameter_spec(path: str, shape: Sequence[int], devices: int) -> _Spec:
  """How one parameter is spread over the `model` axis.

  Args:
    path: its names, with slashes between.
    shape: of it.
    devices: on that axis.

  Raises:
    errors.UserError: the devices do not divide what is split.
  """
  for pattern, last, what in PARAMETERS:
    if re.fullmatch(pattern, path):
      spec = (None,) * (len(shape) - len(last)) + tuple(last)
      size = shape[spec.index(MODEL)]
      errors.require(
          size % devices == 0,
          "mesh.model",
          f"give a divisor of {size}, the {what} of {path}",
          devices,
      )
      return _Spec(*spec)
  return _Spec()


@dataclasses.dataclass(frozen=True)
class Layout:
  """A mesh, and what lies where on it.

  Attributes:
    mesh: of axes DATA and MODEL.
    drafts: one of DRAFTS, for draft models.
  """

  mesh: jax.sharding.Mesh
  drafts: str = REPLICATED

  def rows(self, batch: int) -> int:
    """The next number of rows that the `data` axis divides."""
    groups = self.mesh.shape[DATA]
    return math.ceil(batch / groups) * groups

  def check_rows(self, rows: int) -> None:
    """Refuses a batch that does not divide; see `rows`."""
    errors.require(
        rows == self.rows(rows),
        "rows",
        f"give a multiple of the {self.mesh.shape[DATA]} groups of devices of"
        f" the mesh's axis {DATA}",
        rows,
    )

  def parameter(self, path: str, shape: Sequence[int]):
    """The sharding of a parameter of the target."""
    devices = self.mesh.shape[MODEL]
    return self._named(parameter_spec(path, shape, devices))

  def put(self, path: str, weights: np.ndarray) -> jax.Array:
    """A parameter of the target, each device taking its own part."""
    return _parts(weights, self.parameter(path, weights.shape))

  def spread(self, arrays: Any) -> Any:
    """A batch's arrays with their rows over the groups; zeros fill it up."""

    def put(array):
      new = self.rows(len(array)) - len(array)
      full = np.pad(array, [(0, new)] + [(0, 0)] * (array.ndim - 1))
      return _parts(full, self._named(_Spec(DATA)))

    return jax.tree.map(put, arrays)

  def target(self, params: Any) -> Any:
    """Shardings of a target's parameters, or of what has their paths."""
    return self._parameters(params, True)

  def draft(self, params: Any) -> Any:
    """Shardings of what a drafter reads; of a model, as `drafts` says."""
    return self._parameters(params, self.drafts == SHARDED)

  def _parameters(self, params, split: bool):
    def of(path, leaf):
      _, found, name = _path(path).rpartition("params/")
      if found and split:
        return self.parameter(name, leaf.shape)
      return self._named(_Spec())

    return jax.tree_util.tree_map_with_path(of, params)

  def state(self, state: Any) -> Any:
    """Shardings of a decoding.state.State."""

    def of(path, leaf):
      path = _path(path)
      if leaf.ndim == 0 or path == _WHOLE:
        return self._named(_Spec())
      by_head = _BY_HEAD.fullmatch(path)
      if by_head and (not by_head[1] or self.drafts == SHARDED):
        return self._named(_Spec(DATA, MODEL))
      return self._named(_Spec(DATA))

    return jax.tree_util.tree_map_with_path(of, state)

  def laid(self, state: Any) -> Any:
    """The state, made to lie so; for compiled functions."""
    return jax.lax.with_sharding_constraint(state, self.state(state))

  def _named(self, spec: _Spec) -> jax.sharding.NamedSharding:
    return jax.sharding.NamedSharding(self.mesh, spec)


def layout(
    data: int, model: int, drafts: str = REPLICATED, devices=None
) -> Layout | None:
  """A layout of data x model devices; None for a single one.

  Args:
    data: groups of devices that rows are spread over.
    model: devices of each group, over which a model is spread.
    drafts: one of DRAFTS.
    devices: to take the first of; all that there are where None.

  Raises:
    errors.UserError: there are fewer devices.
  """
  if data * model == 1:
    return None
  return Layout(mesh(data, model, devices), drafts)


def mesh(data: int, model: int, devices=None) -> jax.sharding.Mesh:
  """A mesh of the first data x model devices; see `layout`."""
  devices = list(jax.devices() if devices is None else devices)
  if data * model > len(devices):
    raise errors.UserError(
        f"mesh: give data x model of {len(devices)} or less, the devices there"
        f" are, got {data} x {model}"
    )
  return jax.make_mesh(
      (data, model),
      (DATA, MODEL),
      axis_types=(jax.sharding.AxisType.Auto,) * 2,
      devices=devices[: data * model],
  )


def _parts(array: np.ndarray, where: jax.sharding.Sharding) -> jax.Array:
  """The array; each host gives the parts of its own devices."""
  return jax.make_array_from_callback(
      array.shape, where, lambda index: array[index]
  )


def fetch(tree: Any) -> Any:
  """Arrays as numpy's, read back also where they lie on several hosts."""

  def whole(leaf):
    here = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
    if here or leaf.is_fully_replicated:
      return leaf
    return multihost_utils.process_allgather(leaf, tiled=True)

  return jax.device_get(jax.tree.map(whole, tree))


def _path(keys) -> str:
  return jax.tree_util.keystr(keys, simple=True, separator="/")
