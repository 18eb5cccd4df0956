"""The paper's shapes at full size, where their weights are not at hand.

    python -m experiments.full_size
    python -m experiments.full_size --target flan-t5-xl --draft flan-t5-small

Weights are random, so the texts say nothing; speed is a matter of shapes. The
drafts take every step of a model of the draft's shape, and are right at the
paper's alpha, at its gamma (Table 4, EN-DE, T = 0; .75 and 7 for other shapes):
what is measured is c, v, the loop and the speed-up. bfloat16, batch 1, 128
tokens. A step is set against its floor: the time to read its weights at the
speed that this device reads memory with.

Without --target and --draft: flan-t5-xxl with small, base and large on an
accelerator (25 GB), flan-t5-base with small on a CPU. Writes
results/full_size.json, .md and .png. A few minutes on two CPU cores.
"""

import functools
import sys
import time
from typing import Any, Sequence

import jax
import jax.numpy as jnp

from experiments import pairs
from experiments import paper
from experiments import plots
from experiments import results
from specjax import command_line
from specjax import errors
from specjax import experiment
from specjax import options
from specjax import pictures
from specjax import prepare
from specjax.checkpoints import published
from specjax.measure import environment
from specjax.measure import tables
from specjax.measure import weights

NAME = "full_size"
_CONFIG = "configs/ende_t5small.py:mini"
_TOKENS = 128
# Of the paper's first row, for shapes that it has not.
_ALPHA, _GAMMA = 0.75, 7


def shapes() -> tuple[str, list[str]]:
  """What fits the device that is there: target and drafts."""
  if jax.default_backend() == "cpu":
    return "flan-t5-base", ["flan-t5-small"]
  sizes = ("small", "base", "large")
  return "flan-t5-xxl", [f"flan-t5-{size}" for size in sizes]


def bandwidth() -> float:
  """Bytes a second that a sum over a large array reads."""
  size = 2**28 if jax.default_backend() == "cpu" else 2**32
  whole = jax.jit(lambda x: jnp.max(x, axis=1))
  array = jnp.ones((512, size // 1024), jnp.bfloat16)
  best = float("inf")
  for _ in range(10):
    began = time.perf_counter()
    jax.block_until_ready(whole(array))
    best = min(best, time.perf_counter() - began)
  return array.nbytes / best


def measure(
    target: str, draft: str, rows: int, changes: Sequence[str]
) -> dict[str, Any]:
  """One pair: its report's figures, and bytes of its steps."""
  theirs = paper.find(
      "table2_and_4",
      task="ende",
      draft=draft.removeprefix("flan-"),
      temperature=0,
  )
  alpha, gamma = theirs.get("alpha", _ALPHA), theirs.get("gamma", _GAMMA)
  config = command_line.read([
      "",
      f"--config={_CONFIG}",
      f"--config.target.checkpoint={published.RANDOM}{target}",
      f"--config.draft.checkpoint={published.RANDOM}{draft}",
      "--config.draft.kind=simulated",
      "--config.draft.paced=true",
      f"--config.draft.alpha={alpha}",
      f"--config.draft.gamma={gamma}",
      "--config.decode.dtype=bfloat16",
      f"--config.decode.max_new_tokens={_TOKENS}",
      f"--config.decode.min_new_tokens={_TOKENS}",
      f"--config.data.rows={rows}",
      "--config.measure.traced_rows=0",
      "--config.measure.steps=10",
      *changes,
  ])
  with prepare.enough_memory():
    setup = prepare.prepare(config)
    report, details = experiment.run(setup)
  of = lambda params: sum(x.nbytes for x in weights.of_a_step(params))
  return {
      "target": target,
      "draft": draft,
      "paper": theirs,
      "target_bytes": of(setup.target.params),
      "draft_bytes": of(setup.drafts.params.source),
      "milliseconds": details["milliseconds"],
  } | {
      key: report[key]
      for key in (
          "alpha", "gamma", "c", "verify_cost", "block_efficiency", "gap",
          "predicted_speedup", "measured_speedup", "tokens_per_second",
          "mismatched_rows", "synthetic", "break_even",
      )
  }


def markdown(made: dict[str, Any]) -> str:
  """The table for people."""
  number = tables.number
  speed = made["bandwidth"]
  floor = lambda line, which: 1e3 * line[f"{which}_bytes"] / speed
  rows = []
  for line in made["pairs"]:
    theirs, took = line["paper"], line["milliseconds"]
    rows.append([
        line["draft"],
        line["gamma"],
        f"{line['alpha']:.2f}",
        f"{number(theirs.get('c'))} / {line['c']:.3f}",
        number(line["verify_cost"]),
        f"{took['target_step']:.2f} ({floor(line, 'target'):.2f})",
        f"{took['draft_step']:.2f} ({floor(line, 'draft'):.2f})",
        f"{number(theirs.get('expected_speedup'), 1)} /"
        f" {line['predicted_speedup']['theorem_3_8']:.2f}",
        number(line["predicted_speedup"]["with_verify_cost"]),
        f"{number(theirs.get('measured_speedup'), 1)} /"
        f" {pairs.spread(line['measured_speedup'])}",
        number(line["gap"]["overhead"]),
        f"{line['tokens_per_second']['plain']:.1f}",
        line["mismatched_rows"],
    ])
  return "\n".join([
      f"# The paper's shapes: {made['pairs'][0]['target']}",
      "",
      f"{environment.headline(made)}, bfloat16, batch 1, {_TOKENS} tokens.",
      "",
      f"SYNTHETIC: {made['pairs'][0]['synthetic']}. The device reads memory at"
      f" {speed / 1e9:.0f} GB/s (a maximum over a large array).",
      "",
      "Figures with a slash: the paper's (T5-XXL on one TPU-v4) / ours. In"
      " brackets the floor of a step: its weights at that speed.",
      "",
      *results.table(
          "draft | gamma | alpha | c | v | target step, ms | draft step, ms |"
          " Thm 3.8 | with v | measured | overhead factor | plain tokens/s |"
          " rows that differ",
          rows,
      ),
      "",
      f"![]({NAME}.png)",
  ]) + "\n"


def draw(made: dict[str, Any]):
  """Predicted and measured speed-ups; steps against their floors."""
  figure, (speeds, steps) = pictures.panels(2, columns=2)
  lines = made["pairs"]
  places = range(len(lines))
  names = [line["draft"] for line in lines]
  for key, style, label in (
      ("theorem_3_8", "o", "Theorem 3.8"),
      ("with_verify_cost", "s", "with measured v"),
  ):
    values = [line["predicted_speedup"][key] for line in lines]
    speeds.plot(places, values, style, label=label)
  plots.measured(speeds, list(places), lines)
  plots.plain(speeds)
  speeds.set_ylabel("speed-up")
  speeds.set_ylim(bottom=0)
  for at, which in ((-0.2, "target"), (0.2, "draft")):
    at = [place + at for place in places]
    took = [line["milliseconds"][f"{which}_step"] for line in lines]
    least = [1e3 * line[f"{which}_bytes"] / made["bandwidth"] for line in lines]
    steps.bar(at, took, 0.4, label=f"{which} step")
    steps.bar(at, least, 0.4, fill=False, hatch="//", label="its floor")
  steps.set_ylabel("milliseconds")
  steps.set_yscale("log")
  for panel in (speeds, steps):
    panel.set_xticks(list(places), names)
  return figure


def _parser() -> options.Parser:
  made = results.parser(NAME, __doc__)
  made.add_argument("--target", help="a public T5's name")
  made.add_argument("--draft", action="append", help="likewise; several times")
  made.add_argument("--rows", type=results.SOME, default=2)
  return made


def work(argv: Sequence[str]) -> None:
  """Measures, prints and writes."""
  own, changes = pairs.split(argv)
  arguments = _parser().read(own)
  target, drafts = shapes()
  target = arguments.target or target
  drafts = arguments.draft or drafts
  for name in (target, *drafts):
    try:
      published.config(published.RANDOM + name)
    except errors.UserError as error:
      raise errors.UserError(f"--target, --draft: {error}") from None
  pictures.check()
  script = results.Script.start(NAME, arguments, more=changes)
  makers = {"bandwidth": bandwidth} | {
      draft: functools.partial(measure, target, draft, arguments.rows, changes)
      for draft in drafts
  }
  made = script.cells(makers)
  script.write(
      {
          "bandwidth": made["bandwidth"],
          "pairs": [made[draft] for draft in drafts],
      },
      markdown,
      {NAME: draw},
  )


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door(NAME, _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
