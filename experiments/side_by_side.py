"""SmolLM2 here and in transformers: plain decoding, and prompt lookup.

    python -m experiments.side_by_side
    python -m experiments.side_by_side --prompts question.jsonl --first 4
    python -m experiments.side_by_side --config configs/smollm2.py:suffix

Greedy, batch 1, on the same weights, the first turn of the same prompts, with
the same number of threads and in the same type, all by turns:

- plain decoding and drafts of the config's kind, against transformers'
  `generate`, plain and with prompt_lookup_num_tokens; the tokens must be the
  same but for near ties
- one step of the model on 1 and on 16 tokens, in the middle of a text

Writes results/side_by_side.json and results/side_by_side.md. Needs the extras
parity and gguf, and the config's model. A quarter of an hour on two CPU cores.
"""

import dataclasses
import functools
import statistics
import sys
import tempfile
import types
from typing import Any, Sequence

import jax
import jax.numpy as jnp

from experiments import baseline
from experiments import pairs
from experiments import results
from experiments import turns
from specjax import command_line
from specjax import errors
from specjax import experiment
from specjax import options
from specjax import prepare
from specjax import sections
from specjax.checkpoints import hf
from specjax.data import prompts as prompts_lib
from specjax.data import tasks
from specjax.measure import environment
from specjax.measure import steps as steps_lib
from specjax.measure import timing
from specjax.models import decoder

NAME = "side_by_side"
OURS, THEIRS = "specjax", "transformers"
LOOKUP, FIRST = " with drafts", " first"
WIDTHS = (1, 16)
# Steps in one timing.
_STEPS = 20


@dataclasses.dataclass(frozen=True)
class Both:
  """A config's model twice: here, and in transformers.

  Attributes:
    setup: with its drafts, on all prompts.
    model: of transformers, on the same weights.
    lookup: tokens that transformers' prompt lookup drafts.
  """

  setup: prepare.Setup
  model: Any
  lookup: int

  @classmethod
  def load(
      cls,
      config: sections.Experiment,
      prompts: Sequence[prompts_lib.Prompt],
      lookup: int,
  ) -> "Both":
    """Loads the model here, and hands its weights over as a directory."""
    import torch
    import transformers

    examples = [tasks.Example(row.id, row.turns[0]) for row in prompts]
    setup = prepare.prepare(config, examples=examples)
    if not isinstance(setup.target.module, decoder.Decoder):
      raise errors.UserError(
          "target.checkpoint: give a decoder-only model, got an encoder-decoder"
          f" ({config.target.checkpoint})"
      )
    torch.set_num_threads(baseline.threads())
    with tempfile.TemporaryDirectory() as folder:
      hf.save_model(
          folder,
          setup.target.module,
          setup.target.params,
          dtype=jnp.dtype(config.decode.dtype),
      )
      model = transformers.AutoModelForCausalLM.from_pretrained(
          folder, dtype=getattr(torch, config.decode.dtype)
      )
    return cls(setup, model.eval(), lookup)

  def ours(self, row: int, side) -> tuple[int, ...]:
    """Tokens of a row."""
    state = side.run(side.prefill(self.batches[row]))
    start, end = int(state.prompt_B[0]), int(state.length_B[0])
    return tuple(jax.device_get(state.tokens_BS)[0, start:end].tolist())

  def theirs(self, row: int, **how) -> tuple[int, ...]:
    """The same."""
    import torch

    prompt = list(self.setup.requests[row].prompt)
    ends = list(self.setup.target.module.config.ends)
    asked = {"max_new_tokens": self.setup.config.decode.max_new_tokens} | how
    with torch.inference_mode():
      made = self.model.generate(
          torch.tensor([prompt]),
          attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
          do_sample=False,
          eos_token_id=ends,
          pad_token_id=ends[0],
          **asked,
      )
    return tuple(made[0, len(prompt) :].tolist())

  @functools.cached_property
  def batches(self) -> list:
    """A batch a row."""
    groups = dataclasses.replace(
        self.setup,
        config=dataclasses.replace(
            self.setup.config,
            decode=dataclasses.replace(self.setup.config.decode, batch=1),
        ),
    ).groups(len(self.setup.requests))
    batches = {group.rows[0]: group.batch for group in groups}
    return [batches[row] for row in range(len(batches))]

  def generate(self, rows: Sequence[int], repeats: int) -> dict[str, Any]:
    """Seconds of both over these rows, and where their tokens differ."""
    plain, drafted = self.setup.plain, self.setup.speculative
    runs = {
        OURS: lambda row: self.ours(row, plain),
        OURS + LOOKUP: lambda row: self.ours(row, drafted),
        OURS + FIRST: lambda row: jax.block_until_ready(
            plain.prefill(self.batches[row])
        ),
        THEIRS: self.theirs,
        THEIRS + LOOKUP: lambda row: self.theirs(
            row, prompt_lookup_num_tokens=self.lookup
        ),
        THEIRS + FIRST: lambda row: self.theirs(row, max_new_tokens=1),
    }
    made = {
        name: [run(row) for row in rows]
        for name, run in runs.items()
        if not name.endswith(FIRST)
    }
    for name in (OURS + FIRST, THEIRS + FIRST):
      runs[name](rows[0])
    by_number = {
        name: lambda i, run=run: run(rows[i]) for name, run in runs.items()
    }
    with timing.no_compilation():
      seconds = turns.seconds(by_number, len(rows), repeats)
    return {
        "answers": len(rows),
        "tokens": {k: sum(map(len, v)) for k, v in made.items()},
        "seconds": seconds,
        "differing": {
            name: self._differing(rows, made[OURS], tokens)
            for name, tokens in made.items()
            if name != OURS
        },
    }

  def _differing(self, rows, a, b) -> list[dict[str, Any]]:
    """Rows whose tokens differ, with plain decoding's gap where they part."""
    setup = dataclasses.replace(
        self.setup, requests=[self.setup.requests[row] for row in rows]
    )
    result = lambda tokens: types.SimpleNamespace(tokens=tokens)
    found = experiment.mismatches(setup, [*map(result, a)], [*map(result, b)])
    return [
        {
            "id": self.setup.examples[rows[each.row]].id,
            "position": each.position,
            "gap": each.gap,
            "near_tie": each.near_tie,
        }
        for each in found
    ]

  def steps(self, repeats: int) -> dict[str, Any]:
    """Milliseconds of one step of both, by its number of tokens."""
    import torch
    import transformers

    side, batch = self.setup.plain, self.batches[len(self.batches) // 2]
    state = steps_lib.middle(
        dataclasses.replace(side, budget=side.budget + max(WIDTHS)), batch
    )
    length = int(state.length_B[0]) - 1
    ids = torch.tensor(jax.device_get(state.tokens_BS[:, :length]).tolist())
    cache = transformers.DynamicCache(config=self.model.config)
    # The cache's place among the arguments stays; its name does not.
    forward = lambda tokens: self.model(tokens, None, None, cache)
    with torch.inference_mode():
      forward(ids)

    def ours(width):
      return jax.block_until_ready(
          steps_lib.target_steps(
              side.loop.target, side.target_params, state, width, _STEPS
          )
      )

    @torch.inference_mode()
    def theirs(width):
      tokens = torch.ones(1, width, dtype=torch.long)
      for _ in range(_STEPS):
        logits = forward(tokens).logits
        tokens[0, 0] = int(logits[0, -1].argmax())
        cache.crop(-width)

    runs = {
        f"{name} {width}": lambda _, run=run, width=width: run(width)
        for width in WIDTHS
        for name, run in ((OURS, ours), (THEIRS, theirs))
    }
    for run in runs.values():
      run(0)
    seconds = turns.seconds(runs, 1, repeats)
    return {
        "context": length,
        "milliseconds": {
            name: [1e3 * value / _STEPS for value in values]
            for name, values in seconds.items()
        },
    }


def added(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """All categories together."""
  total = lambda key: {
      name: sum(cell[key][name] for cell in cells) for name in cells[0][key]
  }
  return {
      "answers": sum(cell["answers"] for cell in cells),
      "tokens": total("tokens"),
      "seconds": {
          name: [
              sum(x) for x in zip(*(cell["seconds"][name] for cell in cells))
          ]
          for name in cells[0]["seconds"]
      },
      "differing": {
          name: [row for cell in cells for row in cell["differing"][name]]
          for name in cells[0]["differing"]
      },
  }


def compared(cell: dict[str, Any]) -> dict[str, Any]:
  """What a category's times come to.

  Returns:
    Milliseconds a token, prompt included and after it, and tokens a second
    with drafts, of both; and the ratios of what took turns.
  """
  tokens, seconds = cell["tokens"], cell["seconds"]

  def a_token(side):
    return [1e3 * value / tokens[side] for value in seconds[side]]

  def after(side):
    """Their first call has a token in it, ours has none."""
    left = tokens[side] - (cell["answers"] if side == THEIRS else 0)
    pairs_ = zip(seconds[side], seconds[side + FIRST])
    return [1e3 * (whole - first) / max(1, left) for whole, first in pairs_]

  def ratio(a, b):
    return turns.spread([x / y for x, y in zip(a, b)])

  out = {}
  for side in (OURS, THEIRS):
    rates = [1e3 / value for value in a_token(side + LOOKUP)]
    out[side] = {
        "ms_a_token": statistics.median(a_token(side)),
        "ms_a_token_after_prompt": statistics.median(after(side)),
        "tokens_per_second": 1e3 / statistics.median(a_token(side)),
        "tokens_per_second_with_drafts": statistics.median(rates),
        "speedup_of_drafts": ratio(a_token(side), a_token(side + LOOKUP)),
    }
  return out | {
      "plain_time": ratio(a_token(OURS), a_token(THEIRS)),
      "plain_time_after_prompt": ratio(after(OURS), after(THEIRS)),
      "drafts_times_faster": ratio(
          a_token(THEIRS + LOOKUP), a_token(OURS + LOOKUP)
      ),
  }


def markdown(made: dict[str, Any]) -> str:
  """The tables for people."""
  spread = lambda x: f"{x['median']:.2f} ({x['low']:.2f} to {x['high']:.2f})"

  def line(name, cell):
    ratios, differ = cell["compared"], cell["differing"]
    ours, theirs = ratios[OURS], ratios[THEIRS]
    tied = lambda rows: sum(row["near_tie"] for row in rows)
    count = lambda rows: f"{len(rows) - tied(rows)} + {tied(rows)}"
    return (
        name,
        cell["answers"],
        f"{ours['ms_a_token_after_prompt']:.1f}",
        f"{theirs['ms_a_token_after_prompt']:.1f}",
        spread(ratios["plain_time_after_prompt"]),
        spread(ratios["plain_time"]),
        f"{ours['tokens_per_second_with_drafts']:.1f}",
        f"{theirs['tokens_per_second_with_drafts']:.1f}",
        spread(ratios["drafts_times_faster"]),
        ", ".join(count(rows) for rows in differ.values()),
    )

  steps = made["steps"]["milliseconds"]
  median = lambda name: statistics.median(steps[name])
  versions = ", ".join(f"{k} {v}" for k, v in made["versions"].items())
  return "\n".join([
      "# SmolLM2 here and in transformers",
      "",
      f"{environment.headline(made)}, {made['threads']} threads, {versions},"
      f" {made['dtype']}, batch 1, greedy, at most {made['new_tokens']} tokens"
      f" an answer. Drafts here: {made['drafts']}, gamma {made['gamma']};"
      f" there: prompt_lookup_num_tokens={made['lookup']}. Ratios are medians"
      f" over {made['repeats']} repeats, all by turns.",
      "",
      *results.table(
          "prompts | answers | ms a token | transformers' | time of theirs |"
          " with the prompt | tokens/s with drafts | transformers' |"
          " times faster | rows that differ",
          [line(*item) for item in made["categories"].items()],
      ),
      "",
      "Milliseconds a token are of plain decoding after the prompt; tokens a"
      " second count the prompt, too. Rows whose tokens differ from plain"
      " decoding's here, besides near ties + at those: with drafts; theirs;"
      " with their prompt lookup.",
      "",
      f"Milliseconds of one step behind {made['steps']['context']} tokens:",
      "",
      *results.table(
          "tokens | specjax | transformers | time of theirs",
          [
              (
                  width,
                  f"{median(f'{OURS} {width}'):.1f}",
                  f"{median(f'{THEIRS} {width}'):.1f}",
                  spread(made["steps"]["time"][str(width)]),
              )
              for width in WIDTHS
          ],
      ),
  ]) + "\n"


def _parser() -> options.Parser:
  made = results.parser(NAME, __doc__)
  made.add_argument(
      "--config",
      default="configs/smollm2.py",
      metavar="FILE[:VARIANT]",
      help="model and drafts; --config.SECTION.KEY=VALUE changes it",
  )
  made.add_argument(
      "--prompts", default=prompts_lib.AGENT, help="as for specjax.bench"
  )
  made.add_argument(
      "--first",
      type=results.COUNT,
      default=4,
      help="prompts of each category; 0 takes all",
  )
  made.add_argument("--repeats", type=results.SOME, default=3)
  made.add_argument(
      "--lookup",
      type=results.SOME,
      default=10,
      help="prompt_lookup_num_tokens of transformers",
  )
  return made


def work(argv: Sequence[str]) -> None:
  """Measures, prints and writes."""
  own, changes = pairs.split(argv)
  arguments = _parser().read(own)
  config = command_line.read(["", f"--config={arguments.config}", *changes])
  errors.require(
      config.greedy, "sampling.temperature", "give 0", config.sampling
  )
  prompts = prompts_lib.choose(
      prompts_lib.load(arguments.prompts), arguments.first
  )
  script = results.Script.start(NAME, arguments, more=changes)
  import torch
  import transformers

  both = functools.cache(
      lambda: Both.load(config, prompts, arguments.lookup)
  )
  rows: dict[str, list[int]] = {}
  for i, prompt in enumerate(prompts):
    rows.setdefault(prompt.category, []).append(i)
  repeats = arguments.repeats
  makers = {
      name: lambda some=some: both().generate(some, repeats)
      for name, some in rows.items()
  }
  made = script.cells(
      makers | {"one step": lambda: both().steps(3 * repeats)}
  )
  steps = made.pop("one step")
  took = steps["milliseconds"]
  steps["time"] = {
      str(width): turns.spread([
          a / b
          for a, b in zip(took[f"{OURS} {width}"], took[f"{THEIRS} {width}"])
      ])
      for width in WIDTHS
  }
  cells = made | {"all": added(list(made.values()))}
  script.write(
      {
          "versions": environment.versions() | {
              "torch": torch.__version__,
              "transformers": transformers.__version__,
          },
          "threads": baseline.threads(),
          "dtype": config.decode.dtype,
          "target": config.target.checkpoint,
          "new_tokens": config.decode.max_new_tokens,
          "drafts": config.draft.name,
          "gamma": config.draft.gamma,
          "lookup": arguments.lookup,
          "repeats": repeats,
          "categories": {
              name: cell | {"compared": compared(cell)}
              for name, cell in cells.items()
          },
          "steps": steps,
      },
      markdown,
  )


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door(NAME, _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
