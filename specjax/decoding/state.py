"""Everything that one batch carries from round to round."""

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from specjax import settings as settings_lib
from specjax import sharding
from specjax.decoding import requests
from specjax.drafters import base
from specjax.models import cache as cache_lib


@struct.dataclass
class Tallies:
  """What happened, row by row; positions behind the cut are not judged.

  Attributes:
    rounds_B: target passes.
    empty_B: rounds in which nothing was proposed.
    drafted_B: nodes that were proposed.
    judged_BG: how often draft position g was judged.
    accepted_BG: how often its token was accepted.
    overlap_BG: sum over judged positions of sum min(p, q), where asked.
  """

  rounds_B: jax.Array
  empty_B: jax.Array
  drafted_B: jax.Array
  judged_BG: jax.Array
  accepted_BG: jax.Array
  overlap_BG: jax.Array


@struct.dataclass
class LogProbs:
  """Log-probability of each token in the buffer; 0 at prompt and padding.

  Attributes:
    model_BS: under the model's softmax, before any processing.
    law_BS: under the law that the token was drawn from.
  """

  model_BS: jax.Array
  law_BS: jax.Array


@struct.dataclass
class Rounds:
  """Each row's rounds in order (R is the largest budget).

  Attributes:
    draft_BRG: drafted tokens, -1 where none was judged.
    node_BRG: which node of the proposal each was.
    accepted_BR: how many of them were emitted.
    next_BR: the corrected or extra token, -1 where the cut left it out.
    p_BRG, q_BRG, coin_BRG: what decided each judged position.
  """

  draft_BRG: jax.Array
  node_BRG: jax.Array
  accepted_BR: jax.Array
  next_BR: jax.Array
  p_BRG: jax.Array
  q_BRG: jax.Array
  coin_BRG: jax.Array


@struct.dataclass
class State:
  """A batch between two rounds.

  Invariant: a row of length n has the target's keys and values for its first
  n - 1 positions; the token at n - 1 is `last`, read by the next round.

  Attributes:
    id_B: uint32, the requests' ids.
    tokens_BS: int32, prompt and emitted tokens, 0 beyond.
    length_B: int32, committed tokens.
    prompt_B: int32, length of the prompt.
    limit_B: int32, the length at which the budget is spent.
    done_B: bool.
    ended_B: bool, done because of an EOS.
    key_B: the rows' keys.
    sampling: the rows' settings.
    source_BL, source_mask_BL: the source, or None.
    memory: the target's reading of the source, or None.
    cache: the target's keys and values.
    drafter: the drafter's own state.
    tallies: counts.
    log_probs: where asked, else None.
    trace: where asked, else None.
  """

  id_B: jax.Array
  tokens_BS: jax.Array
  length_B: jax.Array
  prompt_B: jax.Array
  limit_B: jax.Array
  done_B: jax.Array
  ended_B: jax.Array
  key_B: jax.Array
  sampling: settings_lib.Sampling
  source_BL: jax.Array | None
  source_mask_BL: jax.Array | None
  memory: Any
  cache: cache_lib.Cache
  drafter: Any
  tallies: Tallies
  log_probs: LogProbs | None
  trace: Rounds | None

  def context(self) -> base.Context:
    """What the drafter may see."""
    return base.Context(
        id_B=self.id_B,
        tokens_BS=self.tokens_BS,
        length_B=self.length_B,
        prompt_B=self.prompt_B,
        source_BL=self.source_BL,
        source_mask_BL=self.source_mask_BL,
        memory=self.memory,
        sampling=self.sampling,
        remaining_B=self.limit_B - self.length_B,
        active_B=~self.done_B,
    )


def start(
    batch: requests.Batch,
    budget: int,
    depth: int,
    *,
    log_probs: bool = False,
    trace: bool = False,
) -> State:
  """Prompts in their buffers; nothing read yet, so `cache` is still None.

  Args:
    batch: the requests.
    budget: bound on the batch's budgets; sizes the buffers.
    depth: G.
    log_probs: whether there are buffers for log-probabilities.
    trace: whether there are buffers for a trace.
  """
  rows, prompt_width = batch.prompt_BP.shape
  columns = prompt_width + budget
  tokens_BS = jnp.zeros((rows, columns), jnp.int32)
  zeros = lambda: jnp.zeros((rows, columns), jnp.float32)
  return State(
      id_B=batch.id_B,
      tokens_BS=tokens_BS.at[:, :prompt_width].set(batch.prompt_BP),
      length_B=batch.prompt_B,
      prompt_B=batch.prompt_B,
      limit_B=batch.prompt_B + jnp.minimum(batch.budget_B, budget),
      done_B=batch.budget_B <= 0,
      ended_B=jnp.zeros((rows,), bool),
      key_B=batch.key_B,
      sampling=batch.sampling,
      source_BL=batch.source_BL,
      source_mask_BL=batch.source_mask_BL,
      memory=None,
      cache=None,
      drafter=(),
      tallies=empty_tallies(rows, depth),
      log_probs=LogProbs(zeros(), zeros()) if log_probs else None,
      trace=empty_rounds(rows, budget, depth) if trace else None,
  )


def empty_tallies(batch: int, depth: int) -> Tallies:
  """Nothing counted yet."""
  return Tallies(
      rounds_B=jnp.zeros((batch,), jnp.int32),
      empty_B=jnp.zeros((batch,), jnp.int32),
      drafted_B=jnp.zeros((batch,), jnp.int32),
      judged_BG=jnp.zeros((batch, depth), jnp.int32),
      accepted_BG=jnp.zeros((batch, depth), jnp.int32),
      overlap_BG=jnp.zeros((batch, depth), jnp.float32),
  )


def empty_rounds(batch: int, rounds: int, depth: int) -> Rounds:
  """No round recorded yet."""
  minus = lambda *shape: jnp.full((batch, rounds, *shape), -1, jnp.int32)
  zeros = lambda: jnp.zeros((batch, rounds, depth), jnp.float32)
  return Rounds(
      draft_BRG=minus(depth),
      node_BRG=minus(depth),
      accepted_BR=jnp.zeros((batch, rounds), jnp.int32),
      next_BR=minus(),
      p_BRG=zeros(),
      q_BRG=zeros(),
      coin_BRG=zeros(),
  )


def responses(state: State) -> list[np.ndarray]:
  """New tokens of each row of a batch, read back to the host."""
  tokens_BS, start_B, end_B = sharding.fetch(
      (state.tokens_BS, state.prompt_B, state.length_B)
  )
  rows = zip(tokens_BS, start_B, end_B)
  return [tokens[start:end] for tokens, start, end in rows]


def write_rows(buffer_BS, values_BT, start_B, count_B):
  """Writes the first `count` values of each row from column `start` on.

  Columns beyond the buffer are dropped, never shifted back over old values
  (jax-ml/jax#9083).
  """
  index_T = jnp.arange(values_BT.shape[1])
  columns = buffer_BS.shape[1]
  column_BT = jnp.where(
      index_T < count_B[:, None], start_B[:, None] + index_T, columns
  )
  put = lambda row, column, value: row.at[column].set(value, mode="drop")
  return jax.vmap(put)(buffer_BS, column_BT, values_BT)
