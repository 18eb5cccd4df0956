"""Compiled programs, dropped before there are too many for one process."""

import gc
import pathlib

import jax

_MAPS = pathlib.Path("/proc/self/maps")
# Each program is some maps of memory; Linux gives a process 65,530 by default,
# and beyond that XLA ends it.
_MOST_MAPS = 30_000


def drop_many() -> bool:
  """Drops all compiled programs where they are many; returns whether it did.

  To be called between two pieces of work: what is used again is compiled again.
  """
  many = _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > _MOST_MAPS
  if many:
    jax.clear_caches()
    gc.collect()
  return many
