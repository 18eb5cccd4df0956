"""T5 encoder-decoder (Raffel et al., arXiv 1910.10683), v1.0 and v1.1.

v1.0 ties the head to the embedding, scales what feeds it by D^-0.5 and uses a
ReLU feed-forward; v1.1 and flan have a head of their own, no scaling and a
gated GELU. Both add a learned bias by relative position to the scores of
self-attention, and never scale by sqrt(K).

One decoding: `encode` the source once (this also makes every layer's
cross-attention keys and values), then `decode` T tokens a row at a time
against an explicit cache.
"""

import dataclasses
import functools

from flax import linen as nn
from flax import struct
import jax
import jax.numpy as jnp

from specjax.models import bias as bias_lib
from specjax.models import cache as cache_lib
from specjax.models import layers
from specjax.models import products


@dataclasses.dataclass(frozen=True)
class T5Config:
  """Shape of a T5. Field names are those of Hugging Face's config.json."""

  vocab_size: int
  d_model: int
  d_kv: int
  d_ff: int
  num_layers: int
  num_decoder_layers: int
  num_heads: int
  gated: bool
  tied: bool
  relative_attention_num_buckets: int = 32
  relative_attention_max_distance: int = 128
  layer_norm_epsilon: float = 1e-6
  decoder_start_token_id: int = 0
  pad_token_id: int = 0
  eos_token_id: int = 1

  @property
  def ends(self) -> tuple[int, ...]:
    """The ids that end a text."""
    return (self.eos_token_id,)

  @property
  def max_positions(self) -> None:
    """The longest text it was made for: distances know no end."""

  @property
  def logit_scale(self) -> float:
    """D^-0.5 where the head is the embedding (v1.0), else 1."""
    return self.d_model**-0.5 if self.tied else 1.0


@struct.dataclass
class Memory:
  """What the decoder needs of the source, made once for each request.

  Attributes:
    hidden_BLD: the encoder's output.
    mask_BL: True at real source tokens.
    key: one cross-attention key_BHKL a decoder layer.
    value: one cross-attention value_BHLK a decoder layer.
  """

  hidden_BLD: jax.Array
  mask_BL: jax.Array
  key: tuple[jax.Array, ...]
  value: tuple[jax.Array, ...]


class Attention(nn.Module):
  """Projections of one attention block; keys and values come and go.

  What one input feeds is one product: queries, keys and values of
  self-attention (`qkv`), keys and values of the source (`kv`).
  """

  config: T5Config
  types: layers.Types
  cross: bool = False

  def setup(self):
    cfg = self.config
    inner = cfg.num_heads * cfg.d_kv
    linear = functools.partial(layers.Linear, types=self.types)
    width = cfg.d_model**-0.5
    # T5 starts the query smaller: its scores are never scaled.
    query = width * cfg.d_kv**-0.5
    if self.cross:
      self.q = linear(inner, stddev=query)
      self.kv = linear((2, inner), stddev=(width, width))
    else:
      self.qkv = linear((3, inner), stddev=(query, width, width))
    self.o = linear(cfg.d_model, stddev=inner**-0.5)

  def _heads(self, x_BTE):
    return layers.split_heads(x_BTE, self.config.num_heads)

  def _parts(self, x_BTME):
    """-> one x_BHTK for each M."""
    return tuple(
        self._heads(x_BTME[:, :, i]) for i in range(x_BTME.shape[2])
    )

  def queries_keys_values(self, x_BTD):
    """Self-attention: query_BHTK, key_BHTK, value_BHTK."""
    return self._parts(self.qkv(x_BTD))

  def queries(self, x_BTD):
    """Cross-attention: query_BHTK."""
    return self._heads(self.q(x_BTD))

  def keys_values(self, x_BLD):
    """Cross-attention: key_BHKL, value_BHLK."""
    key_BHLK, value_BHLK = self._parts(self.kv(x_BLD))
    return jnp.swapaxes(key_BHLK, 2, 3), value_BHLK

  def __call__(self, query_BHTK, key_BHKS, value_BHSK, bias_BHTS, mask_BTS):
    return self.o(
        layers.attend(query_BHTK, key_BHKS, value_BHSK, bias_BHTS, mask_BTS)
    )


def feed_forward(config: T5Config, types: layers.Types) -> layers.FeedForward:
  """ReLU (v1.0) or gated GELU (v1.1) feed-forward."""
  activation = layers.gelu if config.gated else jax.nn.relu
  return layers.FeedForward(config.d_ff, activation, types, config.gated)


class EncoderLayer(nn.Module):
  """Self-attention and feed-forward, each with a norm before it."""

  config: T5Config
  types: layers.Types

  def setup(self):
    norm = functools.partial(layers.RMSNorm, self.config.layer_norm_epsilon)
    self.attention_norm = norm()
    self.attention = Attention(self.config, self.types)
    self.feed_forward_norm = norm()
    self.feed_forward = feed_forward(self.config, self.types)

  def __call__(self, x_BLD, bias_BHLL, mask_BLL):
    query_BHLK, key_BHLK, value_BHLK = self.attention.queries_keys_values(
        self.attention_norm(x_BLD)
    )
    key_BHKL = jnp.swapaxes(key_BHLK, 2, 3)
    x_BLD += self.attention(
        query_BHLK, key_BHKL, value_BHLK, bias_BHLL, mask_BLL
    )
    return x_BLD + self.feed_forward(self.feed_forward_norm(x_BLD))


class DecoderLayer(nn.Module):
  """Self-attention, cross-attention and feed-forward.

  Attributes:
    config: of the model.
    types: what it computes in.
    normed: whether there is a norm before self-attention, too.
  """

  config: T5Config
  types: layers.Types
  normed: bool = True

  def setup(self):
    norm = functools.partial(layers.RMSNorm, self.config.layer_norm_epsilon)
    if self.normed:
      self.attention_norm = norm()
    self.attention = Attention(self.config, self.types)
    self.cross_norm = norm()
    self.cross = Attention(self.config, self.types, cross=True)
    self.feed_forward_norm = norm()
    self.feed_forward = feed_forward(self.config, self.types)

  def queries_keys_values(self, x_BTD):
    """Self-attention queries, keys and values of new tokens."""
    if self.normed:
      x_BTD = self.attention_norm(x_BTD)
    return self.attention.queries_keys_values(x_BTD)

  def cross_keys_values(self, hidden_BLD):
    """Cross-attention keys and values of the source."""
    return self.cross.keys_values(hidden_BLD)

  def __call__(self, x_BTD, own, bias_BHTS, mask_BTS, source, mask_BL):
    """`own`: new queries, all keys, all values; `source`: keys, values."""
    x_BTD += self.attention(*own, bias_BHTS, mask_BTS)
    query_BHTK = self.cross.queries(self.cross_norm(x_BTD))
    x_BTD += self.cross(query_BHTK, *source, None, mask_BL[:, None, :])
    return x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))


def relative_bias(
    config: T5Config, *, bidirectional: bool
) -> bias_lib.RelativeBias:
  """The bias of a stack's self-attention."""
  return bias_lib.RelativeBias(
      heads=config.num_heads,
      buckets=config.relative_attention_num_buckets,
      max_distance=config.relative_attention_max_distance,
      stddev=config.d_model**-0.5,
      bidirectional=bidirectional,
  )


class T5(nn.Module):
  """A T5. Owns parameters only; memory, cache and positions are explicit.

  Attributes:
    config: its shape.
    dtype: of what is multiplied with weights; logits are float32.
    carried: of activations between the products, and of keys and values; None
      is `dtype`. See products.carried.
  """

  config: T5Config
  dtype: jnp.dtype = jnp.float32
  carried: jnp.dtype | None = None

  @property
  def types(self) -> layers.Types:
    """What its layers compute in."""
    return layers.Types(self.dtype, self.carried or self.dtype)

  def setup(self):
    cfg = self.config
    self.shared = self.param(
        "shared", nn.initializers.normal(1.0), (cfg.vocab_size, cfg.d_model)
    )
    self.encoder_bias = relative_bias(cfg, bidirectional=True)
    self.encoder_layers = [
        EncoderLayer(cfg, self.types) for _ in range(cfg.num_layers)
    ]
    self.encoder_norm = layers.RMSNorm(cfg.layer_norm_epsilon)
    self.decoder_bias = relative_bias(cfg, bidirectional=False)
    self.decoder_layers = [
        DecoderLayer(cfg, self.types) for _ in range(cfg.num_decoder_layers)
    ]
    self.decoder_norm = layers.RMSNorm(cfg.layer_norm_epsilon)
    if not cfg.tied:
      self.lm_head = layers.Linear(
          cfg.vocab_size, stddev=cfg.d_model**-0.5, types=self.types
      )

  def _embed(self, tokens):
    return layers.embed(self.shared, tokens, self.types)

  def embed(self, query: cache_lib.Query):
    """What the decoder's first layer reads."""
    return self._embed(query.tokens_BT)

  def encode(self, source_BL, mask_BL) -> Memory:
    """Reads the source.

    Args:
      source_BL: token ids; anything where mask_BL is False.
      mask_BL: True at real tokens.

    Returns:
      The Memory that `decode` takes.
    """
    position_BL = jnp.arange(source_BL.shape[1])[None]
    bias_BHLL = self.encoder_bias(position_BL, position_BL)
    mask_BLL = jnp.broadcast_to(
        mask_BL[:, None, :], (*mask_BL.shape, mask_BL.shape[1])
    )
    x_BLD = self._embed(source_BL)
    for layer in self.encoder_layers:
      x_BLD = layer(x_BLD, bias_BHLL, mask_BLL)
    hidden_BLD = self.encoder_norm(x_BLD)
    pairs = [
        layer.cross_keys_values(hidden_BLD) for layer in self.decoder_layers
    ]
    key, value = zip(*pairs)
    return Memory(hidden_BLD=hidden_BLD, mask_BL=mask_BL, key=key, value=value)

  def decode(
      self,
      query: cache_lib.Query,
      cache: cache_lib.Cache | None,
      memory: Memory,
      taps: tuple[int, ...] = (),
      newest: bool = False,
  ):
    """Reads T tokens a row.

    Args:
      query: tokens with their positions, slots and masks.
      cache: what earlier calls wrote; None when the T tokens are all there is
        (training): T then stands for S, and slots are not looked at.
      memory: from `encode`.
      taps: which hidden states to return. 0 is the embedding, i the output of
        layer i, -2 the last layer's output, -1 the same after the final norm.
      newest: logits of each row's last token alone, logits_B1V.

    Returns:
      logits_BTV in float32, the cache with the tokens written, and a tuple of
      hidden_BTD, one a tap.
    """
    bias_BHTS = self.decoder_bias(query.position_BT, query.position_BS)
    x_BTD = self.embed(query)
    states = [x_BTD]
    keys, values = [], []
    for i, layer in enumerate(self.decoder_layers):
      query_BHTK, key, value = layer.queries_keys_values(x_BTD)
      key, value = cache_lib.extend(cache, i, key, value, query.slot_BT)
      x_BTD = layer(
          x_BTD,
          (query_BHTK, key, value),
          bias_BHTS,
          query.mask_BTS,
          (memory.key[i], memory.value[i]),
          memory.mask_BL,
      )
      keys.append(key)
      values.append(value)
      states.append(x_BTD)
    final_BTD = self.decoder_norm(x_BTD)
    states.append(final_BTD)
    return (
        self.head(final_BTD[:, -1:] if newest else final_BTD),
        cache_lib.Cache(key=tuple(keys), value=tuple(values)),
        tuple(states[tap] for tap in taps),
    )

  def head(self, hidden_BTD):
    """Hidden states after the final norm -> logits_BTV in float32."""
    if not self.config.tied:
      return self.lm_head(hidden_BTD).astype(jnp.float32)
    scaled_BTD = hidden_BTD * self.config.logit_scale
    return products.product(scaled_BTD, self.shared, self.dtype, out_in=True)

  def empty_cache(self, batch: int, slots: int) -> cache_lib.Cache:
    """A cache of `slots` slots a row; needs no parameters."""
    cfg = self.config
    return cache_lib.empty_cache(
        batch,
        slots,
        cfg.num_decoder_layers,
        cfg.num_heads,
        cfg.d_kv,
        self.types.carried,
    )

  def __call__(self, source_BL, mask_BL, inputs_BT):
    """Teacher-forced logits_BTV; inputs_BT begins with the start token."""
    memory = self.encode(source_BL, mask_BL)
    return self.decode(cache_lib.whole_query(inputs_BT), None, memory)[0]
