"""T5 against transformers' T5ForConditionalGeneration, in float32.

The fixtures were made by tests/fixtures/make_t5.py; what is marked live
compares with the installed transformers (extra `parity`). Logits are compared,
not tokens: an argmax can't see a wrong scale.
"""

import dataclasses
import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from specjax.checkpoints import hf
from specjax.models import bias
from specjax.models import cache as cache_lib
from specjax.models import t5
from tests import tiny

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
VERSIONS = ("t5_v1_0", "t5_v1_1")
LENGTHS = (3, 20, 130)
SLOTS = 140
TOLERANCE = 1e-5
LIVE_TOLERANCE = 1e-4

V1_0 = t5.T5Config(
    vocab_size=50,
    d_model=16,
    d_kv=12,
    d_ff=24,
    num_layers=2,
    num_decoder_layers=1,
    num_heads=2,
    gated=False,
    tied=True,
)
V1_1 = dataclasses.replace(
    V1_0, d_kv=4, num_layers=1, num_decoder_layers=2, gated=True, tied=False
)
# specjax.train makes gated models, tied or not.
GATED_TIED = dataclasses.replace(V1_1, tied=True)


@functools.cache
def load(version):
  """-> module, params, expected arrays."""
  module, params = hf.load_model(FIXTURES / version)
  with np.load(FIXTURES / version / "expected.npz") as arrays:
    return module, params, dict(arrays)


@functools.partial(jax.jit, static_argnums=0)
def full_pass(module, params, source_BL, mask_BL, inputs_BT):
  return module.apply(params, source_BL, mask_BL, inputs_BT)


@functools.partial(jax.jit, static_argnums=0)
def _encode(module, params, source_BL, mask_BL):
  return module.apply(params, source_BL, mask_BL, method="encode")


@functools.partial(jax.jit, static_argnums=(0, 7))
def _decode(module, params, tokens_BT, start, active_BT, cache, memory, taps):
  start_B = jnp.full(tokens_BT.shape[:1], start)
  query = cache_lib.chain_query(tokens_BT, start_B, cache.slots, active_BT)
  return module.apply(
      params, query, cache, memory, taps=taps, method="decode"
  )


def decode_after(model, length, more, *, fill=0.0, taps=()):
  """Logits and taps of `more` tokens against a cache of `length` others.

  `model` is what `load` gives.
  """
  module, params, arrays = model
  memory = _encode(module, params, arrays["source_BL"], arrays["mask_BL"])
  inputs_BT = arrays["inputs_BT"]
  cache = jax.tree.map(
      lambda x: x + fill, module.empty_cache(inputs_BT.shape[0], SLOTS)
  )
  # One shape for every length: tokens beyond it leave no trace.
  earlier_BT = np.broadcast_to(np.arange(SLOTS - 5) < length, inputs_BT.shape)
  _, cache, _ = _decode(
      module, params, inputs_BT, 0, earlier_BT, cache, memory, ()
  )
  tokens_BT = inputs_BT[:, length : length + more]
  new_BT = np.ones(tokens_BT.shape, bool)
  logits_BTV, _, hidden = _decode(
      module, params, tokens_BT, length, new_BT, cache, memory, taps
  )
  return logits_BTV, hidden


@pytest.mark.parametrize("version", VERSIONS)
def test_full_pass(version):
  """Also padded sources, and the logits' scale (transformers#43681).

  huggingface/transformers#8518: cross-attention has no relative bias.
  """
  module, params, arrays = load(version)
  logits_BTV = full_pass(
      module,
      params,
      arrays["source_BL"],
      arrays["mask_BL"],
      arrays["inputs_BT"],
  )
  assert not arrays["mask_BL"].all()
  np.testing.assert_allclose(
      logits_BTV, arrays["full_BTV"], rtol=0, atol=TOLERANCE
  )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("more", (1, 5))
def test_tokens_after_a_cache(version, length, more):
  """The relative bias starts at the cached offset (huggingface/candle#899)."""
  model = load(version)
  np.testing.assert_allclose(
      decode_after(model, length, more)[0],
      model[-1][f"cached_{length}_{more}_BTV"],
      rtol=0,
      atol=TOLERANCE,
  )


@pytest.mark.parametrize("version", VERSIONS)
def test_unfilled_slots_are_not_seen(version):
  """1e4 in every slot that nobody wrote (huggingface/transformers#26663)."""
  model = load(version)
  np.testing.assert_array_equal(
      decode_after(model, 3, 5)[0], decode_after(model, 3, 5, fill=1e4)[0]
  )


@pytest.mark.parametrize("version", VERSIONS)
def test_padding_of_the_source_is_not_seen(version):
  """Any ids may stand there; one mask for all of the decoder's tokens.

  huggingface/transformers#27523.
  """
  module, params, arrays = load(version)
  source_BL = np.where(arrays["mask_BL"], arrays["source_BL"], 7)
  assert (source_BL != arrays["source_BL"]).any()
  logits_BTV = full_pass(
      module, params, source_BL, arrays["mask_BL"], arrays["inputs_BT"]
  )
  np.testing.assert_allclose(
      logits_BTV, arrays["full_BTV"], rtol=0, atol=TOLERANCE
  )


def every_tap(config):
  """0 to the number of layers, then -2 and -1."""
  return (*range(config.num_decoder_layers + 1), -2, -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_taps(version):
  """0 embedding, i layer i, -2 the last layer, -1 what the head reads.

  Taken after a cache, as the loop does, and compared with what the layers of a
  full pass return.
  """
  module, params, arrays = model = load(version)
  length, more = 20, 5
  new = np.s_[:, length : length + more]
  logits_BTV, hidden = decode_after(
      model, length, more, taps=every_tap(module.config)
  )
  embedding, *outputs, last, final = hidden
  is_layer = lambda part, method: (
      isinstance(part, t5.DecoderLayer) and method == "__call__"
  )
  whole_pass = jax.jit(
      functools.partial(module.apply, capture_intermediates=is_layer)
  )
  _, captured = whole_pass(
      params, arrays["source_BL"], arrays["mask_BL"], arrays["inputs_BT"]
  )
  weights, near = params["params"], dict(rtol=0, atol=2e-5)
  np.testing.assert_array_equal(
      embedding, weights["shared"][arrays["inputs_BT"][new]]
  )
  for i, output in enumerate(outputs):
    layer = captured["intermediates"][f"decoder_layers_{i}"]
    (want,) = layer["__call__"]
    np.testing.assert_allclose(output, want[new], **near)
  np.testing.assert_array_equal(last, outputs[-1])
  size = np.mean(np.square(last), axis=-1, keepdims=True)
  normed = last / np.sqrt(size + module.config.layer_norm_epsilon)
  np.testing.assert_allclose(
      final, normed * weights["decoder_norm"]["scale"], **near
  )
  np.testing.assert_allclose(
      module.apply(params, final, method="head"), logits_BTV, **near
  )


def test_logit_scale_by_version():
  """v1.0 scales by D^-0.5, v1.1 does not (huggingface/transformers#43681)."""
  config = dataclasses.replace(V1_0, d_model=512)
  assert config.logit_scale == pytest.approx(0.0442, abs=1e-4)
  assert dataclasses.replace(config, tied=False).logit_scale == 1.0
  assert load("t5_v1_0")[0].config.tied
  assert not load("t5_v1_1")[0].config.tied


def test_encoder_buckets():
  """The table of ml-explore/mlx-examples#113."""
  position = np.arange(10)
  bucket = functools.partial(
      bias.relative_bucket, bidirectional=True, buckets=32, max_distance=128
  )
  np.testing.assert_array_equal(
      bucket(position), [0, 17, 18, 19, 20, 21, 22, 23, 24, 24]
  )
  np.testing.assert_array_equal(
      bucket(-position), [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]
  )


def test_decoder_buckets():
  """Exact to 15, the last from 113 on; what lies ahead has bucket 0."""
  bucket = functools.partial(
      bias.relative_bucket, bidirectional=False, buckets=32, max_distance=128
  )
  np.testing.assert_array_equal(bucket(-np.arange(17)), np.arange(17))
  np.testing.assert_array_equal(
      bucket(np.array([-112, -113, -500, 1, 7])), [30, 31, 31, 0, 0]
  )


@pytest.fixture(scope="module")
def live():
  """torch and transformers, quiet; skipped where they are not installed."""
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  return torch, transformers


def live_logits(live, folder, source_BL, mask_BL, inputs_BT):
  """-> logits of transformers in float32, and its model."""
  torch, transformers = live
  model = transformers.T5ForConditionalGeneration.from_pretrained(
      folder, dtype=torch.float32
  ).eval()
  with torch.no_grad():
    logits = model(
        input_ids=torch.tensor(source_BL),
        attention_mask=torch.tensor(mask_BL).long(),
        decoder_input_ids=torch.tensor(inputs_BT),
    ).logits
  return logits.numpy(), model


@pytest.mark.parametrize("version", VERSIONS)
def test_fixtures_are_what_transformers_says(live, version):
  _, _, arrays = load(version)
  want_BTV, _ = live_logits(
      live,
      FIXTURES / version,
      arrays["source_BL"],
      arrays["mask_BL"],
      arrays["inputs_BT"],
  )
  np.testing.assert_allclose(
      want_BTV, arrays["full_BTV"], rtol=0, atol=TOLERANCE
  )


@pytest.fixture(
    scope="module",
    params=(("t5_v1_0", True), ("t5_v1_1", False), ("t5_v1_1", True)),
    ids=("v1.0", "v1.1", "gated-tied"),
)
def live_model(live, request, tmp_path_factory):
  """-> what `load` gives, but just made, and the model of transformers."""
  torch, transformers = live
  # Not above: it imports torch.
  from tests.fixtures import make_t5

  version, tied = request.param
  fields = make_t5.VERSIONS[version] | {"tie_word_embeddings": tied}
  folder = tmp_path_factory.mktemp("live")
  (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
  generator = np.random.default_rng(11)
  safetensors.numpy.save_file(
      make_t5.make_weights(fields, generator),
      folder / "model.safetensors",
      {"format": "pt"},
  )
  theirs = transformers.T5ForConditionalGeneration.from_pretrained(
      folder, dtype=torch.float32
  ).eval()
  with torch.no_grad():
    arrays = make_t5.expected(theirs, generator, fields["vocab_size"])
  module, params = hf.load_model(folder)
  assert module.config.gated == (version == "t5_v1_1")
  assert module.config.tied == tied
  assert not arrays["mask_BL"].all()
  return (module, params, arrays), theirs


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("more", (1, 5))
def test_tokens_after_a_cache_in_transformers(live_model, length, more):
  """Both against their own caches; rows of the source are padded."""
  model, _ = live_model
  np.testing.assert_allclose(
      decode_after(model, length, more)[0],
      model[-1][f"cached_{length}_{more}_BTV"],
      rtol=0,
      atol=LIVE_TOLERANCE,
  )


def test_taps_in_transformers(live, live_model):
  """Its hidden states, whose last one is after the final norm."""
  torch, _ = live
  model, theirs = live_model
  module, _, arrays = model
  layers_out = []
  hook = theirs.decoder.block[-1].register_forward_hook(
      lambda block, inputs, out: layers_out.append(
          out[0] if isinstance(out, tuple) else out
      )
  )
  with torch.no_grad():
    *before, final = theirs(
        input_ids=torch.tensor(arrays["source_BL"]),
        attention_mask=torch.tensor(arrays["mask_BL"]).long(),
        decoder_input_ids=torch.tensor(arrays["inputs_BT"]),
        output_hidden_states=True,
    ).decoder_hidden_states
  hook.remove()
  (last,) = layers_out
  length, more = 20, 5
  _, hidden = decode_after(
      model, length, more, taps=every_tap(module.config)
  )
  want = (*before, last, last, final)
  for got, state in zip(hidden, want, strict=True):
    np.testing.assert_allclose(
        got,
        state.numpy()[:, length : length + more],
        rtol=0,
        atol=LIVE_TOLERANCE,
    )


@pytest.mark.parametrize(
    "config",
    (V1_0, V1_1, GATED_TIED),
    ids=("v1.0", "v1.1", "gated-tied"),
)
@pytest.mark.parametrize(
    "dtype, shard_bytes", (("float32", 4000), ("bfloat16", 10**9))
)
def test_written_directory_in_transformers(
    live, tmp_path, config, dtype, shard_bytes
):
  """Equal logits, from one file or many, and the stored type is kept."""
  tiny.write_random_t5(
      tmp_path / "t5", config, 1, dtype=dtype, max_shard_bytes=shard_bytes
  )
  module, params = hf.load_model(tmp_path / "t5")
  generator = np.random.default_rng(2)
  source_BL = generator.integers(0, config.vocab_size, (2, 7))
  mask_BL = np.arange(7) < np.array([[7], [4]])
  inputs_BT = generator.integers(0, config.vocab_size, (2, 9))
  want_BTV, model = live_logits(
      live, tmp_path / "t5", source_BL, mask_BL, inputs_BT
  )
  np.testing.assert_allclose(
      full_pass(module, params, source_BL, mask_BL, inputs_BT),
      want_BTV,
      rtol=0,
      atol=TOLERANCE,
  )
  stored = live[1].AutoConfig.from_pretrained(tmp_path / "t5").dtype
  assert str(stored).endswith(dtype)
  # What transformers writes of it is read back as the same model.
  model.save_pretrained(tmp_path / "again")
  module, again = hf.load_model(tmp_path / "again")
  assert module.config == config
  jax.tree.map(np.testing.assert_array_equal, params, again)


def test_head_that_transformers_5_tied_without_scaling(live, tmp_path):
  """A v1.1 started in transformers 5 has the embedding as its head."""
  torch, transformers = live
  torch.manual_seed(0)
  config = transformers.T5Config(
      vocab_size=50,
      d_model=16,
      d_kv=4,
      d_ff=24,
      num_layers=1,
      num_heads=2,
      feed_forward_proj="gated-gelu",
      tie_word_embeddings=False,
      decoder_start_token_id=0,
  )
  model = transformers.T5ForConditionalGeneration(config)
  if model.lm_head.weight is not model.shared.weight:
    pytest.skip("this transformers leaves the head of v1.1 alone")
  model.save_pretrained(tmp_path)
  ids_BT = np.arange(8).reshape(1, 8)
  mask_BT = np.ones((1, 8), bool)
  want_BTV, _ = live_logits(live, tmp_path, ids_BT, mask_BT, ids_BT)
  module, params = hf.load_model(tmp_path)
  assert not module.config.tied
  np.testing.assert_allclose(
      full_pass(module, params, ids_BT, mask_BT, ids_BT),
      want_BTV,
      rtol=0,
      atol=TOLERANCE,
  )


@pytest.mark.parametrize("version", VERSIONS)
def test_logits_of_the_newest_token_alone(version):
  module, params, arrays = load(version)
  memory = _encode(module, params, arrays["source_BL"], arrays["mask_BL"])
  query = cache_lib.whole_query(arrays["inputs_BT"][:, :5])
  logits = lambda newest: module.apply(
      params, query, None, memory, newest=newest, method="decode"
  )[0]
  want_BTV, got_B1V = logits(False), logits(True)
  assert got_B1V.shape[1] == 1
  np.testing.assert_allclose(got_B1V, want_BTV[:, -1:], rtol=0, atol=1e-5)
