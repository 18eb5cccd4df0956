"""How well drafts fit: alpha, acceptance by position, block efficiency."""

import dataclasses
import functools
from typing import Any, Iterable, Sequence

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling as sampling_lib
from specjax import sharding
from specjax.decoding import requests as requests_lib
from specjax.models import cache as cache_lib
from specjax.models import reading
from specjax.verify import token


def teacher_forced(
    reader: Any, params, batch: requests_lib.Batch, sampling, text_BS
) -> sampling_lib.Law:
  """Laws of a given text's new tokens, by one pass behind the prompt's.

  Args:
    reader: a model, or what else a drafter has its laws from (see
      drafters.base).
    params: its variables.
    batch: source and prompt.
    sampling: settings of the law; fix its vocabulary width.
    text_BS: prompts and T new tokens; as wide as the batch's prompts, and T.

  Returns:
    A Law with leading [B, T]; place t is the law of new token t.
  """
  width = sampling.suppressed_V.shape[0]
  new_T = jnp.arange(text_BS.shape[1] - batch.prompt_BP.shape[1])
  before_BT = batch.prompt_B[:, None] - 1 + new_T
  if hasattr(reader, "along"):
    logits_BTV = jnp.take_along_axis(
        reader.along(params, text_BS, width), before_BT[..., None], axis=1
    )
  else:
    logits_BTV = _behind_prompt(reader, params, batch, text_BS, before_BT)
  return sampling_lib.make_law(
      sampling_lib.fit_width(logits_BTV, width),
      sampling,
      jnp.broadcast_to(new_T, before_BT.shape),
  )


def _behind_prompt(module, params, batch, text_BS, before_BT):
  """A model's logits_BTV of the tokens behind places `before_BT`."""
  slots = text_BS.shape[1]
  memory = reading.encode(
      module, params, batch.source_BL, batch.source_mask_BL
  )
  cache, _ = reading.read_prompt(
      module,
      params,
      text_BS,
      batch.prompt_B,
      memory,
      width=batch.prompt_BP.shape[1],
      slots=slots,
  )
  query = cache_lib.chain_query(
      jnp.take_along_axis(text_BS, before_BT, axis=1),
      batch.prompt_B - 1,
      slots,
      jnp.ones_like(before_BT, bool),
  )
  return module.apply(params, query, cache, memory, method="decode")[0]


@dataclasses.dataclass(frozen=True)
class Pair:
  """A target and a source of drafts; static under jit.

  Attributes:
    target: module of the target.
    draft: the drafter's reader.
    rules: each judges the drafts for itself; J of them.
    argmax: the draft proposes its argmax at any temperature.
  """

  target: nn.Module
  draft: Any
  rules: tuple[token.TokenRule, ...]
  argmax: bool = False

  @functools.partial(jax.jit, static_argnums=0)
  def acceptance(
      self, target_params, draft_params, batch, draft_sampling, text_BS
  ):
    """Chance that a rule accepts a draft, at each new token of a text.

    sum_x min(p(x) / lenience, q(x)); in greedy rows the sum of q(x) over what
    the target accepts, which is 1 or 0 where the draft is greedy, too.

    Args:
      target_params: variables of the target.
      draft_params: of the drafter.
      batch: source, prompt and the target's settings.
      draft_sampling: the draft's settings.
      text_BS: prompts and new tokens, as `teacher_forced` takes them.

    Returns:
      chance_JBT, J for the rules.
    """
    target = teacher_forced(
        self.target, target_params, batch, batch.sampling, text_BS
    )
    draft = teacher_forced(
        self.draft, draft_params, batch, draft_sampling, text_BS
    )
    return jnp.stack([self._chance(rule, target, draft) for rule in self.rules])

  def _chance(self, rule: token.TokenRule, target, draft):
    """chance_BT by one rule, from the laws of both."""
    lenience = rule.lenience
    p_best_BT = target.prob(draft.best)
    best_BT = rule.accepts_greedy(p_best_BT, target.gap(draft.best))

    def drawn():
      gap_BTV = target.logits - target.peak[..., None]
      accept_BTV = rule.accepts_greedy(target.dense(), gap_BTV)
      return jnp.sum(jnp.where(accept_BTV, draft.dense(), 0.0), axis=-1)

    def greedy():
      chance_BT = best_BT.astype(jnp.float32)
      if self.argmax:
        return chance_BT
      return jax.lax.cond(
          jnp.all(draft.greedy),
          lambda: chance_BT,
          lambda: jnp.where(draft.greedy, chance_BT, drawn()),
      )

    def sampled():
      if self.argmax:
        return jnp.minimum(1.0, p_best_BT / lenience)
      p_BTV, q_BTV = target.dense(), draft.dense()
      return jnp.sum(jnp.minimum(p_BTV / lenience, q_BTV), axis=-1)

    return jax.lax.cond(
        jnp.all(target.greedy),
        greedy,
        lambda: jnp.where(target.greedy, greedy(), sampled()),
    )


def chances(
    pair: Pair,
    target_params,
    draft_params,
    rows: Iterable[tuple[requests_lib.Batch, Any, int]],
    draft_sampling,
) -> list[np.ndarray]:
  """Chance of acceptance at every place of given texts.

  Args:
    pair: the models and the rules.
    target_params: variables of the target.
    draft_params: of the drafter.
    rows: (batch of one row, its text_BS, number of new tokens).
    draft_sampling: settings of one row of drafts.

  Returns:
    A row's chance_JT each, T for its new tokens.
  """
  out = []
  for batch, text_BS, count in rows:
    chance_JBT = pair.acceptance(
        target_params, draft_params, batch, draft_sampling, text_BS
    )
    out.append(sharding.fetch(chance_JBT)[:, 0, :count])
  return out


def alpha(rows: Iterable[np.ndarray]) -> tuple[float, int]:
  """Mean acceptance over every place of the target's own plain output.

  The paper's Table 3; gamma plays no part in it.

  Args:
    rows: chance_T of each row.

  Returns:
    alpha, and the number of places.
  """
  chance_T = np.concatenate(list(rows))
  # Sums of float32 laws end a few millionths above 1.
  return min(1.0, float(chance_T.mean(dtype=np.float64))), len(chance_T)


def by_position(
    judged: Sequence[Sequence[int]], accepted: Sequence[Sequence[int]]
) -> list[float | None]:
  """Share accepted among the judged, at each draft position.

  Args:
    judged: a row's counts, length G, for each row.
    accepted: likewise.

  Returns:
    Length G; None where no draft was judged.
  """
  sums = zip(map(sum, zip(*judged)), map(sum, zip(*accepted)))
  return [hits / tries if tries else None for tries, hits in sums]


def block_efficiency(tokens: Sequence[int], rounds: Sequence[int]) -> float:
  """Emitted tokens a target pass, over all rows."""
  return sum(tokens) / sum(rounds)
