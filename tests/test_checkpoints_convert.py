"""pytorch_model*.bin -> safetensors, and files that are not weights alone."""

import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from specjax.checkpoints import convert
from specjax.checkpoints import hf
from specjax.errors import UserError
from specjax.models import t5
from tests import tiny

torch = pytest.importorskip("torch")

CONFIG = t5.T5Config(
    vocab_size=30,
    d_model=8,
    d_kv=3,
    d_ff=12,
    num_layers=1,
    num_decoder_layers=1,
    num_heads=2,
    gated=False,
    tied=True,
)


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
  """A v1.0 directory; tests replace its weights."""
  tiny.write_random_t5(tmp_path / "t5", CONFIG, 0)
  (tmp_path / "t5" / "spiece.model").write_bytes(b"pieces")
  return tmp_path / "t5"


def take_tensors(folder, dtype=torch.float32):
  """-> what a state dict holds: the tied head is a view of the embedding."""
  path = folder / "model.safetensors"
  tensors = {
      name: torch.tensor(value).to(dtype)
      for name, value in safetensors.numpy.load_file(path).items()
  }
  path.unlink()
  for name in ("lm_head.weight", "encoder.embed_tokens.weight"):
    tensors[name] = tensors["shared.weight"]
  return tensors


def test_one_file_by_the_command(folder, tmp_path):
  _, params = hf.load_model(folder)
  torch.save(take_tensors(folder), folder / "pytorch_model.bin")
  command = [sys.executable, "-m", "specjax.checkpoints.convert"]
  subprocess.run([*command, folder, tmp_path / "out"], check=True)
  module, converted = hf.load_model(tmp_path / "out")
  assert module.config == CONFIG
  jax.tree.map(np.testing.assert_array_equal, params, converted)
  assert (tmp_path / "out" / "spiece.model").read_bytes() == b"pieces"


def test_command_that_is_refused(folder, capsys):
  """It won't write where the pickle lies; the exit code is 1."""

  def complaint(*arguments) -> str:
    assert convert.main(["convert", *map(str, arguments)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("specjax.checkpoints.convert: ")
    return line

  torch.save(take_tensors(folder), folder / "pytorch_model.bin")
  assert "holds pytorch_model.bin" in complaint(folder, folder)
  assert (folder / "pytorch_model.bin").exists()
  assert "are required: OUT" in complaint(folder)
  line = complaint("a", "b", "--dtype=int8")
  assert "--dtype: invalid choice: 'int8'" in line


@pytest.mark.parametrize(
    "stored, wanted, written",
    (
        (torch.bfloat16, None, "bfloat16"),
        (torch.float16, None, "float32"),
        (torch.float32, "bfloat16", "bfloat16"),
    ),
)
def test_types(folder, tmp_path, stored, wanted, written):
  tensors = take_tensors(folder, stored)
  torch.save(tensors, folder / "pytorch_model.bin")
  convert.convert(folder, tmp_path / "out", dtype=wanted)
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  assert config["torch_dtype"] == written
  _, params = hf.load_model(tmp_path / "out")
  np.testing.assert_array_equal(
      params["params"]["shared"],
      tensors["shared.weight"].to(getattr(torch, written)).float().numpy(),
  )


def test_shards(folder, tmp_path):
  _, params = hf.load_model(folder)
  tensors = take_tensors(folder)
  weight_map = {}
  for i, name in enumerate(tensors):
    weight_map[name] = f"pytorch_model-0000{i % 2 + 1}-of-00002.bin"
  for file in set(weight_map.values()):
    part = {name: tensors[name] for name in tensors if weight_map[name] == file}
    torch.save(part, folder / file)
  index = folder / convert.INDEX
  index.write_text(json.dumps({"weight_map": weight_map}))
  convert.convert(folder, tmp_path / "out")
  jax.tree.map(
      np.testing.assert_array_equal, params, hf.load_model(tmp_path / "out")[1]
  )
  weight_map["shared.weight"] = "../pytorch_model.bin"
  index.write_text(json.dumps({"weight_map": weight_map}))
  with pytest.raises(UserError, match="plain file name"):
    convert.convert(folder, tmp_path / "out")


class Trap:
  """Makes a file when it is unpickled."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return pathlib.Path.touch, (self.path,)


def test_code_is_never_run(folder, tmp_path):
  tensors = take_tensors(folder) | {"trap": Trap(tmp_path / "sprung")}
  torch.save(tensors, folder / "pytorch_model.bin")
  with pytest.raises(UserError, match="not a file of weights alone") as caught:
    convert.convert(folder, tmp_path / "out")
  assert "\n" not in str(caught.value)
  assert not (tmp_path / "sprung").exists()
  assert not (tmp_path / "out").exists()
  torch.load(folder / "pytorch_model.bin", weights_only=False)
  assert (tmp_path / "sprung").exists()


def test_faulty_files(folder, tmp_path):
  tensors = take_tensors(folder)
  out = tmp_path / "out"
  with pytest.raises(UserError, match="holds neither pytorch_model.bin"):
    convert.convert(folder, out)
  (folder / "pytorch_model.bin").write_bytes(b"no weights")
  with pytest.raises(UserError, match="pytorch_model.bin is not a file of"):
    convert.convert(folder, out)
  torch.save(tensors | {"step": 3}, folder / "pytorch_model.bin")
  with pytest.raises(UserError, match="step is not a tensor of floats"):
    convert.convert(folder, out)
  del tensors["decoder.final_layer_norm.weight"]
  torch.save(tensors, folder / "pytorch_model.bin")
  with pytest.raises(UserError, match="missing decoder.final_layer_norm"):
    convert.convert(folder, out)


@pytest.mark.parametrize(
    "stored, part",
    (
        ([1, 2], "holds a list, not tensors by name"),
        (None, "holds a NoneType, not tensors by name"),
        (torch.ones(3), "holds a Tensor, not tensors by name"),
        ({3: torch.ones(3)}, "3 is not a tensor's name"),
        ({"a": torch.ones(3).to_sparse()}, "a is not a tensor of floats"),
        (
            {"a": torch.ones(3).to(torch.float8_e4m3fn)},
            "a is not a tensor of floats",
        ),
        ({"a": torch.ones(3, dtype=torch.complex64)}, "a is not a tensor of"),
        ({"state_dict": {}}, "state_dict is not a tensor of floats"),
        # A few bytes that say they are a terabyte.
        ({"a": torch.ones(1).expand(2**38)}, "a is not a tensor of floats"),
        ({"a\nb": 3}, "a b is not a tensor of floats"),
        ({}, "missing shared.weight"),
    ),
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_files_that_hold_something_else(folder, tmp_path, stored, part):
  torch.save(stored, folder / "pytorch_model.bin")
  with pytest.raises(UserError) as caught:
    convert.convert(folder, tmp_path / "out")
  assert part in str(caught.value) and "\n" not in str(caught.value)
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "error, part",
    (
        (RuntimeError(""), "not a file of weights alone (RuntimeError)"),
        (EOFError(), "not a file of weights alone (EOFError)"),
        (KeyError("\n\n"), "not a file of weights alone ("),
        (RuntimeError("\n first\nsecond"), "weights alone (first): fetch"),
        (IndexError("list index"), "weights alone (list index): fetch"),
        (PermissionError(13, "Permission denied"), "read (Permission denied)"),
        (OSError("odd"), "cannot be read (odd)"),
    ),
    ids=repr,
)
def test_whatever_the_loader_raises(folder, tmp_path, monkeypatch, error, part):
  (folder / "pytorch_model.bin").touch()

  def load(*_, **__):
    raise error

  monkeypatch.setattr(torch, "load", load)
  with pytest.raises(UserError) as caught:
    convert.convert(folder, tmp_path / "out")
  assert part in str(caught.value) and "\n" not in str(caught.value)


def test_damaged_files(folder, tmp_path):
  """Cut or with a byte changed: refused in one line, or read in full."""
  torch.save(take_tensors(folder), folder / "pytorch_model.bin")
  whole = (folder / "pytorch_model.bin").read_bytes()
  refused = 0
  for at in range(0, len(whole), len(whole) // 40):
    changed = whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
    for damaged in (whole[:at], changed):
      (folder / "pytorch_model.bin").write_bytes(damaged)
      try:
        convert.convert(folder, tmp_path / "out")
      except UserError as error:
        assert "\n" not in str(error)
        refused += 1
  assert refused >= 40


def test_parameters_are_tensors(folder, tmp_path):
  """As saved from named_parameters: they ask for gradients."""
  _, params = hf.load_model(folder)
  tensors = {
      name: torch.nn.Parameter(value)
      for name, value in take_tensors(folder).items()
  }
  torch.save(tensors, folder / "pytorch_model.bin")
  convert.convert(folder, tmp_path / "out")
  jax.tree.map(
      np.testing.assert_array_equal, params, hf.load_model(tmp_path / "out")[1]
  )


def test_where_nothing_can_be_written(folder, tmp_path):
  torch.save(take_tensors(folder), folder / "pytorch_model.bin")
  (tmp_path / "file").touch()
  with pytest.raises(UserError, match="file is a file; give a new directory"):
    convert.convert(folder, tmp_path / "file")
  with pytest.raises(UserError, match="cannot be written .*/file"):
    convert.convert(folder, tmp_path / "file" / "out")
  with pytest.raises(UserError, match="^dtype: give one of float32, bfloat16"):
    convert.convert(folder, tmp_path / "out", dtype="float")
  with pytest.raises(UserError, match="nowhere/config.json does not exist"):
    convert.convert(tmp_path / "nowhere", tmp_path / "out")


def test_tensor_whose_numbers_are_not_in_order(folder, tmp_path):
  """A transposed view is written as what it shows."""
  _, params = hf.load_model(folder)
  tensors = take_tensors(folder)
  name = "encoder.block.0.layer.1.DenseReluDense.wi.weight"
  tensors[name] = tensors[name].T.contiguous().T
  torch.save(tensors, folder / "pytorch_model.bin")
  convert.convert(folder, tmp_path / "out")
  kernel = lambda tree: jnp.asarray(
      tree["params"]["encoder_layers_0"]["feed_forward"]["wi"]["kernel"]
  )
  np.testing.assert_array_equal(
      kernel(hf.load_model(tmp_path / "out")[1]), kernel(params)
  )
