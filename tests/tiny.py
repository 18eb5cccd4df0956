"""Tiny random directories with a tokenizer, and rows for them."""

import contextlib
import dataclasses
import io
import json
import pathlib
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece
import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.pre_tokenizers
import tokenizers.trainers

from specjax import command_line
from specjax.checkpoints import hf
from specjax.checkpoints import resolve
from specjax.models import decoder
from specjax.models import products
from specjax.models import rope
from specjax.models import t5

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
# Short: the sources of all share one padded length.
TEXTS = [
    "a fast editor",
    "tools that draft",
    "one pass of the target",
    "verify",
    "drafts are small and fast",
]
SHAPE = t5.T5Config(
    vocab_size=160,
    d_model=8,
    d_kv=4,
    d_ff=12,
    num_layers=1,
    num_decoder_layers=1,
    num_heads=2,
    gated=True,
    tied=False,
)


@contextlib.contextmanager
def quick_compilation():
  """Tiny models spend their time in the compiler, not in what it makes."""
  before = jax.config.read("jax_disable_most_optimizations")
  jax.config.update("jax_disable_most_optimizations", True)
  try:
    yield
  finally:
    jax.config.update("jax_disable_most_optimizations", before)


def write_tokenizer(folder: pathlib.Path) -> pathlib.Path:
  """A spiece.model of a few dozen pieces."""
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(TEXTS * 20),
      model_writer=model,
      vocab_size=50,
      hard_vocab_limit=False,
      pad_id=0,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
      pad_piece="<pad>",
      minloglevel=2,
  )
  (folder / "spiece.model").write_bytes(model.getvalue())
  return folder / "spiece.model"


def scaled(kernel):
  """A kernel of normal numbers whose products are as large as what comes in."""
  return kernel * products.from_kernel(kernel).shape[-1] ** -0.5


def write_random_t5(directory, config: t5.T5Config, seed: int = 0, **how):
  """Writes a T5 directory of random weights; `how` goes to hf.save_model."""
  generator = np.random.default_rng(seed)

  def draw(path, leaf):
    weights = generator.standard_normal(leaf.shape, np.float32)
    kind = path[-1].key
    if kind == "scale":
      return 1 + 0.1 * weights
    if kind == "kernel":
      weights = scaled(weights)
    # T5 starts the query smaller: its scores are never scaled.
    if path[-2].key == "q":
      weights *= config.d_kv**-0.5
    if path[-2].key == "qkv":
      products.from_kernel(weights)[0] *= config.d_kv**-0.5
    return weights

  module = t5.T5(config)
  ids_B1 = jnp.zeros((1, 1), jnp.int32)
  shapes = jax.eval_shape(
      module.init, jax.random.key(0), ids_B1, ids_B1 == 0, ids_B1
  )
  params = jax.tree_util.tree_map_with_path(draw, shapes)
  hf.save_model(directory, module, params, **{"dtype": jnp.float32} | how)


def write_random_decoder(directory, config, seed: int = 0, **how):
  """Writes a decoder-only directory of random weights; see write_random_t5."""
  generator = np.random.default_rng(seed)

  def draw(path, leaf):
    weights = generator.standard_normal(leaf.shape, np.float32)
    kind = path[-1].key
    if kind in ("scale", "bias"):
      return (kind == "scale") + 0.2 * weights
    return scaled(weights) if kind == "kernel" else weights

  module = decoder.Decoder(config)
  ids_B1 = jnp.zeros((1, 1), jnp.int32)
  shapes = jax.eval_shape(module.init, jax.random.key(0), ids_B1)
  params = jax.tree_util.tree_map_with_path(draw, shapes)
  hf.save_model(directory, module, params, **{"dtype": jnp.float32} | how)


def write_family(folder: pathlib.Path) -> dict[str, str]:
  """A target and a draft; rows.jsonl. Returns their paths."""
  spiece = write_tokenizer(folder)
  for seed, name in enumerate(("target", "draft")):
    write_random_t5(folder / name, SHAPE, seed, tokenizer_file=spiece)
  return {name: str(folder / name) for name in ("target", "draft")} | {
      "rows.jsonl": write_rows(folder)
  }


LLAMA = decoder.DecoderConfig(
    vocab_size=300,
    d_model=16,
    d_kv=4,
    d_ff=24,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    tied=True,
    gated=True,
    rms=True,
    rope=rope.Rope(),
    max_positions=512,
    norm_epsilon=1e-5,
    ends=(1,),
)
GPT2 = dataclasses.replace(
    LLAMA,
    num_kv_heads=4,
    gated=False,
    rms=False,
    rope=None,
    qkv_bias=True,
    out_bias=True,
    ff_bias=True,
)
CHAT = (
    "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}"
    "</s>{% endfor %}{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def write_decoders(folder: pathlib.Path, config) -> dict[str, str]:
  """As `write_family`, decoder-only, with a chat template."""
  model = tokenizers.Tokenizer(tokenizers.models.BPE())
  model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
      add_prefix_space=False
  )
  model.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
      vocab_size=config.vocab_size,
      special_tokens=["<s>", "</s>"],
      initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
      show_progress=False,
  )
  model.train_from_iterator(TEXTS * 5, trainer)
  model.save(str(folder / "tokenizer.json"))
  settings = folder / "tokenizer_config.json"
  settings.write_text(json.dumps({"chat_template": CHAT, "eos_token": "</s>"}))
  for seed, name in enumerate(("target", "draft")):
    write_random_decoder(
        folder / name,
        config,
        seed,
        tokenizer_file=folder / "tokenizer.json",
        beside=[settings],
    )
  return {name: str(folder / name) for name in ("target", "draft")} | {
      "rows.jsonl": write_rows(folder)
  }


def write_rows(folder: pathlib.Path) -> str:
  """rows.jsonl; returns its path."""
  rows = [
      {"id": f"row{i}", "source": text, "reference": text[::-1]}
      for i, text in enumerate(TEXTS)
  ]
  (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
  return str(folder / "rows.jsonl")


def arguments(
    family: dict[str, str], file: str = "ende_t5small.py:mini", **options
) -> list[str]:
  """argv of a run on the family; options as section__key=value."""
  values = {
      "target.checkpoint": family["target"],
      "draft.checkpoint": family["draft"],
      "data.path": family["rows.jsonl"],
      "decode.max_new_tokens": 16,
      "decode.batch": 2,
      "decode.dtype": "float32",
      "measure.repeats": 2,
      "measure.warmup": 1,
      "measure.steps": 2,
      "measure.traced_rows": 0,
  } | {key.replace("__", "."): value for key, value in options.items()}
  flags = [f"--config.{key}={value}" for key, value in values.items()]
  return ["run", "--config", str(CONFIGS / file), *flags]


def config(
    family: dict[str, str], file: str = "ende_t5small.py:mini", **options
):
  """The frozen config of such a run."""
  return command_line.read(arguments(family, file, **options))


def write_corpus(folder: pathlib.Path, rows: int) -> pathlib.Path:
  """Made-up sentences in a corpus's files, and the shipped vocabulary."""
  rng = random.Random(0)
  words = "alpha beta gamma delta library package editor tool data".split()
  text = lambda: " ".join(rng.choices(words, k=rng.randint(3, 12)))
  folder.mkdir()
  for task in ("ende", "summ"):
    for split, count in (("train", rows), ("dev", 10), ("test", 10)):
      made = [
          {"id": f"{split}{i}", "source": text(), "reference": text()}
          for i in range(count)
      ]
      lines = "".join(json.dumps(row) + "\n" for row in made)
      (folder / f"{task}.{split}.jsonl").write_text(lines, encoding="utf-8")
  shipped = resolve.resolve("mini/small", hint="") / "spiece.model"
  shutil.copyfile(shipped, folder / "spiece.model")
  return folder
