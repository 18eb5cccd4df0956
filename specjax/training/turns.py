"""Several hosts that train together: one writes, and the others wait.

What all of them write with each other, the checkpoints, is orbax's matter.
"""

import contextlib
import itertools
from typing import Iterator

import jax
from orbax.checkpoint import multihost

from specjax import hosts

# A host may be busy for long, with its teacher's texts, say. One that is lost
# ends the others all the same.
_PATIENCE = 7 * 24 * 3600
_numbers = itertools.count()


def meet() -> None:
  """Waits until all processes are here; a single one goes on at once."""
  # By JAX's coordination service: a collective gives up too soon.
  multihost.sync_global_processes(
      f"specjax_{next(_numbers)}",
      timeout=_PATIENCE,
      processes=set(range(jax.process_count())),
  )


@contextlib.contextmanager
def first_alone() -> Iterator[None]:
  """The first process is through the block before the others begin it.

  So what it makes and keeps on disk is there for them.
  """
  if not hosts.first():
    meet()
  yield
  if hosts.first():
    meet()
