"""What followed a row's newest tokens in its own text.

The paths of a suffix tree that is never built: its strings that begin with one
of the contexts are read off the newest token's earlier places, sorted by what
follows them. The newest m tokens came before at those places where at least m
tokens are alike, and a path's count is how many of them go on like it.
"""

import jax
import jax.numpy as jnp

from specjax.drafters import copies

NOTHING = copies.NOTHING


def paths(text_S, newest, here_S, *, size: int, contexts: int, gamma: int):
  """The most frequent path behind each of the contexts of one row.

  Args:
    text_S: from copies.own_text.
    newest: place of the newest token.
    here_S: its earlier places.
    size: as many of them, or more.
    contexts: M; context m is the newest m tokens.
    gamma: tokens of a path.

  Returns:
    tokens_GM; times_GM, how often a context was followed by the path up to
    there (0 from its end on); and total_M, how often the context came.
  """
  next_GP, length_P = follow(text_S, newest, here_S, size, contexts, gamma)
  first_GP, end_GP = groups(next_GP)
  context_M1 = jnp.arange(1, contexts + 1)[:, None]
  # Before each place: how many of them come behind the context.
  seen_MP = jnp.cumsum(length_P >= context_M1, axis=1)
  seen_MP = jnp.pad(seen_MP, ((0, 0), (1, 0)))
  index_P = jnp.arange(size)

  def step(span, xs):
    """From places [low, high) to those of the most frequent child."""
    low_M1, high_M1 = span
    next_P, first_P, end_P = xs
    times_MP = seen_MP[:, end_P] - seen_MP[:, first_P]
    inside_MP = (index_P >= low_M1) & (index_P < high_M1)
    times_MP = jnp.where(inside_MP & (next_P != NOTHING), times_MP, 0)
    most_M1 = jnp.max(times_MP, axis=1, keepdims=True)
    # Of several the first, which has the smallest id.
    at_MP = jnp.where(times_MP == most_M1, index_P, size - 1)
    at_M1 = jnp.min(at_MP, axis=1, keepdims=True)
    span = first_P[at_M1], end_P[at_M1]
    return span, (next_P[at_M1[:, 0]], most_M1[:, 0])

  start_M1 = jnp.zeros_like(context_M1)
  _, (tokens_GM, times_GM) = jax.lax.scan(
      step, (start_M1, start_M1 + size), (next_GP, first_GP, end_GP)
  )
  # The newest tokens themselves are one more place.
  return tokens_GM, times_GM, seen_MP[:, -1] + 1


def follow(text_S, newest, here_S, size: int, contexts: int, gamma: int):
  """Places of one row, sorted by what follows them.

  Args:
    text_S, newest, here_S, size, contexts, gamma: as `paths` is given them.

  Returns:
    next_GP, and length_P: how many tokens before each are alike, at most M; 0
    of what is no place.
  """
  # So that one may read over both ends.
  text = jnp.pad(text_S, (contexts, gamma + 1), constant_values=NOTHING)
  (place_P,) = jnp.nonzero(here_S, size=size, fill_value=text_S.shape[0])
  back_M = contexts - jnp.arange(contexts)
  length_P = alike(text[place_P[:, None] + back_M], text[newest + back_M])
  next_PG = text[place_P[:, None] + contexts + 1 + jnp.arange(gamma)]
  *next_GP, length_P = jax.lax.sort([*next_PG.T, length_P], num_keys=gamma)
  return jnp.stack(next_GP), length_P


def alike(before_PM, newest_M):
  """How many of the M tokens before each place are the newest, length_P.

  Args:
    before_PM: the nearest first.
    newest_M: likewise.
  """
  same_PM = (before_PM == newest_M) & (newest_M != NOTHING)
  return jnp.sum(jnp.cumprod(same_PM, axis=1, dtype=jnp.int32), axis=1)


def groups(next_GP):
  """Sorted places that go on alike up to node g: first_GP, end_GP behind."""
  size = next_GP.shape[1]
  changes_GP = next_GP[:, 1:] != next_GP[:, :-1]
  changes_GP = jax.lax.cummax(changes_GP.astype(jnp.int32), axis=0) > 0
  at_GP = lambda other: jnp.where(changes_GP, jnp.arange(1, size), other)
  first_GP = jnp.pad(at_GP(0), ((0, 0), (1, 0)))
  end_GP = jnp.pad(at_GP(size), ((0, 0), (0, 1)), constant_values=size)
  return (
      jax.lax.cummax(first_GP, axis=1),
      jax.lax.cummin(end_GP, axis=1, reverse=True),
  )
