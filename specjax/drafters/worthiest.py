"""Trees of the worthiest nodes of all that are known, more than proposed."""

import jax
import jax.numpy as jnp


def worthiest(worth_BM, parent_BM, nodes: int, count_B=None):
  """Which nodes are proposed: those that are worth most, a parent first.

  Of nodes that are worth the same the first comes first. Where no child is
  worth more than its parent, what is chosen has its parent with it.

  Args:
    worth_BM: of all known nodes, a parent before its children; -inf is none.
    parent_BM: the node above each, as a place here; -1 is the root.
    nodes: N, M at most.
    count_B: how many are chosen in each row; None is all N.

  Returns:
    chosen_BN, places among the known in rising order, M where there are no
    more of them; and parent_BN, places among the chosen, -1 is the root.
  """
  known = worth_BM.shape[1]
  worth_BN, chosen_BN = best(worth_BM, nodes)
  there_BN = worth_BN > -jnp.inf
  if count_B is not None:
    there_BN &= jnp.arange(nodes) < count_B[:, None]
  chosen_BN = jnp.where(there_BN, chosen_BN, known)
  chosen_BN = jnp.sort(chosen_BN, axis=1)
  parent_BN = take(parent_BM, chosen_BN)
  place_BN = jax.vmap(jnp.searchsorted)(chosen_BN, parent_BN)
  parent_BN = jnp.where(parent_BN < 0, -1, place_BN)
  return chosen_BN, parent_BN.astype(jnp.int32)


def best(worth_BM, nodes: int):
  """The worthiest, in falling order; the first of several comes first.

  Args:
    worth_BM: of all.
    nodes: N, M at most.

  Returns:
    worth_BN, and chosen_BN, their places.
  """
  index_BM = jax.lax.broadcasted_iota(jnp.int32, worth_BM.shape, 1)
  # Not top_k, which gathers rows that lie on several devices.
  less_BM, index_BM = jax.lax.sort([-worth_BM, index_BM], num_keys=1)
  return -less_BM[:, :nodes], index_BM[:, :nodes]


def take(known_BM, chosen_BN):
  """What is known of the chosen nodes; -1 of those that are none."""
  return jnp.take_along_axis(
      known_BM, chosen_BN, axis=1, mode="fill", fill_value=-1
  )
