"""No drafts: the loop then is plain decoding, one token a target pass."""

import dataclasses

import jax.numpy as jnp

from specjax.verify import proposal as proposals


@dataclasses.dataclass(frozen=True)
class NoDrafter:
  """Proposes nothing."""

  kind = proposals.Kind.NONE
  nodes = 0
  depth = 0
  widths = (1,)
  taps = ()
  whole = property(lambda self: self)
  learns = False
  trees = False

  def prefill(self, params, context, *, prompt_width, slots):
    """No state."""
    del params, context, prompt_width, slots
    return ()

  def propose(self, params, state, context, key_B, width):
    """A proposal without nodes."""
    del params, key_B, width
    batch = context.length_B.shape[0]
    proposal = proposals.Proposal(
        tokens_BN=jnp.zeros((batch, 0), jnp.int32),
        count_B=jnp.zeros((batch,), jnp.int32),
        law=None,
        kind=self.kind,
    )
    return proposal, state

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """Nothing to learn."""
    del params, tokens_BT, features, count_B, context
    return state
