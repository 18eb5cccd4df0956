"""Names of models: folders and the shipped family; for the hub see test_hub."""

import io
import json
import pathlib
import shutil
import sys

import pytest
import sentencepiece

from specjax import checkpoints
from specjax.checkpoints import hf
from specjax.checkpoints import resolve as resolve_lib
from specjax.errors import UserError
from specjax.models import t5
from tests import tiny

HINT = "configs/ende_t5small.py:mini runs the shipped family"
CONFIG = t5.T5Config(
    vocab_size=200,
    d_model=8,
    d_kv=3,
    d_ff=12,
    num_layers=1,
    num_decoder_layers=1,
    num_heads=2,
    gated=True,
    tied=False,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
  """A whole model in two shards, as a repository would hold it."""
  root = tmp_path_factory.mktemp("hub")
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(["a draft and a target"] * 20),
      model_writer=model,
      vocab_size=20,
      hard_vocab_limit=False,
      pad_id=0,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
      pad_piece="<pad>",
      minloglevel=2,
  )
  (root / "pieces.model").write_bytes(model.getvalue())
  tiny.write_random_t5(
      root / "t5",
      CONFIG,
      0,
      max_shard_bytes=16000,
      tokenizer_file=root / "pieces.model",
  )
  return root / "t5"


def test_without_huggingface_hub(monkeypatch):
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with pytest.raises(UserError, match=r"pip install 'specjax\[hub\]'.*mini"):
    resolve_lib.resolve("google/flan-t5-small", hint=HINT)


def test_local_folder(folder, monkeypatch):
  assert resolve_lib.resolve(str(folder), hint=HINT) == folder
  monkeypatch.chdir(folder.parent)
  assert resolve_lib.resolve("t5", hint=HINT) == pathlib.Path("t5")
  monkeypatch.setenv("HOME", str(folder.parent))
  assert resolve_lib.resolve("~/t5", hint=HINT) == folder


@pytest.mark.parametrize(
    "name",
    ("./gone", "/gone/t5", "~nobody-here/t5", "../assets", "a/b/c", "", "a b")
    + ("lab/..", "a\0", "/" + "a" * 5000),
)
def test_names_that_are_none(name):
  with pytest.raises(UserError, match="no folder and no name of a model"):
    resolve_lib.resolve(name, hint=HINT)


def test_shipped_models(folder, monkeypatch, tmp_path):
  """Found in the package wherever it is started."""
  shutil.copytree(folder, tmp_path / "assets" / "mini" / "target")
  monkeypatch.setattr(resolve_lib.shipped, "ASSETS", tmp_path / "assets")
  monkeypatch.chdir(tmp_path.parent)
  found = resolve_lib.resolve("mini/target", hint=HINT)
  assert found == tmp_path / "assets" / "mini" / "target"


@pytest.mark.parametrize(
    "index",
    [
        '{"weight_map": ["model-00001-of-00002.safetensors"]}',
        '{"weight_map": {"shared.weight": ["a.safetensors"]}}',
        '{"weight_map": {"shared.weight": 1}}',
        '{"weight_map": {"shared.weight": ""}}',
        '{"weight_map": {"shared.weight": "../model.safetensors"}}',
        '{"weight_map": {"shared.weight": "\\u0000.safetensors"}}',
        '{"weight_map": {}}',
        '{"weight_map": null}',
        "{}",
        "[]",
        "null",
        "",
        '{"weight_map": ',
        "\0",
        "\udcff",
        "[" * 100_000,
        "1" * 10_000,
    ],
)
def test_a_bad_index_is_one_line(folder, tmp_path, index):
  copy = shutil.copytree(folder, tmp_path / "t5")
  path = copy / hf.INDEX
  path.write_text(index, "utf-8", errors="surrogateescape")
  with pytest.raises(UserError) as caught:
    resolve_lib.resolve(str(copy), hint=HINT)
  line = str(caught.value)
  assert line.startswith(str(path)) and "\n" not in line
  assert line.endswith(": delete it and fetch it again")


@pytest.mark.parametrize("name", ["gone", "a" * 150])
def test_an_index_of_files_that_are_not_there(folder, tmp_path, name):
  shard = f"{name}.safetensors"
  copy = shutil.copytree(folder, tmp_path / "t5")
  index = json.dumps({"weight_map": {"shared.weight": shard}})
  (copy / hf.INDEX).write_text(index, "utf-8")
  with pytest.raises(UserError, match=f"has no {shard}: fetch it again"):
    resolve_lib.resolve(str(copy), hint=HINT)


def test_a_folder_that_lacks_files(folder, tmp_path):
  """As `hf download` leaves t5-11b: its repository has pickled weights only."""
  copy = shutil.copytree(folder, tmp_path / "t5")
  for path in copy.glob("*safetensors*"):
    path.unlink()
  refused = lambda words: pytest.raises(UserError, match=words)
  with refused("t5 has no model.safetensors: fetch it again, or give"):
    resolve_lib.resolve(str(copy), hint=HINT)
  (copy / "pytorch_model.bin").write_bytes(b"x")
  for find in (resolve_lib.resolve, resolve_lib.find):
    with refused("t5 holds only pytorch_model.bin, which is never") as caught:
      find(str(copy), hint=HINT)
    command = f"python -m specjax.checkpoints.convert {copy} OUT"
    assert command in str(caught.value)
  (copy / hf.WEIGHTS).write_bytes(b"x")
  (copy / "spiece.model").unlink()
  with refused("t5 has no spiece.model or tokenizer.json"):
    resolve_lib.resolve(str(copy), hint=HINT)
  (copy / "config.json").unlink()
  with refused("t5 has no config.json"):
    resolve_lib.resolve(str(copy), hint=HINT)


def test_load(folder, tmp_path):
  checkpoint = checkpoints.load(str(folder))
  assert checkpoint.name == str(folder)
  assert checkpoint.module.config == CONFIG
  ids = checkpoint.tokenizer.encode("a draft")
  assert checkpoint.tokenizer.decode(ids) == "a draft"
  tiny.write_random_t5(
      tmp_path / "narrow",
      t5.T5Config(**(vars(CONFIG) | {"vocab_size": 100})),
      0,
      tokenizer_file=folder / "spiece.model",
  )
  with pytest.raises(UserError, match="ids, the model only 100"):
    checkpoints.load(str(tmp_path / "narrow"))


def test_a_slip_in_a_shipped_name_lists_them():
  with pytest.raises(UserError, match="mini/targt does not ship.*mini/target"):
    resolve_lib.resolve("mini/targt", hint="")
