"""Models and texts by their public names, from a hub on localhost.

huggingface_hub and datasets read their environment when they are imported, so
what asks the hub runs in a process of its own, where warnings are errors too.
"""

import hashlib
import http.server
import io
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

from specjax.checkpoints import hf
from specjax.data import tasks
from specjax.errors import UserError
from tests import tiny

HINT = "configs/ende_t5small.py:mini runs the shipped family"
COMMIT = "c" * 40
WMT14, CNNDM = "datasets/wmt/wmt14", "datasets/abisee/cnn_dailymail"
PAIRS = [("Hello.", "Hallo."), ("Bye.", "Ciao."), ("Yes.", "Ja.")]


class Hub(http.server.BaseHTTPRequestHandler):
  """The few answers of the hub that a download asks for.

  Attributes:
    repositories: name, with datasets/ before it where it is one -> files.
    asked: paths, in order.
  """

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
      kind = "" if name.startswith("datasets/") else "models/"
      api, raw = f"/api/{kind}{name}", f"/{name}/resolve/{COMMIT}/"
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


def fetched() -> list[str]:
  """Names of the files that the hub was asked for."""
  mark = f"/resolve/{COMMIT}/"
  files = [path.split(mark)[1] for path in Hub.asked if mark in path]
  return list(dict.fromkeys(files))


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, dict[str, bytes]]:
  """A whole model in shards, its draft, and one whose weights are pickled."""
  root = tmp_path_factory.mktemp("models")
  spiece = tiny.write_tokenizer(root)
  for seed, (name, most) in enumerate((("t5", 16000), ("draft", 10**9))):
    tiny.write_random_t5(
        root / name,
        tiny.SHAPE,
        seed,
        max_shard_bytes=most,
        tokenizer_file=spiece,
    )
  read = lambda name: {
      path.name: path.read_bytes() for path in (root / name).iterdir()
  }
  whole = read("t5")
  rest = {name: whole[name] for name in ("config.json", "spiece.model")}
  return {
      "lab/t5": whole | {"tf_model.h5": b"x", "onnx/model.safetensors": b"x"},
      "lab/draft": read("draft"),
      "lab/old": rest | {"pytorch_model.bin": b"x"},
  }


@pytest.fixture(scope="module")
def texts() -> dict[str, dict[str, bytes]]:
  """Both public datasets with a few rows; what no task reads is no parquet."""
  import datasets

  def parquet(rows, **features):
    features = datasets.Features(features) if features else None
    file = io.BytesIO()
    datasets.Dataset.from_list(rows, features=features).to_parquet(file)
    return file.getvalue()

  pairs = lambda some: parquet(
      [{"translation": {"de": de, "en": en}} for en, de in some],
      translation=datasets.Translation(languages=["de", "en"]),
  )
  news = [{"article": "Long text.", "highlights": "A .\nB .", "id": "f0"}]
  return {
      WMT14: {
          "README.md": b"",
          "cs-en/test-00000-of-00001.parquet": b"another pair",
          "de-en/test-00000-of-00002.parquet": pairs(PAIRS[:2]),
          "de-en/test-00001-of-00002.parquet": pairs(PAIRS[2:]),
          "de-en/train-00000-of-00001.parquet": b"a huge file",
      },
      CNNDM: {
          "3.0.0/test-00000-of-00001.parquet": parquet(news),
          "3.0.0/train-00000-of-00001.parquet": b"a huge file",
      },
  }


@pytest.fixture
def hub():
  """-> its address; what it has, each test says."""
  Hub.repositories, Hub.asked = {}, []
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  yield f"http://127.0.0.1:{server.server_port}"
  server.shutdown()
  thread.join()
  server.server_close()


def python(endpoint, home, *arguments, **environment):
  """A finished Python process that has the hub and an own cache."""
  return subprocess.run(
      [sys.executable, "-W", "error", *map(str, arguments)],
      env={k: v for k, v in os.environ.items() if not k.startswith("HF_")}
      | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home)}
      | {"NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
      | {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
      | environment,
      cwd=tiny.CONFIGS.parent,
      capture_output=True,
      text=True,
      timeout=120,
  )


PROGRAM = """
import sys
from specjax.checkpoints import resolve
from specjax.data import tasks
from specjax.errors import UserError
for name in sys.argv[2:]:
  task, _, split = name.partition(":")
  try:
    if task in tasks.TASKS:
      print(tasks.load_task(task, split=split or "test"))
    else:
      print(resolve.resolve(name, hint=sys.argv[1]))
  except UserError as error:
    print("refused:", error)
"""


def ask(endpoint, home, *names, **environment) -> list[str]:
  """-> what a process says of each name: a folder, rows, or one line."""
  done = python(endpoint, home, "-c", PROGRAM, HINT, *names, **environment)
  assert (done.returncode, done.stderr) == (0, "")
  lines = done.stdout.splitlines()
  assert len(lines) == len(names), done.stdout
  return lines


def test_models_are_fetched_then_cached(hub, models, tmp_path):
  """Only the wanted files come; afterwards no network is needed."""
  Hub.repositories = models
  found, old, none = ask(hub, tmp_path, "lab/t5", "lab/old", "lab/none")
  assert {path.name for path in pathlib.Path(found).iterdir()} == {
      file for file in models["lab/t5"] if file[:3] not in ("tf_", "onn")
  }
  assert hf.load_model(found)[0].config == tiny.SHAPE
  assert "lab/old has no safetensors" in old
  assert "python -m specjax.checkpoints.convert DIR OUT" in old
  assert not [path for path in Hub.asked if path.startswith("/lab/old/")]
  assert "lab/none is neither on this machine nor to be had (" in none
  assert "404" in none
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
  assert "HF_HUB_OFFLINE" in line
  assert not Hub.asked
  assert ask(hub, tmp_path, "lab/t5") == [found]
  assert fetched() == [shard.name]
  assert shard.exists()


def test_texts_are_fetched_then_cached(hub, texts, tmp_path):
  """Only the asked split comes; afterwards no network is needed."""
  Hub.repositories = texts
  names = ("wmt14_ende", "cnndm", "wmt14_ende:dev")
  *rows, no_split = ask(hub, tmp_path, *names)
  assert rows == [
      str([
          tasks.Example(str(i), tasks.TRANSLATE + en, de)
          for i, (en, de) in enumerate(PAIRS)
      ]),
      str([tasks.Example("f0", tasks.SUMMARIZE + "Long text.", "A .\nB .")]),
  ]
  assert "it has no split 'dev'" in no_split
  assert sorted(fetched()) == [
      "3.0.0/test-00000-of-00001.parquet",
      "de-en/test-00000-of-00002.parquet",
      "de-en/test-00001-of-00002.parquet",
  ]
  # What an interrupted download left out is fetched, and nothing else.
  Hub.asked.clear()
  second = max(tmp_path.rglob("snapshots/*/de-en/*.parquet"))
  second.resolve().unlink()
  second.unlink()
  assert ask(hub, tmp_path, *names[:2]) == rows
  assert fetched() == [f"de-en/{second.name}"]
  assert not [path for path in Hub.asked if "cnn_dailymail" in path]
  Hub.asked.clear()
  names = ("wmt14_ende", "cnndm", "wmt14_ende:train")
  *again, train = ask(hub, tmp_path, *names, HF_HUB_OFFLINE="1")
  assert again == rows and not Hub.asked
  assert train.startswith("refused: data.path: wmt14_ende is neither on this")
  assert "--include 'de-en/train-*'" in train and "HF_HUB_OFFLINE" in train


def test_a_copy_of_a_dataset(texts, tmp_path, monkeypatch):
  """A folder, as the message for a machine without network asks for."""
  import datasets

  cache = tmp_path / "cache"
  monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
  copy = tmp_path / "a [*] folder"
  for file, body in texts[WMT14].items():
    (copy / file).parent.mkdir(parents=True, exist_ok=True)
    (copy / file).write_bytes(body)
  examples = tasks.load_task("wmt14_ende", path=str(copy), rows=1)
  assert examples == [tasks.Example("0", tasks.TRANSLATE + "Hello.", "Hallo.")]
  first, second = sorted(copy.glob("de-en/test-*"))
  first.write_bytes(b"PAR1 and no more")
  with pytest.raises(UserError, match=r"2.parquet cannot be read .*delete it"):
    tasks.load_task("wmt14_ende", path=copy)
  second.unlink()
  with pytest.raises(UserError, match=r"hold all of de-en/test-\*.parquet"):
    tasks.load_task("wmt14_ende", path=copy)


LOAD = """
import sys
from specjax import command_line, prepare
setup = prepare.prepare(command_line.read(sys.argv))
print(len(setup.examples), setup.target.name, setup.drafts.drafter.depth)
"""


def options(**values) -> list[str]:
  """Of a run by the paper's config."""
  return ["--config", tiny.CONFIGS / "ende_t5small.py"] + [
      f"--config.{key.replace('__', '.')}={value}"
      for key, value in values.items()
  ]


def test_a_run_fetches_the_biggest_last(hub, models, texts, tmp_path):
  Hub.repositories = models | texts
  models = dict(target__checkpoint="lab/t5", draft__checkpoint="lab/draft")
  done = python(hub, tmp_path, "-c", LOAD, *options(**models))
  assert (done.stderr, done.stdout) == ("", "3 lab/t5 7\n")
  kinds = [
      (path.split("/resolve/")[0], path.rpartition(".")[2])
      for path in Hub.asked
      if path.endswith((".parquet", ".safetensors"))
  ]
  assert list(dict.fromkeys(kinds)) == [
      (f"/{WMT14}", "parquet"),
      ("/lab/draft", "safetensors"),
      ("/lab/t5", "safetensors"),
  ]


def test_all_that_is_missing_is_told_at_once(hub, models, tmp_path):
  """A line each, before any weights are fetched."""
  Hub.repositories = models
  run = lambda **values: python(
      hub, tmp_path, "-m", "specjax.run", *options(out=tmp_path, **values)
  )
  done = run(target__checkpoint="lab/old", draft__checkpoint="lab/none")
  assert (done.returncode, done.stdout) == (1, "")
  draft, target, data = done.stderr.splitlines()
  assert draft.startswith("specjax.run: draft.checkpoint: lab/none is neither")
  assert target.startswith("target.checkpoint: lab/old has no safetensors")
  assert data.startswith("data.path: wmt14_ende is neither")
  assert data.endswith(HINT)
  assert not fetched()
  done = run(target__checkpoint="lab/t5", draft__checkpoint="lab/none")
  assert done.returncode == 1 and len(done.stderr.splitlines()) == 2
  assert not fetched()


def test_no_network(tmp_path):
  """One line, soon: what to fetch, where to put it, what runs meanwhile."""
  (line,) = ask("http://127.0.0.1:9", tmp_path, "google/flan-t5-xxl")
  assert line.startswith("refused: google/flan-t5-xxl is neither on this")
  assert "hf download google/flan-t5-xxl --local-dir DIR" in line
  assert line.endswith(HINT)
