"""One run on several hosts: a process each, which all do the same.

    with hosts.together(config.hosts, config.mesh, "specjax.run"):
      ...

Every process has the same config and texts, runs the same programs, and holds
the parts of arrays that lie on its own devices (jax.distributed). The first one
prints and writes.
"""

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
from typing import Any, Callable, Iterator

import jax
# The only way to hear of a lost process before XLA ends this one.
from jax._src import distributed
from jax.experimental import multihost_utils
import numpy as np

from specjax import errors
from specjax import sections

# A process that is gone is noticed after so many seconds at the latest.
_NOTICED = 20
# One that has told what is wrong leaves after so many.
_GRACE = 3
# What the errors of a lost one speak of.
_LOST = (
    "barrier",
    "connection",
    "coordination",
    "deadline",
    "gloo",
    "heartbeat",
    "peer",
)


def first() -> bool:
  """Whether this process prints and writes."""
  return jax.process_index() == 0


def agreed(value: Any) -> Any:
  """Numbers that each process measured for itself -> those of the first.

  What depends on them is then the same program everywhere.

  Args:
    value: a number, or a tree of them; as many in every process.
  """
  if jax.process_count() == 1:
    return value
  shared = multihost_utils.broadcast_one_to_all(
      jax.tree.map(np.float32, value)
  )
  return jax.tree.map(float, shared)


@contextlib.contextmanager
def together(
    hosts: sections.Hosts,
    mesh: sections.Mesh,
    door: str,
    remedy: str = "nothing was written; start all of them again",
) -> Iterator[None]:
  """Joins the run's processes; where one is lost, the others end.

  Must be entered before anything asks for a device.

  Args:
    hosts: how they find one another.
    mesh: of all their devices.
    door: name of the module that was started; it begins its lines.
    remedy: what to do where a process is lost.

  Raises:
    errors.UserError: they don't find one another, the mesh is not of all their
      devices, or one has ended.
  """
  if hosts.count == 1:
    yield
    return
  # Whoever is first to hear of a lost process tells it: this thread, whose
  # programs fail, or one of XLA's.
  told = threading.Lock()

  def line(reason) -> str:
    return (
        "hosts: another process has ended or is out of reach"
        f" ({errors.line(str(reason), 150)}); {remedy}"
    )

  def lost(status) -> None:
    if told.acquire(blocking=False):
      # Over a bar, where there is one.
      print(f"\r{door}: {line(status)}", file=sys.stderr, flush=True)
      _leave()

  try:
    _start(hosts, lost)
    _check_mesh(mesh)
    yield
  except Exception as error:
    told.acquire()
    # Else JAX waits for the others at Python's end, and complains. They may be
    # about to tell the same as this one.
    atexit.register(_leave, 0 if is_lost(error) else _GRACE)
    if not is_lost(error):
      raise
    raise errors.UserError(line(error)) from None


def is_lost(error: Exception) -> bool:
  """Whether it speaks of a process that has ended or is out of reach."""
  text = str(error).lower()
  known = isinstance(error, jax.errors.JaxRuntimeError)
  return known and any(word in text for word in _LOST)


def _leave(after: float = 0.0) -> None:
  """Ends this process, after so many seconds."""
  time.sleep(after)
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(1)


def _start(hosts: sections.Hosts, lost: Callable[[Any], None]) -> None:
  """Finds the other processes; `lost` is called when one is gone."""
  how = {}
  if hosts.count:
    how = dict(
        coordinator_address=hosts.coordinator,
        num_processes=hosts.count,
        process_id=hosts.index,
    )
  try:
    with _heard(lost):
      jax.distributed.initialize(
          **how,
          heartbeat_timeout_seconds=_NOTICED,
          shutdown_timeout_seconds=_NOTICED,
      )
  except ValueError as error:
    raise errors.UserError(
        f"hosts.count: the environment names no other processes ({error}); give"
        " hosts.count, hosts.index and hosts.coordinator"
    ) from None


@contextlib.contextmanager
def _heard(lost: Callable[[Any], None]) -> Iterator[None]:
  """Has jax.distributed's client call `lost`, for which it has no argument.

  Without it XLA ends the process itself, after a screenful of lines; so it is
  where JAX has no such function any more.
  """
  library = getattr(distributed, "_jax", None)
  make = getattr(library, "get_distributed_runtime_client", None)
  if make is None:
    yield
    return
  library.get_distributed_runtime_client = functools.partial(
      make, missed_heartbeat_callback=lost
  )
  try:
    yield
  finally:
    library.get_distributed_runtime_client = make


def _check_mesh(mesh: sections.Mesh) -> None:
  count = jax.device_count()
  errors.require(
      mesh.data * mesh.model == count,
      "mesh",
      f"give data x model of {count}, all devices of all hosts",
      f"{mesh.data} x {mesh.model}",
  )
