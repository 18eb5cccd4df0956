"""Drafts by Medusa's heads (Cai et al., arXiv 2401.10774).

A worked row, with states f: the target has read `a b c`, so there are f_0 to
f_2, and it has emitted `d`, which is `last` and has no state yet. f_2 is the
newest state: it gave `d`, head 1 gives from it what follows `d`, head 2 what
follows that. Heads know neither `last` nor one another's tokens: all drafts of
a round come from one state at once.

Each head's likeliest tokens are point masses, which the ordinary rules verify
without loss at any temperature: a chain of first choices, or a static tree by
rank (arXiv 2401.10774, section 2.3.3), in which the nodes of a depth have the
same tokens below every parent.
"""

import dataclasses
from typing import Any, ClassVar

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from specjax import errors
from specjax import sampling as sampling_lib
from specjax import topology as topology_lib
from specjax.drafters import chain
from specjax.models import medusa
from specjax.verify import proposal as proposals

# Hidden states after the final norm: what feeds the target's output matrix.
LAST = -1


@struct.dataclass
class MedusaState:
  """The state before each row's newest token, where there is one yet."""

  state_BD: jax.Array
  known_B: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class MedusaDrafter(chain.Chain):
  """Drafts what the heads hold for likeliest, one pass for all places.

  Its params are medusa.MedusaParams.

  Attributes:
    heads: the module.
    target: the model whose output matrix they share, and whose states they
      read.
    topology: of a tree; None is a chain of `gamma`.
    gamma: tokens a round; of a tree its own depth counts.

  Raises:
    errors.UserError: there are fewer heads than places.
  """

  heads: medusa.Medusa
  target: Any
  topology: topology_lib.Topology | None = None
  gamma: int

  taps: ClassVar[tuple[int, ...]] = (LAST,)
  kind = proposals.Kind.POINT
  # Heads have a law at a state, not along a text alone.
  reader = None

  def __post_init__(self):
    super().__post_init__()
    errors.require(
        self.depth <= self.heads.config.heads,
        "gamma" if self.topology is None else "tree",
        f"give {self.heads.config.heads} or less: there are no more heads",
        self.depth,
    )

  @property
  def trees(self) -> bool:
    """Whether a tree is asked for."""
    return self.topology is not None

  @property
  def shape(self) -> topology_lib.Topology:
    """The nodes of a round; a chain is a tree of first choices."""
    return self.topology or topology_lib.chain(self.gamma)

  @property
  def nodes(self) -> int:
    """N."""
    return self.shape.nodes

  @property
  def depth(self) -> int:
    """G."""
    return self.shape.depth

  @property
  def widths(self) -> tuple[int, ...]:
    """All nodes and the newest token, in every round."""
    return (self.nodes + 1,)

  def prefill(self, params, context, *, prompt_width, slots):
    """No state is known yet."""
    del params, prompt_width, slots
    batch, width = context.length_B.shape[0], self.heads.config.d_model
    carried = self.heads.carried or self.heads.dtype
    return MedusaState(
        state_BD=jnp.zeros((batch, width), carried),
        known_B=jnp.zeros((batch,), bool),
    )

  def propose(self, params, state, context, key_B, width):
    """Every head's likeliest tokens, at their places; none without a state."""
    del key_B
    shape = self.shape
    ranks = [0] * shape.depth
    for path in shape.paths:
      ranks[len(path) - 1] = max(ranks[len(path) - 1], path[-1] + 1)
    logits_BMW = medusa.logits(
        self.heads, self.target, params, state.state_BD, shape.depth
    )
    logits_BMV = self._allowed(params, logits_BMW, context, width)
    chosen = [
        _likeliest(logits_BMV[:, m], count) for m, count in enumerate(ranks)
    ]
    tokens_BN = jnp.stack(
        [chosen[len(path) - 1][:, path[-1]] for path in shape.paths], axis=1
    )
    tree = None
    if self.trees:
      parent_N = np.array(shape.parents, np.int32)
      tree = proposals.Tree(
          jnp.broadcast_to(parent_N, tokens_BN.shape), shape.depth
      )
    proposal = proposals.Proposal(
        tokens_BN=tokens_BN,
        count_B=jnp.where(state.known_B, shape.nodes, 0),
        law=None,
        kind=self.kind,
        tree=tree,
    )
    return proposal, state

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """Keeps the state that stands before the newest emitted token."""
    del params, tokens_BT, context
    [states_BTD] = features
    place_B11 = jnp.maximum(count_B - 1, 0)[:, None, None]
    newest_BD = jnp.take_along_axis(states_BTD, place_B11, axis=1)[:, 0]
    heard_B = count_B > 0
    return MedusaState(
        state_BD=jnp.where(heard_B[:, None], newest_BD, state.state_BD),
        known_B=state.known_B | heard_B,
    )

  def _allowed(self, params, logits_BMW, context, width: int):
    """Logits_BMV without what the target may not say at those places."""
    logits_BMV = logits_BMW
    if params.listed is not None:
      logits_BMV = params.listed.spread(logits_BMW)
    new_B = context.length_B - context.prompt_B
    new_BM = new_B[:, None] + jnp.arange(logits_BMV.shape[1])
    logits_BMV = sampling_lib.fit_width(logits_BMV, width)
    return sampling_lib.make_law(logits_BMV, context.sampling, new_BM).logits


def _likeliest(logits_BV, count: int):
  """token_BC, the likeliest first; far cheaper than sorting all."""
  tokens, ids_V = [], jnp.arange(logits_BV.shape[-1])
  for _ in range(count):
    token_B = sampling_lib.first_at(logits_BV, jnp.max(logits_BV, axis=-1))
    tokens.append(token_B)
    logits_BV = jnp.where(ids_V == token_B[:, None], -jnp.inf, logits_BV)
  return jnp.stack(tokens, axis=1)
