"""What a TPU that is not there would do: the loop, compiled and counted.

    python -m specjax.tpu --config configs/ende_t5small.py --topology v4:2x2x1
    python -m specjax.tpu --config configs/ende_t5small.py \\
        --topology v5e:2x4 --config.mesh.model=4 --alpha 0.75

Compiles the very programs that specjax.run would run there, from the shapes of
the config's models alone: no weights are read, and a folder with a config.json
will do. Drafts are a model's, with all their options, or none. Prints what each
device's memory would hold, the bytes that a step must read beside XLA's own
count, and, from the chip's published speeds, c, v and the speed-up.

Needs the extra `tpu`, which is XLA's compiler for TPUs, in an environment of
its own: elsewhere JAX would look for a TPU.
"""

import dataclasses
import functools
from importlib import util
import math
import os
import sys
import textwrap
from typing import Any, Sequence

import jax
from jax.experimental import topologies
import jax.numpy as jnp

from specjax import checkpoints
from specjax import command_line
from specjax import drafts as drafts_lib
from specjax import errors
from specjax import hlo
from specjax import options
from specjax import prepare
from specjax import roofline
from specjax import sections
from specjax import sharding
from specjax.checkpoints import families
from specjax.checkpoints import published
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.decoding import side as side_lib
from specjax.measure import steps as steps_lib
from specjax.measure import weights
from specjax.models import products
from specjax.models import t5

KINDS = ("model", "none")
# Option: its type, its default, and what it says.
_OPTIONS = {
    "--topology": (str, None, "chips, as v4:2x2x1 (needed)"),
    "--alpha": (float, 0.75, "acceptance rate of the speed-up"),
}
# Generation -> the type by which the compiler knows it.
_TYPES = {"v4": "v4-8", "v5e": "v5litepod-4", "v5p": "v5p-8", "v6e": "v6e-4"}
# A v4's two cores are one device, as JAX has it where there is one; the others
# are so without being told.
_CORES = {"v4": {"chip_config_name": "megacore"}}
# The last axis of an array fills a multiple of so many places.
_LANES = 128


@dataclasses.dataclass(frozen=True)
class Step:
  """One pass of a model, on one device.

  Attributes:
    weights: bytes of those that it multiplies with.
    caches: bytes of keys and values that its rows have.
    counted: bytes, as XLA counts them.
    read: those of them that operations read; not what they write, nor what is
      only moved.
    seconds: the least that the chip allows.
    model: what a pass of any width reads.
  """

  weights: int
  caches: int
  counted: float
  read: float
  seconds: float
  model: roofline.Weights

  @property
  def needed(self) -> int:
    """Bytes that must be read."""
    return self.weights + self.caches


@dataclasses.dataclass(frozen=True)
class Estimate:
  """What was found.

  Attributes:
    memory: part -> bytes of each device: weights, state, and what the rounds
      and the prefill have besides, one after the other.
    rows: of each device.
    hosts: transfers to or from the host in the loop.
    steps: "draft", "target" and "verify"; no draft where there is none. That
      of a tree is of its widest level.
    gamma: drafted tokens a round, of a tree its depth.
    fixed: whether each round drafts a chain of so many, as Eq. 1 has it.
    heads: K of target and draft.
  """

  memory: dict[str, int]
  rows: int
  hosts: int
  steps: dict[str, Step]
  gamma: int
  fixed: bool
  heads: tuple[int, ...]

  @property
  def costs(self) -> tuple[float, float]:
    """c and v."""
    target = self.steps["target"].seconds
    draft = self.steps["draft"].seconds if "draft" in self.steps else 0.0
    return draft / target, self.steps["verify"].seconds / target

  @property
  def peak(self) -> int:
    """Bytes of each device, at the most."""
    memory = self.memory
    besides = max(memory["rounds"], memory["prefill"])
    return memory["weights"] + memory["state"] + besides

  def rows_that_fit(self, memory: float) -> int:
    """As if all but weights grew with rows; so many of a device, or more.

    The rounds also hold weights that are put in another order before them.
    """
    row = (self.peak - self.memory["weights"]) / self.rows
    return max(0, math.floor((memory - self.memory["weights"]) / row))


def _parser() -> options.Parser:
  return options.parser("specjax.tpu", __doc__, _OPTIONS)


def usage() -> str:
  """What --help shows."""
  return command_line.usage_below(_parser().format_help())


def main(argv: Sequence[str]) -> int:
  """Compiles what the arguments ask for; returns the exit code."""
  return options.door("specjax.tpu", usage, work, argv)


def work(argv: Sequence[str]) -> None:
  """Compiles, counts and prints.

  Raises:
    errors.UserError: the compiler is missing, or the config does not go with
      the topology.
  """
  own, rest = options.split(argv, _OPTIONS)
  asked = _parser().read(own)
  errors.require(
      0 <= asked.alpha <= 1, "--alpha", "give a number from 0 to 1", asked.alpha
  )
  chip = find_chip(asked.topology)
  config = command_line.read(rest)
  devices = find_devices(asked.topology)
  made = estimate(abstract(config, devices), chip)
  print(f"config             {config.name}")
  mesh = config.mesh
  print(
      f"topology           {asked.topology}  {len(devices)} chips, of which"
      f" {mesh.data} x {mesh.model}"
  )
  print(table(made, chip, asked.alpha))


def find_chip(topology: str | None) -> roofline.Chip:
  """The chip of a topology's name."""
  generation = (topology or "").partition(":")[0]
  errors.require(
      generation in roofline.TPUS,
      "--topology",
      f"give one of {', '.join(roofline.TPUS)} with its shape, as v4:2x2x1",
      topology,
  )
  return roofline.TPUS[generation]


def find_devices(topology: str) -> list[jax.Device]:
  """The devices of a topology that is not there.

  Raises:
    errors.UserError: the compiler is missing, or knows no such topology.
  """
  if util.find_spec("libtpu") is None:
    raise errors.UserError(
        "--topology: the compiler for TPUs is not installed; in an environment"
        " of its own, pip install 'specjax[tpu]'"
    )
  generation = topology.partition(":")[0]
  # Else it asks Google's machines what it runs on.
  for name, value in (
      ("TPU_SKIP_MDS_QUERY", "1"),
      ("TPU_WORKER_HOSTNAMES", "localhost"),
      ("TPU_WORKER_ID", "0"),
      ("TPU_ACCELERATOR_TYPE", _TYPES[generation]),
  ):
    os.environ.setdefault(name, value)
  jax.config.update("jax_platforms", "cpu")
  try:
    found = topologies.get_topology_desc(
        platform="tpu",
        topology_name=topology,
        **_CORES.get(generation, {}),
    )
  except Exception as error:  # The compiler does not say which it raises.
    line = " ".join(str(error).split())
    raise errors.UserError(
        f"--topology: {topology}: {line[:200]}; give another shape"
    ) from None
  return found.devices


def abstract(
    config: sections.Experiment, devices: Sequence[jax.Device]
) -> prepare.Setup:
  """A run's setup of which only shapes are known.

  Args:
    config: of the run; its drafts are of KINDS.
    devices: to lie on.

  Raises:
    errors.UserError: drafts are of another kind, a model's shape is not known,
      or it does not divide over the devices.
  """
  errors.require(
      config.draft.kind in KINDS,
      "draft.kind",
      f"give one of {', '.join(KINDS)}, the kinds that are compiled here",
      config.draft.kind,
  )
  layout = _layout(config, devices)
  name = config.target.checkpoint
  module, params = _model(name, config, devices, layout.target)
  target = checkpoints.Checkpoint(name, module, params, None)
  drafts = drafts_lib.NO_DRAFTS
  if config.draft.kind == "model":
    module, params = _model(
        config.draft.checkpoint, config, devices, layout.draft
    )
    drafts = drafts_lib.of_module(
        target.module,
        module,
        params,
        config.draft.gamma,
        **prepare.of_a_model(config),
    )
    drafts = prepare.branched(drafts, config.draft)
  return prepare.Setup(config, target, drafts, [], [], devices=devices)


def _layout(config, devices) -> sharding.Layout:
  """A layout of a single device, too."""
  return prepare.layout(config, devices) or sharding.Layout(
      sharding.mesh(1, 1, devices)
  )


def _model(name: str, config: sections.Experiment, devices, lie):
  """A module, and the shapes of its parameters where they lie."""
  shape = published.config(name)
  dtype = jnp.dtype(config.decode.dtype)
  carried = products.carried(dtype, devices[0].platform)
  module = families.of(shape).module(shape, dtype=dtype, carried=carried)
  params = published.params(shape, dtype)
  return module, _placed(params, lie(params))


def _placed(shapes, where):
  """Shapes with their shardings."""
  return jax.tree.map(
      lambda leaf, at: jax.ShapeDtypeStruct(
          leaf.shape, leaf.dtype, sharding=at
      ),
      shapes,
      where,
  )


def estimate(setup: prepare.Setup, chip: roofline.Chip) -> Estimate:
  """Compiles a setup's programs and counts what they do.

  Args:
    setup: from `abstract`.
    chip: its speeds.
  """
  side, layout = setup.speculative, _layout(setup.config, setup.devices)
  batch, loop = _batch(setup, side), side.loop
  prefill = jax.jit(lambda *inputs: loop.prefill(*inputs, side.budget))
  inputs = side.target_params, side.drafter_params, batch
  state = jax.eval_shape(prefill, *inputs)
  state = _placed(state, layout.state(state))
  run = loop_lib.Loop.run.lower(
      loop, side.target_params, side.drafter_params, state
  ).compile()
  read = prefill.lower(*inputs).compile()
  besides = lambda program: program.memory_analysis().temp_size_in_bytes
  step = functools.partial(_step, chip, layout)
  bare = state.replace(drafter=())
  target = functools.partial(step, loop.target, side.target_params, bare)
  steps = {"target": target(1), "verify": target(loop.drafter.nodes + 1)}
  modules = [loop.target]
  if loop.drafter.depth:
    source = getattr(loop.drafter, "source", loop.drafter)
    own = getattr(state.drafter, "source", state.drafter)
    at = bare.replace(cache=own.cache, memory=own.memory)
    width = _widest(loop.drafter)
    steps["draft"] = step(source.module, side.drafter_params, at, width)
    modules.append(source.module)
  return Estimate(
      memory={
          "weights": _bytes((side.target_params, side.drafter_params)),
          "state": _bytes(state),
          "rounds": besides(run),
          "prefill": besides(read),
      },
      rows=_rows(state, layout),
      hosts=hlo.transfers(run.as_text()),
      steps=steps,
      gamma=loop.drafter.depth,
      fixed=not (loop.drafter.trees or setup.config.draft.confidence),
      heads=tuple(module.config.d_kv for module in modules),
  )


def _widest(drafter) -> int:
  """Tokens of a row that a draft model reads in one pass, at the most."""
  if not drafter.trees:
    return 1
  if drafter.topology is None:
    return drafter.top_k if drafter.depth > 1 else 1
  return max(len(drafter.topology.level(i)) for i in range(drafter.depth))


def _batch(setup: prepare.Setup, side: side_lib.Side) -> requests_lib.Batch:
  """A batch of the widest texts."""
  config, model = setup.config, setup.target.module.config
  length = config.data.max_source_tokens
  if model.max_positions is not None:
    length = max(1, min(length, model.max_positions - side.budget))
  longest = (0,) * length
  encodes = isinstance(model, t5.T5Config)
  request = requests_lib.Request(
      0,
      longest if encodes else None,
      (0,) if encodes else longest,
      config.settings(model.ends),
      side.budget,
  )
  return requests_lib.make_batch(
      [request],
      vocabulary=setup.vocabulary,
      seed=0,
      rows=setup.rows(config.decode.batch),
      width=requests_lib.source_width(length),
  )


def _step(chip, layout, module, params, state, width: int) -> Step:
  """One pass over `width` tokens a row; a loop's body is counted once."""
  count = jax.ShapeDtypeStruct((), jnp.int32)
  compiled = steps_lib.target_steps.lower(
      module, params, state, width, count
  ).compile()
  costs = compiled.cost_analysis()
  multiplied = weights.of_a_step(params)
  size = _bytes(multiplied)
  caches = _bytes(state.cache)
  if state.memory is not None:
    caches += _bytes((state.memory.key, state.memory.value))
  rows = _rows(state, layout)
  read = roofline.Weights(
      count=size / multiplied[0].dtype.itemsize,
      bytes_each=multiplied[0].dtype.itemsize,
      row_bytes=caches / rows,
  )
  return Step(
      weights=size,
      caches=caches,
      counted=costs["bytes accessed"],
      read=hlo.operands(costs) - hlo.copies(compiled.as_text()),
      seconds=roofline.seconds(chip, read, width * rows, rows),
      model=read,
  )


def _rows(state, layout: sharding.Layout) -> int:
  """Rows of each device."""
  return state.length_B.shape[0] // layout.mesh.shape[sharding.DATA]


def _bytes(tree: Any) -> int:
  """Of one device's parts."""
  return sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(tree)
  )


def why(heads: Sequence[int]) -> str:
  """Why XLA's bytes are more than those of weights and caches.

  Args:
    heads: K of the models.
  """
  narrow = [
      f"heads of {width} fill {width} of {_LANES} lanes"
      for width in sorted(set(heads))
      if width < _LANES
  ]
  padding = "; what they are over is mostly padding: " + ", ".join(narrow)
  return (
      "XLA's reads are those of operations, of one round of a"
      f" loop{padding if narrow else ''}. All it counts has also what is"
      " written and what is moved: nearer to the cores, where it is read again,"
      " or, before the loop, to another order."
  )


def table(made: Estimate, chip: roofline.Chip, alpha: float) -> str:
  """What was found, as text."""
  gib = lambda size: f"{size / 2**30:.2f} GiB"
  fits = "fits" if made.peak <= chip.memory else "DOES NOT FIT"
  memory = made.memory
  c, v = made.costs
  lines = [
      f"memory a device    {gib(made.peak)} of {gib(chip.memory)}: {fits}",
      f"                   weights {gib(memory['weights'])}, state"
      f" {gib(memory['state'])}, besides: {gib(memory['prefill'])} in the"
      f" prefill, {gib(memory['rounds'])} in the rounds",
      f"rows a device      {made.rows}; {made.rows_that_fit(chip.memory)} or"
      " more fit",
      f"host transfers     {made.hosts}",
      "                   weights    caches   XLA: read   over   all it counts"
      "   at least",
  ]
  for name, step in made.steps.items():
    lines.append(
        f"{name + ' step':14}{step.weights / 1e6:9.1f} MB"
        f"{step.caches / 1e6:7.2f} MB{step.read / 1e6:9.1f} MB"
        f"{step.read / step.needed:7.2f}{step.counted / 1e6:13.1f} MB"
        f"{1e3 * step.seconds:8.3f} ms"
    )
  lines += [
      textwrap.fill(why(made.heads), 80),
      f"c                  {c:.4f}",
      f"v                  {v:.2f}",
  ]
  if made.gamma and made.fixed:
    lines.append(f"at alpha {alpha:<10g}{_gains(made, chip, alpha)}")
  elif made.gamma:
    lines.append(
        f"drafts pay above   {made.gamma * c + v:.2f} tokens a round of all"
        " drafts; Eq. 1 is of chains of one length"
    )
  return "\n".join(lines)


def _gains(made: Estimate, chip: roofline.Chip, alpha: float) -> str:
  """Speed-ups, each gamma with a v of its own."""
  target, draft = (made.steps[name].model for name in ("target", "draft"))
  gain = lambda gamma: roofline.speedup(
      chip, target, draft, alpha, gamma, made.rows
  )
  best = roofline.best_gamma(chip, target, draft, alpha, made.rows)
  most = f"{gain(best):.2f}x with {best}" if best else "without drafts"
  return f"{gain(made.gamma):.2f}x with gamma {made.gamma}; fastest {most}"


if __name__ == "__main__":
  options.leave(main(sys.argv))
