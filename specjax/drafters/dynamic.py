"""Trees of drafts whose shape follows the text: EAGLE-2's (arXiv 2406.16858).

What a path is worth is the probability that its source gives it, which stands
in for the chance that all of it is accepted. The tree grows level by level:
below each of the `top_k` worthiest nodes of a level stand its `top_k` likeliest
tokens. Of all nodes that are so known the worthiest `nodes` are proposed.

Nothing is drawn: the tree is a function of the text, its nodes are point
masses, and the rule for those keeps the target's law at any temperature.
"""

import dataclasses
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from specjax import checks
from specjax import errors
from specjax import topology as topology_lib
from specjax.drafters import drawing
from specjax.drafters import worthiest
from specjax.verify import proposal as proposals


@struct.dataclass
class DynamicState:
  """State of the source, and the nodes, among which `observe` finds a path.

  Attributes:
    source: of the source.
    tokens_BN: of the nodes.
    parent_BN: the node above each.
    read_BN: the nodes as the source has read them; -1 of those it has not.
  """

  source: Any
  tokens_BN: jax.Array
  parent_BN: jax.Array
  read_BN: jax.Array


@struct.dataclass
class _Known:
  """Nodes that are known, more than are proposed: M, a parent first.

  Attributes:
    tokens_BM: -1 stands for no token.
    worth_BM: log-probabilities of their paths.
    parent_BM: those above them, as places here; -1 is the root.
    read_BM: as a DynamicState has it.
  """

  tokens_BM: jax.Array
  worth_BM: jax.Array
  parent_BM: jax.Array
  read_BM: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class DynamicTreeDrafter:
  """Drafts a source's worthiest paths, one pass of the source a level.

  Attributes:
    source: what has laws; its gamma plays no part.
    top_k: nodes of a level that are read, and tokens below each.
    depth: G, levels.
    nodes: N, that are proposed.

  Raises:
    errors.UserError: the source drafts an argmax, or a number is out of its
      range.
  """

  source: drawing.DrawingChain
  top_k: int
  depth: int
  nodes: int

  kind = proposals.Kind.POINT
  # It has none that holds for every round.
  topology = None
  learns = False
  trees = True

  def __post_init__(self):
    errors.require(
        not self.source.argmax,
        "argmax",
        "leave it out: a tree is of the likeliest tokens",
        self.source.argmax,
    )
    check(self.top_k, self.depth, self.nodes)

  @property
  def widths(self) -> tuple[int, ...]:
    """All nodes and the newest token, in every round."""
    return (self.nodes + 1,)

  @property
  def taps(self) -> tuple[int, ...]:
    """Those of the source."""
    return self.source.taps

  @property
  def whole(self):
    """Every round has all nodes."""
    return self

  @property
  def reader(self) -> Any:
    """Gives the source's laws along a text."""
    return self.source.reader

  @property
  def _places(self) -> int:
    """That the source reads, the root among them."""
    return 1 + (self.depth - 1) * self.top_k

  def prefill(self, params, context, *, prompt_width, slots):
    """As the source begins, with slots for all it reads."""
    more = max(0, self._places - 1 - self.nodes)
    blank_BN = jnp.zeros(
        (context.length_B.shape[0], self.nodes), jnp.int32
    )
    source = self.source.prefill(
        params, context, prompt_width=prompt_width, slots=slots + more
    )
    return DynamicState(source, blank_BN, blank_BN - 1, blank_BN - 1)

  def propose(self, params, state, context, key_B, width):
    """Grows a tree, and proposes the worthiest part."""
    del key_B
    context = self.source.with_settings(context, width)
    known, source = self._grown(params, state.source, context)
    chosen_BN, parent_BN = worthiest.worthiest(
        known.worth_BM, known.parent_BM, self.nodes
    )
    tokens_BN = worthiest.take(known.tokens_BM, chosen_BN)
    read_BN = worthiest.take(known.read_BM, chosen_BN)
    # Those that stand for no token are the last ones.
    count_B = jnp.sum(tokens_BN >= 0, axis=1, dtype=jnp.int32)
    proposal = proposals.Proposal(
        tokens_BN=tokens_BN,
        count_B=jnp.where(self.source.ready(context), count_B, 0),
        law=None,
        kind=self.kind,
        tree=proposals.Tree(parent_BN, self.depth),
    )
    return proposal, DynamicState(source, tokens_BN, parent_BN, read_BN)

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """What the source read of the path becomes part of its text.

    The last of a path may be unread, as that of a chain is.
    """
    tree = proposals.Tree(state.parent_BN, self.depth)
    path_BG = tree.follow(state.tokens_BN, tokens_BT[:, : self.depth])
    read_BG = jnp.take_along_axis(
        state.read_BN, jnp.maximum(path_BG, 0), axis=1
    )
    source = self.source.keep_path(
        state.source, context, jnp.where(path_BG >= 0, read_BG, -1)
    )
    source = self.source.observe(
        params, source, tokens_BT, features, count_B, context
    )
    return state.replace(source=source)

  def _grown(self, params, source, context):
    """All known nodes, level by level, and the source's state."""
    wide = self.top_k
    logits_BV, below, source = self.source.begin(params, source, context)
    root_B1 = jnp.zeros_like(context.length_B)[:, None]
    tokens_B1W, worth_B1W = self._children(
        logits_BV[:, None], root_B1.astype(jnp.float32), context, 0
    )
    tokens_BW, worth_BW = tokens_B1W[:, 0], worth_B1W[:, 0]
    index_W = jnp.arange(wide, dtype=jnp.int32)
    own_BW = jnp.broadcast_to(index_W, tokens_BW.shape)
    first = _Known(tokens_BW, worth_BW, own_BW * 0 - 1, own_BW)
    if self.depth == 1:
      return first.replace(read_BM=own_BW * 0 - 1), source
    # All children of the root are read, in places 1 to top_k.
    places = self._places
    sees_BPP = jnp.broadcast_to(
        jnp.eye(places, dtype=bool), (*own_BW.shape[:1], places, places)
    )
    sees_BPP = sees_BPP.at[:, :, 0].set(True)
    above = jax.tree.map(lambda x: jnp.repeat(x, wide, axis=1), below)

    def level(carry, depth):
      """Reads a level's worthiest nodes; the next level's are below them."""
      source, sees_BPP, tokens_BW, worth_BW, name_BW, above = carry
      place_W = 1 + (depth - 1) * wide + index_W
      logits_BWV, below, source = self.source.read_nodes(
          params,
          source,
          context,
          jnp.maximum(tokens_BW, 0),
          place_W,
          sees_BPP,
          above,
      )
      tokens_BWW, worth_BWW = self._children(
          logits_BWV, worth_BW, context, depth
      )
      flat = lambda x_BWW: x_BWW.reshape(x_BWW.shape[0], -1)
      tokens_BX, worth_BX = flat(tokens_BWW), flat(worth_BWW)
      next_BW, chosen_BW = worthiest.best(worth_BX, wide)
      take = lambda x, index_BW: jnp.take_along_axis(
          x, index_BW.reshape(*index_BW.shape, *[1] * (x.ndim - 2)), axis=1
      )
      up_BW = chosen_BW // wide
      # They see what the nodes above them see, and themselves.
      rows_BWP = take(sees_BPP, place_W[0] + up_BW)
      rows_BWP |= (place_W + wide)[:, None] == jnp.arange(places)
      sees_BPP = jax.vmap(
          lambda sees_PP, rows_WP: sees_PP.at[place_W + wide].set(
              rows_WP, mode="drop"
          )
      )(sees_BPP, rows_BWP)
      base = wide + (depth - 1) * wide**2
      # Which of the children is read next, and in which place.
      read_BX = jax.vmap(
          lambda chosen_W: jnp.full((wide**2,), -1, jnp.int32)
          .at[chosen_W]
          .set(place_W + wide - 1)
      )(chosen_BW)
      read_BX = jnp.where(depth + 1 < self.depth, read_BX, -1)
      known = _Known(
          tokens_BX, worth_BX, jnp.repeat(name_BW, wide, axis=1), read_BX
      )
      carry = (
          source,
          sees_BPP,
          take(tokens_BX, chosen_BW),
          next_BW,
          (base + chosen_BW).astype(jnp.int32),
          jax.tree.map(lambda x: take(x, up_BW), below),
      )
      return carry, known

    start = source, sees_BPP, tokens_BW, worth_BW, own_BW, above
    (source, *_), rest = jax.lax.scan(
        level, start, jnp.arange(1, self.depth, dtype=jnp.int32)
    )

    def join(first_BW, rest_GBX):
      rest_BGX = jnp.moveaxis(rest_GBX, 0, 1)
      rest_BX = rest_BGX.reshape(rest_BGX.shape[0], -1)
      return jnp.concatenate([first_BW, rest_BX], axis=1)

    return jax.tree.map(join, first, rest), source

  def _children(self, logits_BTV, worth_BT, context, depth):
    """The likeliest tokens below some nodes.

    Of tokens that top-k and top-p leave, where rows have them.

    Returns:
      tokens_BTW and worth_BTW; -1 and -inf where there are no more.
    """
    law = self.source.law(logits_BTV, context, depth)
    kept_BTV = jnp.where(
        law.greedy[..., None] | (law.logits >= law.cut[..., None]),
        law.logits,
        -jnp.inf,
    )
    most = min(self.top_k, law.width)
    best_BTW, tokens_BTW = jax.lax.top_k(kept_BTV, most)
    missing = [(0, 0), (0, 0), (0, self.top_k - most)]
    best_BTW = jnp.pad(best_BTW, missing, constant_values=-jnp.inf)
    mass_BT1 = jax.nn.logsumexp(kept_BTV, axis=-1, keepdims=True)
    # A child is never worth more than what it stands below.
    own_BTW = jnp.minimum(best_BTW - mass_BT1, 0.0)
    there_BTW = best_BTW > -jnp.inf
    worth_BTW = jnp.where(there_BTW, worth_BT[..., None] + own_BTW, -jnp.inf)
    tokens_BTW = jnp.pad(tokens_BTW, missing)
    return jnp.where(there_BTW, tokens_BTW, -1), worth_BTW


def check(top_k: int, depth: int, nodes: int) -> None:
  """Refuses a shape that can't be.

  Raises:
    errors.UserError: a number is out of its range.
  """
  for field, value, most in (
      ("top_k", top_k, topology_lib.RANKS),
      ("depth", depth, topology_lib.DEPTH),
      ("nodes", nodes, topology_lib.NODES),
  ):
    errors.require(
        checks.is_whole(value, 1, most),
        field,
        f"give a whole number from 1 to {most}",
        value,
    )
  known = top_k + (depth - 1) * top_k**2
  errors.require(
      nodes <= known,
      "nodes",
      f"top_k {top_k} and depth {depth} know {known}; give that or less",
      nodes,
  )
