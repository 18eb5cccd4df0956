"""GGUF files: every quantisation, the order of rows, and files that lie."""

import dataclasses
import functools
import pathlib
import struct
import sys
import tracemalloc

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import checkpoints
from specjax.checkpoints import gguf_file
from specjax.checkpoints import hf
from specjax.checkpoints import resolve
from specjax.errors import UserError
from specjax.models import rope as rope_lib
from tests import gguf_files

CONFIG = gguf_files.CONFIG
Kind = gguf.GGMLQuantizationType
WRITTEN = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
NUMBERS = ("F32", "F64", "I8", "I16", "I32", "I64")


def as_tensors(stored):
  return {
      name: hf.Tensor(value.shape, lambda value=value: value)
      for name, value in stored.items()
  }


def params_of(config, stored):
  return hf.params_from_tensors(config, as_tensors(stored), jnp.float32, "")


def same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


@functools.cache
def tokenizer():
  return gguf_files.byte_level()


@pytest.fixture(name="path")
def fixture_path(tmp_path) -> pathlib.Path:
  return tmp_path / "tiny.gguf"


def refusal(path) -> str:
  with pytest.raises(UserError) as caught:
    gguf_file.load(path)
  line = str(caught.value)
  assert line.startswith(str(path)) and "\n" not in line
  return line


@pytest.mark.parametrize("name", WRITTEN)
def test_quantisations_that_are_written(path, name):
  """Weights are what the blocks stand for; the order of rows is undone."""
  kind = Kind[name]
  stored = gguf_files.write(path, quantisation=kind, tokenizer=tokenizer())
  module, params, _ = gguf_file.load(path)
  assert module.config == CONFIG
  rounded = {
      name: gguf.quants.dequantize(gguf.quants.quantize(value, kind), kind)
      if value.ndim > 1
      else value
      for name, value in stored.items()
  }
  same(params, params_of(CONFIG, rounded))
  if name == "BF16":
    kept = gguf_file.load(path, keep_bfloat16=True)[1]["params"]
    assert kept["embedding"].dtype == jnp.bfloat16
    same(kept["embedding"], params["params"]["embedding"])


@pytest.mark.parametrize(
    "name", [kind.name for kind in Kind if kind.name not in NUMBERS + WRITTEN]
)
def test_quantisations_that_are_only_read(path, name):
  """Random blocks: what the package can turn into numbers is taken."""
  kind = Kind[name]
  block, size = gguf.GGML_QUANT_SIZES[kind]
  blocks = np.random.default_rng(0).integers(0, 256, (3, 2 * size), np.uint8)
  try:
    with np.errstate(all="ignore"):
      want = gguf.quants.dequantize(blocks, kind)
  except NotImplementedError:
    want = None
  writer = gguf.GGUFWriter(path, "llama")
  writer.add_tensor("x.weight", blocks, raw_dtype=kind)
  gguf_files.close(writer)
  _, tensors = gguf_file.read(path)
  tensor = tensors["x.weight"]
  assert tensor.shape == (3, 2 * block)
  if want is None:
    with pytest.raises(UserError, match=f"of type {name}, which the gguf"):
      tensor.read()
    return
  with np.errstate(all="ignore"):
    np.testing.assert_array_equal(tensor.read(), want)


@pytest.mark.parametrize("kind", ("qwen2", "gpt2"))
def test_other_architectures(path, kind):
  """Qwen2's rows are in order; GPT-2's matrices lie the other way round."""
  config = dataclasses.replace(CONFIG, tied=False, qkv_bias=True)
  if kind == "gpt2":
    config = dataclasses.replace(
        config,
        num_kv_heads=4,
        gated=False,
        rms=False,
        rope=None,
        out_bias=True,
        ff_bias=True,
    )
  stored = gguf_files.write(path, config, kind, tokenizer=tokenizer())
  module, params, _ = gguf_file.load(path)
  assert module.config == config
  same(params, params_of(config, stored))


def test_scaled_frequencies(path):
  """Linear by its factor, old and new; Llama 3's as a list of divisors."""
  writes = (
      lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR),
      lambda w: w.add_rope_scaling_factor(4.0),
  )

  def new(writer):
    for write in writes:
      write(writer)

  old = lambda w: w.add_float32("llama.rope.scale_linear", 4.0)
  for change in (new, old):
    gguf_files.write(path, tokenizer=tokenizer(), change=change)
    module, _, _ = gguf_file.load(path)
    assert module.config.rope == rope_lib.Rope(5000.0, rope_lib.Linear(4.0))
  divisors = np.linspace(1, 8, 8, dtype=np.float32)
  listed = lambda w: w.add_tensor("rope_freqs.weight", divisors)
  gguf_files.write(path, tokenizer=tokenizer(), change=listed)
  module, _, _ = gguf_file.load(path)
  assert module.config.rope.scaling == rope_lib.Given(tuple(divisors.tolist()))
  assert checkpoints.load(str(path)).ask(["a"], 64)[0].prompt
  zero = lambda w: w.add_tensor("rope_freqs.weight", divisors * 0)
  gguf_files.write(path, tokenizer=tokenizer(), change=zero)
  assert "rope_freqs.weight must hold 8 numbers above 0" in refusal(path)


@pytest.mark.parametrize(
    "change, part",
    (
        (
            lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
            "llama.rope.scaling.type is 'yarn'; it must be one of none, linear",
        ),
        (lambda w: w.add_expert_count(4), "llama.expert_count is 4"),
        (lambda w: w.add_key_length(32), "rope.dimension_count is 16"),
        (lambda w: w.add_uint16("split.count", 3), "split.count is 3"),
        (
            lambda w: w.add_string("tokenizer.ggml.eot_token_id", "<end>"),
            "eot_token_id is '<end>'; it must be an integer from 0 on",
        ),
    ),
)
def test_metadata_is_checked(path, change, part):
  gguf_files.write(path, tokenizer=tokenizer(), change=change)
  assert part in refusal(path)


def test_ends(path):
  """A turn may end otherwise than a text; no id lies beyond the embedding."""
  turn = lambda w: w.add_eot_token_id(1)
  # It is the embedding that says how many tokens there are.
  wide = lambda w: (turn(w), w.add_vocab_size(9999))
  gguf_files.write(path, tokenizer=tokenizer(), change=wide)
  module, _, made = gguf_file.load(path)
  assert module.config.ends == (2, 1) and module.config.vocab_size == 400
  assert made.eos_id == 2
  gguf_files.write(path, tokenizer=tokenizer(), eos=400)
  assert "eos_token_id is [400]" in refusal(path)


def test_other_kinds_of_models(path):
  writer = gguf.GGUFWriter(path, "mamba")
  gguf_files.close(writer)
  line = refusal(path)
  assert "general.architecture is 'mamba'; it must be one of llama" in line
  writer = gguf.GGUFWriter(path, "llama")
  gguf_files.close(writer)
  assert "field vocab_size is missing" in refusal(path)


def test_tensors_are_checked(path):
  stored = gguf_files.random_tensors(CONFIG)
  del stored["model.norm.weight"]
  q = "model.layers.1.self_attn.q_proj.weight"
  stored[q] = stored[q][:, :32].copy()
  odd = lambda w: w.add_tensor("blk.0.odd.weight", np.ones(3, np.float32))
  gguf_files.write(path, tensors=stored, tokenizer=tokenizer(), change=odd)
  line = refusal(path)
  assert "missing model.norm.weight" in line
  assert "surplus blk.0.odd.weight" in line
  assert f"{q} has shape [64, 32], not [64, 64]" in line
  stored = gguf_files.random_tensors(CONFIG)
  stored["model.norm.weight"][3] = np.nan
  gguf_files.write(path, tensors=stored, tokenizer=tokenizer())
  assert "model.norm.weight holds NaN or infinity" in refusal(path)


# --- damaged and hostile files ----------------------------------------------


def test_files_that_are_cut(path, tmp_path):
  """At every kind of place: one line, and no long wait."""
  gguf_files.write(path, tokenizer=tokenizer())
  whole = path.read_bytes()
  cut = tmp_path / "cut.gguf"
  lengths = [0, 1, 4, 8, 16, 24, 30, 100, 1000, 5000, len(whole) - 1]
  for length in lengths + list(range(7000, len(whole) - 4, 23_456)):
    cut.write_bytes(whole[:length])
    assert "is no GGUF file, or is damaged" in refusal(cut)


def test_files_with_flipped_bytes(path, tmp_path):
  """Each is read, with other values, or refused in one line."""
  gguf_files.write(path, tokenizer=tokenizer())
  whole = path.read_bytes()
  header = whole.index(b"output_norm.weight") + 100
  rng = np.random.default_rng(0)
  bad = tmp_path / "bad.gguf"
  refused = 0
  for _ in range(150):
    damaged = bytearray(whole)
    for place in rng.integers(0, header, 3):
      damaged[place] = rng.integers(0, 256)
    bad.write_bytes(damaged)
    try:
      get, tensors = gguf_file.read(bad)
      gguf_file.load(bad)
    except UserError as error:
      refused += 1
      assert "\n" not in str(error)
  assert refused > 75


def header(tensors: int, *entries: bytes) -> bytes:
  return b"GGUF" + struct.pack("<IQQ", 3, tensors, len(entries)) + b"".join(
      entries
  )


def string(text: bytes, length: int | None = None) -> bytes:
  return struct.pack("<Q", len(text) if length is None else length) + text


def entry(name: bytes, kind: int, value: bytes) -> bytes:
  return string(name) + struct.pack("<I", kind) + value


def tensor(name: bytes, dims, kind: int, offset: int) -> bytes:
  sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
  return string(name) + sizes + struct.pack("<IQ", kind, offset)


LIES = {
    "nothing": b"",
    "another format": b"PK\x03\x04" + b"\0" * 100,
    "version": b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
    "2^60 numbers": header(
        0, entry(b"a", 9, struct.pack("<IQ", 4, 2**60)) + b"\0" * 64
    ),
    "2^60 strings": header(
        0, entry(b"a", 9, struct.pack("<IQ", 8, 2**60)) + b"\0" * 64
    ),
    "2^62 bytes": header(0, entry(b"a", 8, string(b"x", 2**62))),
    "2^60 entries": b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60),
    "2^60 tensors": header(2**60),
    "nested": header(0, entry(b"a", 9, struct.pack("<IQ", 9, 1) * 5000)),
    "type": header(0, entry(b"a", 99, b"\0" * 8)),
    "name": header(0, entry(b"\xff\xfe", 4, b"\0" * 4)),
    "twice": header(0, *[entry(b"a", 4, b"\0" * 4)] * 2),
    "alignment": header(
        0, entry(b"general.alignment", 4, struct.pack("<I", 3))
    ),
    "2^62 weights": header(1) + tensor(b"a", (2**31, 2**31), 0, 0),
    "sizes that overflow": header(1) + tensor(b"a", (2**32, 2**32), 0, 0),
    "2^31 axes": header(1) + string(b"a") + struct.pack("<I", 2**31),
    "far away": header(1) + tensor(b"a", (4,), 0, 2**63) + b"\0" * 64,
    "kind of weights": header(1) + tensor(b"a", (4,), 77, 0) + b"\0" * 64,
    "half a block": header(1) + tensor(b"a", (33,), 8, 0) + b"\0" * 64,
    "no axes": header(1) + tensor(b"token_embd.weight", (), 0, 0) + b"\0" * 64,
    "beyond 64 bits": header(1)
    + tensor(b"a", (1,), 0, 2**64 - 32)
    + b"\0" * 64,
    "two of a name": header(2)
    + tensor(b"a", (1,), 0, 0) * 2
    + b"\0" * 64,
}


@pytest.mark.parametrize("lie", LIES)
def test_files_that_lie(path, lie):
  path.write_bytes(LIES[lie])
  # Older readers take what is there twice, or oddly aligned.
  parts = ("is no GGUF file, or is damaged (", "architecture is missing")
  assert any(part in refusal(path) for part in parts)


def test_a_folder_is_no_file(tmp_path):
  (tmp_path / "a.gguf").mkdir()
  assert "cannot be read (Is a directory)" in refusal(tmp_path / "a.gguf")


def test_without_the_package(path, monkeypatch):
  gguf_files.write(path, tokenizer=tokenizer())
  monkeypatch.setitem(sys.modules, "gguf", None)
  with pytest.raises(UserError, match=r"pip install 'specjax\[gguf\]'"):
    checkpoints.load(str(path))


# --- by name ----------------------------------------------------------------


def test_a_file_of_a_package(tmp_path, monkeypatch):
  """Found without running the package, which may need what is not there."""
  folder = tmp_path / "some_model"
  folder.mkdir()
  (folder / "__init__.py").write_text("import nothing_of_this_name")
  gguf_files.write(folder / "m.Q4.gguf", tokenizer=tokenizer())
  monkeypatch.syspath_prepend(tmp_path)
  name = "package:some_model/m.Q4.gguf"
  loaded = checkpoints.load(name)
  assert loaded.name == name and loaded.module.config == CONFIG
  assert resolve.find(name, hint="") == folder / "m.Q4.gguf"
  with pytest.raises(UserError, match="the package has no n.gguf"):
    resolve.find("package:some_model/n.gguf", hint="")


@pytest.mark.parametrize(
    "name, part",
    (
        (
            "package:llm_smollm3/a.gguf",
            "python -m pip install --no-deps llm-smollm3",
        ),
        ("package:os/a.gguf", "python -m pip install --no-deps os"),
        ("package:a/../b.gguf", "give package:NAME/FILE.gguf, such as"),
        ("package:a.b/c.gguf", "give package:NAME/FILE.gguf, such as"),
        ("package:json/tool.py", "give package:NAME/FILE.gguf, such as"),
        ("gone.gguf", "gone.gguf is no file here; other"),
        ("some/gone.gguf", "some/gone.gguf is no file here; other"),
    ),
)
def test_names_that_lead_nowhere(name, part):
  with pytest.raises(UserError) as caught:
    resolve.resolve(name, hint="other")
  assert part in str(caught.value) and "\n" not in str(caught.value)


def test_the_other_order_of_bytes(path, monkeypatch):
  """The package takes the bytes of such weights as they lie."""
  writer = gguf.GGUFWriter
  big = functools.partial(writer, endianess=gguf.GGUFEndian.BIG)
  monkeypatch.setattr(gguf, "GGUFWriter", big)
  gguf_files.write(path, tokenizer=tokenizer())
  assert "is of the other byte order: convert it, gguf-conv" in refusal(path)


def test_names_that_are_one_in_the_end(path):
  odd = np.ones(CONFIG.d_model, np.float32)
  twice = lambda w: w.add_tensor("model.norm.weight", odd)
  gguf_files.write(path, tokenizer=tokenizer(), change=twice)
  assert "tensor model.norm.weight comes twice" in refusal(path)


def test_an_array_takes_no_more_than_its_numbers(path):
  """Not an object for each."""
  numbers = np.arange(2**20) % 256
  writer = gguf.GGUFWriter(path, "llama")
  values = numbers.tolist()
  writer.add_array("x.bytes", values)
  writer.add_array("x.words", ["a", "b"])
  gguf_files.close(writer)
  tracemalloc.start()
  get, _ = gguf_file.read(path)
  _, most = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert get.fields["x.bytes"] == values
  assert get.fields["x.words"] == ["a", "b"]
  assert most < 6 * path.stat().st_size
