"""Medusa's heads: what follows, from one hidden state (arXiv 2401.10774).

Head m of M (from 1 on) takes the target's state at position t, which gives
token t + 1, and gives token t + 1 + m, whatever the tokens between are. A head
is some blocks x + SiLU(W x + b) and a matrix to the vocabulary: the target's
own, or one for each head. Blocks begin as nothing at all: every head then says
what the target's own would.

The product with that matrix is most of what heads cost; see models.listed.
"""

import dataclasses
import functools
from typing import Any

from flax import linen as nn
from flax import struct
import jax
import jax.numpy as jnp

from specjax import checks
from specjax import errors
from specjax.models import layers
from specjax.models import listed as listed_lib
from specjax.models import products


# A head is a place of a draft; of many blocks none would be small.
_MOST = {"d_model": 2**20, "vocab_size": 2**31 - 1, "heads": 64, "blocks": 64}


@dataclasses.dataclass(frozen=True)
class MedusaConfig:
  """Shape of the heads.

  Attributes:
    d_model: D of the target.
    vocab_size: V of the target.
    heads: M.
    blocks: of each head.
    own: each has an output matrix; else they share the target's.
    listed: ids that they choose from; 0 is all V.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  d_model: int
  vocab_size: int
  heads: int = 4
  blocks: int = 1
  own: bool = False
  listed: int = 0

  def __post_init__(self):
    for field, most in _MOST.items():
      value = getattr(self, field)
      good = checks.is_whole(value, 1, most)
      errors.require(good, field, f"give 1 to {most}", value)
    errors.require(
        isinstance(self.own, bool), "own", "give True or False", self.own
    )
    errors.require(
        checks.is_whole(self.listed, 0, self.vocab_size),
        "listed",
        f"give 0 (all), or up to {self.vocab_size}",
        self.listed,
    )

  @property
  def width(self) -> int:
    """W, of their logits."""
    return self.listed or self.vocab_size


@struct.dataclass
class MedusaParams:
  """Variables of heads, and what else their logits are made with.

  Attributes:
    heads: their own.
    target: the target's: its output matrix is theirs where they have none.
    listed: None where they choose from all ids.
  """

  heads: Any
  target: Any
  listed: listed_lib.Listed | None = None


class Medusa(nn.Module):
  """The heads. Owns parameters only.

  Attributes:
    config: their shape.
    dtype: of what is multiplied with weights.
    carried: of activations between the products; see products.carried.
  """

  config: MedusaConfig
  dtype: jnp.dtype = jnp.float32
  carried: jnp.dtype | None = None

  def setup(self):
    cfg = self.config
    types = layers.Types(self.dtype, self.carried or self.dtype)
    linear = functools.partial(layers.Linear, types=types)
    # One product of all heads: they read the same state.
    self.layers = [
        linear((cfg.heads, cfg.d_model), (0.0,) * cfg.heads, bias=True)
    ]
    # Of the blocks behind it each head's is its own.
    self.later_layers = [
        [linear(cfg.d_model, 0.0, bias=True) for _ in range(cfg.heads)]
        for _ in range(cfg.blocks - 1)
    ]
    if cfg.own:
      self.out = [
          linear(cfg.width, cfg.d_model**-0.5) for _ in range(cfg.heads)
      ]

  def __call__(self, hidden_BTD):
    """States after the target's final norm -> states_BTMD of the heads."""
    x_BTMD = hidden_BTD[..., None, :]
    x_BTMD = x_BTMD + jax.nn.silu(self.layers[0](hidden_BTD))
    for block in self.later_layers:
      more = [jax.nn.silu(f(x_BTMD[..., m, :])) for m, f in enumerate(block)]
      x_BTMD = x_BTMD + jnp.stack(more, axis=-2)
    return x_BTMD

  def logits(self, state_BTD, head: int):
    """Logits_BTW of one head that has an output matrix, in float32."""
    return self.out[head](state_BTD).astype(jnp.float32)

  def everything(self, hidden_BTD):
    """What `init` needs to see: states, and logits where there are some."""
    x_BTMD = self(hidden_BTD)
    if self.config.own:
      for head in range(self.config.heads):
        self.logits(x_BTMD[..., head, :], head)
    return x_BTMD


def logits(module: Medusa, target, params, hidden_BTD, heads: int):
  """Logits_BTMW of the first heads.

  Args:
    module: the heads.
    target: the module whose states they read.
    params: MedusaParams.
    hidden_BTD: those states.
    heads: how many; one product serves all that share a matrix.
  """
  state_BTMD = module.apply(params.heads, hidden_BTD)[..., :heads, :]
  if module.config.own:
    one = lambda m: module.apply(
        params.heads, state_BTMD[..., m, :], m, method="logits"
    )
    return jnp.stack([one(m) for m in range(heads)], axis=-2)
  if params.listed is None:
    return target.apply(params.target, state_BTMD, method="head")
  return products.product(state_BTMD, params.listed.kernel, module.dtype)
