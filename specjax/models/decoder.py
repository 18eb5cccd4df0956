"""Decoder-only models: Llama, Qwen2 and GPT-2, by what they are made of.

Llama and its kin (SmolLM2, TinyLlama; Qwen2 with biases on q, k and v) have
RMSNorm, rotary positions, fewer heads of keys and values than of queries, and
a feed-forward gated by SiLU. GPT-2 has LayerNorm, a table of positions, GELU,
and a bias everywhere. Both norm before each block, and scale scores by
sqrt(K).
"""

import dataclasses
import functools

from flax import linen as nn
import jax
import jax.numpy as jnp

from specjax.models import cache as cache_lib
from specjax.models import layers
from specjax.models import products
from specjax.models import rope as rope_lib


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """Shape of a decoder-only model.

  Attributes:
    vocab_size: V.
    d_model: D.
    d_kv: K, width of a head.
    d_ff: F.
    num_layers: blocks.
    num_heads: of queries.
    num_kv_heads: of keys and values; a divisor of num_heads.
    tied: the head is the embedding.
    gated: SwiGLU feed-forward, else GELU.
    rms: RMSNorm, else LayerNorm with bias.
    rope: how positions turn queries and keys; None is a table of positions.
    max_positions: the longest text it was made for.
    norm_epsilon: of the norms.
    qkv_bias: whether queries, keys and values have one.
    out_bias: whether attention's output has one.
    ff_bias: whether the feed-forward has.
    ends: the ids that end a text.
  """

  vocab_size: int
  d_model: int
  d_kv: int
  d_ff: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  tied: bool
  gated: bool
  rms: bool
  rope: rope_lib.Rope | None
  max_positions: int
  norm_epsilon: float
  qkv_bias: bool = False
  out_bias: bool = False
  ff_bias: bool = False
  ends: tuple[int, ...] = ()

  @property
  def group(self) -> int:
    """Heads of queries that share one of keys and values."""
    return self.num_heads // self.num_kv_heads


def norm(config: DecoderConfig) -> layers.RMSNorm | layers.LayerNorm:
  """One of its norms."""
  kind = layers.RMSNorm if config.rms else layers.LayerNorm
  return kind(config.norm_epsilon)


def turns_of(config: DecoderConfig, query: cache_lib.Query):
  """How queries and keys turn at their positions; None where they don't."""
  if config.rope is None:
    return None
  return config.rope.turns(query.position_BT, config.d_kv)


class Attention(nn.Module):
  """Projections of one attention block; keys and values come and go.

  One product makes queries, keys and values. Its M parts are the heads of keys
  and values, each with the queries that it serves in front: M can be split
  over devices without tearing a group.
  """

  config: DecoderConfig
  types: layers.Types

  def setup(self):
    cfg = self.config
    linear = functools.partial(layers.Linear, types=self.types)
    parts, each = cfg.num_kv_heads, (cfg.group + 2) * cfg.d_kv
    stddev = (cfg.d_model**-0.5,) * parts
    self.qkv = linear((parts, each), stddev=stddev, bias=cfg.qkv_bias)
    inner = cfg.num_heads * cfg.d_kv
    self.o = linear(cfg.d_model, stddev=inner**-0.5, bias=cfg.out_bias)

  def queries_keys_values(self, x_BTD, turns):
    """query_BHTK, scaled; key_BHTK, value_BHTK; turned where `turns` says."""
    cfg = self.config
    batch, width = x_BTD.shape[:2]
    x_BTME = self.qkv(x_BTD)
    x_BTMHK = x_BTME.reshape(*x_BTME.shape[:3], -1, cfg.d_kv)
    x_BMHTK = jnp.transpose(x_BTMHK, (0, 2, 3, 1, 4))
    query_BHTK = x_BMHTK[:, :, :-2].reshape(batch, -1, width, cfg.d_kv)
    key_BHTK, value_BHTK = x_BMHTK[:, :, -2], x_BMHTK[:, :, -1]
    if turns is not None:
      query_BHTK = rope_lib.turn(query_BHTK, turns)
      key_BHTK = rope_lib.turn(key_BHTK, turns)
    return query_BHTK * cfg.d_kv**-0.5, key_BHTK, value_BHTK

  def __call__(self, query_BHTK, key_BHKS, value_BHSK, mask_BTS):
    return self.o(
        layers.attend(query_BHTK, key_BHKS, value_BHSK, None, mask_BTS)
    )


class Block(nn.Module):
  """Self-attention and feed-forward, each with a norm before it.

  Attributes:
    config: of the model.
    types: what it computes in.
    normed: whether there is a norm before self-attention, too.
  """

  config: DecoderConfig
  types: layers.Types
  normed: bool = True

  def setup(self):
    cfg = self.config
    if self.normed:
      self.attention_norm = norm(cfg)
    self.attention = Attention(cfg, self.types)
    self.feed_forward_norm = norm(cfg)
    self.feed_forward = layers.FeedForward(
        cfg.d_ff,
        jax.nn.silu if cfg.gated else layers.gelu,
        self.types,
        cfg.gated,
        cfg.ff_bias,
    )

  def queries_keys_values(self, x_BTD, turns):
    """Queries, keys and values of new tokens."""
    if self.normed:
      x_BTD = self.attention_norm(x_BTD)
    return self.attention.queries_keys_values(x_BTD, turns)

  def __call__(self, x_BTD, query_BHTK, key_BHKS, value_BHSK, mask_BTS):
    """New queries, all keys, all values."""
    x_BTD += self.attention(query_BHTK, key_BHKS, value_BHSK, mask_BTS)
    return x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))


class Decoder(nn.Module):
  """A decoder-only model. Owns parameters only, as models.t5.T5 does.

  Attributes:
    config: its shape.
    dtype: of what is multiplied with weights; logits are float32.
    carried: of activations between the products, and of keys and values; None
      is `dtype`. See products.carried.
  """

  config: DecoderConfig
  dtype: jnp.dtype = jnp.float32
  carried: jnp.dtype | None = None

  @property
  def types(self) -> layers.Types:
    """What its layers compute in."""
    return layers.Types(self.dtype, self.carried or self.dtype)

  def setup(self):
    cfg = self.config
    normal = nn.initializers.normal(cfg.d_model**-0.5)
    table = lambda name, rows: self.param(name, normal, (rows, cfg.d_model))
    self.embedding = table("embedding", cfg.vocab_size)
    if cfg.rope is None:
      self.positions = table("positions", cfg.max_positions)
    self.layers = [Block(cfg, self.types) for _ in range(cfg.num_layers)]
    self.final_norm = norm(cfg)
    if not cfg.tied:
      self.lm_head = layers.Linear(
          cfg.vocab_size, stddev=cfg.d_model**-0.5, types=self.types
      )

  def embed(self, query: cache_lib.Query):
    """What the first layer reads: tokens, and positions of a table."""
    x_BTD = layers.embed(self.embedding, query.tokens_BT, self.types)
    if self.config.rope is None:
      x_BTD += layers.embed(self.positions, query.position_BT, self.types)
    return x_BTD

  def decode(
      self,
      query: cache_lib.Query,
      cache: cache_lib.Cache | None,
      memory: None = None,
      taps: tuple[int, ...] = (),
      newest: bool = False,
  ):
    """Reads T tokens a row.

    Args:
      query: tokens with their positions, slots and masks.
      cache: what earlier calls wrote; None when the T tokens are all there is
        (training): T then stands for S, and slots are not looked at.
      memory: there is none; encoder-decoders have it in this place.
      taps: which hidden states to return. 0 is the embedding, i the output of
        layer i, -2 the last layer's output, -1 the same after the final norm.
      newest: logits of each row's last token alone, logits_B1V.

    Returns:
      logits_BTV in float32, the cache with the tokens written, and a tuple of
      hidden_BTD, one a tap.
    """
    del memory
    cfg = self.config
    x_BTD = self.embed(query)
    turns = turns_of(cfg, query)
    states = [x_BTD]
    keys, values = [], []
    for i, layer in enumerate(self.layers):
      query_BHTK, key, value = layer.queries_keys_values(x_BTD, turns)
      key, value = cache_lib.extend(cache, i, key, value, query.slot_BT)
      x_BTD = layer(x_BTD, query_BHTK, key, value, query.mask_BTS)
      keys.append(key)
      values.append(value)
      states.append(x_BTD)
    final_BTD = self.final_norm(x_BTD)
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
    return products.product(
        hidden_BTD, self.embedding, self.dtype, out_in=True
    )

  def empty_cache(self, batch: int, slots: int) -> cache_lib.Cache:
    """A cache of `slots` slots a row; needs no parameters."""
    cfg = self.config
    return cache_lib.empty_cache(
        batch,
        slots,
        cfg.num_layers,
        cfg.num_kv_heads,
        cfg.d_kv,
        self.types.carried,
    )

  def __call__(self, inputs_BT):
    """Logits_BTV of whole texts, without a cache."""
    return self.decode(cache_lib.whole_query(inputs_BT), None)[0]
