"""One run on several hosts: a process each, which all do the same.

    with hosts.together(config.hosts, config.mesh, "specjax.run"):
      ...

Every process has the same config and texts, runs the same programs, and holds
the parts of arrays that lie on its own devices (jax.distributed). The first one
prints and writes.
"""

import atexit
import contextlib
import hashlib
import os
import subprocess
import sys
import time
from typing import Any, Iterator

import jax
from jax.experimental import multihost_utils
import numpy as np

from specjax import errors
from specjax import last_words
from specjax import sections

# A process that is gone is noticed after so many seconds at the latest.
_NOTICED = 20
# One that has told what is wrong leaves after so many.
_GRACE = 3
_STDERR = 2
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


def check_same(**parts: Any) -> None:
  """Refuses to go on where processes were asked for different things.

  They would run different programs, and wait for each other without end.

  Args:
    **parts: name -> what must be the same in every process, up to its repr.

  Raises:
    errors.UserError: a process has another one than the first; in all of them.
  """
  if jax.process_count() == 1:
    return
  digest = lambda part: hashlib.sha256(repr(part).encode()).digest()
  own = [np.frombuffer(digest(part), np.uint8) for part in parts.values()]
  of_all = multihost_utils.process_allgather(np.stack(own))
  for i, others in enumerate(of_all):
    for name, other, first_one in zip(parts, others, of_all[0]):
      if not np.array_equal(other, first_one):
        raise errors.UserError(
            f"hosts: process {i} has other {name} than process 0; give the"
            " same command and files to all"
        )


@contextlib.contextmanager
def together(
    hosts: sections.Hosts,
    mesh: sections.Mesh,
    door: str,
    remedy: str = "nothing was written; start all of them again",
) -> Iterator[None]:
  """Joins the run's processes; where one is lost, the others end.

  They end at once, with a line of `last_words`. Must be entered before
  anything asks for a device.

  Args:
    hosts: how they find one another.
    mesh: of all their devices.
    door: name of the module that was started; it begins the line.
    remedy: what to do where a process is lost; it ends the line.

  Raises:
    errors.UserError: they don't find one another, or the mesh is not of all
      their devices.
  """
  if hosts.count == 1:
    yield
    return
  with _last_words(door, remedy):
    try:
      _start(hosts)
      _check_mesh(mesh)
      yield
    except Exception as error:
      if is_lost(error):
        os.write(_STDERR, last_words.line(str(error).encode()))
        _leave()
      # JAX would wait for the others at Python's end, and complain. They may be
      # about to tell the same as this one.
      atexit.register(_leave, _GRACE)
      raise


@contextlib.contextmanager
def _last_words(door: str, remedy: str) -> Iterator[None]:
  """Has what XLA prints go through last_words; Python's goes on as before."""
  sys.stderr.flush()
  own = os.dup(_STDERR)
  teller = subprocess.Popen(
      [sys.executable, last_words.__file__, door, remedy],
      stdin=subprocess.PIPE,
  )
  sys.stderr = os.fdopen(
      own, "w", buffering=1, encoding="utf-8", errors="backslashreplace"
  )
  os.dup2(teller.stdin.fileno(), _STDERR)
  teller.stdin.close()
  try:
    yield
  except BaseException:
    # This process has words of its own.
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)
    raise
  os.dup2(own, _STDERR)
  teller.wait()


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


def _start(hosts: sections.Hosts) -> None:
  """Finds the other processes."""
  how = {}
  if hosts.count:
    how = dict(
        coordinator_address=hosts.coordinator,
        num_processes=hosts.count,
        process_id=hosts.index,
    )
  # Its notifier would keep SIGTERM from ending this process.
  jax.config.update("jax_enable_preemption_service", False)
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
