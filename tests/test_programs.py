"""Long processes keep within what XLA may map."""

import jax
import jax.numpy as jnp

from specjax import programs


def test_programs_are_dropped_only_where_they_are_many(monkeypatch):
  double = jax.jit(lambda x: x * 2)
  assert double(jnp.float32(3)) == 6
  assert double._cache_size() == 1
  assert not programs.drop_many() and double._cache_size() == 1
  monkeypatch.setattr(programs, "_MOST_MAPS", 0)
  assert programs.drop_many() and double._cache_size() == 0
  assert double(jnp.float32(3)) == 6
