"""What the scripts run on: the paper's pairs, or a person's own.

Without options the shipped family at the paper's pairs of task and draft;
`--config FILE[:VARIANT]`, also several times, takes other config files, and
`--config.SECTION.KEY=VALUE` changes all of them.

Models are loaded once, whatever the cells of a table change, and plain decoding
of the same texts is done once.
"""

import argparse
import dataclasses
import functools
import pathlib
import statistics
from typing import Any, Callable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from experiments import results
from specjax import checkpoints
from specjax import command_line
from specjax import draft_section
from specjax import drafts as drafts_lib
from specjax import errors
from specjax import experiment
from specjax import fetch
from specjax import options
from specjax import outputs
from specjax import pictures
from specjax import prepare
from specjax import sections
from specjax import theory
from specjax.measure import steps as steps_lib

CONFIGS = tuple(
    f"configs/{task}_t5{draft}.py:mini"
    for task in ("ende", "cnndm")
    for draft in ("small", "base", "large")
)
# The same with drafts that learnt from references, as the paper's did.
REFERENCES = tuple(f"{config},references" for config in CONFIGS)
_ON_REFERENCES = " on references"
TEMPERATURES = (0, 1)
# Those that the search for the best gamma looks at.
GAMMAS = tuple(range(1, 9))
# Of each step's timing, for the search alone.
_REPEATS = 5
_KINDS = ("model", "bigram", "unigram")
_KEPT = ("milliseconds", "judged_by_position", "speedups", "alpha_positions")


@dataclasses.dataclass(frozen=True)
class Pair:
  """A target with a draft on a task.

  Attributes:
    task: "ende" of a config file ende_t5small.
    draft: "small" of the same, or "small on references"; where the name has no
      "_t5", the model's own.
    config: that it was read from.
  """

  task: str
  draft: str
  config: sections.Experiment

  def __str__(self):
    return f"{self.task} {self.draft}"

  @property
  def on_references(self) -> bool:
    """Whether the draft learnt from references, and was not distilled."""
    return self.draft.endswith(_ON_REFERENCES)

  def at(
      self,
      temperature: float,
      *,
      lenience: float = 1.0,
      batch: int | None = None,
      measure: Mapping[str, int] | None = None,
      **draft: Any,
  ) -> sections.Experiment:
    """The config with these in place of its own; None leaves it.

    Args:
      temperature: of the requests.
      lenience: of the rule.
      batch: rows decoded at a time.
      measure: options of how time is measured.
      **draft: options of the draft.
    """
    own, replace = self.config, dataclasses.replace
    return replace(
        own,
        draft=replace(own.draft, **draft),
        sampling=replace(own.sampling, temperature=float(temperature)),
        verify=replace(own.verify, lenience=lenience),
        decode=replace(own.decode, batch=batch or own.decode.batch),
        measure=replace(own.measure, **(measure or {})),
    )


def parser(
    module: str, doc: str, *, rows: int, timed_rows: int = 0
) -> options.Parser:
  """Options of a script on pairs.

  Args:
    module: of the script.
    doc: its docstring.
    rows: texts of each task, where no option says how many.
    timed_rows: likewise those that are timed; 0 in scripts that time none.
  """
  made = results.parser(module, doc)
  made.add_argument(
      "--config",
      action="append",
      metavar="FILE[:VARIANT]",
      help="of a pair; may be given several times. --config.SECTION.KEY=VALUE"
      " changes all pairs",
  )
  made.add_argument(
      "--rows", type=results.SOME, default=rows, help="of each task"
  )
  if timed_rows:
    made.add_argument("--timed-rows", type=results.SOME, default=timed_rows)
  return made


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
  """A script's own arguments, and those that change configs."""
  changes = [word for word in argv[1:] if word.startswith("--config.")]
  return [word for word in argv if word not in changes], changes


def start(
    made: options.Parser,
    module: str,
    argv: Sequence[str],
    configs: Sequence[str] = CONFIGS,
) -> tuple[argparse.Namespace, results.Script, list[Pair]]:
  """Reads the arguments.

  Args:
    made: from `parser`.
    module: of the script.
    argv: as sys.argv, the program's name first.
    configs: where no option names any.

  Raises:
    errors.UserError: an option is not understood or out of its range, what a
      config names can't be had, nothing can be written, or there is no
      matplotlib.
  """
  own, changes = split(argv)
  arguments = made.read(own)
  pictures.check()
  files = arguments.config or configs
  chosen = [_read(file, arguments, changes) for file in files]
  names = list(map(str, chosen))
  good = len(names) == len(set(names))
  errors.require(good, "--config", "give each task and draft once", names)
  script = results.Script.start(module, arguments, more=changes)
  for pair in chosen:
    fetch.fetch(pair.config)
  return arguments, script, chosen


def _read(file: str, arguments, changes: Sequence[str]) -> Pair:
  """The pair of a config file."""
  config = command_line.read([
      "",
      f"--config={file}",
      f"--config.data.rows={arguments.rows}",
      f"--config.measure.timed_rows={vars(arguments).get('timed_rows', 0)}",
      "--config.measure.warmup=1",
      "--config.measure.traced_rows=0",
      *changes,
  ])
  kind = config.draft.kind
  good = kind in _KINDS
  errors.require(good, "draft.kind", f"give one of {', '.join(_KINDS)}", kind)
  mesh = config.mesh
  errors.require(
      mesh == sections.Mesh(),
      "mesh",
      "leave it out: these scripts measure on one device",
      dataclasses.asdict(mesh),
  )
  errors.require(
      not config.draft.branches,
      "draft.tree, draft.dynamic",
      "leave them out: these scripts are about chains",
      config.draft.name,
  )
  name, _, variant = config.name.partition(":")
  task, _, draft = name.partition("_t5")
  if draft and "references" in variant.split(","):
    draft += _ON_REFERENCES
  own = kind if kind != "model" else config.draft.checkpoint
  return Pair(task, draft or pathlib.PurePath(own).name, config)


def by_draft(lines: Sequence[dict[str, Any]]) -> dict[str, list[dict]]:
  """Draft -> its lines of a table."""
  out: dict[str, list[dict]] = {}
  for line in lines:
    out.setdefault(line["draft"], []).append(line)
  return out


def by_task(chosen: Sequence[Pair]) -> dict[str, list[Pair]]:
  """Task -> its pairs, both in the order that they were given in."""
  out: dict[str, list[Pair]] = {}
  for pair in chosen:
    out.setdefault(pair.task, []).append(pair)
  return out


def setup(config: sections.Experiment) -> prepare.Setup:
  """`prepare.prepare` with its plain output; what can be shared is."""
  bare = sections.Experiment(
      target=config.target,
      draft=draft_section.Draft(kind="none"),
      data=config.data,
      decode=config.decode,
  )
  drafts = _drafts(
      sections.Experiment(
          target=config.target,
          draft=dataclasses.replace(config.draft, gamma=1),
          decode=sections.Decode(dtype=config.decode.dtype),
      )
  )
  drafter = dataclasses.replace(drafts.drafter, gamma=config.draft.gamma)
  return dataclasses.replace(
      _with_sampling(_texts(bare), config),
      drafts=dataclasses.replace(drafts, drafter=drafter),
      output=_plain(dataclasses.replace(bare, sampling=config.sampling)),
  )


@functools.cache
def target(checkpoint: str, dtype: str) -> checkpoints.Checkpoint:
  """A target, loaded once."""
  return checkpoints.load(checkpoint, jnp.dtype(dtype), hint=fetch.HINT)


@functools.cache
def _texts(bare: sections.Experiment) -> prepare.Setup:
  """Target and texts, greedy and without drafts."""
  model = target(bare.target.checkpoint, bare.decode.dtype)
  return prepare.prepare(bare, model)


@functools.cache
def _drafts(config: sections.Experiment) -> drafts_lib.Drafts:
  """Drafts for a target, loaded once."""
  model = target(config.target.checkpoint, config.decode.dtype)
  empty = prepare.Setup(config, model, drafts_lib.NO_DRAFTS, [], [])
  return prepare.DRAFTS[config.draft.kind](empty)


@functools.cache
def _plain(config: sections.Experiment) -> list[outputs.Result]:
  """What plain decoding makes of the texts."""
  bare = dataclasses.replace(config, sampling=sections.Sampling())
  made = _with_sampling(_texts(bare), config)
  with prepare.bar("plain", len(made.groups(len(made.requests)))) as bar:
    return made.decode(made.plain, bar.update)


def _with_sampling(
    made: prepare.Setup, config: sections.Experiment
) -> prepare.Setup:
  """The same texts under another config's sampling."""
  settings = config.settings(made.requests[0].settings.ends)
  requests = [
      dataclasses.replace(request, settings=settings)
      for request in made.requests
  ]
  return dataclasses.replace(made, config=config, requests=requests)


def measured(config: sections.Experiment) -> dict[str, Any]:
  """The report of one run, and some of what stands behind it."""
  report, details = experiment.run(setup(config))
  return report | {key: details[key] for key in _KEPT}


def costs(chosen: Sequence[Pair], temperature: float) -> dict[str, Any]:
  """Steps of one target and of each of its drafts, and each draft's alpha.

  Args:
    chosen: pairs of one task.
    temperature: of target and drafts.

  Returns:
    target_ms; verify_cost at each of GAMMAS; c and alpha by draft, c at the
    gamma of its config; c_by_gamma, c at each of GAMMAS by draft: the drafts of
    a round cost a + b gamma, by what those of two gammas do.
  """
  setups = {pair.draft: setup(pair.at(temperature)) for pair in chosen}
  first = setups[chosen[0].draft]
  measure = first.config.measure
  groups = first.groups(measure.timed_rows)
  batch = groups[len(groups) // 2].batch
  depths = {name: made.drafts.drafter.depth for name, made in setups.items()}
  ends = GAMMAS[0], GAMMAS[-1]
  state = steps_lib.middle(first.plain, batch)
  runs: dict[Any, Callable[[Any], Any]] = {
      depth: functools.partial(
          steps_lib.target_steps,
          first.target.module,
          first.target.params,
          state,
          depth + 1,
      )
      for depth in sorted({0, *GAMMAS, *depths.values()})
  }
  drafted = [
      (pair.draft, gamma)
      for pair in chosen
      for gamma in sorted({depths[pair.draft], *ends})
  ]
  of_draft = {pair.draft: pair for pair in chosen}
  for name, gamma in drafted:
    side = setup(of_draft[name].at(temperature, gamma=gamma)).speculative
    runs[name, gamma] = functools.partial(
        steps_lib.round_steps,
        side.loop,
        side.target_params,
        side.drafter_params,
        steps_lib.middle(side, batch),
        False,
    )
  with prepare.bar("steps", len(runs) * (_REPEATS + 1)) as bar:
    seconds = steps_lib.interleave(runs, measure.steps, _REPEATS, bar.update)
  c = {
      (name, gamma): steps_lib.Steps.of(
          {
              "target": seconds[0],
              "verify": seconds[gamma],
              "drafted": seconds[name, gamma],
          },
          gamma,
      ).c
      for name, gamma in drafted
  }
  of_round = lambda name: np.interp(
      GAMMAS, ends, [gamma * c[name, gamma] for gamma in ends]
  )
  one = statistics.median(seconds[0])
  return {
      "target_ms": 1e3 * one,
      "verify_cost": [
          statistics.median(seconds[gamma]) / one for gamma in GAMMAS
      ],
      "c": {name: c[name, depth] for name, depth in depths.items()},
      "c_by_gamma": {
          name: (of_round(name) / GAMMAS).tolist() for name in depths
      },
      "alpha": {
          name: experiment.alpha(made, made.output)[0]
          for name, made in setups.items()
      },
  }


def best_gamma(
    alpha: float, c: Sequence[float], verify_cost: Sequence[float]
) -> tuple[int, float]:
  """The gamma of the largest predicted speed-up, and that.

  Args:
    alpha: acceptance rate.
    c: draft step over target step, at each of GAMMAS.
    verify_cost: v, likewise.
  """
  speedups = {
      gamma: theory.speedup(alpha, gamma, own, v)
      for gamma, own, v in zip(GAMMAS, c, verify_cost, strict=True)
  }
  best = max(speedups, key=speedups.__getitem__)
  return best, speedups[best]


def rising(lines: Sequence[dict[str, Any]]) -> str:
  """In how many tasks and temperatures alpha rises from draft to draft.

  Args:
    lines: task, draft, temperature and alpha of each, smaller drafts first.

  Returns:
    Sentences; none of drafts that no task has several of.
  """
  out = ""
  for ending in ("", _ON_REFERENCES):
    alphas: dict[Any, list[float]] = {}
    for line in lines:
      if line["draft"].endswith(_ON_REFERENCES) == bool(ending):
        key = line["task"], line["temperature"]
        alphas.setdefault(key, []).append(line["alpha"])
    several = [values for values in alphas.values() if len(values) > 1]
    rises = [values == sorted(set(values)) for values in several]
    if several:
      out += (
          f" alpha rises with the draft{ending} in {sum(rises)} of"
          f" {len(rises)} pairs of task and temperature."
      )
  return out


def spread(speedup: dict[str, float]) -> str:
  """A measured speed-up for a table: the median and both ends."""
  return (
      f"{speedup['median']:.2f} ({speedup['low']:.2f} to"
      f" {speedup['high']:.2f})"
  )
