"""EAGLE's heads: the next hidden state, from this one and the next token.

Li et al. (arXiv 2401.15077). With f_t what the target multiplies with its
output matrix at place t (the last hidden state, behind the final norm), and
x_{t+1} the token that follows,

  f_{t+1} = layer(W [embedding(x_{t+1}); f_t] + b)

Embedding and output matrix are the target's own; heads have neither. The layer
is of the target's kind, without the norm before its self-attention. That of a
T5 keeps its cross-attention, and reads the target's encoder with keys and
values of its own: f_t is of the source where the text has got to, and f_{t+1}
has to be read further on.

The pair of f_t and x_{t+1} stands at position t, and its key and value in slot
t.
"""

import dataclasses
from typing import Any

from flax import linen as nn
from flax import struct
import jax
import jax.numpy as jnp

from specjax import checks
from specjax import errors
from specjax.models import cache as cache_lib
from specjax.models import decoder
from specjax.models import layers
from specjax.models import listed as listed_lib
from specjax.models import products
from specjax.models import t5

# Which of the target's hidden states is f.
TAP = -1
# Parameters of a target that its heads use, too.
_SHARED = ("shared", "embedding", "positions", "lm_head")


@dataclasses.dataclass(frozen=True)
class EagleConfig:
  """Shape of a head, beside what its target's is.

  Attributes:
    d_ff: F of its layer; None is the target's.
    listed: ids that it chooses from; 0 is all V. See models.listed.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  d_ff: int | None = None
  listed: int = 0

  def __post_init__(self):
    errors.require(
        self.d_ff is None or checks.is_whole(self.d_ff, 1, 2**20),
        "d_ff",
        "give 1 or more, or None",
        self.d_ff,
    )
    errors.require(
        checks.is_whole(self.listed), "listed", "give 0 (all) or more",
        self.listed,
    )

  def layer(self, target):
    """The config of its layer; `target` is that of its target."""
    return dataclasses.replace(target, d_ff=self.d_ff or target.d_ff)


class EagleHead(nn.Module):
  """What heads of all families have; they add a layer.

  Attributes:
    config: of the layer.
    dtype: of what is multiplied with weights.
    carried: of activations between the products; see products.carried.
  """

  config: decoder.DecoderConfig | t5.T5Config
  dtype: jnp.dtype = jnp.float32
  carried: jnp.dtype | None = None

  @property
  def types(self) -> layers.Types:
    """What its layer computes in."""
    return layers.Types(self.dtype, self.carried or self.dtype)

  def setup(self):
    width = self.config.d_model
    self.fc = layers.Linear(
        width, stddev=(2 * width) ** -0.5, types=self.types, bias=True
    )

  def _joined(self, embedded_BTD, hidden_BTD):
    """What the layer reads."""
    hidden_BTD = hidden_BTD.astype(embedded_BTD.dtype)
    return self.fc(jnp.concatenate([embedded_BTD, hidden_BTD], axis=-1))

  def remember(self, hidden_BLD, mask_BL):
    """Memory of what the target's encoder gave; None without one."""
    raise NotImplementedError

  def read(self, embedded_BTD, hidden_BTD, query, cache, memory):
    """Reads T pairs a row.

    Args:
      embedded_BTD: of the tokens.
      hidden_BTD: of the places before them.
      query: positions, slots and masks of the pairs.
      cache: what earlier calls wrote, or None; as the models' `decode` has it.
      memory: from `remember`.

    Returns:
      hidden_BTD of the tokens' places, and the cache with the pairs written.
    """
    raise NotImplementedError

  def __call__(self, embedded_BTD, hidden_BTD, query, source=None):
    """hidden_BTD of whole texts.

    Args:
      embedded_BTD, hidden_BTD, query: as `read` takes them.
      source: hidden_BLD and mask_BL of the target's encoder; None without one.
    """
    memory = None if source is None else self.remember(*source)
    return self.read(embedded_BTD, hidden_BTD, query, None, memory)[0]


class DecoderHead(EagleHead):
  """Of decoder-only targets."""

  def setup(self):
    super().setup()
    self.layers = [decoder.Block(self.config, self.types, normed=False)]

  def read(self, embedded_BTD, hidden_BTD, query, cache, memory):
    """See EagleHead.read."""
    del memory
    x_BTD, layer = self._joined(embedded_BTD, hidden_BTD), self.layers[0]
    query_BHTK, key, value = layer.queries_keys_values(
        x_BTD, decoder.turns_of(self.config, query)
    )
    key, value = cache_lib.extend(cache, 0, key, value, query.slot_BT)
    x_BTD = layer(x_BTD, query_BHTK, key, value, query.mask_BTS)
    return x_BTD, cache_lib.Cache((key,), (value,))

  def empty_cache(self, batch: int, slots: int) -> cache_lib.Cache:
    """A cache of `slots` slots a row; needs no parameters."""
    cfg = self.config
    return cache_lib.empty_cache(
        batch, slots, 1, cfg.num_kv_heads, cfg.d_kv, self.types.carried
    )


class T5Head(EagleHead):
  """Of T5 targets."""

  def setup(self):
    super().setup()
    self.decoder_bias = t5.relative_bias(self.config, bidirectional=False)
    self.decoder_layers = [
        t5.DecoderLayer(self.config, self.types, normed=False)
    ]

  def remember(self, hidden_BLD, mask_BL) -> t5.Memory:
    """The layer's keys and values of the source."""
    key, value = self.decoder_layers[0].cross_keys_values(hidden_BLD)
    return t5.Memory(hidden_BLD, mask_BL, key=(key,), value=(value,))

  def read(self, embedded_BTD, hidden_BTD, query, cache, memory):
    """See EagleHead.read."""
    x_BTD = self._joined(embedded_BTD, hidden_BTD)
    layer = self.decoder_layers[0]
    bias_BHTS = self.decoder_bias(query.position_BT, query.position_BS)
    query_BHTK, key, value = layer.queries_keys_values(x_BTD)
    key, value = cache_lib.extend(cache, 0, key, value, query.slot_BT)
    x_BTD = layer(
        x_BTD,
        (query_BHTK, key, value),
        bias_BHTS,
        query.mask_BTS,
        (memory.key[0], memory.value[0]),
        memory.mask_BL,
    )
    return x_BTD, cache_lib.Cache((key,), (value,))

  def empty_cache(self, batch: int, slots: int) -> cache_lib.Cache:
    """A cache of `slots` slots a row; needs no parameters."""
    cfg = self.config
    return cache_lib.empty_cache(
        batch, slots, 1, cfg.num_heads, cfg.d_kv, self.types.carried
    )


@struct.dataclass
class EagleParams:
  """Variables of a head, and those of its target that it uses, too.

  Attributes:
    head: its own.
    target: the target's embedding and output matrix.
    listed: the ids that it chooses from; None where those are all.
  """

  head: Any
  target: Any
  listed: listed_lib.Listed | None = None


@dataclasses.dataclass(frozen=True)
class Eagle:
  """A head and its target: tokens and hidden states in, logits out.

  Attributes:
    target: the target's module.
    head: the head's.
  """

  target: nn.Module
  head: EagleHead

  def params(self, head, target, listed=None) -> EagleParams:
    """Variables of both -> those that are needed; none is copied."""
    own = {k: v for k, v in target["params"].items() if k in _SHARED}
    return EagleParams(head, {"params": own}, listed)

  def init(self, key):
    """Random variables of the head."""
    width = self.head.config.d_model
    x_BTD = jnp.zeros((1, 1, width))
    query = cache_lib.whole_query(jnp.zeros((1, 1), jnp.int32))
    source = None
    if isinstance(self.head, T5Head):
      source = x_BTD, jnp.ones((1, 1), bool)
    return self.head.init(key, x_BTD, x_BTD, query, source)

  def remember(self, params: EagleParams, memory):
    """The head's memory, made of the target's; None where it has none."""
    if memory is None:
      return None
    return self.head.apply(
        params.head, memory.hidden_BLD, memory.mask_BL, method="remember"
    )

  def read(self, params: EagleParams, query, hidden_BTD, cache, memory):
    """hidden_BTD behind a query's tokens, and the cache; see EagleHead.read."""
    embedded_BTD = self.target.apply(params.target, query, method="embed")
    return self.head.apply(
        params.head,
        embedded_BTD,
        hidden_BTD,
        query,
        cache,
        memory,
        method="read",
    )

  def logits(self, params: EagleParams, hidden_BTD) -> jax.Array:
    """logits_BTV by the target's output matrix, float32.

    -inf of ids that are not listed, where some are.
    """
    listed = params.listed
    if listed is None:
      return self.target.apply(params.target, hidden_BTD, method="head")
    logits_BTW = products.product(hidden_BTD, listed.kernel, self.head.dtype)
    return listed.spread(logits_BTW)


def of(target: nn.Module, config=None, dtype=None) -> Eagle:
  """A target with a head.

  Args:
    target: its module.
    config: of the head's layer; None is the target's own.
    dtype: of the head's products; likewise.
  """
  kind = T5Head if isinstance(target, t5.T5) else DecoderHead
  head = kind(
      config or target.config, dtype or target.dtype, target.carried
  )
  return Eagle(target, head)
