"""Drafts that are copied where something matches, and drawn elsewhere."""

import dataclasses
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from specjax.drafters import chain
from specjax.drafters import copies as copies_lib
from specjax.drafters import model as model_lib
from specjax.drafters import switch as switch_lib
from specjax.verify import proposal as proposals

# Where a row's drafts of a round are from.
_NOWHERE, _COPIED, _DRAWN = -1, 0, 1


@struct.dataclass
class Costs:
  """What rounds cost on a device, in target steps.

  Attributes:
    draft: c, of one token that the draft model drafts.
    verify_W: v of a target pass, for each of the drafter's widths.
  """

  draft: jax.Array
  verify_W: jax.Array


@struct.dataclass
class MixedParams:
  """Of a MixedDrafter; `costs` is None without a switch."""

  copies: Any
  model: Any
  costs: Costs | None


@struct.dataclass
class MixedState:
  """Between two rounds.

  Attributes:
    copies: state of what copies.
    model: of the draft model, or ().
    known_B: how many tokens the draft model's cache holds.
    accounts: one for what is copied, one for what is drawn; () without a
      switch.
    source_B: within a round, where its drafts are from; else nowhere.
    count_B: how many they are; else 0.
  """

  copies: Any
  model: Any
  known_B: jax.Array
  accounts: tuple[switch_lib.Account, ...]
  source_B: jax.Array
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
    switch: stops either in a row where it does not pay, or None.
  """

  copies: copies_lib.Copies
  model: model_lib.ModelDrafter | None = None
  switch: switch_lib.Switch | None = None

  reader = None

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
    account = lambda: self.switch.account(context.length_B)
    nothing_B = jnp.zeros_like(context.length_B)
    return MixedState(
        copies=begin(self.copies, params.copies),
        model=begin(self.model, params.model) if self.model else (),
        known_B=context.prompt_B - 1,
        accounts=(account(), account()) if self.switch else (),
        source_B=nothing_B + _NOWHERE,
        count_B=nothing_B,
    )

  def propose(self, params, state, context, key_B, width):
    """Copies for the rows that match, drawn tokens for others."""
    copied, copies_state = self.copies.propose(
        params.copies, state.copies, context, key_B, width
    )
    most_B = jnp.where(context.active_B, context.remaining_B - 1, 0)
    copied_B = jnp.minimum(copied.count_B, most_B)
    copied_B = jnp.where(self._open(state, _COPIED), copied_B, 0)
    proposal = proposals.Proposal(
        self._wide(copied.tokens_BN), copied_B, None, self.kind
    )
    source_B = jnp.where(copied_B > 0, _COPIED, _NOWHERE)
    model_state = state.model
    if self.model:
      draws_B = (copied_B <= 0) & (most_B > 0) & self._open(state, _DRAWN)
      drawn, model_state = self._drawn(
          params.model, state, context, draws_B, key_B, width
      )
      source_B = jnp.where(draws_B, _DRAWN, source_B)
      proposal = self._mix(proposal, drawn, draws_B, most_B)
    return proposal, state.replace(
        copies=copies_state,
        model=model_state,
        source_B=source_B,
        count_B=proposal.count_B,
    )

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """Hears what came of them, and settles the accounts."""
    copies_state = self.copies.observe(
        params.copies, state.copies, tokens_BT, features, count_B, context
    )
    # Of its drafts the model has read all but the last.
    known_B = jnp.where(
        state.source_B == _DRAWN,
        context.length_B + count_B - 2,
        state.known_B,
    )
    accounts = state.accounts
    if self.switch:
      spent_B = self._spent(params.costs, state)
      settle = lambda account, source: self.switch.settle(
          account,
          context.active_B,
          drafted_B=state.source_B == source,
          saved_B=count_B - 1.0,
          spent_B=spent_B,
      )
      accounts = tuple(map(settle, accounts, (_COPIED, _DRAWN)))
    return MixedState(
        copies=copies_state,
        model=state.model,
        known_B=known_B,
        accounts=accounts,
        source_B=jnp.full_like(state.source_B, _NOWHERE),
        count_B=jnp.zeros_like(state.count_B),
    )

  def _open(self, state: MixedState, source: int):
    """Rows that may have drafts from there."""
    return state.accounts[source].open_B if self.switch else True

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

  def _mix(self, copied, drawn, draws_B, most_B) -> proposals.Proposal:
    """Drawn tokens in those rows, copied ones in the others."""
    draws_B1 = draws_B[:, None]
    tokens_BN = jnp.where(
        draws_B1, self._wide(drawn.tokens_BN), copied.tokens_BN
    )
    count_B = jnp.minimum(drawn.count_B, most_B)
    point_BN = jnp.broadcast_to(~draws_B1, tokens_BN.shape)
    return proposals.Proposal(
        tokens_BN=tokens_BN,
        count_B=jnp.where(draws_B, count_B, copied.count_B),
        law=self._wide(drawn.law),
        kind=self.kind,
        point_BN=point_BN if self.kind is proposals.Kind.MIXED else None,
    )

  def _spent(self, costs: Costs, state: MixedState):
    """Target steps that a round cost each row beyond a plain one."""
    index_B = jnp.searchsorted(jnp.asarray(self.widths), state.count_B + 1)
    spent_B = costs.verify_W[index_B] - costs.verify_W[0]
    if self.model:
      drafts = costs.draft * self.model.gamma
      spent_B += jnp.where(state.source_B == _DRAWN, drafts, 0.0)
    return spent_B
