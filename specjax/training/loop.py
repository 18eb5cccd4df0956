"""The training loop: steps, held-out loss, checkpoints, exact resume.

A step adds up the gradients of a few micro-batches of different shapes (so
one step sees both tasks and short and long rows) and makes one update.
"""

import dataclasses
import functools
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import tqdm

from specjax.data import batches as batches_lib
from specjax.models import t5
from specjax.training import optimizer as optimizer_lib


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """One model's training run.

  Attributes:
    name: of the model; its files go to `out`/`name`.
    model: shape of the T5.
    optimizer: rates and steps.
    batch: length buckets and size of a micro-batch.
    micro_batches: how many of them make one step.
    seed: of the initial weights and of the order of the data.
    out: folder for logs and checkpoints.
    evaluate_every: steps between held-out losses.
    checkpoint_every: steps between checkpoints.
  """

  name: str
  model: t5.T5Config
  optimizer: optimizer_lib.OptimizerConfig
  batch: batches_lib.BatchConfig
  micro_batches: int
  seed: int
  # Not part of what is compiled.
  out: pathlib.Path = dataclasses.field(compare=False)
  evaluate_every: int
  checkpoint_every: int


def loss_sum(module: t5.T5, params, source_BL, source_B, target_BT, target_B):
  """Cross-entropy summed over real target tokens, and their number.

  Args:
    module: the T5.
    params: its variables.
    source_BL: token ids.
    source_B: lengths of the sources.
    target_BT: token ids, EOS included; the decoder reads them shifted right.
    target_B: lengths of the targets.
  """
  start = module.config.decoder_start_token_id
  start_B1 = jnp.full_like(target_BT[:, :1], start)
  inputs_BT = jnp.concatenate([start_B1, target_BT[:, :-1]], axis=1)
  mask_BL = jnp.arange(source_BL.shape[1]) < source_B[:, None]
  mask_BT = jnp.arange(target_BT.shape[1]) < target_B[:, None]
  logits_BTV = module.apply(params, source_BL, mask_BL, inputs_BT)
  losses_BT = optax.softmax_cross_entropy_with_integer_labels(
      logits_BTV, target_BT
  )
  return jnp.sum(losses_BT * mask_BT), jnp.sum(mask_BT)


def _arrays(batch: batches_lib.Batch):
  return (
      batch.source_BL,
      batch.source_length_B,
      batch.target_BT,
      batch.target_length_B,
  )


@functools.partial(jax.jit, static_argnums=0)
def _loss_sum(module, params, arrays):
  return loss_sum(module, params, *arrays)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _add_gradient(module, params, total, arrays):
  """Adds (loss sum, tokens, gradient of the sum) of one micro-batch."""

  def loss(params):
    value, count = loss_sum(module, params, *arrays)
    return value, count.astype(jnp.float32)

  (value, count), gradient = jax.value_and_grad(loss, has_aux=True)(params)
  return jax.tree.map(jnp.add, total, (value, count, gradient))


def _optimizer(config: TrainConfig):
  return optimizer_lib.make_optimizer(config.optimizer, config.model.d_kv)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
def _update(config: TrainConfig, params, state, total):
  """One update by the mean gradient; also returns the mean loss."""
  value, count, gradient = total
  gradient = jax.tree.map(lambda g: g / count, gradient)
  updates, state = _optimizer(config).update(gradient, state, params)
  return optax.apply_updates(params, updates), state, value / count


@functools.partial(jax.jit, static_argnums=0)
def initial(config: TrainConfig):
  """(parameters, optimiser state) at step 0."""
  ids_B1 = jnp.zeros((1, 1), jnp.int32)
  key = jax.random.key(config.seed)
  params = t5.T5(config.model).init(key, ids_B1, ids_B1 == 0, ids_B1)
  return params, _optimizer(config).init(params)


def step(config: TrainConfig, params, state, micro_batches):
  """One update. Returns parameters, state, mean loss, number of tokens."""
  zero = lambda: jnp.zeros(())
  total = (zero(), zero(), jax.tree.map(jnp.zeros_like, params))
  module = t5.T5(config.model)
  for batch in micro_batches:
    total = _add_gradient(module, params, total, _arrays(batch))
  tokens = int(total[1])
  params, state, loss = _update(config, params, state, total)
  return params, state, float(loss), tokens


def held_out_loss(config: TrainConfig, params, batches) -> float:
  """Mean loss a target token."""
  module = t5.T5(config.model)
  sums = [_loss_sum(module, params, _arrays(batch)) for batch in batches]
  return float(sum(s for s, _ in sums) / sum(n for _, n in sums))


def run(config: TrainConfig, train, held_out) -> dict:
  """Trains one model to its last step, from its newest checkpoint on.

  Args:
    config: what to train.
    train: (sources, targets), lists of id lists.
    held_out: name -> (sources, targets), a loss is measured on each.

  Returns:
    The trained variables.
  """
  folder = config.out.absolute() / config.name
  folder.mkdir(parents=True, exist_ok=True)
  data, _ = batches_lib.batches(*train, config.batch, config.seed)
  held = {
      name: _one_epoch(rows, config.batch) for name, rows in held_out.items()
  }
  options = ocp.CheckpointManagerOptions(
      max_to_keep=2, enable_async_checkpointing=False
  )
  with (
      ocp.CheckpointManager(folder / "checkpoints", options=options) as saved,
      (folder / "log.jsonl").open("a") as log,
  ):
    params, state = initial(config)
    start = saved.latest_step() or 0
    if start:
      like = jax.tree.map(ocp.utils.to_shape_dtype_struct, (params, state))
      params, state = saved.restore(
          start, args=ocp.args.StandardRestore(like)
      )
    last = config.optimizer.steps
    bar = tqdm.tqdm(
        range(start + 1, last + 1),
        total=last,
        initial=start,
        desc=config.name,
        unit="step",
    )
    for done in bar:
      began = time.perf_counter()
      first = (done - 1) * config.micro_batches
      micro = [data[first + i] for i in range(config.micro_batches)]
      params, state, loss, tokens = step(config, params, state, micro)
      speed = tokens / (time.perf_counter() - began)
      bar.set_postfix(loss=f"{loss:.3f}", tokens=f"{speed:.0f}/s")
      entry = {
          "step": done,
          "loss": loss,
          "tokens": tokens,
          "tokens_per_second": speed,
      }
      if done % config.evaluate_every == 0 or done == last:
        for name, batches in held.items():
          entry[f"held_out_{name}"] = held_out_loss(config, params, batches)
      if done % config.checkpoint_every == 0 or done == last:
        saved.save(done, args=ocp.args.StandardSave((params, state)))
      log.write(json.dumps(entry) + "\n")
      log.flush()
  return jax.tree.map(np.asarray, params)


def _one_epoch(rows, config: batches_lib.BatchConfig):
  dataset, count = batches_lib.batches(*rows, config, seed=0)
  return [dataset[i] for i in range(count)]
