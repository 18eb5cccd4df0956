"""What became of each text, read back from the device."""

import dataclasses

import numpy as np

from specjax import checkpoints
from specjax import sharding
from specjax.decoding import state as state_lib


@dataclasses.dataclass(frozen=True)
class Round:
  """One round of one row, for showing.

  Attributes:
    drafted: ids that were judged, in order.
    nodes: which nodes of the proposal those are.
    accepted: how many of them were emitted.
    next: the corrected or extra id; None where the cut left it out.
    p: the target's probability of each drafted token.
    q: the draft's.
    coin: the uniform number that decided; 0 in greedy rows.
  """

  drafted: tuple[int, ...]
  nodes: tuple[int, ...]
  accepted: int
  next: int | None
  p: tuple[float, ...]
  q: tuple[float, ...]
  coin: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Result:
  """What became of one text.

  Attributes:
    text: decoded, without special tokens.
    tokens: new ids, the EOS included.
    finish: "eos", or "length" where the budget was spent.
    rounds: target passes.
    empty: how many of them were without drafts.
    drafted: tokens proposed.
    judged: how often each draft position was judged, length G.
    accepted: how often its token was accepted, length G.
    overlap: sum of sum min(p, q) over judged positions, length G; zeros
      unless the rule was asked for it.
    log_probs: of each token under the model's own softmax, or None.
    law_log_probs: of each token under the law it was drawn from, or None.
    trace: the rounds, or None.
  """

  text: str
  tokens: tuple[int, ...]
  finish: str
  rounds: int
  empty: int
  drafted: int
  judged: tuple[int, ...]
  accepted: tuple[int, ...]
  overlap: tuple[float, ...]
  log_probs: tuple[float, ...] | None
  law_log_probs: tuple[float, ...] | None
  trace: tuple[Round, ...] | None


def results(
    target: checkpoints.Checkpoint, state: state_lib.State, rows: int
) -> list[Result]:
  """The first `rows` rows of a finished batch, read back to the host."""
  # Keys are of no use outside, and numpy has no type for them.
  state = state.replace(key_B=None, cache=None, memory=None, drafter=None)
  state = sharding.fetch(state)
  return [_result(target, state, i) for i in range(rows)]


def _result(target, state: state_lib.State, i: int) -> Result:
  start, end = int(state.prompt_B[i]), int(state.length_B[i])
  new = slice(start, end)
  tokens = tuple(map(int, state.tokens_BS[i, new]))
  tallies = state.tallies
  numbers = lambda buffer: tuple(np.asarray(buffer[i]).tolist())
  log_probs = state.log_probs
  return Result(
      text=target.tokenizer.decode(tokens),
      tokens=tokens,
      finish="eos" if state.ended_B[i] else "length",
      rounds=int(tallies.rounds_B[i]),
      empty=int(tallies.empty_B[i]),
      drafted=int(tallies.drafted_B[i]),
      judged=numbers(tallies.judged_BG),
      accepted=numbers(tallies.accepted_BG),
      overlap=numbers(tallies.overlap_BG),
      log_probs=log_probs and numbers(log_probs.model_BS[:, new]),
      law_log_probs=log_probs and numbers(log_probs.law_BS[:, new]),
      trace=state.trace and _rounds(state, i),
  )


def _rounds(state: state_lib.State, i: int) -> tuple[Round, ...]:
  trace = state.trace
  rounds = []
  for r in range(int(state.tallies.rounds_B[i])):
    judged = int(np.sum(trace.draft_BRG[i, r] >= 0))
    first = lambda buffer: tuple(buffer[i, r, :judged].tolist())
    after = int(trace.next_BR[i, r])
    rounds.append(
        Round(
            drafted=first(trace.draft_BRG),
            nodes=first(trace.node_BRG),
            accepted=int(trace.accepted_BR[i, r]),
            next=None if after < 0 else after,
            p=first(trace.p_BRG),
            q=first(trace.q_BRG),
            coin=first(trace.coin_BRG),
        )
    )
  return tuple(rounds)
