"""Is plain decoding fast? Against transformers' generate, and its own floor.

    python -m experiments.baseline
    python -m experiments.baseline --dtype bfloat16

Greedy, batch 1, 32 new tokens a row (minimum and maximum), both tasks,
on the same weights and with the same number of threads:

- plain decoding and transformers' `generate` in turn, source and prompt
  included; in float32 the tokens must be the same
- one step of each shipped model on 1 token and on gamma + 1, beside the time
  that this machine needs to read the model's weights once: the bandwidth is
  measured on a buffer of just that size, on one thread and on all

Writes results/baseline_<dtype>.json and results/baseline_<dtype>.md. Needs the
extra parity. Under two minutes on two CPU cores.
"""

import concurrent.futures
import functools
import os
import statistics
import sys
import time
from typing import Sequence

import numpy as np

from experiments import results
from experiments import turns
from specjax import checkpoints
from specjax import drafts as drafts_lib
from specjax import options
from specjax import pipeline
from specjax import sections
from specjax import settings as settings_lib
from specjax.checkpoints import resolve
from specjax.data import tasks
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.decoding import side as side_lib
from specjax.measure import environment
from specjax.measure import steps as steps_lib
from specjax.measure import weights
from specjax.verify import token

TASKS = ("mini_ende", "mini_summ")
MODELS = ("mini/target", "mini/large", "mini/base", "mini/small")
TOKENS = 32
WIDTH = 3  # gamma + 1 of the shipped configs


def threads() -> int:
  """Cores that this process may use."""
  return len(os.sched_getaffinity(0))


def bandwidth(size: int, workers: int, seconds: float = 0.3) -> float:
  """Bytes a second that `workers` threads read of a buffer of `size` bytes."""
  words = np.ones(max(size // 8, 1 << 12), np.uint64)
  parts = np.array_split(words, workers)
  read = lambda part: np.bitwise_or.reduce(part)
  best = 0.0
  with concurrent.futures.ThreadPoolExecutor(workers) as pool:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
      began = time.perf_counter()
      list(pool.map(read, parts))
      best = max(best, words.nbytes / (time.perf_counter() - began))
  return best


def step_times(name: str, dtype: str) -> dict:
  """Milliseconds of a step on 1 token and on WIDTH, and the floors."""
  model = checkpoints.load(name, dtype)
  examples = tasks.load_task("mini_ende", rows=1)
  settings = settings_lib.Settings()
  requests = pipeline.make_requests(
      model, [examples[0].source], settings, max_new_tokens=TOKENS
  )
  batch = requests_lib.make_batch(
      requests, vocabulary=model.module.config.vocab_size, seed=0
  )
  loop = loop_lib.Loop(
      model.module, drafts_lib.NO_DRAFTS.drafter, token.TokenRule()
  )
  side = side_lib.Side(loop, model.params, (), TOKENS + WIDTH)
  state = steps_lib.middle(side, batch)
  runs = {
      width: lambda count, width=width: steps_lib.target_steps(
          model.module, model.params, state, width, count
      )
      for width in (1, WIDTH)
  }
  seconds = {
      width: statistics.median(times)
      for width, times in steps_lib.interleave(runs, 100, 9).items()
  }
  size = sum(leaf.nbytes for leaf in weights.of_a_step(model.params))
  one, all_ = bandwidth(size, 1), bandwidth(size, threads())
  return {
      "model": name,
      "megabytes": size / 1e6,
      "step_ms": 1e3 * seconds[1],
      "verify_ms": 1e3 * seconds[WIDTH],
      "bytes_per_second_one_thread": one,
      "bytes_per_second_all_threads": all_,
      "floor_one_thread_ms": 1e3 * size / one,
      "floor_all_threads_ms": 1e3 * size / all_,
  }


def generate_times(task: str, dtype: str, rows: int, repeats: int) -> dict:
  """Milliseconds a token of both, in turn, and how many rows differ."""
  import torch
  import transformers

  torch.set_num_threads(threads())
  target = checkpoints.load("mini/target", dtype)
  theirs = transformers.T5ForConditionalGeneration.from_pretrained(
      resolve.resolve("mini/target", hint=""), dtype=getattr(torch, dtype)
  ).eval()
  decoder = pipeline.Decoder(target, batch=1)
  settings = settings_lib.Settings(min_new_tokens=TOKENS)
  sources = [row.source for row in tasks.load_task(task, rows=rows)]
  ids = [
      torch.tensor([target.tokenizer.encode(source)]) for source in sources
  ]

  def ours(i):
    [result] = decoder([sources[i]], settings, max_new_tokens=TOKENS)
    return result.tokens

  @torch.inference_mode()
  def other(i):
    # Its own cache has as many layers as the encoder, and fails in the others.
    empty = transformers.DynamicCache
    made = theirs.generate(
        ids[i],
        past_key_values=transformers.EncoderDecoderCache(empty(), empty()),
        do_sample=False,
        num_beams=1,
        min_new_tokens=TOKENS,
        max_new_tokens=TOKENS,
    )
    return tuple(made[0, 1:].tolist())

  differing = sum(ours(i) != other(i) for i in range(rows))
  seconds = turns.seconds(
      {"specjax": ours, "transformers": other}, rows, repeats
  )
  a_token = lambda name: [1e3 * x / rows / TOKENS for x in seconds[name]]
  ratios = [b / a for a, b in zip(*seconds.values())]
  return {
      "task": task,
      "rows": rows,
      "differing_rows": differing,
      "specjax_ms": statistics.median(a_token("specjax")),
      "transformers_ms": statistics.median(a_token("transformers")),
      "times_faster": turns.spread(ratios),
      "versions": {
          "torch": torch.__version__, "transformers": transformers.__version__
      },
  }


def markdown(made: dict) -> str:
  """The tables for people."""
  lines = [
      "# Plain decoding: against transformers, and against its floor",
      "",
      f"{environment.headline(made)}, {made['threads']} threads,"
      f" {made['dtype']}, batch 1, greedy, {TOKENS} tokens a row, milliseconds"
      " a token.",
      "",
      "| task | rows | specjax | transformers' generate | times faster | rows"
      " that differ |",
      "|---|---|---|---|---|---|",
  ]
  for cell in made["generate"].values():
    faster = cell["times_faster"]
    lines.append(
        f"| {cell['task']} | {cell['rows']} | {cell['specjax_ms']:.2f} |"
        f" {cell['transformers_ms']:.2f} | {faster['median']:.1f}"
        f" ({faster['low']:.1f} to {faster['high']:.1f}) |"
        f" {cell['differing_rows']} |"
    )
  lines += [
      "",
      "Milliseconds of one step, and of reading the weights that it reads at"
      " the machine's own speed for so many bytes, on one thread and on all:",
      "",
      f"| model | MB | 1 token | {WIDTH} tokens | floor, one thread | floor,"
      " all threads | GB/s, one thread | GB/s, all threads |",
      "|---|---|---|---|---|---|---|---|",
  ]
  for cell in made["steps"].values():
    lines.append(
        f"| {cell['model']} | {cell['megabytes']:.1f} | {cell['step_ms']:.2f} |"
        f" {cell['verify_ms']:.2f} | {cell['floor_one_thread_ms']:.2f} |"
        f" {cell['floor_all_threads_ms']:.2f} |"
        f" {cell['bytes_per_second_one_thread'] / 1e9:.0f} |"
        f" {cell['bytes_per_second_all_threads'] / 1e9:.0f} |"
    )
  return "\n".join(lines) + "\n"


def _parser() -> options.Parser:
  parser = results.parser("baseline", __doc__)
  parser.add_argument(
      "--rows", type=results.SOME, default=8, help="of each task"
  )
  parser.add_argument("--repeats", type=results.SOME, default=7)
  parser.add_argument(
      "--dtype", choices=sections.DTYPES, default=sections.DTYPES[0]
  )
  return parser


def work(argv: Sequence[str]) -> None:
  """Measures, prints and writes."""
  arguments = _parser().read(argv)
  dtype = arguments.dtype
  script = results.Script.start("baseline", arguments, f"baseline_{dtype}")
  generate = {
      task: functools.partial(
          generate_times, task, dtype, arguments.rows, arguments.repeats
      )
      for task in TASKS
  }
  steps = {
      name.replace("/", " "): functools.partial(step_times, name, dtype)
      for name in MODELS
  }
  made = script.cells(generate | steps)
  pick = lambda makers: {key: made[key] for key in makers}
  script.write(
      {
          "dtype": dtype,
          "threads": threads(),
          "generate": pick(generate),
          "steps": pick(steps),
      },
      markdown,
  )


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door("baseline", _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
