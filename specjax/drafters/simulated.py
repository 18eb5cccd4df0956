"""Drafts that are right at a prescribed rate, to measure the loop itself.

The target's own greedy output is replayed. Each drafted token is, for itself,
right with probability alpha: the assumption of Eq. 1 (arXiv 2211.17192), made
true for any target, random weights included. Verification is not touched.

With a source of drafts its steps are taken, too, and what it says is put aside:
so they cost what its drafts do, at any rate of acceptance.
"""

import dataclasses
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling as sampling_lib
from specjax.drafters import chain
from specjax.verify import proposal as proposals


@struct.dataclass
class Replay:
  """The texts to replay and how often to get them right; R is for texts.

  Attributes:
    alpha: float32, the chance that a drafted token is right.
    id_R: uint32, the requests' ids.
    text_RS: int32, prompt and plain decoding's new tokens, 0 beyond.
    end_R: int32, length of each.
    source: parameters of the source whose steps are taken, if any.
  """

  alpha: jax.Array
  id_R: jax.Array
  text_RS: jax.Array
  end_R: jax.Array
  source: Any = ()


@struct.dataclass
class ReplayState:
  """The batch's own texts; end_B is 0 in rows that have none."""

  text_BS: jax.Array
  end_B: jax.Array
  source: Any = ()


def replay(
    texts: dict[int, tuple[int, ...]], alpha: float, source: Any = ()
) -> Replay:
  """What a SimulatedDrafter replays.

  Args:
    texts: request id -> prompt and plain decoding's new tokens.
    alpha: in [0, 1].
    source: parameters of the drafter's source, where it has one.
  """
  text_RS = np.zeros((len(texts), max(map(len, texts.values()))), np.int32)
  for row_S, text in zip(text_RS, texts.values()):
    row_S[: len(text)] = text
  return Replay(
      alpha=jnp.float32(alpha),
      id_R=jnp.asarray(list(texts), jnp.uint32),
      text_RS=jnp.asarray(text_RS),
      end_R=jnp.asarray([len(text) for text in texts.values()], jnp.int32),
      source=source,
  )


@dataclasses.dataclass(frozen=True)
class SimulatedDrafter(chain.Chain):
  """Replays texts, each token right with probability alpha.

  A wrong token is any other one, all alike. Nothing is drafted where nothing
  can be replayed: past the end of the plain output, in a row that has none or
  has left it (by a near tie of the target's logits), and in sampled rows,
  whose texts are drawn anew. Those positions count in no rate.

  Attributes:
    gamma: tokens a round.
    source: whose steps are taken, a chain of as many tokens; None is nobody's.

  Raises:
    errors.UserError: gamma is out of its range.
  """

  gamma: int
  source: chain.Chain | None = None

  kind = proposals.Kind.POINT
  argmax = False

  def prefill(self, params, context, *, prompt_width, slots):
    """Finds each row's text by its request's id."""
    how = dict(prompt_width=prompt_width, slots=slots)
    same_BR = context.id_B[:, None] == params.id_R
    row_B = jnp.argmax(same_BR, axis=1)
    known_B = jnp.any(same_BR, axis=1) & context.sampling.greedy_B
    width = context.tokens_BS.shape[1]
    text_BS = params.text_RS[row_B, :width]
    missing = width - text_BS.shape[1]
    return ReplayState(
        text_BS=jnp.pad(text_BS, ((0, 0), (0, missing))),
        end_B=jnp.where(known_B, params.end_R[row_B], 0),
        source=self.source.prefill(params.source, context, **how)
        if self.source
        else (),
    )

  def propose(self, params, state, context, key_B, width):
    """The next gamma tokens of the text, some of them made wrong."""
    index_S = jnp.arange(state.text_BS.shape[1])
    differs_BS = state.text_BS != context.tokens_BS
    committed_BS = index_S < context.length_B[:, None]
    follows_B = ~jnp.any(differs_BS & committed_BS, axis=1)
    left_B = jnp.clip(state.end_B - context.length_B, 0, self.gamma)
    place_BN = context.length_B[:, None] + jnp.arange(self.gamma)
    right_BN = jnp.take_along_axis(
        state.text_BS, place_BN, axis=1, mode="clip"
    )
    tokens_BN = corrupt(key_B, right_BN, params.alpha, width)
    if self.source:
      own, source = self.source.propose(
          params.source, state.source, context, key_B, width
      )
      # It is always taken: but the compiler does not know.
      tokens_BN = jnp.where(own.tokens_BN >= 0, tokens_BN, own.tokens_BN)
      state = state.replace(source=source)
    proposal = proposals.Proposal(
        tokens_BN=tokens_BN,
        count_B=jnp.where(follows_B, left_B, 0),
        law=None,
        kind=self.kind,
    )
    return proposal, state

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """What the source makes of it."""
    if not self.source:
      return state
    source = self.source.observe(
        params.source, state.source, tokens_BT, features, count_B, context
    )
    return state.replace(source=source)

  @property
  def reader(self) -> "SimulatedDrafter":
    """Gives its laws along a text."""
    return SimulatedDrafter(1)

  def along(self, params, text_BS, width: int):
    """logits_BTV along a plain output; place t is of text_BS[:, t + 1].

    The law of a drafted token: alpha on the text's own, the rest on all
    others alike.
    """
    right_BTV = jnp.arange(width) == text_BS[:, 1:, None]
    wrong = (1 - params.alpha) / (width - 1)
    return jnp.log(jnp.where(right_BTV, params.alpha, wrong))


def corrupt(key_B, right_BN, alpha, width: int):
  """tokens_BN, each right with probability alpha, else any other id alike.

  Args:
    key_B: the rows' keys of this round.
    right_BN: ids below `width`.
    alpha: chance of each to stay.
    width: V, 2 or more.
  """

  def one(key, right):
    coin_key, step_key = jax.random.split(key)
    # Around the vocabulary by less than once: never back to the right one.
    wrong = (right + jax.random.randint(step_key, (), 1, width)) % width
    return jnp.where(jax.random.uniform(coin_key) < alpha, right, wrong)

  def column(right_B, node):
    draw_key_B = sampling_lib.fold(key_B, sampling_lib.Purpose.DRAFT, node)
    return jax.vmap(one)(draw_key_B, right_B)

  nodes = jnp.arange(right_BN.shape[1])
  return jax.vmap(column, in_axes=(1, 0), out_axes=1)(right_BN, nodes)
