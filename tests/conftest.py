"""The suite runs on the CPU, wherever it is started."""

from importlib import metadata
import os

# Before the first import of jax.
os.environ["JAX_PLATFORMS"] = "cpu"
# Most of the time is compiling, and each program runs but a few times.
_QUICK = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
]
# Halves that time; later ones have no such flag, and no flag may be unknown.
if metadata.version("jaxlib").startswith("0.10."):
  _QUICK.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([*_QUICK, os.environ.get("XLA_FLAGS", "")])

import pytest  # noqa: E402

from specjax import programs  # noqa: E402


def pytest_addoption(parser):
  """How long the longest of the statistical tests is to take."""
  parser.addoption(
      "--draws",
      type=int,
      default=16384,
      help="texts drawn either way in tests/test_shipped_law.py",
  )


@pytest.fixture(autouse=True, scope="module")
def fixture_few_programs():
  """Drops compiled programs before they are too many."""
  yield
  programs.drop_many()
