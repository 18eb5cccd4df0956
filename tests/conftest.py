"""The suite runs on the CPU, wherever it is started."""

import os

# Before the first import of jax.
os.environ["JAX_PLATFORMS"] = "cpu"
