"""What EAGLE's heads learn (arXiv 2401.15077), the target staying as it is.

  loss = smooth L1 of f'_{t+1} - f_{t+1}
       + weight * cross-entropy of head(f'_{t+1}) against head(f_{t+1})

f_t is the target's hidden state at token t, f'_{t+1} what a head makes of f_t
and token t + 1; both are turned to laws by the target's own output matrix.
What is learnt are the states that answers are drafted from: f'_{t+1} gives
token t + 2, so it counts where the target wrote that one. Uniform noise on f_t
prepares a head for its own errors, on which it goes on.

The output matrix is most of the arithmetic where a head is small beside its
vocabulary (SmolLM2's: six parts in seven). So the cross-entropy may be of some
places of each batch, drawn anew each time: an estimate without bias.
"""

import dataclasses
from typing import Any, Sequence

from flax import struct
import jax
import jax.numpy as jnp
import optax

from specjax import checkpoints
from specjax import checks
from specjax import errors
from specjax.checkpoints import families
from specjax.models import cache as cache_lib
from specjax.models import eagle
from specjax.models import listed as listed_lib
from specjax.models import reading
from specjax.models import t5
from specjax.training import commonest
from specjax.training import features

# Noise is for texts of so many tokens, and less for longer ones.
_NOISE_LENGTH = 512
# What is drawn for a batch, each by a key of its own.
_PURPOSES = ("noise", "places")


@struct.dataclass
class Frozen:
  """What stays while a head learns.

  Attributes:
    target: the target's variables.
    listed: the ids that drafts are of; None where those are all.
  """

  target: Any
  listed: listed_lib.Listed | None = None


@dataclasses.dataclass(frozen=True)
class Objective:
  """The loss of a head on a target that stays.

  Attributes:
    heads: shape of the head.
    target: shape of the target.
    depth: places of a draft that are judged on held-out texts.
    weight: of the cross-entropy.
    noise: of f_t the most, in texts of 512 tokens.
    places: of a batch whose laws are compared while learning; 0 is all.
    judges: no noise, and acceptance by position: for held-out texts.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  heads: eagle.EagleConfig
  target: Any
  depth: int = 4
  weight: float = 0.1
  noise: float = 0.1
  places: int = 0
  judges: bool = False

  # It learns along the prompts, too, from states and sources; the target stays.
  prompts, states, sources, tunes = True, True, True, False
  target_share = 1.0

  def __post_init__(self):
    size = self.target.vocab_size
    errors.require(
        self.heads.listed <= size,
        "listed",
        f"give 0 (all), or up to {size}",
        self.heads.listed,
    )
    errors.require(
        checks.is_whole(self.depth, 1, 16),
        "depth",
        "give a whole number from 1 to 16",
        self.depth,
    )
    errors.require(
        checks.is_whole(self.places),
        "places",
        "give 0 (all) or more",
        self.places,
    )
    for field in ("weight", "noise"):
      value = getattr(self, field)
      errors.require(
          checks.is_number(value) and 0 <= value <= 10,
          field,
          "give a number from 0 to 10",
          value,
      )

  @property
  def model(self) -> eagle.Eagle:
    """The head and its target."""
    module = families.of(self.target).module(self.target)
    return eagle.of(module, self.heads.layer(self.target))

  @property
  def head_width(self) -> int:
    """K of queries that are never scaled; see optimizer.make_optimizer."""
    return self.target.d_kv if isinstance(self.target, t5.T5Config) else 1

  @property
  def held(self) -> "Objective":
    """The same for held-out texts."""
    return dataclasses.replace(self, judges=True)

  def init(self, key):
    """Random variables of the head."""
    return self.model.init(key)

  def frozen(
      self, target: checkpoints.Checkpoint, rows: Sequence[features.Row]
  ) -> Frozen:
    """What stays, and the ids that drafts are of: the rows' commonest."""
    listed = commonest.listed(target, rows, self.heads.listed)
    return Frozen(target.params, listed)

  def begin(self, target: checkpoints.Checkpoint, frozen, seed: int = 0):
    """Variables at step 0; there is nothing to copy from the target."""
    del target, frozen
    return self.init(jax.random.key(seed))

  def parts(self, params):
    """What was trained are the head's variables alone."""
    return params, None

  def sums(self, params, frozen, batch) -> dict[str, jax.Array]:
    """Sums over the places of a batch that count.

    Args:
      params: variables of the head.
      frozen: a Frozen.
      batch: a training.features.Batch.

    Returns:
      Scalars: `tokens`, `loss`, `feature` (smooth L1), `cross_entropy`,
      `overlap` (sum of min(p, q)). Where it judges also `reached_m`, the places
      whose drafts before m were right, and `accepted_m`, those of them where m
      is, too.
    """
    model = self.model
    pair = model.params(params, frozen.target, frozen.listed)
    states_BTD = jnp.asarray(batch.states_BTD, jnp.float32)
    noise_BTD = 0.0 if self.judges else self._noise(batch, states_BTD.shape)
    drafts = self._drafts(
        pair,
        frozen.target,
        batch,
        states_BTD + noise_BTD,
        self.depth if self.judges else 1,
    )
    hidden_BTD, label_BT, known_BT = next(drafts)
    total = lambda value_BT: jnp.sum(value_BT * known_BT).astype(jnp.float32)
    true_BTD = states_BTD[:, 1:]
    feature_BT = jnp.mean(optax.losses.huber_loss(hidden_BTD, true_BTD), -1)
    out = {"tokens": total(1.0), "feature": total(feature_BT)}
    out |= self._laws(pair, batch, true_BTD, hidden_BTD, known_BT)
    out["loss"] = out["feature"] + self.weight * out["cross_entropy"]
    if not self.judges:
      return out
    reached_BT = True
    first = hidden_BTD, label_BT, known_BT
    for m, (hidden_BTD, label_BT, known_BT) in enumerate([first, *drafts], 1):
      drafted_BT = jnp.argmax(model.logits(pair, hidden_BTD), axis=-1)
      judged_BT = known_BT & reached_BT
      reached_BT = judged_BT & (drafted_BT == label_BT)
      out[f"reached_{m}"] = jnp.sum(judged_BT).astype(jnp.float32)
      out[f"accepted_{m}"] = jnp.sum(reached_BT).astype(jnp.float32)
    return out

  def means(self, sums) -> dict[str, jax.Array]:
    """Losses over the tokens; of each position how often it is accepted."""
    tokens = jnp.maximum(sums["tokens"], 1)
    out = {
        name: value / tokens
        for name, value in sums.items()
        if not name.startswith(("reached_", "accepted_"))
    }
    for m in range(1, self.depth + 1):
      if f"reached_{m}" in sums:
        reached = jnp.maximum(sums[f"reached_{m}"], 1)
        out[f"accepted_{m}"] = sums[f"accepted_{m}"] / reached
    return out | {"tokens": sums["tokens"]}

  def ranks(self, params, frozen, batch, ranks: int):
    """Where the target's token stands among the likeliest, place by place.

    What stands before it is the target's own text, in states that the head has
    made up.

    Returns:
      found_MC: how often it was the one of each rank; and how often there was
      one, known_M.
    """
    pair = self.model.params(params, frozen.target, frozen.listed)
    states_BTD = jnp.asarray(batch.states_BTD, jnp.float32)
    found, known = [], []
    for hidden_BTD, label_BT, known_BT in self._drafts(
        pair, frozen.target, batch, states_BTD, self.depth
    ):
      logits_BTV = self.model.logits(pair, hidden_BTD)
      own_BT1 = jnp.take_along_axis(logits_BTV, label_BT[..., None], axis=-1)
      rank_BT = jnp.sum(logits_BTV > own_BT1, axis=-1)
      # What is not listed has no rank, not the one behind all that are.
      there_BT = known_BT & (own_BT1[..., 0] > -jnp.inf)
      at_BTC = there_BT[..., None] & (rank_BT[..., None] == jnp.arange(ranks))
      found.append(jnp.sum(at_BTC, axis=(0, 1)))
      known.append(jnp.sum(known_BT))
    return jnp.stack(found), jnp.stack(known)

  def _laws(self, pair, batch, true_BTD, hidden_BTD, known_BT):
    """Sums of cross-entropy and of overlap, or estimates from some places.

    Of all ids, also where drafts are of some: which those are is no part of
    what is learnt.
    """
    pair = pair.replace(listed=None)
    flat = lambda array: array.reshape(1, -1, *array.shape[2:])
    true_BTD, hidden_BTD, counts_BT = map(
        flat, (true_BTD, hidden_BTD, known_BT.astype(jnp.float32))
    )
    if not self.judges and 0 < self.places < counts_BT.size:
      drawn_BT = counts_BT * (
          1 + jax.random.uniform(_key(batch, "places"), counts_BT.shape)
      )
      drawn_BT, place_BT = jax.lax.top_k(drawn_BT, self.places)
      chosen = lambda array: jnp.take(array, place_BT[0], axis=1)
      true_BTD, hidden_BTD = map(chosen, (true_BTD, hidden_BTD))
      among_BT = (drawn_BT > 0).astype(jnp.float32)
      share = jnp.sum(among_BT) / jnp.maximum(jnp.sum(counts_BT), 1)
      counts_BT = among_BT / jnp.maximum(share, 1e-9)
    laws = lambda hidden_BTD: jax.nn.log_softmax(
        self.model.logits(pair, hidden_BTD)
    )
    log_p_BTV, log_q_BTV = laws(true_BTD), laws(hidden_BTD)
    p_BTV = jnp.exp(log_p_BTV)
    cross_BT = -jnp.sum(p_BTV * log_q_BTV, axis=-1)
    overlap_BT = jnp.sum(jnp.minimum(p_BTV, jnp.exp(log_q_BTV)), axis=-1)
    return {
        "cross_entropy": jnp.sum(cross_BT * counts_BT),
        "overlap": jnp.sum(overlap_BT * counts_BT),
    }

  def _noise(self, batch, shape):
    """Of each text by its own length; another in each epoch."""
    length_B1 = _length(batch.answer_BT)[:, None, None]
    spread_BTD = self.noise * _NOISE_LENGTH / jnp.maximum(length_B1, 1)
    return spread_BTD * jax.random.uniform(
        _key(batch, "noise"), shape, minval=-1, maxval=1
    )

  def _drafts(
      self, pair: eagle.EagleParams, target_params, batch, states_BTD, depth
  ):
    """Drafts from every place t of the texts at once, position by position.

    Position m reads token t + m with the state that position m - 1 made up for
    it; it sees the text's own pairs up to t, and of those that were made up the
    ones that began at t. Slots are of position 1 for all t, then of 2, and so
    on.

    Yields:
      hidden_BTD, the token that it is to give, does that count.
    """
    model, ids_BT = self.model, jnp.asarray(batch.ids_BT)
    rows, places = ids_BT.shape[0], ids_BT.shape[1] - 1
    slots = places * depth
    cache = model.head.empty_cache(rows, slots)
    memory = self._memory(pair, target_params, batch)
    place_T, slot_S = jnp.arange(places), jnp.arange(slots)
    wide = lambda array: jnp.broadcast_to(array, (rows, *array.shape))
    hidden_BTD = states_BTD[:, :-1]
    for m in range(1, depth + 1):
      own_TS = slot_S % places == place_T[:, None]
      own_TS &= (slot_S >= places) & (slot_S < m * places)
      query = cache_lib.Query(
          tokens_BT=_later(ids_BT, m)[:, :places],
          position_BT=wide(place_T + m - 1),
          slot_BT=wide(place_T + (m - 1) * places),
          mask_BTS=wide(own_TS | (slot_S <= place_T[:, None])),
          position_BS=wide(slot_S % places + slot_S // places),
      )
      hidden_BTD, cache = model.read(pair, query, hidden_BTD, cache, memory)
      yield (
          hidden_BTD,
          _later(ids_BT, m + 1)[:, :places],
          _later(jnp.asarray(batch.answer_BT), m + 1)[:, :places],
      )

  def _memory(self, pair, target_params, batch):
    """The head's reading of the sources; None without any."""
    if batch.source_BL is None:
      return None
    memory = reading.encode(
        self.model.target,
        target_params,
        batch.source_BL,
        batch.source_mask_BL,
    )
    return self.model.remember(pair, memory)


def make(entry, target: checkpoints.Checkpoint, batches: int) -> Objective:
  """The objective of a config's section on an EAGLE head.

  Args:
    entry: the section.
    target: that it reads.
    batches: of the whole run, which are all alike.

  Raises:
    errors.UserError: an option is out of its range.
  """
  del batches
  return Objective(
      eagle.EagleConfig(entry.d_ff or None, entry.listed),
      target.module.config,
      entry.depth,
      entry.weight,
      entry.noise,
      entry.places,
  )


def _key(batch, purpose: str):
  """A key of this batch of a run, and of what is drawn."""
  key = jax.random.key(_PURPOSES.index(purpose))
  return jax.random.fold_in(key, batch.number_B[0])


def _length(answer_BT):
  """Tokens of each text, up to the end of its answer."""
  place_T = jnp.arange(1, answer_BT.shape[1] + 1)
  return jnp.max(jnp.where(answer_BT, place_T, 0), axis=1)


def _later(array_BT, by: int):
  """The same so many places later; 0 or False behind the end."""
  return jnp.pad(array_BT, ((0, 0), (0, by)))[:, by:]
