"""EAGLE heads in a folder: written, read, refused; public ones."""

import dataclasses
import json

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from specjax import checkpoints
from specjax import errors
from specjax.checkpoints import convert
from specjax.checkpoints import eagle as eagle_file
from specjax.checkpoints import heads as heads_file
from specjax.models import cache as cache_lib
from specjax.models import decoder
from specjax.models import eagle
from specjax.models import t5
from tests import tiny

LLAMA = tiny.LLAMA
QWEN2 = dataclasses.replace(LLAMA, qkv_bias=True)
SHAPES = {"t5": tiny.SHAPE, "llama": LLAMA, "qwen2": QWEN2, "gpt2": tiny.GPT2}
SMOLLM2 = dataclasses.replace(
    LLAMA,
    vocab_size=49152,
    d_model=576,
    d_kv=64,
    d_ff=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
)


def module_of(config):
  kind = t5.T5 if isinstance(config, t5.T5Config) else decoder.Decoder
  return kind(config)


def target_of(config):
  """A target of random weights."""
  ids = jnp.zeros((1, 1), jnp.int32)
  module = module_of(config)
  asked = (ids, ids == 0, ids) if isinstance(config, t5.T5Config) else (ids,)
  params = jax.jit(module.init)(jax.random.key(0), *asked)
  return checkpoints.Checkpoint("made up", module, params, Pieces())


class Pieces:
  """A tokenizer, as far as heads are concerned."""

  def fingerprint(self):
    return "abc"


def random_head(model, seed=1):
  """Variables of a head, biases among them."""
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  rng = np.random.default_rng(seed)
  draw = lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32)
  return jax.tree.map(draw, shapes)


def assert_equal(got, want):
  got, want = map(traverse_util.flatten_dict, (got, want))
  assert got.keys() == want.keys()
  for path in want:
    np.testing.assert_array_equal(got[path], want[path], err_msg=str(path))


@pytest.mark.parametrize("name", SHAPES)
def test_there_and_back(tmp_path, name):
  """NVIDIA-NeMo/Automodel#2447: what is read drafts as what was written."""
  target = target_of(SHAPES[name])
  model = eagle.of(target.module)
  head = random_head(model)
  folder = tmp_path / "head"
  eagle_file.save(folder, model.head.config, head, dtype=jnp.float32)
  again, read = eagle_file.load(str(folder), target, jnp.float32)
  assert_equal(read.head, head)
  assert read.target["params"].keys() < target.params["params"].keys()
  # The layer's shape is all that is kept of the target's.
  assert again.head.config.d_ff == model.head.config.d_ff
  # And again, by what it had read.
  eagle_file.save(folder, again.head.config, read.head)
  halves = eagle_file.load(str(folder), target, jnp.float32)[1].head
  assert_equal(
      halves, jax.tree.map(lambda x: x.astype(jnp.bfloat16), head)
  )


@pytest.mark.parametrize("name", SHAPES)
def test_files_of_this_package(tmp_path, name):
  """NVIDIA-NeMo/Automodel#2447: with the shape; another target is refused."""
  target = target_of(SHAPES[name])
  shape = eagle.EagleConfig(d_ff=20)
  model = eagle.of(target.module, shape.layer(target.module.config))
  head = random_head(model)
  made = heads_file.Heads("eagle", dataclasses.asdict(shape), head)
  path = tmp_path / "heads.safetensors"
  heads_file.save(path, made, target, jnp.float32)
  again, read = eagle_file.load(str(path), target, jnp.float32)
  assert again.head.config.d_ff == 20
  assert_equal(read.head, head)
  assert read.listed is None
  # And of some ids; of fewer or more than the shape says it is damaged.
  few = dataclasses.replace(shape, listed=3)
  for ids in ([1, 5, 9], [1, 5]):
    made = heads_file.Heads(
        "eagle", dataclasses.asdict(few), head, np.array(ids, np.int32)
    )
    heads_file.save(path, made, target, jnp.float32)
    if len(ids) == 3:
      read = eagle_file.load(str(path), target, jnp.float32)[1]
      assert read.listed.ids_W.tolist() == ids
    else:
      with pytest.raises(errors.UserError, match="listed has 2 ids, not 3"):
        eagle_file.load(str(path), target, jnp.float32)
  other = dataclasses.replace(SHAPES[name], vocab_size=301)
  with pytest.raises(errors.UserError, match="a target whose vocab_size is"):
    eagle_file.load(str(path), target_of(other), jnp.float32)


def test_size():
  """A head of SmolLM2-135M takes 8 MB and a half."""
  rows = eagle_file.table(SMOLLM2)
  assert 2 * sum(place.size for place in rows.values()) == 8_407_296


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            dataclasses.replace(LLAMA, vocab_size=301),
            "another target's head: a llama of hidden size 16 and 300 ids, and"
            " this one is a llama of 16 and 301",
        ),
        (dataclasses.replace(LLAMA, d_model=20), "is a llama of 20 and 300"),
        (tiny.GPT2, "this one is a gpt2 of 16 and 300"),
    ],
    ids=["ids", "width", "family"],
)
def test_another_target(tmp_path, other, words):
  """verl-project/verl-SpeCo#67: a wrong pair is refused, not run at 0."""
  eagle_file.save(
      tmp_path / "head", LLAMA, random_head(eagle.of(module_of(LLAMA)))
  )
  with pytest.raises(errors.UserError) as told:
    eagle_file.load(str(tmp_path / "head"), target_of(other), jnp.float32)
  assert words in str(told.value) and "\n" not in str(told.value)


def public(folder, bias):
  """A folder as SafeAILab/EAGLE writes one; its tensors by name."""
  folder.mkdir()
  width, wide, few = 16, 24, 8
  shapes = {
      "embed_tokens.weight": (300, width),
      "fc.weight": (width, 2 * width),
      "layers.0.self_attn.q_proj.weight": (width, width),
      "layers.0.self_attn.k_proj.weight": (few, width),
      "layers.0.self_attn.v_proj.weight": (few, width),
      "layers.0.self_attn.o_proj.weight": (width, width),
      "layers.0.mlp.gate_proj.weight": (wide, width),
      "layers.0.mlp.up_proj.weight": (wide, width),
      "layers.0.mlp.down_proj.weight": (width, wide),
      "layers.0.post_attention_layernorm.weight": (width,),
  }
  if bias:
    shapes["fc.bias"] = (width,)
  config = {
      "architectures": ["LlamaForCausalLM"],
      "model_type": "llama",
      "hidden_size": width,
      "intermediate_size": wide,
      "num_attention_heads": 4,
      "num_key_value_heads": 2,
      "num_hidden_layers": 1,
      "vocab_size": 300,
      "rms_norm_eps": 1e-5,
      "bias": bias,
  }
  (folder / "config.json").write_text(json.dumps(config))
  rng = np.random.default_rng(0)
  return {
      name: rng.normal(scale=0.3, size=shape).astype(np.float32)
      for name, shape in shapes.items()
  }


@pytest.mark.parametrize("bias", [True, False])
def test_public_ones(tmp_path, bias):
  """Their names and fields; computed as their code does."""
  tensors = public(tmp_path / "head", bias)
  safetensors.numpy.save_file(tensors, tmp_path / "head/model.safetensors")
  target = target_of(LLAMA)
  model, read = eagle_file.load(str(tmp_path / "head"), target, jnp.float32)
  rng = np.random.default_rng(1)
  hidden_TD = rng.normal(size=(5, 16)).astype(np.float32)
  ids_T = rng.integers(0, 300, 5)
  query = cache_lib.whole_query(jnp.asarray(ids_T[None]))
  got, _ = jax.jit(
      lambda: model.read(read, query, jnp.asarray(hidden_TD[None]), None, None)
  )()
  embedding = np.asarray(target.params["params"]["embedding"])
  want = reference(tensors, embedding[ids_T], hidden_TD)
  np.testing.assert_allclose(got[0], want, atol=1e-4)


def reference(tensors, embedded_TD, hidden_TD):
  """One layer of a Llama without its first norm, in numpy."""
  layer = {
      name.split(".")[-2]: x
      for name, x in tensors.items()
      if name.startswith("layers.0")
  }
  x = np.concatenate([embedded_TD, hidden_TD], -1) @ tensors["fc.weight"].T
  x += tensors.get("fc.bias", 0)
  heads = lambda name, count: np.moveaxis(
      (x @ layer[name].T).reshape(len(x), count, 4), 1, 0
  )
  angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, 4, 2) / 4)

  def turned(x_HTK):
    first, second = np.split(x_HTK, 2, axis=-1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate(
        [first * cos - second * sin, second * cos + first * sin], -1
    )

  query, key = turned(heads("q_proj", 4)), turned(heads("k_proj", 2))
  key, value = np.repeat(key, 2, 0), np.repeat(heads("v_proj", 2), 2, 0)
  scores = query @ np.swapaxes(key, 1, 2) / 2
  scores = np.where(np.tri(len(x)), scores, -np.inf)
  weight = np.exp(scores - scores.max(-1, keepdims=True))
  weight /= weight.sum(-1, keepdims=True)
  x = x + np.moveaxis(weight @ value, 0, 1).reshape(len(x), -1) @ layer[
      "o_proj"
  ].T
  norm = x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-5)
  norm *= layer["post_attention_layernorm"]
  gate = norm @ layer["gate_proj"].T
  wide = gate / (1 + np.exp(-gate)) * (norm @ layer["up_proj"].T)
  return x + wide @ layer["down_proj"].T


def offset_head(folder, ids, **others):
  """A public folder of a head that chooses from some ids."""
  tensors = public(folder, True)
  few = dict(d2t=np.array(ids) - np.arange(len(ids)))
  rng = np.random.default_rng(2)
  few["lm_head.weight"] = rng.normal(size=(len(ids), 16)).astype(np.float32)
  few["t2d"] = np.isin(np.arange(300), ids)
  tensors |= few | others
  tensors = {name: x for name, x in tensors.items() if x is not None}
  safetensors.numpy.save_file(tensors, folder / "model.safetensors")
  return tensors


@pytest.mark.parametrize(
    "ids", [[0, 1, 2], [2, 3, 7, 299], range(300)], ids=["zero", "some", "all"]
)
def test_offsets_of_ids(tmp_path, ids):
  """verl-project/verl-SpeCo#67: id i stands for i + d2t[i]; by its own rows."""
  target, ids = target_of(LLAMA), list(ids)
  tensors = offset_head(tmp_path / "head", ids)
  model, read = eagle_file.load(str(tmp_path / "head"), target, jnp.float32)
  assert read.listed.ids_W.tolist() == ids
  hidden_BTD = jax.random.normal(jax.random.key(3), (2, 3, 16))
  got_BTV = np.asarray(model.logits(read, hidden_BTD))
  want_BTW = hidden_BTD @ tensors["lm_head.weight"].T
  np.testing.assert_allclose(
      got_BTV[..., ids], want_BTW, rtol=0.02, atol=0.05
  )
  others = np.setdiff1d(np.arange(300), ids)
  assert np.all(got_BTV[..., others] == -np.inf)


@pytest.mark.parametrize("rows", [300, None], ids=["of all ids", "none"])
def test_offsets_without_rows_of_their_own(tmp_path, rows):
  """Then the target's are taken, in bfloat16."""
  target, ids = target_of(LLAMA), [2, 3, 7, 299]
  output = None if rows is None else np.ones((rows, 16), np.float32)
  offset_head(tmp_path / "head", ids, **{"lm_head.weight": output})
  model, read = eagle_file.load(str(tmp_path / "head"), target, jnp.float32)
  hidden_BTD = jax.random.normal(jax.random.key(3), (2, 3, 16))
  want_BTV, got_BTV = (
      model.logits(x, hidden_BTD) for x in (read.replace(listed=None), read)
  )
  ids_W = np.array(ids)
  np.testing.assert_allclose(
      got_BTV[..., ids_W], want_BTV[..., ids_W], rtol=0.02, atol=0.02
  )


@pytest.mark.parametrize(
    ("others", "words"),
    [
        (dict(d2t=np.array([0, 0, -1])), "gives no rising ids below 300"),
        (dict(d2t=np.array([0, 5, 1])), "gives no rising ids below 300"),
        (dict(d2t=np.array([-1, 0, 0])), "gives no rising ids below 300"),
        (dict(d2t=np.array([0, 0, 298])), "gives no rising ids below 300"),
        (dict(d2t=np.array([0, 2**63 - 1])), "gives no rising ids below 300"),
        (dict(d2t=np.zeros(0, int)), "gives no rising ids below 300"),
        (dict(d2t=np.zeros(301, int)), "gives no rising ids below 300"),
        (dict(d2t=np.zeros((3, 1), int)), "gives no rising ids below 300"),
        (dict(d2t=np.zeros(3, np.float32)), "d2t is of type F32"),
        (
            {"lm_head.weight": np.ones((3, 17), np.float32)},
            "lm_head.weight has shape [3, 17], not [3, 16]",
        ),
        (
            {"lm_head.weight": np.full((3, 16), np.nan, np.float32)},
            "lm_head.weight holds NaN",
        ),
        (dict(d2t=None), "surplus t2d"),
    ],
)
def test_damaged_offsets(tmp_path, others, words):
  offset_head(tmp_path / "head", [0, 1, 2], **others)
  with pytest.raises(errors.UserError) as told:
    eagle_file.load(str(tmp_path / "head"), target_of(LLAMA), jnp.float32)
  assert words in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("told_by", ["class", "fc", "layer"])
def test_eagle_3_is_refused(tmp_path, told_by):
  """Its heads read three hidden states; d2t is theirs, too."""
  folder = tmp_path / "head"
  others = {}
  if told_by == "fc":
    others["fc.weight"] = np.ones((16, 48), np.float32)
  if told_by == "layer":
    others["midlayer.hidden_norm.weight"] = np.ones(16, np.float32)
  offset_head(folder, [0, 1, 2], **others)
  if told_by == "class":
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["LlamaForCausalLMEagle3"]
    (folder / "config.json").write_text(json.dumps(config))
  with pytest.raises(errors.UserError) as told:
    eagle_file.load(str(folder), target_of(LLAMA), jnp.float32)
  assert "this is a head of EAGLE-3, which reads three" in str(told.value)
  assert "\n" not in str(told.value)


def test_pickles_are_converted(tmp_path):
  """With torch's weights-only loader, as models are."""
  torch = pytest.importorskip("torch")
  tensors = public(tmp_path / "head", True)
  stored = {name: torch.from_numpy(x).half() for name, x in tensors.items()}
  torch.save(stored, tmp_path / "head/pytorch_model.bin")
  with pytest.raises(errors.UserError, match="convert it once"):
    eagle_file.find(str(tmp_path / "head"))
  convert.convert(tmp_path / "head", tmp_path / "out")
  _, read = eagle_file.load(
      str(tmp_path / "out"), target_of(LLAMA), jnp.float32
  )
  np.testing.assert_array_equal(
      read.head["params"]["fc"]["bias"],
      np.float32(np.float16(tensors["fc.bias"])),
  )


def test_pickles_of_eagle_3_are_refused(tmp_path):
  torch = pytest.importorskip("torch")
  tensors = public(tmp_path / "head", True)
  tensors["fc.weight"] = np.ones((16, 48), np.float32)
  stored = {name: torch.from_numpy(x) for name, x in tensors.items()}
  torch.save(stored, tmp_path / "head/pytorch_model.bin")
  with pytest.raises(errors.UserError, match="this is a head of EAGLE-3"):
    convert.convert(tmp_path / "head", tmp_path / "out")


def test_a_tensor_that_is_missing(tmp_path):
  tensors = public(tmp_path / "head", True)
  del tensors["layers.0.mlp.up_proj.weight"]
  safetensors.numpy.save_file(tensors, tmp_path / "head/model.safetensors")
  with pytest.raises(errors.UserError, match="missing layers.0.mlp.up_proj"):
    eagle_file.load(str(tmp_path / "head"), target_of(LLAMA), jnp.float32)


def test_no_folder(tmp_path):
  for name in ("", "no/such", "x" * 5000):
    with pytest.raises(errors.UserError, match="^heads: .* no file here"):
      eagle_file.find(name)
  with pytest.raises(errors.UserError, match="has no config.json"):
    eagle_file.find(str(tmp_path))
