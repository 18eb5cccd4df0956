"""Draft heads: the target is asked, its answers are kept, heads learn them.

    python -m specjax.train --config configs/train_heads.py:smollm2_medusa

Requests are built from the corpus (data.asks); the target answers them, by
argmax and by sampling; one pass over each answer gives the states that heads
read (training.features). Both lie under <out> and serve all heads of a target.
Heads go to <out>/<name>/heads.safetensors, with their curves and how often
they were right on held-out requests beside it. A target that was trained with
them goes to <out>/<name>/hf.

A kind of heads is an entry of KINDS: from its section of the config, the target
and the batches of the run it makes an objective as training.loop wants it,
which also has

  heads: dataclass of the heads' shape, written with them
  tunes: whether the target is trained, too
  prompts, states, sources: what of the texts it learns from beside answers;
    see features.BatchConfig
  depth: places of a draft
  frozen(target, rows): what stays, of the target's variables and of the texts
    that are learnt from; in the place of a teacher's variables
  begin(target, frozen, seed): variables at step 0
  parts(params): what was trained -> variables of the heads, and those of the
    target or None
  ranks(params, frozen, batch, ranks): how often the target's token was
    the one of each rank at each place, found_MC; of how many, known_M
"""

import dataclasses
import functools
import json
import pathlib
from typing import Any, Callable, Sequence

import jax
import numpy as np

from specjax import checkpoints
from specjax import checks
from specjax import errors
from specjax import search
from specjax import settings
from specjax import writing
from specjax.checkpoints import convert
from specjax.checkpoints import heads as heads_file
from specjax.checkpoints import hf
from specjax.checkpoints import resolve
from specjax.data import asks
from specjax.training import answers
from specjax.training import curves
from specjax.training import eagle
from specjax.training import features
from specjax.training import loop
from specjax.training import medusa_joint
from specjax.training import optimizer
from specjax.training import texts

# Kind of heads -> (section of a config, target, batches) -> objective.
KINDS: dict[str, Callable[[Any, checkpoints.Checkpoint, int], Any]] = {
    "eagle": eagle.make,
    "medusa": medusa_joint.make,
}
# How far to go: what comes later is left for another day.
STAGES = ("answers", "states", "heads")
_RANKS = 8
_TREES = (4, 8, 16, 24, 32, 48, 64)


def train(config) -> None:
  """Makes answers and states where they are missing, then trains all heads.

  Raises:
    errors.UserError: the config can't be trained here; one line.
  """
  check_options(config)
  target = checkpoints.load(config.target)
  made = {
      name: KINDS[entry.kind](
          entry, target, entry.steps * config.micro_batches
      )
      for name, entry in config.heads.items()
  }
  if resolve.resolve(config.target, hint="").is_file():
    for name, each in made.items():
      errors.require(
          not each.tunes,
          f"heads.{name}.joint",
          "give False: a target that is trained, too, must be a Hugging Face"
          " directory",
          True,
      )
  runs = {name: run_config(config, name, each) for name, each in made.items()}
  if config.until == "heads":
    check_starts(target, runs)
  compiled = pathlib.Path(config.out).absolute() / "compiled"
  jax.config.update("jax_compilation_cache_dir", str(compiled))
  rows, overlap = {}, {}
  for split, count in (
      ("train", config.prompts), ("dev", config.held_out_prompts),
  ):
    rows[split], overlap[split] = answers.answered(
        config, target, split, count
    )
  if config.until == "answers":
    return
  # Told before the states are made.
  for run in runs.values():
    for each in rows.values():
      run.batch.kept(each)
  width = target.module.config.d_model
  stores = {
      split: features.Store(each, pathlib.Path(), width)
      for split, each in rows.items()
  }
  if any(each.states for each in made.values()):
    stores = {
        split: states(config, target, each) for split, each in rows.items()
    }
  if config.until == "states":
    return
  for name, run in runs.items():
    train_one(config, run, target, stores, overlap)


def check_options(config) -> None:
  """Refuses options of all heads.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """
  for field, known in (("texts", asks.TEXTS), ("until", STAGES)):
    errors.require(
        config[field] in known,
        field,
        f"give one of {', '.join(known)}",
        config[field],
    )
  for field in (
      "prompts", "held_out_prompts", "max_new_tokens", "answer_batch",
  ):
    errors.require(
        checks.is_whole(config[field], 1),
        field,
        "give 1 or more",
        config[field],
    )
  share = config.greedy_share
  errors.require(
      checks.is_number(share) and 0 <= share <= 1,
      "greedy_share",
      "give a number from 0 to 1",
      share,
  )
  settings.Settings(temperature=config.temperature)
  for name, entry in config.heads.items():
    errors.require(
        entry.kind in KINDS,
        f"heads.{name}.kind",
        f"give one of {', '.join(KINDS)}",
        entry.kind,
    )


def check_starts(target, runs: dict[str, loop.TrainConfig]) -> None:
  """Refuses heads to begin with that can't be had; told before the answers.

  Args:
    target: that they read.
    runs: in their order; what one of them writes the next may begin with.

  Raises:
    errors.UserError: one line.
  """
  written = set()
  for name, run in runs.items():
    start = getattr(run.objective, "start", "")
    if start and pathlib.Path(start).absolute() not in written:
      frozen = run.objective.frozen(target, ())
      try:
        run.objective.begin(target, frozen)
      except errors.UserError as error:
        raise errors.UserError(f"heads.{name}.start: {error}") from None
    written.add(run.folder / "heads.safetensors")


def run_config(config, name: str, objective) -> loop.TrainConfig:
  """The frozen form of the config's section on some heads."""
  # Heads may have rates, a warm-up and so on of their own.
  own = lambda key: config.heads[name].get(key, config[key])
  return loop.TrainConfig(
      name=name,
      objective=objective,
      optimizer=optimizer.OptimizerConfig(
          matrix_rate=own("matrix_rate"),
          embedding_rate=own("other_rate"),
          other_rate=own("other_rate"),
          warmup=own("warmup"),
          steps=config.heads[name].steps,
          decay=config.decay,
          weight_decay=config.weight_decay,
      ),
      batch=features.BatchConfig(
          lengths=tuple(config.lengths),
          cost=own("cost"),
          prompts=objective.prompts,
          states=objective.states,
          sources=objective.sources,
      ),
      micro_batches=config.micro_batches,
      seed=config.seed,
      out=pathlib.Path(config.out),
      evaluate_every=own("evaluate_every"),
      checkpoint_every=config.checkpoint_every,
  )


def states(config, target, rows: Sequence[features.Row]) -> features.Store:
  """The target's states along some rows, made where missing.

  Raises:
    errors.UserError: the disk has no room for them.
  """
  folder = answers.folder(config, "states", target) / f"tap{config.tap}"
  tokens = sum(len(row.ids) for row in rows)
  size = tokens * target.module.config.d_model * 2
  print(f"states of {tokens:,} tokens: {size / 2**20:,.0f} MiB in {folder}")
  with answers.bar("states", len(rows)) as bar:
    return features.build(
        target, rows, folder, tap=config.tap, tick=bar.update
    )


def train_one(
    config, run: loop.TrainConfig, target, stores, overlap: dict[str, str]
) -> None:
  """Trains heads and writes them, their curves and their acceptance.

  Args:
    config: of all heads.
    run: of these.
    target: that they read.
    stores: split -> its rows and their states.
    overlap: split -> what its requests share with evaluation prompts.
  """
  # What it reads is part of the recipe.
  begun = getattr(run.objective, "start", "")
  data = texts.digest(
      *(store.rows for store in stores.values()),
      config.tap,
      answers.folder(config, "", target).name,
      texts.digest_of_files([heads_file.find(begun)] if begun else []),
  )
  run = dataclasses.replace(run, data=data)
  objective = run.objective
  frozen = objective.frozen(target, stores["train"].rows)
  params = loop.run(
      run,
      stores["train"],
      {"answers": stores["dev"]},
      frozen,
      objective.begin(target, frozen, run.seed),
  )
  heads, tuned = objective.parts(params)
  if tuned is not None:
    hf.save_model(
        run.folder / "hf",
        target.module,
        tuned,
        **convert.companions(resolve.resolve(config.target, hint="")),
    )
  path = run.folder / "heads.safetensors"
  listed = getattr(frozen, "listed", None)
  made = heads_file.Heads(
      config.heads[run.name].kind,
      dataclasses.asdict(objective.heads),
      heads,
      None if listed is None else np.asarray(listed.ids_W),
  )
  heads_file.save(path, made, target)
  curves.draw(run.folder / "log.jsonl", run.folder / "curves.png")
  figures = acceptance(run, params, frozen, stores["dev"])
  figures["overlap"] = overlap
  text = json.dumps(figures, indent=2) + "\n"
  writing.write(run.folder / "acceptance.json", text)
  rates = " ".join(f"{rate:.2f}" for rate in figures["accepted"])
  size = path.stat().st_size / 1e6
  print(
      f"{run.name}: held-out acceptance by position {rates},"
      f" {figures['tokens']:.2f} tokens a pass; {path} ({size:.1f} MB)"
  )


def acceptance(run: loop.TrainConfig, params, frozen, store) -> dict[str, Any]:
  """How often drafts would be right, by position and by rank.

  Returns:
    accepted: of chains, where all before were; tokens: that a pass then gives,
    its own among them; chance: of each rank at each position to be the
    target's token, whatever came before; trees: the best of some sizes by
    these chances.
  """
  objective = run.objective
  dataset, count = run.batch.dataset(store, 0)
  batches = [dataset[i] for i in range(count)]
  means = loop.held_out(run, params, frozen, batches)
  accepted = [means[f"accepted_{m + 1}"] for m in range(objective.depth)]
  ranks = jax.jit(functools.partial(objective.ranks, ranks=_RANKS))
  counts = [ranks(params, frozen, batch) for batch in batches]
  found_MC, known_M = map(sum, zip(*counts))
  chance_MC = np.asarray(found_MC) / np.maximum(np.asarray(known_M), 1)[:, None]
  return {
      "accepted": accepted,
      "tokens": 1.0 + float(np.sum(np.cumprod(accepted))),
      "chance": np.round(chance_MC, 4).tolist(),
      "trees": search.by_size(chance_MC.tolist(), _TREES),
  }
