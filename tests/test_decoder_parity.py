"""Decoder-only models against transformers, in float32.

The fixtures were made by tests/fixtures/make_decoder.py; what is marked live
compares with the installed transformers (extra `parity`).
"""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.checkpoints import hf
from specjax.models import cache as cache_lib
from specjax.models import decoder
from specjax.models import layers
from specjax.models import reading
from specjax.models import rope as rope_lib
from tests import tiny

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
NAMES = ("llama", "qwen2", "gpt2")
SLOTS = 44
TOLERANCE = 2e-5


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
  with tiny.quick_compilation():
    yield


@functools.cache
def load(name):
  """-> module, params, expected arrays."""
  module, params = hf.load_model(FIXTURES / name)
  with np.load(FIXTURES / name / "expected.npz") as arrays:
    return module, params, dict(arrays)


@functools.partial(jax.jit, static_argnums=(0, 4))
def read_prompt(module, params, tokens_BT, prompt_B, chunk):
  cache, _ = reading.read_prompt(
      module,
      params,
      tokens_BT,
      prompt_B,
      None,
      width=34,
      slots=SLOTS,
      chunk=chunk,
  )
  return cache


@functools.partial(jax.jit, static_argnums=(0, 5))
def decode(module, params, cache, tokens_BT, start_B, taps=()):
  query = cache_lib.chain_query(
      tokens_BT, start_B, cache.slots, jnp.ones_like(tokens_BT, bool)
  )
  return module.apply(params, query, cache, None, taps=taps, method="decode")


def close(got, want, tolerance=TOLERANCE):
  np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_text(name):
  module, params, arrays = load(name)
  logits_BTV = jax.jit(module.apply)(params, arrays["tokens_BT"])
  close(logits_BTV, arrays["logits_BTV"])
  # Logits that are near enough by being small would show nothing.
  assert np.std(arrays["logits_BTV"]) > 0.5


@pytest.mark.parametrize("name", NAMES)
def test_prompts_of_different_lengths_then_steps(name):
  """Read in one pass or in chunks, then a few tokens at a time.

  ndif-team/nnsight#673: each row keeps its own positions.
  """
  module, params, arrays = load(name)
  tokens_BT, want_BTV = arrays["tokens_BT"], arrays["logits_BTV"]
  prompt_B = np.array([34, 9])
  caches = [
      read_prompt(module, params, tokens_BT, prompt_B, chunk)
      for chunk in (33, 7)
  ]
  jax.tree.map(close, *caches)
  # Anything may lie beyond what is known (huggingface/transformers#26663).
  place_S = np.arange(SLOTS)
  new_BS = place_S >= prompt_B[:, None] - 1
  cache = cache_lib.Cache(
      key=tuple(x + 1e4 * new_BS[:, None, None, :] for x in caches[1].key),
      value=tuple(x + 1e4 * new_BS[:, None, :, None] for x in caches[1].value),
  )
  start_B = prompt_B - 1
  taps = (0, 1, -2, -1)
  for _ in range(2):
    place_BT = start_B[:, None] + np.arange(3)
    block_BT = np.take_along_axis(tokens_BT, place_BT, 1)
    logits_BTV, cache, hidden = decode(
        module, params, cache, block_BT, start_B, taps
    )
    rows_B1 = np.arange(2)[:, None]
    close(logits_BTV, want_BTV[rows_B1, place_BT])
    embedded, first, _, final = hidden
    states = arrays["hidden_EBTD"]
    for got, state in zip((embedded, first, final), states, strict=True):
      close(got, state[rows_B1, place_BT])
    start_B = start_B + 3


def test_chunks_beyond_the_prompts_are_not_read():
  """The bound is the batch's own longest prompt, not the padded width."""
  module, params, arrays = load("llama")
  cache = read_prompt(module, params, arrays["tokens_BT"], np.array([3, 8]), 7)
  written = np.any(np.asarray(cache.value[0]) != 0, axis=(1, 3))
  assert written.sum(axis=1).tolist() == [2, 7]


def test_siblings_share_a_position_but_not_a_slot():
  """PaddlePaddle/FastDeploy#3514: each sees its own ancestors only."""
  module, params, arrays = load("llama")
  tokens_BT, rows = arrays["tokens_BT"], np.arange(2)
  start_B = np.array([10, 10])
  cache = read_prompt(module, params, tokens_BT, start_B + 1, 33)
  # Node 0; 1 and 2 under it; 3 under 2.
  parents, depths = (-1, 0, 0, 2), np.array([0, 1, 1, 2])
  nodes_BT = np.stack([tokens_BT[:, 20 + i] for i in range(4)], axis=1)
  slot_BT = start_B[:, None] + np.arange(4)
  mask_TS = np.broadcast_to(np.arange(SLOTS) < 10, (4, SLOTS)).copy()
  for node, parent in enumerate(parents):
    if parent >= 0:
      mask_TS[node] |= mask_TS[parent]
    mask_TS[node, 10 + node] = True
  position_BT = start_B[:, None] + depths
  query = cache_lib.Query(
      tokens_BT=nodes_BT,
      position_BT=position_BT,
      slot_BT=slot_BT,
      mask_BTS=np.broadcast_to(mask_TS, (2, 4, SLOTS)),
      position_BS=np.zeros((2, SLOTS), int),
  )
  logits_BTV, _, _ = jax.jit(functools.partial(module.apply, method="decode"))(
      params, query, cache
  )
  for path in ((0, 1), (0, 2, 3)):
    chain_BT = nodes_BT[:, list(path) + [0] * (3 - len(path))]
    want_BTV, _, _ = decode(module, params, cache, chain_BT, start_B)
    close(logits_BTV[:, path[-1]], want_BTV[rows, len(path) - 1])


def test_grouped_heads_are_repeated_heads():
  """One head of keys for each group against a copy of it for each query."""
  rng = np.random.default_rng(0)
  draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
  query_BHTK, mask_BTS = draw(2, 6, 3, 4), draw(2, 3, 5) > 0
  key, value = draw(2, 2, 4, 5), draw(2, 2, 5, 4)
  got = layers.attend(query_BHTK, key, value, None, mask_BTS)
  copies = lambda x: np.repeat(x, 3, axis=1)
  want = layers.attend(query_BHTK, copies(key), copies(value), None, mask_BTS)
  close(got, want, 1e-6)


def test_a_turn_moves_with_the_text():
  """Scores depend on the distance alone, and a turn changes no length."""
  rng = np.random.default_rng(1)
  query, key = rng.normal(size=(2, 1, 1, 1, 8)).astype(np.float32)
  at = lambda x, place: rope_lib.turn(
      x, rope_lib.Rope(100.0).turns(jnp.full((1, 1), place), 8)
  )
  score = lambda a, b: float(jnp.sum(at(query, a) * at(key, b)))
  assert score(3, 1) == pytest.approx(score(9, 7), abs=1e-5)
  assert score(3, 1) != pytest.approx(score(3, 2), abs=1e-2)
  np.testing.assert_allclose(
      np.linalg.norm(at(query, 5)), np.linalg.norm(query), rtol=1e-6
  )


def test_heads_that_gpus_can_share():
  """The M of `qkv` are whole groups: no part of a group lies elsewhere."""
  module, params, _ = load("qwen2")
  cfg = module.config
  bias = params["params"]["layers_0"]["attention"]["qkv"]["bias"]
  assert bias.shape == (cfg.num_kv_heads, (cfg.group + 2) * cfg.d_kv)


def test_types():
  """bfloat16 products; logits are float32, and the cache is what is carried."""
  module, params, arrays = load("llama")
  half = module.clone(dtype=jnp.bfloat16, carried=None)
  cache = half.empty_cache(2, SLOTS)
  assert cache.key[0].dtype == jnp.bfloat16
  assert cache.value[0].shape == (2, 2, SLOTS, 8)
  logits_BTV = jax.jit(half.apply)(params, arrays["tokens_BT"])
  assert logits_BTV.dtype == jnp.float32
  error = np.abs(logits_BTV - arrays["logits_BTV"])
  assert 1e-4 < np.median(error) < 0.1


# --- live -------------------------------------------------------------------


@pytest.fixture(scope="module", name="live")
def fixture_live():
  pytest.importorskip("torch")
  pytest.importorskip("transformers")
  from tests.fixtures import make_decoder

  return make_decoder


BASE = decoder.DecoderConfig(
    vocab_size=40,
    d_model=16,
    d_kv=4,
    d_ff=24,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    tied=False,
    gated=True,
    rms=True,
    rope=rope_lib.Rope(10000.0),
    max_positions=64,
    norm_epsilon=1e-6,
    ends=(2, 5),
)
GPT2 = dataclasses.replace(
    BASE,
    num_kv_heads=4,
    tied=True,
    gated=False,
    rms=False,
    rope=None,
    norm_epsilon=1e-5,
    qkv_bias=True,
    out_bias=True,
    ff_bias=True,
    ends=(2,),
)
WRITTEN = {
    "llama": BASE,
    "llama, tied, biases, longer": dataclasses.replace(
        BASE,
        tied=True,
        qkv_bias=True,
        out_bias=True,
        ff_bias=True,
        rope=rope_lib.Rope(300.0, rope_lib.Llama3(4.0, 1.0, 4.0, 16)),
    ),
    "llama, one head of keys": dataclasses.replace(
        BASE,
        num_kv_heads=1,
        d_kv=6,
        rope=rope_lib.Rope(50.0, rope_lib.Linear(3.0)),
    ),
    "qwen2": dataclasses.replace(BASE, qkv_bias=True),
    "gpt2": GPT2,
    "gpt2, untied": dataclasses.replace(GPT2, tied=False, d_ff=20),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_written_directories_in_transformers(live, tmp_path, name):
  """Equal logits; what transformers writes of it is read as the same model."""
  config = WRITTEN[name]
  tiny.write_random_decoder(tmp_path / "a", config, 1)
  module, params = hf.load_model(tmp_path / "a")
  assert module.config == config
  model = live.read(tmp_path / "a")
  arrays = live.expected(model, np.random.default_rng(2), config.vocab_size)
  logits_BTV = jax.jit(module.apply)(params, arrays["tokens_BT"])
  close(logits_BTV, arrays["logits_BTV"])
  model.save_pretrained(tmp_path / "b")
  again, same = hf.load_model(tmp_path / "b")
  assert again.config == config
  jax.tree.map(np.testing.assert_array_equal, params, same)


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_the_newest_token_alone(name):
  module, params, arrays = load(name)
  query = cache_lib.whole_query(arrays["tokens_BT"][:, :5])
  logits = lambda newest: module.apply(
      params, query, None, newest=newest, method="decode"
  )[0]
  want_BTV, got_B1V = logits(False), logits(True)
  assert got_B1V.shape[1] == 1
  close(got_B1V, want_BTV[:, -1:], 1e-5)
