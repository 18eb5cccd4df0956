"""The training loop: steps, held-out figures, checkpoints, exact resume.

A step adds up the gradients of a few micro-batches of different shapes (so
one step sees both tasks and short and long rows) and makes one update.

An objective is frozen and hashable, and has

  init(key): variables at step 0
  sums(params, teacher_params, batch): scalars, summed over a batch; `tokens`
    and `loss` among them
  means(sums): what the log says of them
  held: the same for held-out rows
  head_width, target_share: see optimizer.make_optimizer
"""

import contextlib
import dataclasses
import functools
import gc
import io
import json
import math
import pathlib
import sys
import time
from typing import Any

import filelock
from flax import traverse_util
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
import tqdm

from specjax import checks
from specjax import errors
from specjax import hosts
from specjax import sharding
from specjax import strict_json
from specjax import writing
from specjax.training import log as log_lib
from specjax.training import optimizer as optimizer_lib
from specjax.training import turns


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """One model's training run.

  Attributes:
    name: of the model; its files go to `out`/`name`.
    objective: what is trained, and what it learns from; see below.
    optimizer: rates and steps.
    batch: length buckets and size of a micro-batch; its `dataset(rows, seed)`
      gives an endless dataset of batches, and how many are one epoch.
    micro_batches: how many of them make one step.
    seed: of the initial weights and of the order of the data.
    out: folder for logs and checkpoints.
    evaluate_every: steps between held-out figures.
    checkpoint_every: steps between checkpoints.
    data: stands for what is read, and for the weights it began with; a resume
      asks that it be the same.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  name: str
  objective: Any
  optimizer: optimizer_lib.OptimizerConfig
  batch: Any
  micro_batches: int
  seed: int
  # Not part of what is compiled.
  out: pathlib.Path = dataclasses.field(compare=False)
  evaluate_every: int = dataclasses.field(compare=False)
  checkpoint_every: int = dataclasses.field(compare=False)
  data: str = dataclasses.field(default="", compare=False)

  def __post_init__(self):
    for field in ("micro_batches", "evaluate_every", "checkpoint_every"):
      value = getattr(self, field)
      good = checks.is_whole(value, 1)
      errors.require(good, field, "give 1 or more", value)
    good = checks.is_whole(self.seed, 0, 2**32 - 1)
    errors.require(good, "seed", "give 0 to 2^32 - 1", self.seed)

  @property
  def folder(self) -> pathlib.Path:
    """Where its log and its checkpoints are."""
    return self.out.absolute() / self.name


def _spread(batch, layout: sharding.Layout | None):
  """A batch's arrays, with their rows over the devices."""
  return layout.spread(batch) if layout else batch


def _laid(layout: sharding.Layout | None, tree):
  """Parameters, and what an optimiser has of their shape, where they belong."""
  if layout is None:
    return tree
  return jax.lax.with_sharding_constraint(tree, layout.target(tree))


@functools.partial(jax.jit, static_argnums=0)
def _sums(objective, params, teacher_params, arrays):
  return objective.sums(params, teacher_params, arrays)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
def _add_gradient(objective, params, teacher_params, total, arrays):
  """Adds (sums, gradient of the loss sum) of one micro-batch."""

  def loss(params):
    sums = objective.sums(params, teacher_params, arrays)
    return sums["loss"], sums

  gradient, sums = jax.grad(loss, has_aux=True)(params)
  return jax.tree.map(jnp.add, total, (sums, gradient))


def _optimizer(config: TrainConfig):
  return optimizer_lib.make_optimizer(
      config.optimizer,
      config.objective.head_width,
      config.objective.target_share,
  )


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=(2, 3))
def _update(config: TrainConfig, layout, params, state, total):
  """One update by the mean gradient; also returns the means."""
  sums, gradient = total
  tokens = sums["tokens"]
  # Where nothing counts there is nothing to learn, either.
  gradient = jax.tree.map(lambda g: g / jnp.maximum(tokens, 1), gradient)
  updates, state = _optimizer(config).update(gradient, state, params)
  params = optax.apply_updates(params, updates)
  return *_laid(layout, (params, state)), config.objective.means(sums)


@functools.partial(jax.jit, static_argnums=(0, 1))
def initial(config: TrainConfig, layout: sharding.Layout | None = None):
  """(parameters, optimiser state) at step 0."""
  params = config.objective.init(jax.random.key(config.seed))
  return _laid(layout, (params, _optimizer(config).init(params)))


def step(
    config: TrainConfig,
    params,
    state,
    teacher_params,
    micro_batches,
    layout: sharding.Layout | None = None,
):
  """One update. Returns parameters, state and the means of the step."""
  objective = config.objective
  micro_batches = [_spread(batch, layout) for batch in micro_batches]
  sums = jax.eval_shape(
      functools.partial(_sums, objective),
      params,
      teacher_params,
      micro_batches[0],
  )
  total = _zeros((sums, params), layout)
  for each in micro_batches:
    total = _add_gradient(objective, params, teacher_params, total, each)
  params, state, means = _update(config, layout, params, state, total)
  return params, state, jax.tree.map(float, means)


def _zeros(like, layout: sharding.Layout | None):
  """Zeros of these shapes, where they belong."""
  make = lambda leaf, where=None: jnp.zeros(
      leaf.shape, leaf.dtype, device=where
  )
  if layout is None:
    return jax.tree.map(make, like)
  return jax.tree.map(make, like, layout.target(like))


def held_out(
    config: TrainConfig,
    params,
    teacher_params,
    batches,
    layout: sharding.Layout | None = None,
) -> dict:
  """Means over the real target tokens of some batches."""
  objective = config.objective.held
  sums = [
      _sums(objective, params, teacher_params, _spread(batch, layout))
      for batch in batches
  ]
  total = jax.tree.map(lambda *values: sum(values), *sums)
  return jax.tree.map(float, objective.means(total))


def run(
    config: TrainConfig,
    train,
    held: dict,
    teacher_params=(),
    begin=None,
    layout: sharding.Layout | None = None,
) -> dict:
  """Trains one model to its last step, from its newest checkpoint on.

  The log (`log.jsonl`) has one line a step: means of the step, tokens per
  second, and every `evaluate_every` steps the held-out means, named
  held_out_<name>_<what>.

  Args:
    config: what to train.
    train: rows, as the config's batch takes them: (sources, targets), two
      lists of id lists, of whole models.
    held: name -> rows, measured apart.
    teacher_params: variables that stay: of the objective's teacher or target.
    begin: variables at step 0; None draws them at random.
    layout: of several devices; checkpoints of one may go on on another. Of
      several hosts, too: each reads all rows, and takes its own of a batch.

  Returns:
    The trained variables.

  Raises:
    errors.UserError: its folder holds checkpoints of another recipe, another
      process trains there, the loss is no number, or hosts do not see one
      folder and the same data.
  """
  config.folder.mkdir(parents=True, exist_ok=True)
  try:
    # Released by the system, too, where the process is killed. Of several hosts
    # the first one holds it for all.
    lock = filelock.FileLock(config.folder / "lock", timeout=0)
    with lock if hosts.first() else contextlib.nullcontext():
      return _run(config, train, held, teacher_params, begin, layout)
  except filelock.Timeout:
    raise errors.UserError(
        f"{config.folder}: another process trains there; stop it, or give"
        " another out"
    ) from None


def _run(
    config: TrainConfig, train, held, teacher_params, begin, layout
) -> dict:
  data, _ = config.batch.dataset(train, config.seed)
  held = {name: _one_epoch(rows, config.batch) for name, rows in held.items()}
  # Collectives give up where one host is far behind.
  turns.meet()
  options = ocp.CheckpointManagerOptions(
      max_to_keep=2, enable_async_checkpointing=False
  )
  with ocp.CheckpointManager(
      config.folder / "checkpoints", options=options
  ) as saved:
    with turns.first_alone():
      _check_recipe(config, saved.latest_step())
    params, state, start = restore(config, saved, begin, layout)
    if layout:
      teacher_params = jax.device_put(
          teacher_params, layout.target(teacher_params)
      )
    last = config.optimizer.steps
    write = lambda entry: None
    if hosts.first():
      write = log_lib.Log(config.folder / "log.jsonl", start).write
    bar = tqdm.tqdm(
        range(start + 1, last + 1),
        total=last,
        initial=start,
        desc=config.name,
        unit="step",
        disable=not hosts.first(),
    )
    for done in bar:
      began = time.perf_counter()
      first = (done - 1) * config.micro_batches
      micro = [data[first + i] for i in range(config.micro_batches)]
      params, state, means = step(
          config, params, state, teacher_params, micro, layout
      )
      speed = means["tokens"] / (time.perf_counter() - began)
      if not math.isfinite(means["loss"]):
        # Else the next checkpoint would push out the last good one.
        raise errors.UserError(
            f"{config.folder}: the loss is {means['loss']} at step {done}; its"
            " last checkpoint is kept: give lower rates in a new out"
        )
      bar.set_postfix(loss=f"{means['loss']:.3f}", tokens=f"{speed:.0f}/s")
      entry = {"step": done, **means, "tokens_per_second": speed}
      if done % config.evaluate_every == 0 or done == last:
        for name, batches in held.items():
          figures = held_out(config, params, teacher_params, batches, layout)
          del figures["tokens"]
          entry |= {f"held_out_{name}_{k}": v for k, v in figures.items()}
      write(entry)
      # After the log: a step that is in a checkpoint is in the log.
      if done % config.checkpoint_every == 0 or done == last:
        _save(config, saved, done, (params, state))
  return sharding.fetch(params)


def _save(config: TrainConfig, saved, step: int, trees) -> None:
  """Writes a checkpoint.

  Raises:
    errors.UserError: the disk is full, say; those before it are kept.
  """
  try:
    saved.save(step, args=ocp.args.StandardSave(trees))
  # What the system refuses comes in several guises.
  except Exception as error:
    if hosts.is_lost(error):
      raise
    raise errors.UserError(
        f"{_checkpoint(config, step)} cannot be written"
        f" ({errors.reason(error)}); make room there: the same command goes on"
        " from the one before"
    ) from None


def _check_recipe(config: TrainConfig, newest: int | None) -> None:
  """Refuses to go on from checkpoints of another recipe, else notes it.

  A run may be prolonged: steps and decay may change.

  Raises:
    errors.UserError: something else has changed, and the field is named; or
      there is a checkpoint, `newest`, and no recipe; or a host does not find
      the recipe that the first one has just noted.
  """
  recipe = dataclasses.asdict(config)
  for name in ("name", "out", "evaluate_every", "checkpoint_every"):
    del recipe[name]
  recipe = traverse_util.flatten_dict(json.loads(json.dumps(recipe)), sep=".")
  path = config.folder / "recipe.json"
  old = _old_recipe(path)
  if newest and old is None:
    # Square kernels of another layout would be read without a word.
    raise errors.UserError(
        f"{path} is missing or damaged, so nobody knows how the checkpoints"
        " there were made; give another out, or delete the folder"
    )
  errors.require(
      hosts.first() or old is not None,
      "out",
      "give a folder that all hosts see",
      str(config.out),
  )
  if old is not None:
    for name in sorted(recipe.keys() | old.keys()):
      may_change = name in ("optimizer.steps", "optimizer.decay")
      if recipe.get(name) != old.get(name) and not may_change:
        raise errors.UserError(
            f"{config.folder}: its checkpoints were made with"
            f" {errors.line(name)} {errors.shown(old.get(name))}, not"
            f" {errors.shown(recipe.get(name))}; give another out, or delete"
            " the folder"
        )
  if hosts.first():
    writing.write(path, json.dumps(recipe, indent=2) + "\n")


def _old_recipe(path: pathlib.Path) -> dict[str, Any] | None:
  """What a run noted before; None where it did not, or nobody can read it."""
  try:
    return strict_json.fields(path.read_bytes())
  except (FileNotFoundError, ValueError):
    return None


def _checkpoint(config: TrainConfig, step: int) -> pathlib.Path:
  """Where one lies."""
  return config.folder / "checkpoints" / str(step)


def restore(
    config: TrainConfig,
    saved: ocp.CheckpointManager,
    begin=None,
    layout: sharding.Layout | None = None,
):
  """Parameters, state and step of the newest checkpoint, or of the start.

  Each device reads its own parts, wherever they lay when they were written.

  Args:
    config: what is trained.
    saved: its checkpoints.
    begin: as `run` takes it.
    layout: likewise.

  Raises:
    errors.UserError: the checkpoint is damaged.
  """
  params, state = initial(config, layout)
  start = saved.latest_step() or 0
  if start:
    like = jax.tree.map(ocp.utils.to_shape_dtype_struct, (params, state))
    del params, state
    params, state = _restored(config, saved, start, like)
  elif begin is not None:
    params = jax.tree.map(
        lambda like, value: jnp.asarray(value, like.dtype), params, begin
    )
    params = jax.device_put(params, layout.target(params)) if layout else params
  return params, state, start


def _restored(config: TrainConfig, saved, step: int, like):
  """What a checkpoint holds.

  Raises:
    errors.UserError: it is damaged.
  """
  found, reason, said = None, "", io.StringIO()
  with contextlib.redirect_stderr(said):
    try:
      found = saved.restore(step, args=ocp.args.StandardRestore(like))
    # Of a damaged one orbax raises whatever it trips over.
    except Exception as error:
      if hosts.is_lost(error):
        raise
      reason = errors.reason(error)
    if reason:
      # Tasks that were never run complain when they are dropped.
      gc.collect()
  if reason:
    raise errors.UserError(
        f"{_checkpoint(config, step)} cannot be read ({reason}); delete it to"
        " go on from the one before"
    )
  print(said.getvalue(), end="", file=sys.stderr)
  return found


def _one_epoch(rows, config):
  dataset, count = config.dataset(rows, seed=0)
  return [dataset[i] for i in range(count)]
