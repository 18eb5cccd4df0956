"""Where top-k and top-p cut a law: bisection on a threshold, never a sort.

Sorting a vocabulary costs more than the pass of the model that scored it;
counting what lies above a threshold, some twenty times, does not.
"""

import jax
import jax.numpy as jnp

# Cuts mostly lie within this much of the largest logit; where one does not, a
# pass is wasted and nothing else.
_FIRST_PROBE = 8.0


def weights(logits, peak, cut_at):
  """exp(logits - peak) of tokens with logits >= cut_at, 0 of the others."""
  kept = logits >= cut_at[..., None]
  return jnp.where(kept, jnp.exp(logits - peak[..., None]), 0.0)


def cut(logits, peak, top_k, top_p):
  """Smallest logit that top-k, then top-p over what top-k left, keeps.

  Keeps the tokens with logits >= cut: at least top_k of them, or the fewest
  likeliest whose mass reaches top_p. Ties stay. Nothing is read where no place
  asks for a cut.

  Args:
    logits: [..., V] float32.
    peak: [...], the largest logit.
    top_k: [...] int32; 0, or V and more, keeps all.
    top_p: [...] float32; 1 keeps all.

  Returns:
    [...]: the smallest logit kept, or a value between it and the next smaller
    one; -inf keeps all.
  """
  limits_k = (top_k > 0) & (top_k < logits.shape[-1])
  limits_p = top_p < 1
  count = lambda at: jnp.sum(
      logits >= at[..., None], axis=-1, dtype=jnp.int32
  ).astype(jnp.float32)

  def cut_p(cut_k):
    weight = weights(logits, peak, cut_k)
    mass = lambda at: jnp.sum(
        jnp.where(logits >= at[..., None], weight, 0.0), axis=-1
    )
    need = top_p * jnp.sum(weight, axis=-1)
    least = lambda at: jnp.exp(at - peak)
    return jnp.maximum(cut_k, _bisect(limits_p, peak, need, mass, least))

  def found():
    cut_k = _bisect(
        limits_k, peak, top_k.astype(jnp.float32), count, jnp.ones_like
    )
    return jax.lax.cond(jnp.any(limits_p), lambda: cut_p(cut_k), lambda: cut_k)

  nothing = lambda: jnp.full_like(peak, -jnp.inf)
  return jax.lax.cond(jnp.any(limits_k | limits_p), found, nothing)


def _bisect(active, peak, need, amount, least):
  """Largest cut whose kept tokens amount to `need`; -inf in inactive rows.

  Halves the range of ordered bit patterns, so the exact logit is found in at
  most 33 passes. A row ends sooner, once dropping any one kept token would
  leave less than it needs: then the cut keeps the same tokens.

  Args:
    active: rows that look for a cut.
    peak: the largest logit; a cut never lies above.
    need: what the kept tokens must amount to.
    amount: cut -> amount of the tokens with logits >= cut.
    least: cut -> lower bound of what one kept token amounts to.
  """

  def step(state):
    low, high, at, done = state
    value = _ordered_float(at)
    kept = amount(value)
    enough = kept >= need
    low = jnp.where(enough & ~done, at, low)
    high = jnp.where(~enough & ~done, at, high)
    done |= (low + 1 >= high) | (enough & (kept - least(value) < need))
    at = (low & high) + ((low ^ high) >> 1)
    return low, high, at, done

  low = jnp.broadcast_to(_ordered_int(jnp.float32(-jnp.inf)), peak.shape)
  high = _ordered_int(peak) + 1
  probe = _ordered_int(peak - _FIRST_PROBE)
  done = ~active | (low + 1 >= high)
  low, *_ = jax.lax.while_loop(
      lambda state: ~jnp.all(state[-1]), step, (low, high, probe, done)
  )
  return _ordered_float(low)


def _ordered_int(value):
  """int32 in the order of the float32 values."""
  bits = jax.lax.bitcast_convert_type(value, jnp.int32)
  return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _ordered_float(bits):
  """The inverse of `_ordered_int`."""
  bits = jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
  return jax.lax.bitcast_convert_type(bits, jnp.float32)
