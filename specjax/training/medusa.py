"""What Medusa's heads learn (arXiv 2401.10774).

  loss = sum over heads m of fade^m * cross-entropy of token t + 1 + m

given the target's state at t. Here the target stays as it is (the paper's
Medusa-1, with fade 1). Only tokens that the target wrote are learnt.
"""

import dataclasses
from typing import Any, Sequence

import jax
import jax.numpy as jnp
import optax

from specjax import checkpoints
from specjax import checks
from specjax import errors
from specjax.checkpoints import families
from specjax.models import listed as listed_lib
from specjax.models import medusa
from specjax.training import commonest
from specjax.training import features


@dataclasses.dataclass(frozen=True)
class Objective:
  """The loss of heads on a target that stays.

  Attributes:
    heads: their shape.
    target: shape of the target.
    fade: weight of each head against the one before it, in (0, 1]; the first
      one's against a loss of the target (0.8 in Medusa-2).

  Raises:
    errors.UserError: fade is out of its range.
  """

  heads: medusa.MedusaConfig
  target: Any
  fade: float = 1.0

  # There are no queries to slow down, and no target.
  head_width = 1
  target_share = 1.0
  # Of a target that stays, whose states answers begin with; see
  # training.heads.
  tunes = False
  prompts = False
  states = True
  sources = False

  def __post_init__(self):
    errors.require(
        checks.is_number(self.fade) and 0 < self.fade <= 1,
        "fade",
        "give a number in (0, 1]",
        self.fade,
    )

  @property
  def depth(self) -> int:
    """Places of a draft: M."""
    return self.heads.heads

  @property
  def held(self) -> "Objective":
    """The same for held-out rows."""
    return self

  def init(self, key):
    """Variables of the heads, which begin as the target's own output."""
    states_11D = jnp.zeros((1, 1, self.heads.d_model))
    module = medusa.Medusa(self.heads)
    return module.init(key, states_11D, method="everything")

  def frozen(
      self, target: checkpoints.Checkpoint, rows: Sequence[features.Row]
  ) -> medusa.MedusaParams:
    """What stays, and the ids that heads choose from: the rows' commonest."""
    listed = commonest.listed(target, rows, self.heads.listed)
    return medusa.MedusaParams((), target.params, listed)

  def begin(self, target: checkpoints.Checkpoint, frozen, seed: int = 0):
    """Variables at step 0: own output matrices are copies of the target's."""
    del target
    params = Objective.init(self, jax.random.key(seed))
    if self.heads.own:
      if frozen.listed is not None:
        kernel = frozen.listed.kernel
      else:
        kernel = listed_lib.output_kernel(self._target, frozen.target)
      for i in range(self.heads.heads):
        params["params"][f"out_{i}"]["kernel"] = kernel
    return params

  @property
  def _target(self):
    """The target's module."""
    return families.of(self.target).module(self.target)

  def sums(self, params, frozen, batch) -> dict[str, jax.Array]:
    """Sums over the places of a batch; see training.loop.

    What is not among the ids that heads choose from teaches nothing, and is
    never accepted. `reached_m` counts the places where all heads before m were
    right, `accepted_m` those of them where m is, too.
    """
    made = frozen.replace(heads=params)
    return self.sums_of(made, batch.states_BTD.astype(jnp.float32), batch)

  def sums_of(self, made: medusa.MedusaParams, states_BTD, batch):
    """`sums` of heads at some states."""
    out = {"loss": 0.0}
    reached_BT = True
    heads = self._heads(made, states_BTD, batch)
    for m, (logits_BTW, label_BT, known_BT, there_BT) in enumerate(heads, 1):
      losses_BT = optax.softmax_cross_entropy_with_integer_labels(
          logits_BTW, label_BT
      )
      total = lambda value_BT: jnp.sum(value_BT).astype(jnp.float32)
      loss = total(losses_BT * there_BT)
      right_BT = there_BT & (jnp.argmax(logits_BTW, axis=-1) == label_BT)
      judged_BT = known_BT & reached_BT
      reached_BT = judged_BT & right_BT
      out |= {
          "loss": out["loss"] + self.fade**m * loss,
          f"cross_entropy_{m}": loss,
          f"known_{m}": total(known_BT),
          f"there_{m}": total(there_BT),
          f"reached_{m}": total(judged_BT),
          f"accepted_{m}": total(reached_BT),
      }
    return out | {"tokens": out["known_1"]}

  def means(self, sums) -> dict[str, jax.Array]:
    """Loss, and of each head its loss and how often it is accepted."""
    tokens = jnp.maximum(sums["tokens"], 1)
    out = {"loss": sums["loss"] / tokens, "tokens": sums["tokens"]}
    for m in range(1, self.depth + 1):
      of = lambda what, among: sums[f"{what}_{m}"] / jnp.maximum(
          sums[f"{among}_{m}"], 1
      )
      out[f"cross_entropy_{m}"] = of("cross_entropy", "there")
      out[f"accepted_{m}"] = of("accepted", "reached")
    return out

  def ranks(self, params, frozen, batch, ranks: int):
    """Where the target's token stands among each head's likeliest.

    Returns:
      found_MC: how often it was the one of each rank; and how often there was
      one, known_M.
    """
    made = frozen.replace(heads=params)
    states_BTD = batch.states_BTD.astype(jnp.float32)
    return self.ranks_of(made, states_BTD, batch, ranks)

  def ranks_of(self, made, states_BTD, batch, ranks: int):
    """`ranks` of heads at some states."""
    found, known = [], []
    heads = self._heads(made, states_BTD, batch)
    for logits_BTW, label_BT, known_BT, there_BT in heads:
      own_BT1 = jnp.take_along_axis(logits_BTW, label_BT[..., None], axis=-1)
      rank_BT = jnp.sum(logits_BTW > own_BT1, axis=-1)
      at_BTC = there_BT[..., None] & (rank_BT[..., None] == jnp.arange(ranks))
      found.append(jnp.sum(at_BTC, axis=(0, 1)))
      known.append(jnp.sum(known_BT))
    return jnp.stack(found), jnp.stack(known)

  def parts(self, params):
    """Trained variables -> those of the heads, and of the target or None."""
    return params, None

  def _heads(self, made, states_BTD, batch):
    """Of each head logits_BTW, and the token that it is to give.

    Yields:
      logits; the token's place among them; whether there is such a token; and
      whether it is among those that the head chooses from.
    """
    logits_BTMW = medusa.logits(
        medusa.Medusa(self.heads),
        self._target,
        made,
        states_BTD,
        self.heads.heads,
    )
    for m in range(self.heads.heads):
      label_BT = later(batch.ids_BT, m + 2)
      known_BT = there_BT = later(batch.answer_BT, m + 2)
      if made.listed is not None:
        ids_W = made.listed.ids_W
        place_BT = jnp.searchsorted(ids_W, label_BT)
        place_BT = jnp.minimum(place_BT, self.heads.width - 1)
        there_BT = known_BT & (ids_W[place_BT] == label_BT)
        label_BT = place_BT
      yield logits_BTMW[:, :, m], label_BT, known_BT, there_BT


def later(array_BT, by: int):
  """The same so many places later; 0 or False behind the end."""
  return jnp.pad(array_BT, ((0, 0), (0, by)))[:, by:]
