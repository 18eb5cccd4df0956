"""Trees of drafts from a source of laws: a static shape, filled each round."""

import dataclasses
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from specjax import errors
from specjax import sampling as sampling_lib
from specjax import topology as topology_lib
from specjax.drafters import drawing
from specjax.verify import proposal as proposals

Kind = proposals.Kind
# How siblings come about -> what they are to a verifier.
SIBLINGS = {
    "top": Kind.POINT,
    "distinct": Kind.DISTINCT,
    "independent": Kind.INDEPENDENT,
}


@struct.dataclass
class TreeState:
  """State of the source, and the nodes, among which `observe` finds a path."""

  source: Any
  tokens_BN: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeDrafter:
  """Drafts a tree of a source's tokens, one pass of the source a level.

  Siblings are the likeliest tokens in their order (point masses, exact at any
  temperature), or drawn from the source's law, without one another or each for
  itself. In greedy rows they are the likeliest ones, whichever is asked for.

  Attributes:
    source: what has laws; its gamma plays no part.
    topology: of the tree.
    siblings: one of SIBLINGS.

  Raises:
    errors.UserError: the source drafts an argmax, siblings are of no such
      kind, or drawn ones leave out a rank.
  """

  source: drawing.DrawingChain
  topology: topology_lib.Topology
  siblings: str = "top"

  learns = False
  trees = True

  def __post_init__(self):
    errors.require(
        not self.source.argmax,
        "argmax",
        "leave it out: siblings says how a tree is drawn",
        self.source.argmax,
    )
    errors.require(
        self.siblings in SIBLINGS,
        "siblings",
        f"give one of {', '.join(SIBLINGS)}",
        self.siblings,
    )
    errors.require(
        self.argmax or self.topology.whole,
        "tree",
        "drawn siblings have no ranks to leave out; give all up to the last,"
        " or siblings=top",
        topology_lib.dump(self.topology.paths),
    )

  @property
  def argmax(self) -> bool:
    """Whether the first sibling is the argmax at any temperature."""
    return self.siblings == "top"

  @property
  def kind(self) -> Kind:
    """By how siblings come about."""
    return SIBLINGS[self.siblings]

  @property
  def nodes(self) -> int:
    """N."""
    return self.topology.nodes

  @property
  def depth(self) -> int:
    """G."""
    return self.topology.depth

  @property
  def widths(self) -> tuple[int, ...]:
    """All nodes and the newest token, in every round."""
    return (self.nodes + 1,)

  @property
  def whole(self):
    """Every round has all nodes."""
    return self

  @property
  def taps(self) -> tuple[int, ...]:
    """Those of the source."""
    return self.source.taps

  @property
  def reader(self) -> Any:
    """Gives its laws along a text."""
    return self.source.reader

  def prefill(self, params, context, *, prompt_width, slots):
    """As the source begins."""
    batch = context.length_B.shape[0]
    return TreeState(
        source=self.source.prefill(
            params, context, prompt_width=prompt_width, slots=slots
        ),
        tokens_BN=jnp.zeros((batch, self.nodes), jnp.int32),
    )

  def propose(self, params, state, context, key_B, width):
    """The source reads a level, its children are drawn, and so on."""
    context = self.source.with_settings(context, width)
    tree = self._tree(context.length_B)
    logits_BV, below, source = self.source.begin(
        params, state.source, context
    )
    logits_BTV, laws, nodes, places = logits_BV[:, None], [], {}, ()
    for depth in range(self.depth):
      upper, places = places, self.topology.level(depth)
      if depth:
        # What stands for no token is never accepted, whatever follows it.
        tokens_BT = jnp.stack([nodes[place - 1] for place in places], axis=1)
        up = [upper.index(self.topology.parents[p - 1] + 1) for p in places]
        logits_BTV, below, source = self.source.read_nodes(
            params,
            source,
            context,
            jnp.maximum(tokens_BT, 0),
            np.array(places),
            tree.sees_BTT,
            jax.tree.map(lambda x_BTX: x_BTX[:, np.array(up)], below),
        )
      law = self.source.law(logits_BTV, context, depth)
      nodes |= self._draw(law, places, context.sampling.greedy_B, key_B)
      laws.append(law)
    tokens_BN = jnp.stack([nodes[i] for i in range(self.nodes)], axis=1)
    joined = lambda *fields: jnp.concatenate(fields, axis=1)
    proposal = proposals.Proposal(
        tokens_BN=tokens_BN,
        count_B=jnp.where(self.source.ready(context), self.nodes, 0),
        law=None if self.argmax else jax.tree.map(joined, *laws),
        kind=self.kind,
        tree=tree,
    )
    return proposal, TreeState(source, tokens_BN)

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """What the source read of the path becomes part of its text.

    Tokens behind the last that counts may spell a path, too: what is moved for
    them lies behind the text, and is written anew before it is read.
    """
    path_BG = self._tree(context.length_B).follow(
        state.tokens_BN, tokens_BT[:, : self.depth]
    )
    source = self.source.keep_path(state.source, context, path_BG)
    source = self.source.observe(
        params, source, tokens_BT, features, count_B, context
    )
    return state.replace(source=source)

  def _tree(self, like_B) -> proposals.Tree:
    parent_N = jnp.asarray(self.topology.parents, jnp.int32)
    shape = like_B.shape + parent_N.shape
    return proposals.Tree(jnp.broadcast_to(parent_N, shape), self.depth)

  def _draw(self, law, places, greedy_B, key_B):
    """The children of some places.

    Args:
      law: leading [B, M], of what follows each of M places.
      places: those.
      greedy_B: rows that take the likeliest, whatever the kind.
      key_B: the rows' keys of this round.

    Returns:
      Node -> token_B.
    """
    paths, drawn = self.topology.paths, {}
    child = {
        (m, paths[node][-1]): node
        for m, place in enumerate(places)
        for node in self.topology.children(place)
    }
    greedy_B11 = greedy_B[:, None, None]
    # Of a drawn sibling top-k and top-p leave some; ranks are of all tokens.
    left_BMV = law.logits
    if not self.argmax:
      kept_BMV = jnp.where(
          law.logits >= law.cut[..., None], law.logits, -jnp.inf
      )
      left_BMV = jnp.where(greedy_B11, law.logits, kept_BMV)
    ids_V = jnp.arange(law.width)
    here = list(range(len(places)))
    for rank in range(1 + max(rank for _, rank in child)):
      last = {m: max(r for n, r in child if n == m) for m in here}
      stay = [i for i, m in enumerate(here) if last[m] >= rank]
      here = [here[i] for i in stay]
      left_BMV = left_BMV[:, np.array(stay)]
      made = [child.get((m, rank)) for m in here]
      token_BM = self._choose(left_BMV, made, greedy_B, key_B)
      for i, m in enumerate(here):
        if (m, rank) in child:
          drawn[child[m, rank]] = token_BM[:, i]
      taken_BMV = ids_V == token_BM[..., None]
      if self.kind is Kind.INDEPENDENT:
        taken_BMV &= greedy_B11
      left_BMV = jnp.where(taken_BMV, -jnp.inf, left_BMV)
    return drawn

  def _choose(self, left_BMV, nodes, greedy_B, key_B):
    """One token_BM of what is left, -1 where nothing is.

    Args:
      left_BMV: logits of tokens that may still be chosen.
      nodes: of each place, the node that is chosen.
      greedy_B: as `_draw` is given it.
      key_B: the rows' keys of this round.
    """
    peak_BM = jnp.max(left_BMV, axis=-1)
    best_BM = sampling_lib.first_at(left_BMV, peak_BM)

    def drawn():
      one = lambda node, weights_BV, best_B: sampling_lib.draw(
          sampling_lib.fold(key_B, sampling_lib.Purpose.DRAFT, node),
          weights_BV,
          best_B,
      )
      some_BM = peak_BM > -jnp.inf
      peak_BM1 = jnp.where(some_BM, peak_BM, 0.0)[..., None]
      weights_BMV = jnp.exp(left_BMV - peak_BM1)
      token_BM = jax.vmap(one, in_axes=(0, 1, 1), out_axes=1)(
          jnp.array(nodes), weights_BMV, best_BM
      )
      return jnp.where(greedy_B[:, None], best_BM, token_BM)

    token_BM = best_BM
    if not self.argmax:
      token_BM = jax.lax.cond(jnp.all(greedy_B), lambda: best_BM, drawn)
    return jnp.where(peak_BM > -jnp.inf, token_BM, -1)
