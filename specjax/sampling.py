"""Logits to laws: temperature, top-k, top-p, greedy rows among sampled ones.

Plain decoding, drafts, verification and the extra token all take their
probabilities from here. A law is lazy: it keeps the logits, one cut a row that
says which tokens top-k and top-p leave, and the mass of what they leave; dense
probabilities are made where one row needs them.
"""

import enum
import math

from flax import struct
import jax
import jax.numpy as jnp

from specjax import cuts
from specjax import settings

Settings = settings.Settings
Sampling = settings.Sampling
stack = settings.stack


class Purpose(enum.IntEnum):
  """What a draw is for; folded into the key, so that no noise serves twice."""

  DRAFT = 0
  COIN = 1
  RESIDUAL = 2
  EXTRA = 3


def fold(key_B, purpose, node=0):
  """Keys of one draw: the row's key of this round, its purpose, its node.

  Args:
    key_B: typed keys, one a row, that already hold the row's round.
    purpose: a Purpose, or one a row.
    node: place in the proposal, or one a row.

  Returns:
    key_B.
  """
  one = jnp.asarray(purpose, jnp.int32) + len(Purpose) * jnp.asarray(node)
  one_B = jnp.broadcast_to(one, key_B.shape)
  return jax.vmap(jax.random.fold_in)(key_B, one_B)


def draw(key_B, weights_BV, fallback_B):
  """int32 tokens_B with probability proportional to their weights.

  First a block of the vocabulary by its mass, then a token of that block: the
  same law as one draw over V, for 2 sqrt(V) random numbers instead of V.

  Args:
    key_B: one typed key a row.
    weights_BV: 0 or more, need not be normalised; 0 is never drawn.
    fallback_B: the token of a row whose weights hold a NaN or no mass: a
      draw from those would give id 0, which reads like a padding token.
  """
  rows, width = weights_BV.shape
  block = max(1, math.isqrt(width))
  # A row of blocks, each of `block` tokens; the last is filled up.
  blocks = jnp.pad(weights_BV, ((0, 0), (0, -width % block)))
  blocks = blocks.reshape(rows, -1, block)
  mass = jnp.sum(blocks, axis=-1)
  # The default mode never reaches tails under about 1e-7 (jax-ml/jax#26974).
  gumbel = lambda key: jax.random.gumbel(
      key, (mass.shape[1] + block,), mode="high"
  )
  noise = jax.vmap(gumbel)(key_B)
  chosen_B = jnp.argmax(jnp.log(mass) + noise[:, block:], axis=-1)
  inside = jax.vmap(lambda rows, index: rows[index])(blocks, chosen_B)
  token_B = jnp.argmax(jnp.log(inside) + noise[:, :block], axis=-1)
  tokens_B = (chosen_B * block + token_B).astype(jnp.int32)
  total_B = jnp.sum(mass, axis=-1)
  some_B = jnp.isfinite(total_B) & (total_B > 0)
  return jnp.where(some_B, tokens_B, fallback_B)


@struct.dataclass
class Law:
  """Laws of the next token, one for each place of the leading axes.

  p(x) = exp(logits(x) - peak - log_mass) where logits(x) >= cut, else 0;
  in greedy rows 1 at `best`. Where no token is possible (a narrower draft may
  have none of the ids that are allowed) p is 0 throughout, never NaN.

  Every field has the same leading axes, [B] or [B, T], so that laws can be
  stacked and sliced as trees.

  Attributes:
    logits: [..., V] float32, after the processors, divided by the temperature
      where the row is sampled.
    peak: the largest logit.
    cut: the smallest logit that top-k and top-p keep, or a value between it
      and the next smaller one; -inf keeps all, inf none.
    log_mass: log of the sum of exp(logits - peak) over kept tokens.
    best: int32, the first argmax.
    greedy: bool; False where no token is possible.
  """

  logits: jax.Array
  peak: jax.Array
  cut: jax.Array
  log_mass: jax.Array
  best: jax.Array
  greedy: jax.Array

  @property
  def width(self) -> int:
    """V."""
    return self.logits.shape[-1]

  @property
  def possible(self) -> jax.Array:
    """bool, whether any token has a probability above 0."""
    return self.peak > -jnp.inf

  def _logit(self, tokens):
    """Logits of the tokens, -inf for ids that are not of this vocabulary."""
    inside = (tokens >= 0) & (tokens < self.width)
    index = jnp.clip(tokens, 0, self.width - 1)[..., None]
    logit = jnp.take_along_axis(self.logits, index, axis=-1, mode="clip")
    return jnp.where(inside, logit[..., 0], -jnp.inf)

  def _log_prob(self, logit, tokens):
    """log p(x) of one token a place, from its logit."""
    kept = jnp.where(
        logit >= self.cut, logit - self.peak - self.log_mass, -jnp.inf
    )
    one_hot = jnp.where(tokens == self.best, 0.0, -jnp.inf)
    return jnp.where(self.greedy, one_hot, kept)

  def log_prob(self, tokens):
    """log p(x) of one token a place; -inf where p(x) is 0.

    Args:
      tokens: ids with the law's leading axes; any integer.
    """
    return self._log_prob(self._logit(tokens), tokens)

  def log_prob_at(self, place_BN, tokens_BN):
    """log p(x) of tokens at any places of a law with leading [B, T]."""
    inside_BN = (tokens_BN >= 0) & (tokens_BN < self.width)
    index_BN = place_BN * self.width + jnp.where(inside_BN, tokens_BN, 0)
    flat = self.logits.reshape(self.logits.shape[0], -1)
    logit_BN = jnp.take_along_axis(flat, index_BN, axis=1)
    logit_BN = jnp.where(inside_BN, logit_BN, -jnp.inf)
    taken = jax.tree.map(
        lambda field: jnp.take_along_axis(field, place_BN, axis=1),
        self.replace(logits=None),
    )
    return taken._log_prob(logit_BN, tokens_BN)

  def prob(self, tokens):
    """p(x) of one token a place; 0 for ids outside the vocabulary."""
    return jnp.exp(self.log_prob(tokens))

  def confidence(self, tokens):
    """Share of one token a place in the softmax, before top-k and top-p.

    0 where no token is possible.
    """
    peak = jnp.where(self.possible, self.peak, 0.0)
    mass = jnp.sum(jnp.exp(self.logits - peak[..., None]), axis=-1)
    own = jnp.exp(self._logit(tokens) - peak)
    return jnp.where(self.possible, own / jnp.maximum(mass, 1.0), 0.0)

  def gap(self, tokens):
    """log p(x) - max log p, before top-k and top-p; at most 0."""
    return self._logit(tokens) - self.peak

  def log_dense(self):
    """log p over the vocabulary, [..., V]."""
    wide = lambda field: field[..., None]
    kept = jnp.where(
        self.logits >= wide(self.cut),
        self.logits - wide(self.peak) - wide(self.log_mass),
        -jnp.inf,
    )
    best = jnp.arange(self.width) == wide(self.best)
    one_hot = jnp.where(best, 0.0, -jnp.inf)
    return jnp.where(wide(self.greedy), one_hot, kept)

  def dense(self):
    """p over the vocabulary, [..., V]."""
    return jnp.exp(self.log_dense())

  def row(self, index_B) -> "Law":
    """The law at one place a row: [B, T] leading axes become [B]."""
    take = lambda field_T, index: jax.lax.dynamic_index_in_dim(
        field_T, index, keepdims=False
    )
    return jax.tree.map(lambda field: jax.vmap(take)(field, index_B), self)

  def draw(self, key_B, purpose, node=0):
    """One token a row from a law with leading [B]; int32.

    It is `best` where no token is possible, and then means nothing. Where all
    rows are greedy nothing is computed for a draw, keys included.

    Args:
      key_B: the rows' keys of this round.
      purpose: see `fold`.
      node: see `fold`.
    """

    def sampled():
      kept_BV = cuts.weights(self.logits, self.peak, self.cut)
      return draw(fold(key_B, purpose, node), kept_BV, self.best)

    tokens_B = jax.lax.cond(
        jnp.all(self.greedy), lambda: self.best, sampled
    )
    return jnp.where(self.greedy, self.best, tokens_B)


def fit_width(logits, width: int):
  """Brings a draft's logits to the target's vocabulary width.

  Padded vocabularies of one tokenizer differ in width (vllm-project/vllm#7252).
  Call it before `make_law`, so that a law that was cut is normalised again.

  Args:
    logits: [..., any width].
    width: V of the target; missing ids get -inf, surplus ids are cut.

  Returns:
    [..., width].
  """
  surplus = width - logits.shape[-1]
  if surplus <= 0:
    return logits[..., :width]
  pad = [(0, 0)] * (logits.ndim - 1) + [(0, surplus)]
  return jnp.pad(logits, pad, constant_values=-jnp.inf)


def make_law(logits, sampling: Sampling, new_tokens) -> Law:
  """The law that rows with these settings draw their next tokens from.

  Order as Hugging Face: processors, temperature, top-k, then top-p over what
  top-k left. Logits that tie with the cut stay.

  Args:
    logits: [B, ..., V], any float type; float32 from here on.
    sampling: settings of the B rows.
    new_tokens: [B, ...], how many new tokens of the row stand before the one
      that is drawn from this law.

  Raises:
    ValueError: the shapes do not go together.
  """
  leading = logits.shape[:-1]
  _check_shapes(logits, sampling, new_tokens)
  # One cast, one array: draws, ratios and residuals that round on their own
  # disagree (deepseek-ai/DeepSpec#31).
  logits = logits.astype(jnp.float32)
  spread = lambda field_B: jnp.broadcast_to(
      field_B.reshape(field_B.shape + (1,) * (len(leading) - 1)), leading
  )
  greedy = spread(sampling.greedy_B)
  logits = _process(logits, sampling, spread, new_tokens, greedy)
  peak = jnp.max(logits, axis=-1)
  best = first_at(logits, peak)
  possible = peak > -jnp.inf

  def cut_and_mass():
    top_k = jnp.where(greedy, 0, spread(sampling.top_k_B))
    top_p = jnp.where(greedy, 1.0, spread(sampling.top_p_B))
    at = cuts.cut(logits, peak, top_k, top_p)
    at = jnp.where(possible, at, jnp.inf)
    return at, jnp.log(jnp.sum(cuts.weights(logits, peak, at), axis=-1))

  cut, log_mass = jax.lax.cond(
      jnp.all(greedy),
      lambda: (jnp.where(possible, -jnp.inf, jnp.inf), jnp.zeros_like(peak)),
      cut_and_mass,
  )
  return Law(logits, peak, cut, log_mass, best, greedy & possible)


def _check_shapes(logits, sampling, new_tokens):
  batch, width = sampling.greedy_B.shape[0], sampling.suppressed_V.shape[0]
  if logits.ndim < 2 or logits.shape[0] != batch or logits.shape[-1] != width:
    raise ValueError(
        f"logits: shape {logits.shape} does not fit settings of {batch} rows "
        f"and {width} tokens; bring a draft's with fit_width"
    )
  if jnp.shape(new_tokens) != logits.shape[:-1]:
    raise ValueError(
        f"new_tokens: shape {jnp.shape(new_tokens)}, want {logits.shape[:-1]}"
    )


def _process(logits, sampling, spread, new_tokens, greedy):
  """Applies processors and temperature; no pass where no row has any."""
  temperature = jnp.where(greedy, 1.0, spread(sampling.temperature_B))
  early = new_tokens < spread(sampling.min_new_tokens_B)
  first = spread(sampling.forced_first_B)
  forced = (first >= 0) & (new_tokens == 0)

  def change():
    ids_V = jnp.arange(logits.shape[-1])
    eos_BV = jnp.any(sampling.eos_BE[:, :, None] == ids_V, axis=1)
    middle = tuple(range(1, logits.ndim - 1))
    eos = jnp.expand_dims(eos_BV, middle)
    banned = sampling.suppressed_V | (eos & early[..., None])
    allowed = jnp.where(banned, -jnp.inf, logits)
    only = jnp.where(ids_V == first[..., None], 0.0, -jnp.inf)
    allowed = jnp.where(forced[..., None], only, allowed)
    return allowed / temperature[..., None]

  changes = (
      jnp.any(sampling.suppressed_V)
      | jnp.any(early)
      | jnp.any(forced)
      | jnp.any(temperature != 1)
  )
  return jax.lax.cond(changes, change, lambda: logits)


def first_at(logits, peak):
  """First id with the largest logit; XLA's argmax is 10 times slower on CPU."""
  width = logits.shape[-1]
  ids_V = jnp.arange(width, dtype=jnp.int32)
  at_peak = jnp.where(logits == peak[..., None], ids_V, width - 1)
  return jnp.min(at_peak, axis=-1)
