"""Medusa-2: heads and target learn together (arXiv 2401.10774)."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from specjax import checkpoints
from specjax import checks
from specjax import errors
from specjax.checkpoints import heads as heads_file
from specjax.models import cache as cache_lib
from specjax.models import medusa
from specjax.models import reading
from specjax.models import t5
from specjax.training import features
from specjax.training import medusa as medusa_lib
from specjax.training import objective

# Weights of the heads' loss in the paper's recipes: a target that is to stay
# what it was, and the second of two stages.
_KEPT, _TWO_STAGES = 0.01, 0.2


@dataclasses.dataclass(frozen=True)
class Joint(medusa_lib.Objective):
  """Heads and target together: the paper's Medusa-2.

    loss = loss of the target + weight * loss of the heads

  The target's own loss keeps it what it was: the cross-entropy of its own
  texts, or the divergence from what it said before (`keep`, arXiv 2401.10774,
  section 2.3.2), where the heads' weight grows as sin(pi/2 * batch / batches).
  What comes out is another target, with a law of its own.

  Attributes:
    weight: of the heads' loss.
    target_share: of the learning rates, what the target takes.
    keep: the divergence from the old law, in the place of cross-entropy.
    start: file of heads to begin with; "" begins as medusa.Objective does.
    batches: over which the weight grows from 0; 0: it is whole from the first.

  Raises:
    errors.UserError: an option is out of its range.
  """

  weight: float = _TWO_STAGES
  target_share: float = 0.25
  keep: bool = False
  start: str = ""
  batches: int = 0

  tunes = True
  prompts = True
  states = False
  sources = True

  def __post_init__(self):
    super().__post_init__()
    for field in ("weight", "target_share"):
      value = getattr(self, field)
      good = checks.is_number(value) and value > 0
      errors.require(good, field, "give a number above 0", value)
    errors.require(
        not self.heads.listed,
        "listed",
        "give 0: the target's output changes, and with it that of those ids",
        self.heads.listed,
    )

  @property
  def held(self) -> "Joint":
    """The weight is whole: held-out batches have numbers of their own."""
    return dataclasses.replace(self, batches=0)

  @property
  def head_width(self) -> int:
    """K of a T5; other families scale their scores."""
    return self.target.d_kv if self._encodes else 1

  @property
  def _encodes(self) -> bool:
    return isinstance(self.target, t5.T5Config)

  def init(self, key):
    """Variables of both, random ones of the target."""
    ids_B1 = jnp.zeros((1, 1), jnp.int32)
    inputs = (ids_B1, ids_B1 == 0, ids_B1) if self._encodes else (ids_B1,)
    target = self._target.init(key, *inputs)
    return {"heads": super().init(key), "target": target}

  def begin(self, target: checkpoints.Checkpoint, frozen, seed: int = 0):
    """Heads of an earlier stage, and the target as it is."""
    heads = super().begin(target, frozen, seed)
    if self.start:
      found = heads_file.load(self.start, target, "medusa")
      heads = heads_file.check_params(self.start, found.params, heads)
    return {"heads": heads, "target": target.params}

  def sums(self, params, frozen, batch) -> dict[str, jax.Array]:
    """As medusa.Objective's, and the target's own loss as `cross_entropy_0`."""
    made, states_BTD = self._read(params, batch)
    head = lambda variables, states_BTD: self._target.apply(
        variables, states_BTD, method="head"
    )
    logits_BTV = head(params["target"], states_BTD)
    known_BT = medusa_lib.later(batch.answer_BT, 1)
    if self.keep:
      old, old_BTD = self._read({"heads": (), "target": frozen.target}, batch)
      old_BTV = jax.lax.stop_gradient(head(old.target, old_BTD))
      losses_BT = objective.divergence("forward_kl", old_BTV, logits_BTV)
    else:
      losses_BT = optax.softmax_cross_entropy_with_integer_labels(
          logits_BTV, medusa_lib.later(batch.ids_BT, 1)
      )
    own = jnp.sum(losses_BT * known_BT)
    out = self.sums_of(made, states_BTD, batch)
    weight = self.weight
    if self.batches:
      weight *= jnp.sin(jnp.pi / 2 * batch.number_B[0] / self.batches)
    return out | {
        "loss": own + weight * out["loss"],
        "cross_entropy_0": own,
        "there_0": jnp.sum(known_BT).astype(jnp.float32),
    }

  def means(self, sums) -> dict[str, jax.Array]:
    """As medusa.Objective's, with the target's own."""
    own = sums["cross_entropy_0"] / jnp.maximum(sums["there_0"], 1)
    return super().means(sums) | {"cross_entropy_0": own}

  def ranks(self, params, frozen, batch, ranks: int):
    """As medusa.Objective's."""
    del frozen
    return self.ranks_of(*self._read(params, batch), batch, ranks)

  def parts(self, params):
    """Those of the heads, and of the target."""
    return params["heads"], params["target"]

  def _read(self, params, batch):
    """MedusaParams, and the target's states_BTD along a batch."""
    memory = reading.encode(
        self._target, params["target"], batch.source_BL, batch.source_mask_BL
    )
    _, _, (states_BTD,) = self._target.apply(
        params["target"],
        cache_lib.whole_query(batch.ids_BT),
        None,
        memory,
        taps=(features.LAST,),
        newest=True,
        method="decode",
    )
    return medusa.MedusaParams(params["heads"], params["target"]), states_BTD


def make(
    entry, target: checkpoints.Checkpoint, batches: int
) -> medusa_lib.Objective:
  """The objective of a config's section on Medusa's heads.

  Args:
    entry: the section.
    target: that they read.
    batches: of the whole run.

  Raises:
    errors.UserError: an option is out of its range.
  """
  config = target.module.config
  shape = medusa.MedusaConfig(
      d_model=config.d_model,
      vocab_size=config.vocab_size,
      heads=entry.heads,
      blocks=entry.blocks,
      own=entry.own,
      listed=entry.listed,
  )
  if not entry.joint:
    return medusa_lib.Objective(shape, config, entry.fade)
  return Joint(
      shape,
      config,
      entry.fade,
      weight=entry.weight or (_KEPT if entry.keep else _TWO_STAGES),
      target_share=entry.share,
      keep=entry.keep,
      start=entry.start,
      batches=batches if entry.keep else 0,
  )
