"""One run on several hosts: a process each, which all do the same.

    with hosts.together(config):
      ...

Every process has the same config and texts, runs the same programs, and holds
the parts of arrays that lie on its own devices (jax.distributed). The first one
prints and writes.
"""

import contextlib
from typing import Iterator

import jax

from specjax import errors
from specjax import sections

# A process that is gone is noticed after so many seconds at the latest.
_NOTICED = 20
# What the errors of a lost one speak of.
_LOST = (
    "gloo", "coordination", "heartbeat", "connection", "peer", "deadline"
)


def first() -> bool:
  """Whether this process prints and writes."""
  return jax.process_index() == 0


@contextlib.contextmanager
def together(config: sections.Experiment) -> Iterator[None]:
  """Joins the run's processes; where one is lost, the others end.

  Must be entered before anything asks for a device.

  Raises:
    errors.UserError: they don't find one another, the mesh is not of all their
      devices, or one has ended.
  """
  hosts = config.hosts
  if hosts.count == 1:
    yield
    return
  try:
    _start(hosts)
    _check_mesh(config.mesh)
    yield
  except jax.errors.JaxRuntimeError as error:
    line = " ".join(str(error).split())
    if not any(word in line.lower() for word in _LOST):
      raise
    raise errors.UserError(
        f"hosts: another process has ended or is out of reach ({line[:150]});"
        " nothing was written; start all of them again"
    ) from None


def _start(hosts: sections.Hosts) -> None:
  """Finds the other processes."""
  how = {}
  if hosts.count:
    how = dict(
        coordinator_address=hosts.coordinator,
        num_processes=hosts.count,
        process_id=hosts.index,
    )
  try:
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


def _check_mesh(mesh: sections.Mesh) -> None:
  count = jax.device_count()
  errors.require(
      mesh.data * mesh.model == count,
      "mesh",
      f"give data x model of {count}, all devices of all hosts",
      f"{mesh.data} x {mesh.model}",
  )
