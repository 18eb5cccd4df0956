"""The one loop: propose, score, verify, emit, commit.

A worked row (gamma 3, `a` the start token, EOS `e`):

  round  length  last  draft   accepted  next  emitted   length after
  1      1       a     b c x   2         d     b c d     4
  2      4       d     e y z   1         f     e         5, ended

Round 1 reads `a b c x` in one target pass, which writes keys and values at
slots 0..3. Slots 0..2 hold what was accepted; slot 3 holds that of `x` and is
overwritten by round 2, which starts at slot 3 with `d`. Nothing is copied.
Round 2 accepts `e`, which ends the text: the extra token is cut off.

Where drafts are a tree, its nodes have the slots behind the newest token's in
their order, and siblings the same position; what the accepted path wrote is
moved to where a chain would have written it.

Plain decoding is the same loop with a drafter that proposes nothing.
"""

import dataclasses
import functools
from typing import Any

from flax import linen as nn
from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from specjax import errors
from specjax import sampling as sampling_lib
from specjax import sharding
from specjax.decoding import requests as requests_lib
from specjax.decoding import state as state_lib
from specjax.models import cache as cache_lib
from specjax.models import reading
from specjax.verify import proposal as proposals


@struct.dataclass
class Outcome:
  """What one pass of the target comes to, along the accepted path.

  Padded to the drafter's depth, T = G + 1.

  Attributes:
    verdict: of the rule.
    emitted_BT: accepted tokens and the next one.
    count_B: how many of them count, after the cut.
    ended_B: whether an EOS is among those.
    features: the drafter's taps, one hidden_BTD each.
    log_probs: of the emitted tokens under the model and under the law, two of
      [B, T]; None where not asked for.
  """

  verdict: proposals.Verdict
  emitted_BT: jax.Array
  count_B: jax.Array
  ended_B: jax.Array
  features: tuple[jax.Array, ...]
  log_probs: tuple[jax.Array, jax.Array] | None


@dataclasses.dataclass(frozen=True)
class Loop:
  """A target, a source of drafts and a rule, compiled together.

  Attributes:
    target: the model whose law comes out.
    drafter: a drafters.base.Drafter.
    rule: verdict of (target law, proposal, key_B).
    log_probs: also report each token's log-probabilities.
    trace: also record every round; `rule` must then report its trace.
    chunk: tokens of a prompt that are read in one pass.
    narrow: score rounds of few drafts in the narrowest of the drafter's
      widths that will do, not always in the widest.
    layout: where everything lies on several devices; None is a single one.

  Raises:
    ValueError: `trace` is asked for, and the rule reports none.
  """

  target: nn.Module
  drafter: Any
  rule: Any
  log_probs: bool = False
  trace: bool = False
  chunk: int = reading.CHUNK
  narrow: bool = True
  layout: sharding.Layout | None = None

  def __post_init__(self):
    if self.trace and not getattr(self.rule, "trace", True):
      raise ValueError("trace: give the rule trace=True, too, got False")

  def prefill(
      self,
      target_params,
      drafter_params,
      batch: requests_lib.Batch,
      budget: int,
  ) -> state_lib.State:
    """Reads sources and prompts.

    Args:
      target_params: variables of the target.
      drafter_params: of the drafter.
      batch: the requests.
      budget: static bound on the batch's budgets; sizes the buffers.

    Returns:
      The State before the first round.

    Raises:
      errors.UserError: a row's own budget is above `budget`, or the layout
        does not divide the rows.
    """
    _check_budgets(batch, budget)
    if self.layout is not None:
      self.layout.check_rows(batch.prompt_B.shape[0])
    return self._prefill(target_params, drafter_params, batch, budget)

  @functools.partial(jax.jit, static_argnums=(0, 4))
  def _prefill(self, target_params, drafter_params, batch, budget):
    """`prefill`, compiled."""
    state = state_lib.start(
        batch,
        budget,
        self.drafter.depth,
        log_probs=self.log_probs,
        trace=self.trace,
    )
    state = self._laid(state)
    prompt_width = batch.prompt_BP.shape[1]
    slots = prompt_width + budget + self.drafter.nodes + 1
    memory = reading.encode(
        self.target, target_params, state.source_BL, state.source_mask_BL
    )
    cache, features = reading.read_prompt(
        self.target,
        target_params,
        state.tokens_BS,
        state.prompt_B,
        memory,
        width=prompt_width,
        slots=slots,
        chunk=self.chunk,
        taps=self.drafter.taps,
    )
    state = self._laid(state.replace(memory=memory, cache=cache))
    drafter_state = self.drafter.prefill(
        drafter_params, state.context(), prompt_width=prompt_width, slots=slots
    )
    if features:
      # As if a round had emitted the prompt behind its first token.
      drafter_state = self.drafter.observe(
          drafter_params,
          drafter_state,
          state.tokens_BS[:, 1:prompt_width],
          features,
          state.prompt_B - 1,
          state.context().replace(length_B=jnp.ones_like(state.prompt_B)),
      )
    return self._laid(state.replace(drafter=drafter_state))

  @functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
  def run(
      self,
      target_params,
      drafter_params,
      state: state_lib.State,
      until: jax.Array | None = None,
  ):
    """Rounds until every row has ended; `state` is donated.

    Args:
      target_params: variables of the target.
      drafter_params: of the drafter.
      state: from `prefill`, or from here.
      until: ends sooner, where rows have had so many rounds in all, those of
        earlier calls among them. None is a program that knows no such bound.
    """

    def going(state):
      going_B = ~state.done_B
      if until is not None:
        going_B &= state.tallies.rounds_B < until
      return jnp.any(going_B)

    def body(state):
      return self._laid(self.round(target_params, drafter_params, state))

    return self._laid(jax.lax.while_loop(going, body, self._laid(state)))

  def _laid(self, state: state_lib.State) -> state_lib.State:
    """The state where the layout wants it: in the same place every round."""
    return state if self.layout is None else self.layout.laid(state)

  def round(self, target_params, drafter_params, state: state_lib.State):
    """One round of every row that has not ended."""
    proposal, drafter_state = self.propose(drafter_params, state)
    cache, outcome = self._pass(target_params, state, proposal)
    verdict, count_B = outcome.verdict, outcome.count_B
    drafter_state = self.drafter.observe(
        drafter_params,
        drafter_state,
        outcome.emitted_BT,
        outcome.features,
        count_B,
        state.context(),
    )
    length_B = state.length_B + count_B
    return state.replace(
        tokens_BS=state_lib.write_rows(
            state.tokens_BS, outcome.emitted_BT, state.length_B, count_B
        ),
        length_B=length_B,
        done_B=state.done_B
        | outcome.ended_B
        | (length_B >= state.limit_B),
        ended_B=state.ended_B | outcome.ended_B,
        cache=cache,
        drafter=drafter_state,
        tallies=_tally(state, proposal, verdict, count_B),
        log_probs=_note_log_probs(state, outcome),
        trace=_note_round(state, proposal, verdict, count_B),
    )

  def propose(self, drafter_params, state: state_lib.State):
    """The drafter's proposal of a round, and its new state."""
    context = state.context()
    proposal, drafter_state = self.drafter.propose(
        drafter_params,
        state.drafter,
        context,
        round_keys(state),
        state.sampling.suppressed_V.shape[0],
    )
    # A round emits one token more than it accepts; a tree's nodes need have no
    # order in which the first ones would be a shallower tree.
    if proposal.tree is None:
      count_B = jnp.minimum(proposal.count_B, context.remaining_B - 1)
      proposal = proposal.replace(count_B=count_B)
    return proposal, drafter_state

  def score(self, params, state: state_lib.State, proposal):
    """The target reads `last` and the drafts in one pass.

    Returns:
      Laws with leading [B, N + 1] (row i + 1 follows node i), the model's own
      logits_BTV, the cache, and the drafter's taps.
    """
    last_B = jnp.take_along_axis(
        state.tokens_BS, state.length_B[:, None] - 1, axis=1
    )
    tokens_BT = jnp.concatenate([last_B, proposal.tokens_BN], axis=1)
    index_T = jnp.arange(tokens_BT.shape[1])
    active_BT = ~state.done_B[:, None] & (
        index_T <= proposal.count_B[:, None]
    )
    start_B, slots = state.length_B - 1, state.cache.slots
    if proposal.tree is None:
      query = cache_lib.chain_query(tokens_BT, start_B, slots, active_BT)
    else:
      query = cache_lib.tree_query(
          tokens_BT,
          np.arange(tokens_BT.shape[1]),
          start_B,
          proposal.tree.sees_BTT,
          slots,
          active_BT,
      )
    logits_BTV, cache, features = self.target.apply(
        params,
        query,
        state.cache,
        state.memory,
        taps=self.drafter.taps,
        method="decode",
    )
    new_BT = query.position_BT - state.prompt_B[:, None] + 1
    law = sampling_lib.make_law(logits_BTV, state.sampling, new_BT)
    return law, logits_BTV, cache, features

  def _pass(self, params, state: state_lib.State, proposal):
    """Scores and judges a proposal: the cache, and an Outcome.

    Where drafts may be few there is a program for each width, and the largest
    count of the batch chooses. Each is a loop of one turn or none, because a
    branch that writes a cache would copy all of it.
    """
    widths = self.drafter.widths
    whole = lambda cache: self._judged(params, state, cache, proposal)
    if not self.narrow or len(widths) == 1:
      return whole(state.cache)
    tokens_B = jnp.where(state.done_B, 0, proposal.count_B) + 1
    chosen = jnp.searchsorted(jnp.asarray(widths), jnp.max(tokens_B))
    shapes = jax.eval_shape(whole, state.cache)[1]
    zeros = lambda shape: jnp.zeros(shape.shape, shape.dtype)
    made = state.cache, jax.tree.map(zeros, shapes)
    for i, width in enumerate(widths):

      def turn(zero, made, width=width):
        # What doesn't depend on the turn would be moved out of the loop, and
        # computed in any case.
        tallies = state.tallies
        now = state.replace(
            length_B=state.length_B + zero,
            tallies=tallies.replace(rounds_B=tallies.rounds_B + zero),
        )
        return self._judged(params, now, made[0], proposal.first(width - 1))

      made = jax.lax.fori_loop(0, jnp.int32(chosen == i), turn, made)
    return made

  def _judged(self, params, state: state_lib.State, cache, proposal):
    """`_pass` over all nodes of a proposal, however many the drafter has."""
    law, logits_BTV, cache, features = self.score(
        params, state.replace(cache=cache), proposal
    )
    verdict = self.rule(law, proposal, round_keys(state))
    emitted_BT, count_B, ended_B = _emit(state, proposal, verdict)
    if proposal.tree is not None:
      start_B = state.length_B - 1
      cache = cache_lib.keep_path(cache, start_B, verdict.path_BG)
      place_BT = jnp.pad(verdict.path_BG + 1, ((0, 0), (1, 0)))
      along = lambda x_BTX: jnp.take_along_axis(
          x_BTX, place_BT.reshape(*place_BT.shape, *[1] * (x_BTX.ndim - 2)), 1
      )
      law, logits_BTV, features = jax.tree.map(
          along, (law, logits_BTV, features)
      )
    log_probs = None
    if state.log_probs is not None:
      log_probs = _log_probs(law, logits_BTV, emitted_BT)
    outcome = Outcome(
        verdict, emitted_BT, count_B, ended_B, features, log_probs
    )
    return cache, _padded(outcome, self.drafter.depth - proposal.depth)


def _padded(outcome: Outcome, missing: int) -> Outcome:
  """The outcome of a narrow pass, wider by `missing` columns."""
  if not missing:
    return outcome

  def pad(array, fill=0):
    columns = ((0, 0), (0, missing), (0, 0))[: array.ndim]
    return jnp.pad(array, columns, constant_values=fill)

  path_BG = pad(outcome.verdict.path_BG, -1)
  outcome = jax.tree.map(lambda x: x if x.ndim == 1 else pad(x), outcome)
  return outcome.replace(verdict=outcome.verdict.replace(path_BG=path_BG))


def round_keys(state: state_lib.State):
  """key_B of the rows' present round."""
  return jax.vmap(jax.random.fold_in)(state.key_B, state.tallies.rounds_B)


def _check_budgets(batch: requests_lib.Batch, budget: int) -> None:
  """Refuses a bound that would cut a row short; not while being traced."""
  budget_B = batch.budget_B
  known = not isinstance(budget_B, jax.core.Tracer)
  # Of a batch that is spread over hosts, no host sees all.
  if known and getattr(budget_B, "is_fully_addressable", True):
    most = int(np.max(np.asarray(budget_B)))
    if budget < most:
      raise errors.UserError(
          f"budget: give {most} or more, the largest of the rows' own, got"
          f" {budget}"
      )


def _emit(state, proposal: proposals.Proposal, verdict: proposals.Verdict):
  """Accepted tokens and the next one, cut at the first EOS and the budget.

  Returns:
    emitted_BT, how many of them count, and whether an EOS is among those.
  """
  path_BG = verdict.path_BG
  drafted_BG = jnp.take_along_axis(
      proposal.tokens_BN, jnp.maximum(path_BG, 0), axis=1
  )
  index_T = jnp.arange(path_BG.shape[1] + 1)
  accepted_B1 = verdict.accepted_B[:, None]
  emitted_BT = jnp.where(
      index_T == accepted_B1,
      verdict.next_token_B[:, None],
      jnp.pad(drafted_BG, ((0, 0), (0, 1))),
  )
  is_eos_BT = jnp.any(
      emitted_BT[:, :, None] == state.sampling.eos_BE[:, None, :], axis=-1
  )
  count_B = jnp.minimum(
      verdict.accepted_B + 1, state.limit_B - state.length_B
  )
  is_eos_BT &= index_T < count_B[:, None]
  ended_B = jnp.any(is_eos_BT, axis=1) & ~state.done_B
  count_B = jnp.where(ended_B, jnp.argmax(is_eos_BT, axis=1) + 1, count_B)
  return emitted_BT, jnp.where(state.done_B, 0, count_B), ended_B


def _tally(state, proposal, verdict, count_B):
  """Counts a round; positions behind the cut, and ended rows, do not count."""
  old = state.tallies
  index_G = jnp.arange(verdict.path_BG.shape[1])
  judged_BG = verdict.evaluated_BG & (index_G < count_B[:, None])
  accepted_BG = judged_BG & (index_G < verdict.accepted_B[:, None])
  return state_lib.Tallies(
      rounds_B=old.rounds_B + ~state.done_B,
      empty_B=old.empty_B + (~state.done_B & (proposal.count_B <= 0)),
      drafted_B=old.drafted_B + jnp.where(state.done_B, 0, proposal.count_B),
      judged_BG=old.judged_BG + judged_BG,
      accepted_BG=old.accepted_BG + accepted_BG,
      overlap_BG=old.overlap_BG
      + jnp.where(judged_BG, verdict.overlap_BG, 0.0),
  )


def _log_probs(law, logits_BTV, tokens_BT):
  """Of one token a place: under the model's own softmax, and under the law."""
  logits_BTV = logits_BTV.astype(jnp.float32)
  own_BT1 = jnp.take_along_axis(logits_BTV, tokens_BT[..., None], axis=-1)
  model_BT = own_BT1[..., 0] - jax.nn.logsumexp(logits_BTV, axis=-1)
  return model_BT, law.log_prob(tokens_BT)


def _note_log_probs(state, outcome: Outcome):
  """Log-probabilities of the emitted tokens, where asked."""
  if state.log_probs is None:
    return None
  note = lambda buffer, values: state_lib.write_rows(
      buffer, values, state.length_B, outcome.count_B
  )
  model_BT, law_BT = outcome.log_probs
  return state_lib.LogProbs(
      model_BS=note(state.log_probs.model_BS, model_BT),
      law_BS=note(state.log_probs.law_BS, law_BT),
  )


def _note_round(state, proposal, verdict, count_B):
  """One more entry of the trace, where asked."""
  if state.trace is None:
    return None
  index_G = jnp.arange(verdict.path_BG.shape[1])
  judged_BG = verdict.evaluated_BG & (index_G < count_B[:, None])
  node_BG = verdict.trace.node_BG
  token_BG = jnp.take_along_axis(proposal.tokens_BN, node_BG, axis=1)
  whole_B = count_B == verdict.accepted_B + 1
  entry = state_lib.Rounds(
      draft_BRG=jnp.where(judged_BG, token_BG, -1),
      node_BRG=node_BG,
      accepted_BR=jnp.minimum(verdict.accepted_B, count_B),
      next_BR=jnp.where(whole_B, verdict.next_token_B, -1),
      p_BRG=verdict.trace.p_BG,
      q_BRG=verdict.trace.q_BG,
      coin_BRG=verdict.trace.coin_BG,
  )
  rounds = state.trace.accepted_BR.shape[1]
  index_B = jnp.where(state.done_B, rounds, state.tallies.rounds_B)
  put = lambda row, i, value: row.at[i].set(value, mode="drop")
  return jax.tree.map(
      lambda buffer, value: jax.vmap(put)(buffer, index_B, value),
      state.trace,
      entry,
  )
