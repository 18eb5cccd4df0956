"""The door to training: one config, one or more models.

    python -m specjax.train --config configs/train_mini.py

Builds the texts and the vocabulary where they are missing, trains each model
of the config from its newest checkpoint on, and writes it as a Hugging Face
directory to <out>/<model>/hf.
"""

import pathlib
import sys
from typing import Sequence

import jax.numpy as jnp

from specjax import command_line
from specjax import errors
from specjax.checkpoints import hf
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.data import batches
from specjax.data import corpus
from specjax.data import metrics
from specjax.data import tasks
from specjax.data import vocabulary
from specjax.models import t5
from specjax.training import loop
from specjax.training import optimizer

def train_config(config, name: str) -> loop.TrainConfig:
  """The frozen form of the config's section on model `name`."""
  shape = config.models[name]
  return loop.TrainConfig(
      name=name,
      model=t5.T5Config(
          vocab_size=config.vocabulary,
          d_model=shape.d_model,
          d_kv=shape.d_kv,
          d_ff=shape.d_ff,
          num_layers=shape.encoder,
          num_decoder_layers=shape.decoder,
          num_heads=shape.num_heads,
          gated=True,
          tied=False,
      ),
      optimizer=optimizer.OptimizerConfig(
          matrix_rate=config.matrix_rate,
          other_rate=config.other_rate,
          warmup=config.warmup,
          steps=config.steps,
          weight_decay=config.weight_decay,
      ),
      batch=batches.BatchConfig(
          source_lengths=tuple(config.source_lengths),
          target_lengths=tuple(config.target_lengths),
          cost=config.cost,
      ),
      micro_batches=config.micro_batches,
      seed=config.seed,
      out=pathlib.Path(config.out),
      evaluate_every=config.evaluate_every,
      checkpoint_every=config.checkpoint_every,
  )


def load_ids(folder, tokenizer, task: str, split: str, rows: int | None = None):
  """One split of one task of the corpus as (source ids, target ids)."""
  pairs = corpus.read_split(folder, task, split)[:rows]
  sources = tokenizer.encode_batch([source for source, _ in pairs])
  targets = tokenizer.encode_batch([target for _, target in pairs])
  return sources, targets


def main(argv: Sequence[str]) -> int:
  """Trains every model that the config names; returns the exit code."""
  try:
    train(command_line.read_values(argv)[1])
    return 0
  except errors.UserError as error:
    print(f"specjax.train: {error}", file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print(
        "specjax.train: interrupted; the same command goes on from the newest"
        " checkpoint",
        file=sys.stderr,
    )
    return 130


def train(config) -> None:
  """Builds what is missing, then trains and writes each model."""
  folder = pathlib.Path(config.corpus)
  # Told before hours of work: no training text may be among the shipped rows.
  corpus.build(folder)
  for task in corpus.TASKS:
    texts = [source for source, _ in corpus.read_split(folder, task, "train")]
    shipped = tasks.load_task(f"mini_{task}")
    metrics.refuse_overlap(texts, {row.id: row.source for row in shipped})
  model_file = vocabulary.build(folder)
  tokenizer = tokenizer_lib.Tokenizer(model_file)
  splits = [
      load_ids(folder, tokenizer, task, "train") for task in corpus.TASKS
  ]
  pairs = tuple(sum((split[i] for split in splits), []) for i in (0, 1))
  held_out = {
      task: load_ids(folder, tokenizer, task, "dev", config.held_out_rows)
      for task in corpus.TASKS
  }
  for name in config.models:
    run = train_config(config, name)
    params = loop.run(run, pairs, held_out)
    hf.save_t5(
        run.out / name / "hf",
        t5.T5(run.model),
        params,
        dtype=jnp.bfloat16,
        tokenizer_file=model_file,
    )


if __name__ == "__main__":
  sys.exit(main(sys.argv))
