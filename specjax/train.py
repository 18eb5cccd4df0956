"""The door to training: one config, one or more models.

    python -m specjax.train --config configs/train_mini.py

Builds the texts and the vocabulary where they are missing, trains each model
of the config from its newest checkpoint on, and writes it as a Hugging Face
directory to <out>/<model>/hf, with its curves and its quality on the held-out
rows beside it. A config of draft heads (configs/train_heads.py) is
training.heads' matter. Of several hosts (`hosts` of the config) the first one
prints and writes.
"""

import dataclasses
import functools
import pathlib
import sys
from typing import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from specjax import checkpoints
from specjax import checks
from specjax import command_line
from specjax import errors
from specjax import hosts
from specjax import options
from specjax import pictures
from specjax import sections
from specjax import settings
from specjax import sharding
from specjax.checkpoints import hf
from specjax.checkpoints import resolve
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.data import batches
from specjax.data import corpus
from specjax.data import metrics
from specjax.data import tasks
from specjax.data import vocabulary
from specjax.models import t5
from specjax.training import curves
from specjax.training import heads
from specjax.training import loop
from specjax.training import objective
from specjax.training import optimizer
from specjax.training import quality
from specjax.training import texts
from specjax.training import turns

_GO_ON = "the same command on all of them goes on from the newest checkpoint"

# What a model's section holds besides numbers from 1 on.
_NOT_OF_SHAPE = (
    "distilled", "start", "seed", "decay", "source_lengths", "target_lengths",
)


def main(argv: Sequence[str]) -> int:
  """Trains every model that the config names; returns the exit code."""
  return options.door(
      "specjax.train",
      lambda: __doc__,
      lambda argv: train(command_line.read_values(argv)[1]),
      argv,
      interrupted=(
          "interrupted; the same command goes on from the newest checkpoint"
      ),
  )


def train(config) -> None:
  """Builds what is missing, then trains and writes each model, or heads.

  Raises:
    errors.UserError: the config can't be trained here; one line.
  """
  if "heads" in config:
    pictures.check()
    heads.train(config)
    return
  # What is wrong is told now.
  if "models" not in config:
    raise errors.UserError(
        "config: names no models to train; give --config configs/train_mini.py"
    )
  pictures.check()
  check_options(config)
  for name, entry in config.models.items():
    train_config(config, name)
    if entry.start and entry.start not in config.models:
      find_start(config, name)
  mesh = sections.Mesh(config.mesh.data, config.mesh.model)
  where = sections.Hosts(**config.hosts)
  with hosts.together(where, mesh, "specjax.train", _GO_ON):
    _train_family(config, sharding.layout(mesh.data, mesh.model))


def _train_family(config, layout: sharding.Layout | None) -> None:
  """Trains all models of the config, in the order that they need."""
  compiled = pathlib.Path(config.out).absolute() / "compiled"
  # A step compiles once a bucket: some minutes that a resume need not spend.
  jax.config.update("jax_compilation_cache_dir", str(compiled))
  with turns.first_alone():
    material = Material.build(config)
  # A ConfigDict has its own order; what is distilled needs its target, and
  # what goes on needs what it begins with.
  of = config.models
  after = lambda name: (of[name].distilled, of[name].start in of)
  for name in sorted(of, key=after):
    train_one(config, name, material, layout)


@dataclasses.dataclass(frozen=True)
class Material:
  """What all models of a family learn from.

  Attributes:
    folder: of the corpus.
    model_file: the vocabulary.
    sources: texts of the train splits, with their prefixes.
    train: (source ids, target ids) of the train splits.
    held_out: task -> the same of the dev split's first rows.
  """

  folder: pathlib.Path
  model_file: pathlib.Path
  sources: list[str]
  train: tuple[list[list[int]], list[list[int]]]
  held_out: dict[str, tuple[list[list[int]], list[list[int]]]]

  @classmethod
  def build(cls, config) -> "Material":
    """Builds corpus and vocabulary where they are missing, and reads them.

    Raises:
      errors.UserError: they can't be built, hold a shipped row, or give more
        ids than the config's vocabulary has.
    """
    folder = pathlib.Path(config.corpus)
    corpus.build(folder)
    # Told before hours of work: no training text may be among the shipped rows.
    pairs = {
        task: corpus.read_split(folder, task, "train") for task in corpus.TASKS
    }
    for task, rows in pairs.items():
      shipped = tasks.load_task(f"mini_{task}")
      metrics.refuse_overlap(
          [source for source, _ in rows],
          {row.id: row.source for row in shipped},
      )
    model_file = vocabulary.build(folder)
    tokenizer = tokenizer_lib.Tokenizer(model_file)
    errors.require(
        checks.is_whole(config.vocabulary, tokenizer.size),
        "vocabulary",
        f"give the tokenizer's {tokenizer.size} ids or more",
        config.vocabulary,
    )
    together = sum(pairs.values(), [])
    dev = {
        task: corpus.read_split(folder, task, "dev")[: config.held_out_rows]
        for task in corpus.TASKS
    }
    return cls(
        folder,
        model_file,
        [source for source, _ in together],
        _ids(tokenizer, together),
        {task: _ids(tokenizer, rows) for task, rows in dev.items()},
    )


def train_config(
    config, name: str, teacher: t5.T5Config | None = None
) -> loop.TrainConfig:
  """The frozen form of the config's section on model `name`."""
  entry = config.models[name]
  check_shape(name, entry)
  own = functools.partial(_own, config, name)
  return loop.TrainConfig(
      name=name,
      objective=objective.Objective(
          model=t5.T5Config(
              vocab_size=config.vocabulary,
              d_model=entry.d_model,
              d_kv=entry.d_kv,
              d_ff=entry.d_ff,
              num_layers=entry.encoder,
              num_decoder_layers=entry.decoder,
              num_heads=entry.num_heads,
              gated=True,
              tied=config.tied,
          ),
          teacher=teacher,
          divergence=config.divergence,
          weight=config.divergence_weight,
      ),
      optimizer=optimizer.OptimizerConfig(
          matrix_rate=config.matrix_rate,
          embedding_rate=config.embedding_rate,
          other_rate=config.other_rate,
          warmup=config.warmup,
          steps=entry.steps,
          decay=own("decay"),
          weight_decay=config.weight_decay,
      ),
      batch=batches.BatchConfig(
          source_lengths=tuple(own("source_lengths")),
          target_lengths=tuple(own("target_lengths")),
          cost=config.cost,
      ),
      micro_batches=config.micro_batches,
      seed=own("seed"),
      out=pathlib.Path(config.out),
      evaluate_every=config.evaluate_every,
      checkpoint_every=config.checkpoint_every,
  )


def check_options(config) -> None:
  """Refuses options of the whole family.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """
  rows, temperatures = config.held_out_rows, config.teacher_temperatures
  errors.require(
      checks.is_whole(rows, 1), "held_out_rows", "give 1 or more", rows
  )
  for field in ("quality_rows", "teacher_rows"):
    errors.require(
        checks.is_whole(config[field]),
        field,
        "give 0 (all) or more",
        config[field],
    )
  for axis, size in config.mesh.items():
    errors.require(
        checks.is_whole(size, 1), f"mesh.{axis}", "give 1 or more", size
    )
  for temperature in temperatures:
    settings.Settings(temperature=temperature)
  sections.Hosts(**config.hosts)
  if config.teacher:
    resolve.find(config.teacher, hint="")


def _own(config, name: str, key: str):
  """An option as a model has it, or else as the config has it for all."""
  return config.models[name].get(key, config[key])


def check_shape(name: str, entry) -> None:
  """Refuses a model's section whose numbers are none.

  Raises:
    errors.UserError: a field is no number, or below 1.
  """
  for field, value in entry.items():
    good = checks.is_whole(value, 1) or field in _NOT_OF_SHAPE
    errors.require(good, f"models.{name}.{field}", "give 1 or more", value)


def train_one(
    config,
    name: str,
    material: Material,
    layout: sharding.Layout | None = None,
) -> None:
  """Trains a model and writes it, its curves and its quality."""
  teacher, pairs = None, material.train
  begin, begun = first_weights(config, name)
  if config.models[name].distilled:
    teacher = checkpoints.load(
        config.teacher or str(pathlib.Path(config.out) / "target" / "hf"),
        hint="train the target first: --config configs/train_mini.py:target",
    )
    with turns.first_alone():
      pairs = teacher_pairs(config, name, teacher, material)
    if not config.divergence_weight:
      teacher = None  # It has said all it has to say.
  run = dataclasses.replace(
      train_config(config, name, teacher and teacher.module.config),
      # What it reads is part of the recipe: the teacher's outputs, too.
      data=texts.digest(*pairs, *material.held_out.values(), *begun),
  )
  params = loop.run(
      run,
      pairs,
      material.held_out,
      teacher.params if teacher else (),
      begin,
      layout,
  )
  if hosts.first():
    save(config, run, params, material)
  # What comes next may be taught by it.
  turns.meet()


def save(config, run: loop.TrainConfig, params, material: Material) -> None:
  """Writes a trained model, its curves and its quality."""
  hf.save_model(
      run.folder / "hf",
      t5.T5(run.objective.model),
      params,
      dtype=jnp.bfloat16,
      tokenizer_file=material.model_file,
  )
  curves.draw(run.folder / "log.jsonl", run.folder / "curves.png")
  scores = quality.measure(
      checkpoints.load(str(run.folder / "hf")), config.quality_rows or None
  )
  quality.save(run.folder / "quality.json", scores)
  print(f"{run.name}: {quality.line(scores)}")


def find_start(config, name: str) -> str:
  """The checkpoint whose weights a model begins with, as `load` takes it.

  Raises:
    errors.UserError: there is none.
  """
  start = config.models[name].start
  own = pathlib.Path(config.out) / start / "hf"
  if own.is_dir():
    return str(own)
  field = f"models.{name}.start"
  resolve.find(start, hint=f"train {start} first, or give {field} another")
  return start


def first_weights(config, name: str):
  """Variables that a model begins with, and a list of their digest.

  None and an empty list where it begins at random.

  Raises:
    errors.UserError: they can't be had, or are of another shape.
  """
  if not config.models[name].start:
    return None, []
  found = checkpoints.load(find_start(config, name))
  errors.require(
      found.module.config == train_config(config, name).objective.model,
      f"models.{name}.start",
      "give a model of the same shape",
      config.models[name].start,
  )
  files = resolve.resolve(found.name, hint="").glob("*.safetensors")
  return found.params, [texts.digest_of_files(files)]


def teacher_pairs(
    config, name: str, teacher: checkpoints.Checkpoint, material: Material
):
  """The train split's source ids with what the teacher makes of them.

  Without temperatures, with the references: only the loss is the teacher's.
  """
  if not config.teacher_temperatures:
    return material.train
  model = resolve.resolve(teacher.name, hint="")
  weights = texts.digest_of_files(model.glob("*.safetensors"))
  folder = pathlib.Path(config.out) / "texts" / weights
  chosen = range(len(material.sources))
  if config.teacher_rows:
    order = np.random.default_rng(config.seed).permutation(len(chosen))
    chosen = sorted(order[: config.teacher_rows])
  texts_read = [material.sources[i] for i in chosen]
  sources, targets = [], []
  for temperature in config.teacher_temperatures:
    writing = texts.Writing(
        temperature,
        max_new_tokens=max(_own(config, name, "target_lengths")),
        max_source_tokens=max(_own(config, name, "source_lengths")),
    )
    with tqdm.tqdm(
        total=len(texts_read),
        desc=f"teacher's texts, temperature {temperature:g}",
        unit="row",
        disable=not hosts.first(),
    ) as bar:
      targets += texts.written(
          teacher, texts_read, writing, folder, bar.update
      )
    sources += [material.train[0][i] for i in chosen]
  return sources, targets


def _ids(tokenizer, pairs):
  sources, targets = zip(*pairs)
  return (
      tokenizer.encode_batch(list(sources)),
      tokenizer.encode_batch(list(targets)),
  )


if __name__ == "__main__":
  options.leave(main(sys.argv))
