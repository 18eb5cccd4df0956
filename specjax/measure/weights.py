"""Which weights one step of a decoder reads."""

from typing import Any

import jax


def of_a_step(params: dict[str, Any]) -> list[jax.Array]:
  """Leaves that a decoder step multiplies a token with.

  Not the encoder's, nor what made the source's keys and values, nor an
  embedding that is only looked up; a tied one is the head, too.

  Args:
    params: variables of a T5 or of a decoder.
  """
  params = params["params"]
  looked_up = ("shared", "embedding") if "lm_head" in params else ()
  skipped = ("encoder", *looked_up)
  return [
      leaf
      for path, leaf in jax.tree_util.tree_leaves_with_path(params)
      if not path[0].key.startswith(skipped)
      and [key.key for key in path[1:3]] != ["cross", "kv"]
  ]
