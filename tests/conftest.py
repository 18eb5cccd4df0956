"""The suite runs on the CPU, wherever it is started."""

import gc
import os
import pathlib

# Before the first import of jax.
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import pytest  # noqa: E402

_MAPS = pathlib.Path("/proc/self/maps")
# Linux gives a process 65,530 by default, and XLA dies without a word there.
_MOST_MAPS = 30_000


@pytest.fixture(autouse=True, scope="module")
def fixture_few_programs():
  """Drops compiled programs, some maps of memory each, before they are many."""
  yield
  if _MAPS.exists() and len(_MAPS.read_text().splitlines()) > _MOST_MAPS:
    jax.clear_caches()
    gc.collect()
