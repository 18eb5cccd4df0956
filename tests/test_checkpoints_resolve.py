"""Names of models: folders, the shipped family, the cache, the hub.

The hub is a small server on localhost. huggingface_hub reads its environment
when it is imported, so what asks it runs in a process of its own.
"""

import hashlib
import http.server
import importlib.util
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import pytest
import sentencepiece

from specjax import checkpoints
from specjax.checkpoints import hf
from specjax.checkpoints import resolve as resolve_lib
from specjax.errors import UserError
from specjax.models import t5

HINT = "configs/ende_t5small.py:mini runs the shipped family"
COMMIT = "c" * 40
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
needs_hub = pytest.mark.skipif(
    importlib.util.find_spec("huggingface_hub") is None,
    reason="huggingface_hub is an extra",
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
  hf.save_random_t5(
      root / "t5",
      CONFIG,
      0,
      max_shard_bytes=16000,
      tokenizer_file=root / "pieces.model",
  )
  return root / "t5"


class Hub(http.server.BaseHTTPRequestHandler):
  """The few answers of the hub that a download asks for."""

  protocol_version = "HTTP/1.1"
  repositories: dict[str, dict[str, bytes]] = {}
  asked: list[str] = []

  def answer(self, code, body=b"", **headers):
    self.send_response(code)
    self.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
      self.send_header(name.replace("_", "-"), value)
    self.end_headers()
    if self.command != "HEAD":
      self.wfile.write(body)

  def do_GET(self):
    path = self.path.split("?")[0]
    self.asked.append(path)
    for name, files in self.repositories.items():
      api, raw = f"/api/models/{name}", f"/{name}/resolve/{COMMIT}/"
      if path in (api, f"{api}/revision/main"):
        siblings = [{"rfilename": file} for file in files]
        info = {"id": name, "sha": COMMIT, "siblings": siblings}
        return self.answer(200, json.dumps(info).encode())
      if path == f"{api}/tree/{COMMIT}":
        tree = [
            {
                "type": "file",
                "path": file,
                "size": len(body),
                "oid": hashlib.sha1(body).hexdigest(),
            }
            for file, body in files.items()
        ]
        return self.answer(200, json.dumps(tree).encode())
      if path.startswith(raw) and path[len(raw) :] in files:
        body = files[path[len(raw) :]]
        tag = f'"{hashlib.sha1(body).hexdigest()}"'
        return self.answer(200, body, ETag=tag, X_Repo_Commit=COMMIT)
    return self.answer(404, b"{}", X_Error_Code="RepoNotFound")

  do_HEAD = do_GET

  def log_message(self, *_):
    pass


@pytest.fixture
def hub(folder):
  """-> address of a hub that has two models, one of them pickled."""
  whole = {path.name: path.read_bytes() for path in folder.iterdir()}
  pickled = {"config.json": whole["config.json"], "pytorch_model.bin": b"x"}
  extra = {"tf_model.h5": b"x", "onnx/model.safetensors": b"x"}
  Hub.repositories = {"lab/t5": whole | extra, "lab/old": pickled}
  Hub.asked = []
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  yield f"http://127.0.0.1:{server.server_port}"
  server.shutdown()
  thread.join()
  server.server_close()


PROGRAM = """
import sys
from specjax.checkpoints import resolve
from specjax.errors import UserError
for name in sys.argv[2:]:
  try:
    print(resolve.resolve(name, hint=sys.argv[1]))
  except UserError as error:
    print("refused:", error)
"""


def ask(endpoint, home, *models, **environment) -> list[str]:
  """-> what a process of its own says of each name: a folder, or one line."""
  done = subprocess.run(
      [sys.executable, "-c", PROGRAM, HINT, *models],
      env=os.environ
      | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home)}
      | {"NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
      | environment,
      check=True,
      capture_output=True,
      text=True,
      timeout=60,
  )
  lines = done.stdout.splitlines()
  assert len(lines) == len(models), done.stdout
  return lines


@needs_hub
def test_download_then_cache(hub, folder, tmp_path):
  """Only the wanted files come; afterwards no network is needed."""
  found, old, none = ask(hub, tmp_path, "lab/t5", "lab/old", "lab/none")
  assert {path.name for path in pathlib.Path(found).iterdir()} == {
      path.name for path in folder.iterdir()
  }
  assert hf.load_t5(found)[0].config == CONFIG
  assert "lab/old has no safetensors" in old
  assert "python -m specjax.checkpoints.convert DIR OUT" in old
  assert f"/lab/old/resolve/{COMMIT}/pytorch_model.bin" not in Hub.asked
  assert "lab/none is neither on this machine nor to be had" in none
  assert none.endswith(HINT)
  Hub.asked.clear()
  assert ask(hub, tmp_path, "lab/t5") == [found]
  assert not Hub.asked
  # A shard that an interrupted download left out is fetched.
  shard = next(pathlib.Path(found).glob("*.safetensors"))
  shard.resolve().unlink()
  shard.unlink()
  (line,) = ask(hub, tmp_path, "lab/t5", HF_HUB_OFFLINE="1")
  assert line.startswith("refused: lab/t5 is neither")
  assert shard.name in line or "HF_HUB_OFFLINE" in line
  assert not Hub.asked
  assert ask(hub, tmp_path, "lab/t5") == [found]
  assert shard.exists()


@needs_hub
def test_no_network(tmp_path):
  """One line, soon: what to fetch, where to put it, what runs meanwhile."""
  (line,) = ask("http://127.0.0.1:9", tmp_path, "google/flan-t5-xxl")
  assert line.startswith("refused: google/flan-t5-xxl is neither on this")
  assert "hf download google/flan-t5-xxl --local-dir DIR" in line
  assert line.endswith(HINT)


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
    "name", ("./gone", "/gone/t5", "../assets", "a/b/c", "", "a b", "lab/..")
)
def test_names_that_are_none(name):
  with pytest.raises(UserError, match="no folder and no name of a model"):
    resolve_lib.resolve(name, hint=HINT)


def test_shipped_models(folder, monkeypatch, tmp_path):
  """Found in the package wherever it is started."""
  shutil.copytree(folder, tmp_path / "assets" / "mini" / "target")
  monkeypatch.setattr(resolve_lib.resources, "files", lambda name: tmp_path)
  monkeypatch.chdir(tmp_path.parent)
  found = resolve_lib.resolve("mini/target", hint=HINT)
  assert found == tmp_path / "assets" / "mini" / "target"


def test_load(folder, tmp_path):
  checkpoint = checkpoints.load(str(folder))
  assert checkpoint.name == str(folder)
  assert checkpoint.module.config == CONFIG
  ids = checkpoint.tokenizer.encode("a draft")
  assert checkpoint.tokenizer.decode(ids) == "a draft"
  hf.save_random_t5(
      tmp_path / "narrow",
      t5.T5Config(**(vars(CONFIG) | {"vocab_size": 100})),
      0,
      tokenizer_file=folder / "spiece.model",
  )
  with pytest.raises(UserError, match="ids, the model only 100"):
    checkpoints.load(str(tmp_path / "narrow"))
