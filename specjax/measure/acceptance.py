"""How well drafts fit: alpha, acceptance by position, block efficiency."""

import dataclasses
import functools
from typing import Any, Iterable, Sequence

from flax import linen as nn
import jax
import jax.numpy as jnp

from specjax import sampling as sampling_lib
from specjax.decoding import requests as requests_lib
from specjax.verify import token


def teacher_forced(
    module: nn.Module, params, batch: requests_lib.Batch, sampling, text_BS
) -> sampling_lib.Law:
  """Laws along a given text, by one pass.

  Args:
    module: the model.
    params: its variables.
    batch: source and prompt.
    sampling: settings of the law; fix its vocabulary width.
    text_BS: prompt and new tokens.

  Returns:
    A Law with leading [B, S - 1]; place t is the law of text_BS[:, t + 1].
  """
  logits_BTV = module.apply(
      params, batch.source_BL, batch.source_mask_BL, text_BS[:, :-1]
  )
  width = sampling.suppressed_V.shape[0]
  new_BT = jnp.arange(text_BS.shape[1] - 1) - (batch.prompt_B[:, None] - 1)
  return sampling_lib.make_law(
      sampling_lib.fit_width(logits_BTV, width),
      sampling,
      jnp.maximum(new_BT, 0),
  )


@dataclasses.dataclass(frozen=True)
class Pair:
  """A target and a draft model; static under jit.

  Attributes:
    target: module of the target.
    draft: module of the draft.
    rule: judges the drafts.
    argmax: the draft proposes its argmax at any temperature.
  """

  target: nn.Module
  draft: nn.Module
  rule: token.TokenRule
  argmax: bool = False

  @functools.partial(jax.jit, static_argnums=0)
  def acceptance(
      self, target_params, draft_params, batch, draft_sampling, text_BS
  ):
    """Chance that the rule accepts a draft, at every place of a given text.

    sum_x min(p(x) / lenience, q(x)); in greedy rows 1 where the target accepts
    the draft's argmax, else 0.

    Args:
      target_params: variables of the target.
      draft_params: variables of the draft.
      batch: source, prompt and the target's settings.
      draft_sampling: the draft's settings.
      text_BS: prompt and new tokens; place t is the draft of text_BS[:, t + 1].
    """
    target = teacher_forced(
        self.target, target_params, batch, batch.sampling, text_BS
    )
    draft = teacher_forced(
        self.draft, draft_params, batch, draft_sampling, text_BS
    )
    lenience = self.rule.lenience
    p_best_BT = target.prob(draft.best)
    greedy_BT = self.rule.accepts_greedy(p_best_BT, target.gap(draft.best))

    def sampled():
      if self.argmax:
        return jnp.minimum(1.0, p_best_BT / lenience)
      p_BTV, q_BTV = target.dense(), draft.dense()
      return jnp.sum(jnp.minimum(p_BTV / lenience, q_BTV), axis=-1)

    return jax.lax.cond(
        jnp.all(target.greedy),
        lambda: greedy_BT.astype(jnp.float32),
        lambda: jnp.where(target.greedy, greedy_BT, sampled()),
    )


def alpha(
    pair: Pair,
    target_params,
    draft_params,
    rows: Iterable[tuple[requests_lib.Batch, Any, int]],
    draft_sampling,
) -> tuple[float, int]:
  """Mean acceptance over every place of the target's own plain output.

  The paper's Table 3; gamma plays no part in it.

  Args:
    pair: the models.
    target_params: variables of the target.
    draft_params: variables of the draft.
    rows: (batch of one row, its text_BS, number of new tokens).
    draft_sampling: settings of one row of drafts.

  Returns:
    alpha, and the number of places.
  """
  total, places = 0.0, 0
  for batch, text_BS, count in rows:
    chance_BT = pair.acceptance(
        target_params, draft_params, batch, draft_sampling, text_BS
    )
    first = int(batch.prompt_B[0]) - 1
    chance_T = jax.device_get(chance_BT)[0, first : first + count]
    total += float(chance_T.sum(dtype="float64"))
    places += count
  # Sums of float32 laws end a few millionths above 1.
  return min(1.0, total / places), places


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
