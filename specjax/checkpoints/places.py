"""Where stored tensors go: the table that a family gives of its model."""

import dataclasses
import math
from typing import Sequence

import numpy as np

from specjax.models import products


@dataclasses.dataclass(frozen=True)
class Form:
  """How stored tensors make one parameter; torch stores matrices [out, in].

  Attributes:
    kernel: is it multiplied with, as layers.Linear does?
    groups: of each part as many rows in a row make one of the M products, such
      as the heads of a group; 0 where parts are the M products.
    turned: stored [in, out], as GPT-2's are.
    held: parts that one stored tensor holds, one after another.
  """

  kernel: bool = False
  groups: int = 0
  turned: bool = False
  held: int = 1

  def join(self, stored: Sequence[np.ndarray]):
    """Stored tensors in their order -> the parameter."""
    if self.turned:
      stored = [each.T for each in stored]
    parts = [p for each in stored for p in np.split(each, self.held)]
    if self.groups:
      rows = lambda part: part.reshape(self.groups, -1, *part.shape[1:])
      whole = np.concatenate([rows(part) for part in parts], axis=1)
    else:
      whole = parts[0] if len(parts) == 1 else np.stack(parts)
    return products.to_kernel(whole) if self.kernel else whole

  def split(self, parameter, shapes: Sequence[tuple[int, ...]]) -> list:
    """What `join` was given, by the stored shapes."""
    shapes = self._parts(shapes)
    whole = products.from_kernel(parameter) if self.kernel else parameter
    if self.groups:
      ends = np.cumsum([0] + [shape[0] // self.groups for shape in shapes])
      parts = [
          whole[:, start:end].reshape(shape)
          for start, end, shape in zip(ends, ends[1:], shapes)
      ]
    else:
      parts = [whole] if len(shapes) == 1 else list(whole)
    if self.held > 1:
      parts = [np.concatenate(parts)]
    return [part.T if self.turned else part for part in parts]

  def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Of the parameter, by the stored shapes."""
    shapes = self._parts(shapes)
    whole = shapes[0]
    if self.groups:
      rows = sum(shape[0] for shape in shapes)
      whole = (self.groups, rows // self.groups, *whole[1:])
    elif len(shapes) > 1:
      whole = (len(shapes), *whole)
    if not self.kernel:
      return whole
    return products.kernel_shape(whole[-1], whole[:-1])

  def _parts(self, shapes):
    """Shapes of the parts, [out, in]."""
    shapes = [shape[::-1] if self.turned else shape for shape in shapes]
    return [
        (shape[0] // self.held, *shape[1:])
        for shape in shapes
        for _ in range(self.held)
    ]


AS_IT_IS = Form()
KERNEL = Form(kernel=True)


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a stored tensor goes.

  Attributes:
    path: of the parameter; tensors of one path make it together.
    shape: of the stored tensor.
    form: how they make it.
  """

  path: tuple[str, ...]
  shape: tuple[int, ...]
  form: Form = AS_IT_IS

  @property
  def size(self) -> int:
    """Number of weights."""
    return math.prod(self.shape)


# Stored name -> Place, every tensor; parts of one parameter in their order.
Table = dict[str, Place]


def by_path(table: Table) -> dict[tuple[str, ...], list[str]]:
  """The stored names that make each parameter."""
  paths: dict[tuple[str, ...], list[str]] = {}
  for name, place in table.items():
    paths.setdefault(place.path, []).append(name)
  return paths
