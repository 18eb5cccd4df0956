"""Drafts that are copied where something matches, and drawn elsewhere."""

import dataclasses
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from specjax import errors
from specjax.drafters import chain
from specjax.drafters import copies as copies_lib
from specjax.drafters import model as model_lib
from specjax.drafters import switch as switch_lib
from specjax.verify import proposal as proposals

@struct.dataclass
class MixedParams:
  """Of a MixedDrafter; `costs` is None without a switch."""

  copies: Any
  model: Any
  costs: switch_lib.Costs | None


@struct.dataclass
class MixedState:
  """Between two rounds.

  Attributes:
    copies: state of what copies.
    model: of the draft model, or ().
    known_B: how many tokens the draft model's cache holds.
    book: of the switch, at the top of a round; None without one.
    paid: within a round, the book once its drafts are paid for.
    class_B: within a round, of a row's drafts, see drafters.switch; else
      NOWHERE.
    count_B: how many they are; else 0.
  """

  copies: Any
  model: Any
  known_B: jax.Array
  book: switch_lib.Book | None
  paid: switch_lib.Book | None
  class_B: jax.Array
  count_B: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixedDrafter(chain.Chain):
  """Copies where it can; elsewhere a draft model drafts, or nothing does.

  A row is of one kind in a round. Which of them depends on its text so far,
  and with a switch on what became of its earlier drafts: on nothing that is
  yet to be drawn. The draft model is not run where no row needs it; before it
  drafts it reads what was emitted in the meantime.

  Attributes:
    copies: what copies.
    model: what drafts elsewhere, or None.
    switch: has a row make only the drafts that pay; None: all there are.

  Raises:
    errors.UserError: what copies drafts trees.
  """

  copies: copies_lib.Copies
  model: model_lib.ModelDrafter | None = None
  switch: switch_lib.Switch | None = None

  reader = None

  def __post_init__(self):
    super().__post_init__()
    errors.require(
        not self.copies.trees,
        "copies",
        "only chains are mixed; give copies that draft no trees",
        type(self.copies).__name__,
    )

  @property
  def gamma(self) -> int:
    """Tokens a round at most."""
    return max(self.copies.gamma, self.model.gamma if self.model else 0)

  @property
  def kind(self) -> proposals.Kind:
    """Point masses and drawn tokens, where there are such."""
    drawn = self.model and not self.model.argmax
    return proposals.Kind.MIXED if drawn else proposals.Kind.POINT

  @property
  def widths(self) -> tuple[int, ...]:
    """Those of what copies, and that of the draft model."""
    drawn = self.model.widths if self.model else ()
    return tuple(sorted({*self.copies.widths, *drawn}))

  @property
  def whole(self) -> "MixedDrafter":
    """Its draft model draws gamma tokens wherever it draws."""
    model = self.model and self.model.whole
    return dataclasses.replace(self, model=model)

  @property
  def learns(self) -> bool:
    """Whether what copies does."""
    return self.copies.learns

  def adopt(self, params: MixedParams, responses) -> MixedParams:
    """As what copies adopts them."""
    return params.replace(copies=self.copies.adopt(params.copies, responses))

  def prefill(self, params, context, *, prompt_width, slots):
    """Both begin."""
    begin = lambda drafter, own: drafter.prefill(
        own, context, prompt_width=prompt_width, slots=slots
    )
    nothing_B = jnp.zeros_like(context.length_B)
    book = self.switch.start(nothing_B) if self.switch else None
    return MixedState(
        copies=begin(self.copies, params.copies),
        model=begin(self.model, params.model) if self.model else (),
        known_B=context.prompt_B - 1,
        book=book,
        paid=book,
        class_B=nothing_B + switch_lib.NOWHERE,
        count_B=nothing_B,
    )

  def propose(self, params, state, context, key_B, width):
    """Copies for the rows that match, drawn tokens for others."""
    room_B = jnp.where(context.active_B, context.remaining_B - 1, 0)
    match, paid = self._matched(params, state, context, room_B)
    copied = self.copies.proposal(match)
    proposal = proposals.Proposal(
        self._wide(copied.tokens_BN), copied.count_B, None, self.kind
    )
    copies_B = copied.count_B > 0
    class_B = jnp.where(copies_B, match.trust_B, switch_lib.NOWHERE)
    model_state = state.model
    if self.model:
      drawn_B = jnp.where(copies_B, 0, jnp.minimum(room_B, self.model.gamma))
      if self.switch:
        drawn_B, paid = self.switch.choose(
            paid,
            context.length_B - context.prompt_B,
            jnp.full_like(class_B, switch_lib.DRAWN),
            drawn_B,
            params.costs.wider_W + params.costs.draft * self.model.gamma,
            self.widths,
        )
      draws_B = drawn_B > 0
      drawn, model_state = self._drawn(
          params.model, state, context, draws_B, key_B, width
      )
      class_B = jnp.where(draws_B, switch_lib.DRAWN, class_B)
      proposal = self._mix(proposal, drawn, draws_B, drawn_B)
    return proposal, state.replace(
        model=model_state,
        paid=paid,
        class_B=class_B,
        count_B=proposal.count_B,
    )

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """Hears what came of them, and brings the book up to date."""
    copies_state = self.copies.observe(
        params.copies, state.copies, tokens_BT, features, count_B, context
    )
    # Of its drafts the model has read all but the last.
    known_B = jnp.where(
        state.class_B == switch_lib.DRAWN,
        context.length_B + count_B - 2,
        state.known_B,
    )
    book = None
    if self.switch:
      book = self.switch.settle(
          state.paid, state.class_B, state.count_B, count_B - 1
      )
    return MixedState(
        copies=copies_state,
        model=state.model,
        known_B=known_B,
        book=book,
        paid=book,
        class_B=jnp.full_like(state.class_B, switch_lib.NOWHERE),
        count_B=jnp.zeros_like(state.count_B),
    )

  def _matched(self, params, state, context, room_B):
    """What is copied, at most `room` tokens, and the book once it is paid."""
    find = lambda context: self.copies.match(
        params.copies, state.copies, context
    )
    if not self.switch:
      match = find(context)
      count_B = jnp.minimum(match.count_B, room_B)
      return match.replace(count_B=count_B), None
    emitted_B = context.length_B - context.prompt_B
    looks_B, book = self.switch.look(
        state.book, room_B > 0, emitted_B, params.costs, self.widths
    )
    zeros = lambda shape: jnp.zeros(shape.shape, shape.dtype)
    nothing = jax.tree.map(zeros, jax.eval_shape(find, context))
    match = jax.lax.cond(
        jnp.any(looks_B),
        lambda: find(context.replace(active_B=looks_B)),
        lambda: nothing,
    )
    count_B, book = self.switch.choose(
        book,
        emitted_B,
        match.trust_B,
        jnp.where(looks_B, jnp.minimum(match.count_B, room_B), 0),
        params.costs.wider_W,
        self.widths,
        paid=params.costs.matching,
    )
    return match.replace(count_B=count_B), book

  def _wide(self, tree_BN):
    """Padded to N nodes."""
    pad = lambda x: jnp.pad(
        x, [(0, 0), (0, self.nodes - x.shape[1])] + [(0, 0)] * (x.ndim - 2)
    )
    return jax.tree.map(pad, tree_BN)

  def _drawn(self, params, state, context, draws_B, key_B, width):
    """The draft model's proposal for these rows, and its state."""
    context = context.replace(active_B=draws_B)
    model_state = self.model.catch_up(
        params, state.model, context, state.known_B, self.nodes + 1
    )

    def draw(zero, made):
      # It depends on the turn: else it would be moved out of the loop.
      now = context.replace(length_B=context.length_B + zero)
      return self.model.propose(params, made[1], now, key_B, width)

    shapes = jax.eval_shape(draw, 0, (None, model_state))[0]
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    # A branch that writes a cache would copy it; a loop of no turns doesn't.
    turns = jnp.int32(jnp.any(draws_B))
    return jax.lax.fori_loop(0, turns, draw, (nothing, model_state))

  def _mix(self, copied, drawn, draws_B, drawn_B) -> proposals.Proposal:
    """Drawn tokens in those rows, copied ones in the others."""
    draws_B1 = draws_B[:, None]
    tokens_BN = jnp.where(
        draws_B1, self._wide(drawn.tokens_BN), copied.tokens_BN
    )
    count_B = jnp.minimum(drawn.count_B, drawn_B)
    point_BN = jnp.broadcast_to(~draws_B1, tokens_BN.shape)
    return proposals.Proposal(
        tokens_BN=tokens_BN,
        count_B=jnp.where(draws_B, count_B, copied.count_B),
        law=self._wide(drawn.law),
        kind=self.kind,
        point_BN=point_BN if self.kind is proposals.Kind.MIXED else None,
    )
