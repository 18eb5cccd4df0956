"""What drafters share that draw each token from a law.

For a tree (drafters.tree) such a drafter is the source of laws. It then also
has

  begin(params, state, context): logits_BV behind the newest token, what it
    needs of that token to read those below it (a tree of [B, 1, ...]; () is
    nothing), and its state;
  read_nodes(params, state, context, tokens_BT, place_T, sees_BTT, above_BT):
    logits_BTV behind some of a tree's places, what is needed below these, and
    its state; `above_BT` is what is needed of the places above them. See
    cache.tree_query;
  keep_path(state, context, path_BG): the state, an accepted path being part of
    the text. Nodes are numbered as they were read, place i + 1 being node i.
"""

import dataclasses

import jax.numpy as jnp

from specjax import errors
from specjax import sampling as sampling_lib
from specjax import settings as settings_lib
from specjax.drafters import chain
from specjax.verify import proposal as proposals


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawingChain(chain.Chain):
  """Options of a drafter that draws; it adds what its logits come from.

  Attributes:
    argmax: draft the argmax and report point masses, at any temperature.
    temperature: of the drafts in sampled rows; None is the row's own.
    top_k: likewise.
    top_p: likewise.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  argmax: bool = False
  temperature: float | None = None
  top_k: int | None = None
  top_p: float | None = None

  def __post_init__(self):
    super().__post_init__()
    errors.require(
        isinstance(self.argmax, bool),
        "argmax",
        "give True or False",
        self.argmax,
    )
    # Refuses what no law can be made of, and names it.
    settings_lib.Settings(**self._own())

  def ready(self, context):
    """Rows that can be drafted for, bool; it never depends on a draw."""
    return jnp.ones_like(context.active_B)

  @property
  def kind(self) -> proposals.Kind:
    """Sampled chain, or point masses where the argmax is drafted."""
    return proposals.Kind.POINT if self.argmax else proposals.Kind.CHAIN

  def draw(self, logits_BV, context, key_B, node):
    """Draft token `node` from the source's own logits.

    Args:
      logits_BV: of any width.
      context: at the top of the round, from `with_settings`.
      key_B: the rows' keys of this round.
      node: place in the chain.

    Returns:
      token_B in the target's vocabulary, and the Law that it was drawn from;
      None for point masses.
    """
    law = self.law(logits_BV, context, node)
    if self.argmax:
      return law.best, None
    return law.draw(key_B, sampling_lib.Purpose.DRAFT, node), law

  def law(self, logits, context, depth) -> sampling_lib.Law:
    """The law of the source's own logits.

    Args:
      logits: [B, ..., any width].
      context: at the top of the round, from `with_settings`.
      depth: drafted tokens before the one that is drawn from it.
    """
    settings = context.sampling
    new_B = context.length_B - context.prompt_B + depth
    spread = new_B.reshape(-1, *[1] * (logits.ndim - 2))
    return sampling_lib.make_law(
        sampling_lib.fit_width(logits, settings.suppressed_V.shape[0]),
        settings,
        jnp.broadcast_to(spread, logits.shape[:-1]),
    )

  def proposal(self, tokens_BN, law, context) -> proposals.Proposal:
    """The drawn tokens with their laws, leading [B, N] or None.

    None count in rows that are not ready. Fewer than gamma count where a
    narrower source has no token to draw: such a node was drawn from nothing, so
    it may not be judged as if it were.
    Whether a law is empty is known before the token is drawn.
    """
    count_B = jnp.full_like(context.length_B, self.gamma)
    if law is not None:
      drawn_BN = jnp.cumprod(law.possible, axis=1, dtype=jnp.int32)
      count_B = jnp.sum(drawn_BN, axis=1)
    count_B = jnp.where(self.ready(context), count_B, 0)
    return proposals.Proposal(tokens_BN, count_B, law, self.kind)

  def with_settings(self, context, width: int):
    """The context, with the drafter's own settings in sampled rows."""
    sampling = context.sampling

    def own(name, value):
      row_B = getattr(sampling, f"{name}_B")
      # More than V keeps all as V does, and fits an int32.
      value = min(value, width) if name == "top_k" else value
      return jnp.where(
          sampling.greedy_B, row_B, jnp.asarray(value, row_B.dtype)
      )

    return context.replace(
        sampling=sampling.replace(
            **{f"{name}_B": own(name, x) for name, x in self._own().items()}
        )
    )

  def _own(self) -> dict[str, float]:
    """The settings that are the drafter's own."""
    settings = {
        "temperature": self.temperature,
        "top_k": self.top_k,
        "top_p": self.top_p,
    }
    return {name: x for name, x in settings.items() if x is not None}
