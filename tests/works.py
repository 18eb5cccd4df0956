"""Three doors at work on tiny models, each in a process of its own.

Each takes some seconds and goes on where it was stopped: a training run, a
table of experiments, a benchmark. They run a copy of the source outside any
repository: what a changed source has made is never gone on with.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any, Callable

import safetensors

from specjax.training import log as log_lib
from tests import tiny

_STEPS = 40
_TRAINING = {
    "models.small.steps": _STEPS,
    "models.small.d_model": 16,
    "models.small.d_ff": 16,
    "models.small.d_kv": 8,
    "warmup": 5,
    "micro_batches": 2,
    "cost": 200,
    "source_lengths": "(16,32)",
    "target_lengths": "(8,16)",
    "held_out_rows": 8,
    "quality_rows": 4,
    "evaluate_every": 20,
    "checkpoint_every": 5,
}
_CONFIG = """
from specjax import config


def get_config():
  made = config.default()
  made.target.checkpoint = {target!r}
  made.draft.checkpoint = {draft!r}
  made.draft.table = ""
  made.draft.gamma = 2
  made.data.task = "file"
  made.data.path = {rows!r}
  made.decode.max_new_tokens = 8
  return made
"""
_PROMPTS = [["draft", "verify"], *([text] for text in tiny.TEXTS)]


@dataclasses.dataclass(frozen=True)
class Work:
  """Something that takes a while.

  Attributes:
    name: of its folders.
    words: (home, folder of its own) -> arguments of Python.
    results: what its folder holds in the end, timings aside.
    done: names of what its folder holds that is done.
  """

  name: str
  words: Callable[[pathlib.Path, pathlib.Path], list[str]]
  results: Callable[[pathlib.Path], Any]
  done: Callable[[pathlib.Path], set[str]]

  def start(self, home, folder, errors) -> subprocess.Popen:
    """Begins it, or goes on with it.

    Args:
      home: from `prepare`.
      folder: of its own.
      errors: file that its messages go to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cache, known = folder / "compiled", home / "compiled" / self.name
    if not cache.exists():
      # All runs compile the same: that time need not be spent on each.
      known.mkdir(parents=True, exist_ok=True)
      cache.symlink_to(known)
    environment = {
        "PYTHONPATH": str(home / "source"),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return subprocess.Popen(
        [sys.executable, *self.words(home, folder)],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )


def prepare(home: pathlib.Path) -> None:
  """Writes source, models and texts, where they are not there yet."""
  if (home / "ready").exists():
    return
  shutil.rmtree(home, ignore_errors=True)
  for name in ("specjax", "experiments", "configs"):
    shutil.copytree(
        tiny.CONFIGS.parent / name,
        home / "source" / name,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
  tiny.write_corpus(home / "corpus", rows=200)
  for name, write in (
      ("t5", tiny.write_family),
      ("llama", lambda folder: tiny.write_decoders(folder, tiny.LLAMA)),
  ):
    (home / name).mkdir()
    write(home / name)
  model = lambda name: str(home / "t5" / name)
  for name, draft in (("one", "draft"), ("two", "target")):
    text = _CONFIG.format(
        target=model("target"), draft=model(draft), rows=model("rows.jsonl")
    )
    (home / f"tiny_t5{name}.py").write_text(text)
  rows = [
      {"question_id": i, "category": "ab"[i % 2], "turns": turns}
      for i, turns in enumerate(_PROMPTS)
  ]
  (home / "question.jsonl").write_text("\n".join(map(json.dumps, rows)))
  (home / "ready").touch()


def _train(home, folder):
  options = _TRAINING | {"corpus": home / "corpus", "out": folder}
  return [
      "-m",
      "specjax.train",
      f"--config={home}/source/configs/train_mini.py:small",
      *(f"--config.{key}={value}" for key, value in options.items()),
  ]


def _trained(folder):
  run = folder / "small"
  entries = log_lib.read(run / "log.jsonl")
  for entry in entries:
    del entry["tokens_per_second"]
  weights = (run / "hf" / "model.safetensors").read_bytes()
  return [
      hashlib.sha256(weights).hexdigest(),
      entries,
      json.loads((run / "quality.json").read_text()),
  ]


def _checkpoints(folder):
  """Those since the last two push out the older ones: steps that are done."""
  found = (folder / "small" / "checkpoints").glob("*")
  newest = max((int(x.name) for x in found if x.name.isdigit()), default=0)
  return set(map(str, range(1, newest + 1)))


def _table(home, folder):
  files = [f"--config={home}/tiny_t5{name}.py" for name in ("one", "two")]
  out = f"--out={folder / 'results'}"
  return ["-m", "experiments.table3", "--rows=5", out, *files]


def _tabled(folder):
  made = json.loads((folder / "results" / "table3.json").read_text())
  return {k: v for k, v in made.items() if k not in ("command", "date")}


def _cells(folder):
  if (folder / "results" / "table3.md").exists():
    # The last file of the table: its cells may go.
    return {"all"}
  return {path.name for path in folder.glob("out/experiments/*/*.kept")}


def _bench(home, folder):
  family = {name: f"{home}/llama/{name}" for name in ("target", "draft")}
  argv = tiny.arguments(
      family | {"rows.jsonl": ""},
      "smollm2.py",
      decode__batch=1,
      decode__max_new_tokens=8,
      draft__gamma=2,
      draft__suffix__reach=8,
      data__max_source_tokens=400,
      out=folder / "bench",
  )
  return [
      "-m",
      "specjax.bench",
      *argv[1:],
      f"--prompts={home / 'question.jsonl'}",
      "--drafters=lookup,suffix",
  ]


def _benched(folder):
  details = json.loads((folder / "bench" / "details.json").read_text())
  report = json.loads((folder / "bench" / "report.json").read_text())
  of = lambda row: (row["id"], row["tokens"], row["rounds"])
  return [
      details["outputs"],
      list(map(of, details["answers"])),
      {
          name: (each["block_efficiency"], each["mismatched_rows"])
          for name, each in report["drafters"].items()
      },
  ]


def _answers(folder):
  if (folder / "bench" / "report.json").exists():
    return {"all"}
  return {path.name for path in folder.glob("bench/parts/*.kept")}


WORKS = (
    Work("training", _train, _trained, _checkpoints),
    Work("table", _table, _tabled, _cells),
    Work("benchmark", _bench, _benched, _answers),
)


def half_files(folder: pathlib.Path) -> list[str]:
  """Files with a name of their own that do not hold all they should.

  Names that begin with a dot are nobody's; logs, what is compiled and orbax's
  checkpoints have readers that know what a kill leaves.
  """
  half = []
  for path in sorted(folder.rglob("*")):
    inside = path.relative_to(folder).parts
    known = {"compiled", "checkpoints"} & set(inside)
    if known or any(part.startswith(".") for part in inside):
      continue
    if path.is_file() and not _whole(path):
      half.append(str(path))
  return half


def _whole(path: pathlib.Path) -> bool:
  content = path.read_bytes()
  try:
    match path.suffix:
      case ".json":
        json.loads(content)
      case ".kept":
        digest, _, text = content.partition(b"\n")
        return digest.decode() == hashlib.sha256(text).hexdigest()
      case ".safetensors":
        with safetensors.safe_open(path, framework="np") as file:
          return bool(file.keys())
      case ".png":
        return content.endswith(b"IEND\xaeB`\x82")
      case ".html":
        return content.rstrip().endswith(b"</html>")
  except (ValueError, safetensors.SafetensorError):
    return False
  return True
