"""The one loop: propose, score, verify, emit, commit.

A worked row (gamma 3, `a` the start token, EOS `e`):

  round  length  last  draft   accepted  next  emitted   length after
  1      1       a     b c x   2         d     b c d     4
  2      4       d     e y z   1         f     e         5, ended

Round 1 reads `a b c x` in one target pass, which writes keys and values at
slots 0..3. Slots 0..2 hold what was accepted; slot 3 holds that of `x` and is
overwritten by round 2, which starts at slot 3 with `d`. Nothing is copied.
Round 2 accepts `e`, which ends the text: the extra token is cut off.

Plain decoding is the same loop with a drafter that proposes nothing.
"""

import dataclasses
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from specjax import errors
from specjax import sampling as sampling_lib
from specjax.decoding import requests as requests_lib
from specjax.decoding import state as state_lib
from specjax.models import cache as cache_lib
from specjax.models import reading
from specjax.verify import proposal as proposals


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

  Raises:
    ValueError: `trace` is asked for, and the rule reports none.
  """

  target: nn.Module
  drafter: Any
  rule: Any
  log_probs: bool = False
  trace: bool = False
  chunk: int = reading.CHUNK

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
      errors.UserError: a row's own budget is above `budget`.
    """
    _check_budgets(batch, budget)
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
    prompt_width = batch.prompt_BP.shape[1]
    slots = prompt_width + budget + self.drafter.nodes + 1
    memory = reading.encode(
        self.target, target_params, batch.source_BL, batch.source_mask_BL
    )
    cache = reading.read_prompt(
        self.target,
        target_params,
        state.tokens_BS,
        batch.prompt_B,
        memory,
        width=prompt_width,
        slots=slots,
        chunk=self.chunk,
    )
    state = state.replace(memory=memory, cache=cache)
    drafter_state = self.drafter.prefill(
        drafter_params, state.context(), prompt_width=prompt_width, slots=slots
    )
    return state.replace(drafter=drafter_state)

  @functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
  def run(self, target_params, drafter_params, state: state_lib.State):
    """Rounds until every row has ended; `state` is donated."""

    def going(state):
      return jnp.any(~state.done_B)

    def body(state):
      return self.round(target_params, drafter_params, state)

    return jax.lax.while_loop(going, body, state)

  def round(self, target_params, drafter_params, state: state_lib.State):
    """One round of every row that has not ended."""
    context, key_B = state.context(), round_keys(state)
    proposal, drafter_state = self.propose(drafter_params, state)
    law, logits_BTV, cache, features = self.score(
        target_params, state, proposal
    )
    verdict = self.rule(law, proposal, key_B)
    emitted_BT, count_B, ended_B = _emit(state, proposal, verdict)
    drafter_state = self.drafter.observe(
        drafter_params, drafter_state, emitted_BT, features, count_B, context
    )
    length_B = state.length_B + count_B
    return state.replace(
        tokens_BS=state_lib.write_rows(
            state.tokens_BS, emitted_BT, state.length_B, count_B
        ),
        length_B=length_B,
        done_B=state.done_B | ended_B | (length_B >= state.limit_B),
        ended_B=state.ended_B | ended_B,
        cache=cache,
        drafter=drafter_state,
        tallies=_tally(state, proposal, verdict, count_B),
        log_probs=_note_log_probs(
            state, law, logits_BTV, emitted_BT, count_B
        ),
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
    # A round emits one token more than it accepts.
    count_B = jnp.minimum(proposal.count_B, context.remaining_B - 1)
    return proposal.replace(count_B=count_B), drafter_state

  def score(self, params, state: state_lib.State, proposal):
    """The target reads `last` and the drafts in one pass.

    Returns:
      Laws with leading [B, N + 1] (row i follows i drafts), the model's own
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
    query = cache_lib.chain_query(
        tokens_BT, state.length_B - 1, state.cache.slots, active_BT
    )
    logits_BTV, cache, features = self.target.apply(
        params,
        query,
        state.cache,
        state.memory,
        taps=self.drafter.taps,
        method="decode",
    )
    new_BT = (state.length_B - state.prompt_B)[:, None] + index_T
    law = sampling_lib.make_law(logits_BTV, state.sampling, new_BT)
    return law, logits_BTV, cache, features


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
      drafted_B=old.drafted_B + jnp.where(state.done_B, 0, proposal.count_B),
      judged_BG=old.judged_BG + judged_BG,
      accepted_BG=old.accepted_BG + accepted_BG,
      overlap_BG=old.overlap_BG
      + jnp.where(judged_BG, verdict.overlap_BG, 0.0),
  )


def _note_log_probs(state, law, logits_BTV, emitted_BT, count_B):
  """Log-probabilities of the emitted tokens, where asked."""
  if state.log_probs is None:
    return None
  logits_BTV = logits_BTV.astype(jnp.float32)
  own_BT1 = jnp.take_along_axis(logits_BTV, emitted_BT[..., None], axis=-1)
  model_BT = own_BT1[..., 0] - jax.nn.logsumexp(logits_BTV, axis=-1)
  note = lambda buffer, values: state_lib.write_rows(
      buffer, values, state.length_B, count_B
  )
  return state_lib.LogProbs(
      model_BS=note(state.log_probs.model_BS, model_BT),
      law_BS=note(state.log_probs.law_BS, law.log_prob(emitted_BT)),
  )


def _note_round(state, proposal, verdict, count_B):
  """One more entry of the trace, where asked."""
  if state.trace is None:
    return None
  index_G = jnp.arange(proposal.tokens_BN.shape[1])
  judged_BG = verdict.evaluated_BG & (index_G < count_B[:, None])
  whole_B = count_B == verdict.accepted_B + 1
  entry = state_lib.Rounds(
      draft_BRG=jnp.where(judged_BG, proposal.tokens_BN, -1),
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
