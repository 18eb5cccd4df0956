"""Mock models and scripted drafts, for tests of the loop.

A table of probabilities is a model: it has the interface of models.t5.T5, and
its logits depend on the newest tokens as they are read through the cache, so
that an entry which is missing, stale or misplaced shows in the text.
"""

import dataclasses
import functools
import itertools
import math
import types
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.decoding import requests as requests_lib
from specjax.decoding import state as state_lib
from specjax.models import cache as cache_lib
from specjax.models import decoder
from specjax.models import rope
from specjax.models import t5
from specjax.verify import proposal as proposals


@dataclasses.dataclass(frozen=True)
class TableModel:
  """logits = table[code of the newest `reach` tokens].

  A slot's key is the token's position + 1 and its value the token + 1. The
  code is a number in base V + 1 whose lowest digit is the newest token, and
  whose digits are 0 where no such token is to be seen. `params` is the table,
  [(V + 1)^reach, V]. There is one hidden state, the newest token's digit.
  """

  vocabulary: int
  reach: int = 2

  def apply(self, params, *args, method, **kwargs):
    """As flax.linen.Module.apply."""
    return getattr(self, method)(params, *args, **kwargs)

  def empty_cache(self, batch, slots):
    """One layer, one head, one number."""
    return cache_lib.empty_cache(batch, slots, 1, 1, 1, jnp.float32)

  def decode(self, params, query, cache, memory, taps=(), newest=False):
    """As models.t5.T5.decode; there is no memory."""
    assert memory is None
    tokens_BT = jnp.clip(query.tokens_BT, 0, self.vocabulary - 1)
    wide = lambda new_BT: new_BT[:, None, :, None]
    key, value = cache_lib.write(
        cache.key[0],
        cache.value[0],
        wide(query.position_BT + 1),
        wide(tokens_BT + 1),
        query.slot_BT,
    )
    key_B1S, value_B1S = key[:, None, 0, 0], value[:, None, 0, :, 0]
    back_BTS = query.position_BT[:, :, None] + 1 - key_B1S
    code_BT = 0
    digits = []
    for back in range(self.reach):
      seen_BTS = query.mask_BTS & (key_B1S > 0) & (back_BTS == back)
      digit_BT = jnp.sum(jnp.where(seen_BTS, value_B1S, 0), axis=-1)
      digits.append(digit_BT)
      code_BT += digit_BT.astype(jnp.int32) * (self.vocabulary + 1) ** back
    logits_BTV = self._rows(params, code_BT)
    return (
        logits_BTV[:, -1:] if newest else logits_BTV,
        cache_lib.Cache(key=(key,), value=(value,)),
        tuple(digits[0][..., None] for _ in taps),
    )

  def _rows(self, params, code_BT):
    """logits_BTV of these codes."""
    return params[code_BT]

  def code(self, text) -> int:
    """Row of the table that follows `text`."""
    newest = reversed(list(text)[-self.reach :])
    return sum(
        (token + 1) * (self.vocabulary + 1) ** i
        for i, token in enumerate(newest)
    )


@dataclasses.dataclass(frozen=True)
class RowTables(TableModel):
  """A TableModel of which each row of a batch has a table of its own.

  `params` are tables one behind another; as many rows in a row have the same.
  """

  def _rows(self, params, code_BT):
    rows = code_BT.shape[0]
    table_B = jnp.arange(rows) * params.shape[0] // rows
    return params[table_B[:, None], code_BT]


@dataclasses.dataclass(frozen=True)
class TableHead:
  """An EAGLE head of such tables: it has the interface of models.eagle.Eagle.

  A hidden state is one number, modulo V + 1 the digit of the newest token: the
  target's own is that digit, and what the head makes up the code of the two
  newest, which `tables` has a row for. The older one is read through the cache.
  A pair's value is token + 1 and the hidden state that came with it, so that
  what was made up is told from what was heard. `params` are the tables.
  """

  tables: TableModel

  head = property(lambda self: self)
  config = types.SimpleNamespace(d_model=1)
  types = types.SimpleNamespace(carried=jnp.float32)

  def empty_cache(self, batch, slots):
    """One layer, one head, two numbers."""
    return cache_lib.empty_cache(batch, slots, 1, 1, 2, jnp.float32)

  def remember(self, params, memory):
    """There is no memory."""
    del params
    assert memory is None

  def read(self, params, query, hidden_BTD, cache, memory):
    """As models.eagle.Eagle.read."""
    del params
    assert memory is None
    base = self.tables.vocabulary + 1
    digit_BT = jnp.clip(query.tokens_BT, 0, base - 2) + 1.0
    place_BT = query.position_BT + 1.0
    wide = lambda *fields_BT: jnp.stack(fields_BT, axis=-1)[:, None]
    key, value = cache_lib.write(
        cache.key[0],
        cache.value[0],
        wide(place_BT, jnp.zeros_like(place_BT)),
        wide(digit_BT, hidden_BTD[..., 0]),
        query.slot_BT,
    )
    key_B1S, value_B1S = key[:, None, 0, 0], value[:, None, 0, :, 0]
    seen_BTS = query.mask_BTS & (key_B1S > 0)
    seen_BTS &= place_BT[:, :, None] - key_B1S == 1
    before_BT = jnp.sum(jnp.where(seen_BTS, value_B1S, 0), axis=-1)
    # Nothing stands before the first pair but what came with it.
    before_BT = jnp.where(
        query.position_BT == 0, hidden_BTD[..., 0] % base, before_BT
    )
    code_BT = digit_BT + base * before_BT
    return code_BT[..., None], cache_lib.Cache(key=(key,), value=(value,))

  def logits(self, params, hidden_BTD):
    """Rows of the tables."""
    code_BT = hidden_BTD[..., 0].astype(jnp.int32)
    return self.tables._rows(params, code_BT)


def random_table(model, seed, *, scale=1.5):
  """Random logits for a TableModel."""
  rows = (model.vocabulary + 1) ** model.reach
  rng = np.random.default_rng(seed)
  logits = rng.normal(scale=scale, size=(rows, model.vocabulary))
  return jnp.asarray(logits, jnp.float32)


def counting_table(vocabulary, noise=0.0, seed=0):
  """0 1 2 3 ...: each token is followed by the next greater one.

  For a TableModel of reach 2. Where the two newest tokens do not follow one
  another the table says V - 1: a fault in the cache stands out. `noise` is
  what the logits differ from 0 by, apart from the one that is 10.
  """
  model = TableModel(vocabulary)
  rng = np.random.default_rng(seed)
  table = noise * rng.normal(size=((vocabulary + 1) ** 2, vocabulary))
  table[:, vocabulary - 1] += 5
  for last in range(vocabulary - 1):
    befores = [()] + [(last - 1,)] * (last > 0)
    for before in befores:
      table[model.code((*before, last)), last + 1] += 10
  return jnp.asarray(table, jnp.float32)


@struct.dataclass
class Heard:
  """State of a ScriptedDrafter.

  Attributes:
    round_B: rounds proposed for.
    heard_BS: tokens that `observe` was told, each at its own position.
    before_BS: the feature that stood before each, where taps were asked for.
  """

  round_B: jax.Array
  heard_BS: jax.Array
  before_BS: jax.Array


@dataclasses.dataclass(frozen=True)
class ScriptedDrafter:
  """Point masses of which a greedy target accepts just as many as told.

  `params` is a pair: text_BS, the target's own greedy text with the prompt,
  and accept_BR, how many drafts are right in each of a row's rounds.
  """

  gamma: int
  taps: tuple[int, ...] = ()

  kind = proposals.Kind.POINT
  nodes = property(lambda self: self.gamma)
  depth = property(lambda self: self.gamma)
  widths = property(lambda self: (self.gamma + 1,))
  learns = False

  def prefill(self, params, context, *, prompt_width, slots):
    """Nothing heard yet."""
    del params, prompt_width, slots
    empty_BS = jnp.full(context.tokens_BS.shape, -1.0, jnp.float32)
    return Heard(jnp.zeros_like(context.length_B), empty_BS, empty_BS)

  def propose(self, params, state, context, key_B, width):
    """Right tokens, then wrong ones."""
    del key_B
    text_BS, accept_BR = params
    column_BG = context.length_B[:, None] + jnp.arange(self.gamma)
    right_BG = jnp.take_along_axis(text_BS, column_BG, 1, mode="clip")
    accept_B1 = jnp.take_along_axis(
        accept_BR, state.round_B[:, None], 1, mode="clip"
    )
    tokens_BG = jnp.where(
        jnp.arange(self.gamma) < accept_B1, right_BG, (right_BG + 1) % width
    )
    proposal = proposals.Proposal(
        tokens_BN=tokens_BG,
        count_B=jnp.full_like(context.length_B, self.gamma),
        law=None,
        kind=self.kind,
    )
    return proposal, state.replace(round_B=state.round_B + context.active_B)

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """Notes what it is told."""
    del params
    note = lambda buffer, values: state_lib.write_rows(
        buffer, values.astype(jnp.float32), context.length_B, count_B
    )
    state = state.replace(heard_BS=note(state.heard_BS, tokens_BT))
    if not features:
      return state
    return state.replace(
        before_BS=note(state.before_BS, features[0][..., 0])
    )


@dataclasses.dataclass(frozen=True)
class ScriptedRule:
  """Accepts as many drafts as the caller says, right or wrong.

  A rejected token is replaced by its neighbour, so that what the caches hold
  of the draft is never what was emitted.
  """

  accept_B: Any

  def __call__(self, target, proposal, key_B):
    del key_B
    tokens_BN, count_B = proposal.tokens_BN, proposal.count_B
    accepted_B = jnp.minimum(self.accept_B, jnp.maximum(count_B, 0))
    at_B = jnp.minimum(accepted_B, tokens_BN.shape[1] - 1)
    drafted_B = jnp.take_along_axis(tokens_BN, at_B[:, None], 1)[:, 0]
    node_N = jnp.arange(tokens_BN.shape[1])
    node_BN = jnp.broadcast_to(node_N, tokens_BN.shape)
    zeros_BN = jnp.zeros(tokens_BN.shape, jnp.float32)
    return proposals.Verdict(
        accepted_B=accepted_B,
        path_BG=jnp.where(node_N < accepted_B[:, None], node_N, -1),
        next_token_B=(drafted_B + 1) % target.width,
        evaluated_BG=node_N
        < jnp.minimum(accepted_B + 1, count_B)[:, None],
        overlap_BG=zeros_BN,
        trace=proposals.Trace(node_BN, zeros_BN, zeros_BN, zeros_BN),
    )


@pytest.fixture(scope="module", autouse=True)
def quick_compiles():
  """Compiles in half the time; for tests whose programs hardly run."""
  name = "jax_disable_most_optimizations"
  before = jax.config.read(name)
  jax.config.update(name, True)
  yield
  jax.config.update(name, before)


@functools.partial(jax.jit, static_argnums=0)
def one_round(loop, target_params, drafter_params, state):
  """One round; the state stays usable."""
  return loop.round(target_params, drafter_params, state)


@functools.partial(jax.jit, static_argnums=0)
def scripted_round(loop, target_params, drafter_params, state, accept_B):
  """One round in which row b accepts accept_B[b] drafts."""
  loop = dataclasses.replace(loop, rule=ScriptedRule(accept_B))
  return loop.round(target_params, drafter_params, state)


def decode(loop, target_params, drafter_params, batch, budget):
  """The finished state of a batch."""
  state = loop.prefill(target_params, drafter_params, batch, budget)
  return loop.run(target_params, drafter_params, state)


def texts(state):
  """New tokens of each row, as tuples."""
  tokens_BS, start_B, end_B = jax.device_get(
      (state.tokens_BS, state.prompt_B, state.length_B)
  )
  return [
      tuple(row[start:end].tolist())
      for row, start, end in zip(tokens_BS, start_B, end_B)
  ]


def requests(
    settings, budget, *, prompts=((0,),), sources=(None,), ids=None
):
  """One request a row; each list is repeated to the longest one's length."""
  as_list = lambda x: list(x) if isinstance(x, (list, tuple)) else [x]
  columns = [
      as_list(settings), as_list(budget), list(prompts), list(sources)
  ]
  rows = max(map(len, columns))
  repeated = [itertools.cycle(column) for column in columns]
  return [
      requests_lib.Request(i, source, prompt, row_settings, row_budget)
      for i, row_settings, row_budget, prompt, source in zip(
          ids or range(rows), *repeated
      )
  ]


def widen_eos(batch, width):
  """Pads the EOS sets: loops are compiled for each width of them."""
  eos_BE = batch.sampling.eos_BE
  pad = ((0, 0), (0, width - eos_BE.shape[1]))
  eos_BE = jnp.pad(eos_BE, pad, constant_values=-1)
  return batch.replace(sampling=batch.sampling.replace(eos_BE=eos_BE))


def copies(requests, count, *, vocabulary, seed, **shape):
  """A batch with `count` rows of each request, each row with its own id.

  `shape` is what else make_batch is told.
  """
  batch = requests_lib.make_batch(
      requests, vocabulary=vocabulary, seed=seed, **shape
  )
  suppressed_V, rows = batch.sampling.suppressed_V, batch.id_B.size * count
  batch = jax.tree.map(
      lambda array: jnp.repeat(array, count, axis=0),
      batch.replace(key_B=None),
  )
  return batch.replace(
      sampling=batch.sampling.replace(suppressed_V=suppressed_V),
      key_B=jax.vmap(jax.random.fold_in, in_axes=(None, 0))(
          jax.random.key(seed), jnp.arange(rows, dtype=jnp.uint32)
      ),
  )


SOURCES = ((5, 3, 9, 1), (2, 1), (4, 4, 7, 8, 2, 6, 1), (3, 8, 1))


@functools.cache
def tiny_t5(seed=0, vocabulary=29, layers=2, width=16, heads=2):
  """A random T5 and its params, of shares that give texts with few loops."""
  module = t5.T5(
      t5.T5Config(
          vocab_size=vocabulary,
          d_model=width,
          d_kv=4,
          d_ff=2 * width,
          num_layers=1,
          num_decoder_layers=layers,
          num_heads=heads,
          gated=True,
          tied=False,
          relative_attention_num_buckets=8,
          relative_attention_max_distance=16,
      )
  )
  ids = jnp.zeros((1, 2), jnp.int32)
  shapes = jax.eval_shape(module.init, jax.random.key(0), ids, ids == 0, ids)
  gains = {"table": 8, "shared": 2, "cross": 0.5}
  return module, _lively(shapes, gains, seed)


@functools.cache
def tiny_decoder(kind, seed=0, vocabulary=29, layers=2, width=16, heads=4):
  """The same of a decoder-only model, of kind "llama" or "gpt2"."""
  llama = kind == "llama"
  module = decoder.Decoder(
      decoder.DecoderConfig(
          vocab_size=vocabulary,
          d_model=width,
          d_kv=4,
          d_ff=2 * width,
          num_layers=layers,
          num_heads=heads,
          num_kv_heads=heads // 2 if llama else heads,
          tied=False,
          gated=llama,
          rms=llama,
          rope=rope.Rope(100.0) if llama else None,
          max_positions=256,
          norm_epsilon=1e-5,
          qkv_bias=not llama,
          out_bias=not llama,
          ff_bias=not llama,
          ends=(2,),
      )
  )
  shapes = jax.eval_shape(
      module.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32)
  )
  gains = {"embedding": 2, "positions": 2}
  return module, _lively(shapes, gains, seed)


def _lively(shapes, gains, seed):
  """Random parameters; `gains` are by parts of their names."""
  rng = np.random.default_rng(seed)

  def fill(path, leaf):
    name = jax.tree_util.keystr(path)
    if "scale" in name:
      return jnp.ones(leaf.shape)
    share = [gain for part, gain in gains.items() if part in name]
    scale = 1.5 * math.prod(share) / math.sqrt(leaf.shape[-1])
    return jnp.asarray(rng.normal(scale=scale, size=leaf.shape), jnp.float32)

  return jax.tree_util.tree_map_with_path(fill, shapes)


def blurred(params, seed, amount):
  """Parameters of a draft that often agrees with the model of `params`."""
  rng = np.random.default_rng(seed)
  noise = lambda x: amount * np.std(x) * rng.normal(size=x.shape)
  return jax.tree.map(lambda x: x + jnp.asarray(noise(x), x.dtype), params)
