"""Prompts by category: several kinds of drafts, decoded and timed by turns.

    report, details = run(config, drafts, prompts, folder)

Each prompt is decoded alone, without drafts and with each kind of them, all by
turns. In a conversation the answer that stands before a later turn is plain
decoding's, so that all read the same. What is done is kept in a Store: a run
that was stopped goes on.
"""

import dataclasses
import json
import pathlib
from typing import Any, Mapping, Sequence

import numpy as np

from specjax import draft_section
from specjax import errors
from specjax import experiment
from specjax import fetch
from specjax import kept as kept_lib
from specjax import outputs
from specjax import pipeline
from specjax import prepare
from specjax import programs
from specjax import sections
from specjax.checkpoints import chat
from specjax.data import prompts as prompts_lib
from specjax.data import tasks
from specjax.decoding import requests as requests_lib
from specjax.decoding import side as side_lib
from specjax.measure import categories
from specjax.measure import environment
from specjax.measure import report as report_lib
from specjax.measure import steps as steps_lib
from specjax.measure import timing

# Of a report, what does not depend on the drafts.
_SHARED = ("config", "device", "dtype", "batch", "sampling", "commit")


class Store(kept_lib.Folder):
  """What a run has done, in a folder."""

  @classmethod
  def open(cls, folder: pathlib.Path, options: Mapping[str, Any]) -> "Store":
    """Begins a run, or goes on with one.

    Args:
      folder: of its own.
      options: all that its figures depend on.

    Raises:
      errors.UserError: a run with other options waits there, or one of a
        source that may have been another.
    """
    store = cls(folder)
    if store.has("run") and str(options["commit"]).endswith("-dirty"):
      raise errors.UserError(
          f"out: in {folder} waits a run, and the source is not committed: it"
          " may have been another; delete the folder, or give another"
          " --config.out"
      )
    # As JSON has them: lists, not tuples.
    options = json.loads(json.dumps(options))
    kept = store.kept("run", lambda: options)
    if kept != options:
      old, new = dict(_leaves(kept)), dict(_leaves(options))
      keys = [key for key in old | new if old.get(key) != new.get(key)]
      raise errors.UserError(
          f"out: in {folder} waits a run with another {keys[0]}"
          f" ({errors.shown(old.get(keys[0]))}, now"
          f" {errors.shown(new.get(keys[0]))}); finish it with its own options,"
          " delete the folder, or give another --config.out"
      )
    return store


def _leaves(value, path: str = ""):
  """Path and value of every entry."""
  if isinstance(value, Mapping):
    for key, inner in value.items():
      yield from _leaves(inner, f"{path}.{key}" if path else key)
  else:
    yield path, value


def run(
    config: sections.Experiment,
    drafts: Mapping[str, draft_section.Draft],
    prompts: Sequence[prompts_lib.Prompt],
    folder: pathlib.Path,
    command: str = "",
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Decodes, times and judges; shows how far it is.

  Args:
    config: of all but the drafts.
    drafts: kinds of them by name, one or more.
    prompts: one or more.
    folder: where what is done waits until all is.
    command: that started the run, for its details.

  Returns:
    The report and its details, see measure.report and measure.categories. What
    they say of one kind of drafts is of the first.

  Raises:
    errors.UserError: something can't be had or does not fit, or another run
      waits in the folder.
  """
  where = environment.where(command)
  examples = [tasks.Example(row.id, row.turns[0]) for row in prompts]
  contents = {}
  for draft in drafts.values():
    each = dataclasses.replace(config, draft=draft)
    fetch.fetch(each, examples)
    contents |= fetch.contents(each)
  store = Store.open(
      folder,
      {
          "drafters": list(drafts),
          "config": dataclasses.asdict(config),
          "drafts": {k: dataclasses.asdict(v) for k, v in drafts.items()},
          "prompts": [dataclasses.asdict(prompt) for prompt in prompts],
          "commit": where["commit"],
          "device": where["device"],
      } | {
          f"size and date of {file}": value for file, value in contents.items()
      },
  )
  setups = _prepare(config, drafts, prompts, examples, store)
  steps = _steps(setups, store)
  asker = _Asker(setups)
  kept = []
  with prepare.bar("prompts", len(prompts)) as progress:
    for i, prompt in enumerate(prompts):
      progress.set_postfix_str(prompt.category)
      first = sum(len(before.turns) for before in prompts[:i])
      done = store.has(f"prompt_{i}")
      made = store.kept(f"prompt_{i}", lambda: asker.ask(prompt, first, i))
      if done:
        asker.heard(made)
      kept += [_Kept.of(prompt, first, row) for row in made]
      progress.update()
  made = _report(setups, steps, kept, where)
  # After what takes long: a run that goes on begins with the same file.
  for name, setup in setups.items():
    setup.save_responses(asker.side(name))
  return made


def _prepare(
    config, drafts, prompts, examples, store
) -> dict[str, prepare.Setup]:
  """Models and drafts, on first turns; what is measured of them is kept."""
  bare = dataclasses.replace(config, draft=draft_section.Draft(kind="none"))
  setup = prepare.prepare(bare, examples=examples)
  if any(len(prompt.turns) > 1 for prompt in prompts):
    _check_room(setup)
  if store.has("costs"):
    setup.costs.update(store.kept("costs", dict))
  made = {
      name: prepare.with_drafts(setup, draft) for name, draft in drafts.items()
  }
  store.kept("costs", lambda: setup.costs)
  return made


def _check_room(setup: prepare.Setup) -> None:
  """Refuses conversations that may outgrow the model; told at once."""
  most, new = setup.target.module.config.max_positions, setup.config.decode
  asked = setup.config.data.max_source_tokens
  errors.require(
      most is None or asked + new.max_new_tokens <= most,
      "data.max_source_tokens",
      f"a conversation may grow to so many, with {new.max_new_tokens} new ones;"
      f" the model was made for {most}: give"
      f" {(most or 0) - new.max_new_tokens} or less",
      asked,
  )


def _steps(setups, store) -> dict[str, steps_lib.Steps]:
  """Seconds of single steps, of each kind of drafts."""

  def measure(setup: prepare.Setup):
    options = setup.config.measure
    steps = steps_lib.measure(
        setup.plain,
        setup.speculative,
        setup.usual,
        steps=options.steps,
        repeats=options.step_repeats,
    )
    return dataclasses.asdict(steps)

  made = {}
  with prepare.bar("steps", len(setups)) as progress:
    for i, (name, setup) in enumerate(setups.items()):
      kept = store.kept(f"steps_{i}", lambda: measure(setup))
      made[name] = steps_lib.Steps(**kept)
      progress.update()
  return made


class _Asker:
  """Asks prompts one after the other."""

  def __init__(self, setups: Mapping[str, prepare.Setup]):
    self._setup = next(iter(setups.values()))
    self._sides = {name: each.speculative for name, each in setups.items()}
    # Of what was heard, the responses that drafts do not know yet.
    self._unknown = {name: [] for name in setups}
    self._warm = set()

  def ask(
      self, prompt: prompts_lib.Prompt, first: int, number: int
  ) -> list[dict]:
    """All turns of a prompt: what JSON can hold of each answer.

    Args:
      prompt: with its turns.
      first: id of the first turn's request.
      number: of the prompt among all.
    """
    config, said, made = self._setup.config, [], []
    for turn, text in enumerate(prompt.turns):
      said.append(chat.message("user", text))
      [request] = pipeline.make_requests(
          self._setup.target,
          [said],
          config.settings(self._setup.target.module.config.ends),
          max_new_tokens=config.decode.max_new_tokens,
          ids=[first + turn],
          max_source_tokens=config.data.max_source_tokens,
          chat=config.data.chat,
      )
      answer = self._answer(request, number + turn)
      made.append({"turn": turn + 1} | answer)
      self.heard(made[-1:])
      text = answer["results"][timing.PLAIN]["text"]
      said.append(chat.message("assistant", text))
    return made

  def heard(self, answers: Sequence[Mapping[str, Any]]) -> None:
    """Drafts that learn are to know these responses."""
    for name, unknown in self._unknown.items():
      for answer in answers:
        ids = answer["results"][name]["tokens"]
        unknown.append(np.array(ids, np.int32))

  def side(self, name: str) -> side_lib.Side:
    """Decoding with drafts that know all that was heard."""
    side, unknown = self._sides[name], self._unknown[name]
    drafter = side.loop.drafter
    if unknown and drafter.learns:
      params = drafter.adopt(side.drafter_params, unknown)
      side = dataclasses.replace(side, drafter_params=params)
    self._sides[name] = side
    unknown.clear()
    return side

  def _answer(
      self, request: requests_lib.Request, turn: int
  ) -> dict[str, Any]:
    """One answer of each side, timed; `turn` as timing.interleave has it."""
    setup, results = self._setup, {}
    sides = {timing.PLAIN: setup.plain} | {
        name: self.side(name) for name in self._sides
    }
    [group] = requests_lib.groups(
        [request],
        1,
        vocabulary=setup.vocabulary,
        seed=setup.config.decode.seed,
        rows=setup.rows(1),
    )

    def hear(name, side, state):
      [results[name]] = outputs.results(setup.target, state, 1)

    batch, measure = group.batch, setup.config.measure
    shapes = [
        None if array is None else array.shape
        for array in (batch.source_BL, batch.prompt_BP)
    ]
    warm = str(shapes) in self._warm
    times = timing.interleave(
        sides,
        [batch],
        repeats=measure.repeats,
        warmup=0 if warm else measure.warmup,
        turn=turn,
        hear=hear,
    )
    self._warm.add(str(shapes))
    if programs.drop_many():
      self._warm.clear()
    return {
        "source": request.source,
        "prompt": request.prompt,
        "times": dataclasses.asdict(times),
        "results": {k: dataclasses.asdict(v) for k, v in results.items()},
    }


@dataclasses.dataclass(frozen=True)
class _Kept:
  """One answer of each side, as it was kept."""

  category: str
  turn: int
  example: tasks.Example
  ids: tuple[int, Any, Any]
  times: timing.Times
  results: dict[str, outputs.Result]

  @classmethod
  def of(cls, prompt: prompts_lib.Prompt, first: int, row: dict) -> "_Kept":
    """From what JSON could hold of it."""
    turn, times = row["turn"], row["times"]
    several = len(prompt.turns) > 1
    counts = {k: timing.Counts(**v) for k, v in times["counts"].items()}
    return cls(
        category=prompt.category,
        turn=turn,
        example=tasks.Example(
            f"{prompt.id} turn {turn}" if several else prompt.id,
            prompt.turns[turn - 1],
        ),
        ids=(first + turn - 1, row["source"], row["prompt"]),
        times=timing.Times(**(times | {"counts": counts})),
        results={k: _result(v) for k, v in row["results"].items()},
    )

  def request(self, setup: prepare.Setup) -> requests_lib.Request:
    """What was asked."""
    name, source, prompt = self.ids
    return requests_lib.Request(
        name,
        source and tuple(source),
        tuple(prompt),
        setup.config.settings(setup.target.module.config.ends),
        setup.config.decode.max_new_tokens,
    )


def _result(values: Mapping[str, Any]) -> outputs.Result:
  """Lists become tuples again."""
  fixed = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
  return outputs.Result(**fixed)


def _report(setups, steps, kept: Sequence[_Kept], where):
  """The report and its details, from all that was kept."""
  made, details, answers = {}, {}, {}
  for i, (name, setup) in enumerate(setups.items()):
    setup = dataclasses.replace(
        setup,
        examples=[row.example for row in kept],
        requests=[row.request(setup) for row in kept],
    )
    # One kind's rounds are enough to look at.
    traced = setup.config.measure.traced_rows if i == 0 else 0
    measured = _measured(setup, steps[name], name, kept, traced, where)
    answers[name] = _answers(name, kept, measured.mismatches)
    made[name], details[name] = report_lib.make(measured)
    made[name] |= _listed(answers[name], setup.config.greedy)
  first = next(iter(setups))
  greedy = setups[first].config.greedy
  by = lambda key: categories.grouped(answers, key, greedy)
  own = lambda values, shared: {
      k: v for k, v in values.items() if k not in shared
  }
  report = made[first] | {
      "categories": by(lambda row: row.category),
      "turns": by(lambda row: row.turn),
      "drafters": {
          name: own(each, _SHARED) | {"draft": each["config"]["draft"]}
          for name, each in made.items()
      },
  }
  return report, details[first] | {
      "drafters": {
          name: own(each, ("versions", "command", "date", "trace"))
          for name, each in details.items()
      },
      "answers": list(map(_detail, kept)),
  }


def _measured(setup, steps, name, kept, traced: int, where):
  """All that was measured of one kind of drafts."""
  plain = [row.results[timing.PLAIN] for row in kept]
  speculative = [row.results[name] for row in kept]
  mismatches = None
  if setup.config.greedy:
    mismatches = experiment.mismatches(setup, plain, speculative)
  mean, positions = experiment.alpha(setup, plain)
  drafter = setup.drafts.drafter
  return report_lib.Measured(
      config=setup.config,
      examples=setup.examples,
      plain=plain,
      speculative=speculative,
      mismatches=mismatches,
      alpha=mean,
      positions=positions,
      timed_alpha=mean,
      gamma=drafter.depth,
      nodes=drafter.nodes,
      widths=drafter.widths,
      tree=setup.drafts.tree,
      steps=steps,
      times=categories.total(_answers(name, kept, None)),
      timed_rows=len(kept),
      traced=experiment.traces(setup, traced if drafter.depth else 0),
      pieces=setup.target.tokenizer.shown,
      where=where,
  )


def _answers(name, kept, mismatches) -> list[categories.Answer]:
  """Of one kind of drafts."""
  found = {mismatch.row: mismatch for mismatch in mismatches or ()}
  return [
      categories.Answer(
          category=row.category,
          turn=row.turn,
          plain=row.results[timing.PLAIN],
          speculative=row.results[name],
          times=row.times.against_plain(name),
          mismatch=found.get(i),
      )
      for i, row in enumerate(kept)
  ]


def _listed(answers, greedy: bool) -> dict[str, Any]:
  """What a table of categories has of all that a report has not."""
  made = categories.figures(answers, greedy)
  return {key: made[key] for key in ("answers", "tokens", "near_ties")}


def _detail(row: _Kept) -> dict[str, Any]:
  """One answer's own figures."""
  _, source, prompt = row.ids
  return {
      "id": row.example.id,
      "category": row.category,
      "turn": row.turn,
      "prompt_tokens": len(source or prompt),
      "prefill_seconds": row.times.prefill,
      "decode_seconds": row.times.decode,
      "tokens": {k: len(v.tokens) for k, v in row.results.items()},
      "rounds": {k: v.rounds for k, v in row.results.items()},
  }
