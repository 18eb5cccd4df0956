"""From a config to all that a run needs: models, texts, both ways to decode."""

import contextlib
import dataclasses
import functools
import sys
from typing import Any, Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from specjax import checkpoints
from specjax import draft_section
from specjax import drafts as drafts_lib
from specjax import errors
from specjax import fetch
from specjax import heads
from specjax import hosts
from specjax import outputs
from specjax import pipeline
from specjax import sections
from specjax import settings as settings_lib
from specjax import sharding
from specjax.data import metrics
from specjax.data import tasks
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.decoding import side as side_lib
from specjax.drafters import ngram
from specjax.measure import steps as steps_lib


@dataclasses.dataclass(frozen=True)
class Setup:
  """All that a run needs, loaded.

  Attributes:
    config: as it was asked for.
    target: the model whose law comes out.
    drafts: where drafts come from.
    examples: the texts.
    requests: the same as ids.
    output: what plain decoding gives, where that is known; else None.
    costs: what was measured for draft.switch, c and v, by what it is of; one
      dict for all setups that were made of this one.
    devices: to lie on; of those that there are the first where None.
  """

  config: sections.Experiment
  target: checkpoints.Checkpoint
  drafts: drafts_lib.Drafts
  examples: list[tasks.Example]
  requests: list[requests_lib.Request]
  output: list[outputs.Result] | None = None
  costs: dict[str, Any] = dataclasses.field(default_factory=dict)
  devices: Sequence[jax.Device] | None = None

  @property
  def vocabulary(self) -> int:
    """V."""
    return self.target.module.config.vocab_size

  @property
  def layout(self) -> sharding.Layout | None:
    """Where everything lies on several devices; None is a single one."""
    return layout(self.config, self.devices)

  def rows(self, requests: int) -> int:
    """B of a batch of so many: the layout may ask for more than there are."""
    return self.layout.rows(requests) if self.layout else requests

  def side(self, drafts: drafts_lib.Drafts) -> side_lib.Side:
    """Decoding with these drafts."""
    return side_lib.Side(
        loop_lib.Loop(
            self.target.module,
            drafts.drafter,
            self.config.rule(),
            chunk=self.config.decode.prefill_chunk,
            layout=self.layout,
        ),
        self.target.params,
        drafts.params,
        self.config.decode.max_new_tokens,
    )

  @property
  def plain(self) -> side_lib.Side:
    """Decoding without drafts."""
    return self.side(drafts_lib.NO_DRAFTS)

  @property
  def speculative(self) -> side_lib.Side:
    """Decoding with the drafts."""
    return self.side(self.drafts)

  def groups(self, rows: int) -> list[requests_lib.Group]:
    """The first rows as batches of few shapes, `decode.batch` at a time."""
    options = self.config.decode
    return requests_lib.groups(
        self.requests[:rows],
        options.batch,
        vocabulary=self.vocabulary,
        seed=options.seed,
        rows=self.rows(options.batch),
    )

  @property
  def usual(self) -> requests_lib.Batch:
    """A batch of the middle width, which stands for all."""
    batches = self.groups(len(self.requests))
    return batches[len(batches) // 2].batch

  def decode(
      self,
      side: side_lib.Side,
      tick: Callable[[], None] = lambda: None,
      rows: int | None = None,
  ) -> list[outputs.Result]:
    """The first `rows` rows, or all, decoded; `tick` hears of each batch."""
    return self.decode_and_learn(side, tick, rows)[0]

  def decode_and_learn(
      self,
      side: side_lib.Side,
      tick: Callable[[], None] = lambda: None,
      rows: int | None = None,
  ) -> tuple[list[outputs.Result], side_lib.Side]:
    """The same, and the side whose drafts have learnt from all of it."""
    groups = self.groups(len(self.requests) if rows is None else rows)
    return pipeline.decode(self.target, side, groups, tick)

  def save_responses(self, side: side_lib.Side) -> None:
    """Writes what a side's drafts know to draft.suffix.save, where asked."""
    draft = self.config.draft
    if draft.copied == "suffix" and draft.suffix.save and hosts.first():
      drafts = drafts_lib.Drafts(side.loop.drafter, side.drafter_params)
      save = lambda: drafts_lib.save_responses(
          self.target, drafts, draft.suffix.save
      )
      errors.within("draft.suffix", save)

  def single(self, row: int, tokens: Sequence[int]):
    """One row with what plain decoding made of it: batch, text_BS, count."""
    request = self.requests[row]
    batch = requests_lib.make_batch(
        [request],
        vocabulary=self.vocabulary,
        seed=self.config.decode.seed,
        prompt_width=requests_lib.padded_prompt(len(request.prompt)),
    )
    text = request.prompt + tuple(tokens)
    width = batch.prompt_BP.shape[1] + self.config.decode.max_new_tokens
    text_BS = jnp.asarray([text + (0,) * (width - len(text))], jnp.int32)
    return batch, text_BS, len(tokens)


@contextlib.contextmanager
def enough_memory() -> Iterator[None]:
  """Tells what to do where the device has too little memory.

  Raises:
    errors.UserError: in place of what JAX raises then.
  """
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise errors.UserError(
        "the device has too little memory: give a smaller decode.batch,"
        " decode.dtype=bfloat16, or a smaller target.checkpoint"
    ) from None


def bar(name: str, total: int) -> tqdm.tqdm:
  """A bar that shows how far a phase of `total` ticks is."""
  # In a log every refresh is a line of its own.
  often = 0.1 if sys.stderr.isatty() else 30.0
  return tqdm.tqdm(
      total=total,
      desc=f"{name:10}",
      leave=False,
      mininterval=often,
      disable=not hosts.first(),
  )


def layout(
    config: sections.Experiment, devices: Sequence[jax.Device] | None = None
) -> sharding.Layout | None:
  """Where a config has everything lie; see sharding.layout."""
  mesh = config.mesh
  return sharding.layout(mesh.data, mesh.model, mesh.draft, devices)


def drawing(draft: draft_section.Draft) -> dict[str, Any]:
  """Options of drafters that draw from a law."""
  keys = ("argmax", "temperature", "top_k", "top_p")
  return {key: getattr(draft, key) for key in keys}


def of_a_model(config: sections.Experiment) -> dict[str, Any]:
  """Options of a draft model's drafter, besides gamma."""
  return drawing(config.draft) | {
      "chunk": config.decode.prefill_chunk,
      "confidence": config.draft.confidence,
  }


def _model(setup: Setup, gamma: int | None = None) -> drafts_lib.Drafts:
  config, where = setup.config, setup.layout
  # A draft that is whole in every device is loaded on one, and copied.
  spread = where is not None and where.drafts == sharding.SHARDED
  return drafts_lib.draft_model(
      setup.target,
      config.draft.checkpoint,
      config.draft.gamma if gamma is None else gamma,
      dtype=jnp.dtype(config.decode.dtype),
      hint=fetch.HINT,
      layout=where if spread else None,
      **of_a_model(config),
  )


def _eagle(setup: Setup) -> drafts_lib.Drafts:
  draft = setup.config.draft
  make = lambda: drafts_lib.draft_eagle(
      setup.target,
      draft.heads,
      draft.gamma,
      dtype=jnp.dtype(setup.config.decode.dtype),
      chunk=setup.config.decode.prefill_chunk,
      **drawing(draft),
  )
  return errors.within("draft", make)


def branched(
    drafts: drafts_lib.Drafts, draft: draft_section.Draft
) -> drafts_lib.Drafts:
  """Drafts that a config may ask to be trees."""
  shape, options = draft.topology(), draft.dynamic
  if options.nodes:
    return drafts_lib.draft_dynamic(drafts, **dataclasses.asdict(options))
  if shape is None:
    return drafts
  return errors.within(
      "draft", lambda: drafts_lib.draft_tree(drafts, shape, draft.siblings)
  )


def _branching(
    make: Callable[[Setup], drafts_lib.Drafts], setup: Setup
) -> drafts_lib.Drafts:
  return branched(make(setup), setup.config.draft)


def _ngrams(order: int, setup: Setup) -> drafts_lib.Drafts:
  draft = setup.config.draft
  make = lambda: drafts_lib.draft_ngrams(
      setup.target, draft.table, draft.gamma, order=order, **drawing(draft)
  )
  return errors.within("draft", make)


def _lookup(setup: Setup) -> drafts_lib.Drafts:
  draft = setup.config.draft
  options = dataclasses.asdict(draft.lookup)
  return drafts_lib.draft_lookup(draft.gamma, **options)


def _suffix(setup: Setup) -> drafts_lib.Drafts:
  """Suffix drafts; responses that hold the answers are no fair beginning."""
  draft = setup.config.draft
  options = dataclasses.asdict(draft.suffix)
  del options["save"]
  make = lambda: drafts_lib.draft_suffix(setup.target, draft.gamma, **options)
  drafts = errors.within("draft.suffix", make)
  decode = setup.target.tokenizer.decode
  known = [decode(ids.tolist()) for ids in drafts_lib.responses(drafts)]
  answers = {row.id: row.reference for row in setup.examples if row.reference}
  found = metrics.overlap(known, answers)
  if found:
    raise errors.UserError(
        f"draft.suffix.load: {len(found)} of {len(answers)} references are"
        f" among the responses ({errors.shown(found)}); give responses to other"
        " texts"
    )
  return drafts


# draft.mixed.copies -> makes drafts that copy all they can.
_COPIES = {"lookup": _lookup, "suffix": _suffix}


def _copied(setup: Setup) -> drafts_lib.Drafts:
  """Drafts that copy, as many as there are or as pay."""
  draft = setup.config.draft
  copies = _COPIES[draft.kind](setup)
  return _switched(setup, copies) if draft.switched else copies


def _mixed(setup: Setup) -> drafts_lib.Drafts:
  """Mixed drafts, likewise."""
  draft = setup.config.draft
  copies = _COPIES[draft.mixed.copies](setup)
  model = _model(setup, draft.mixed.model_gamma) if draft.mixed.model else None
  if draft.switched:
    return _switched(setup, copies, model)
  return drafts_lib.draft_mixed(copies, model)


def _switched(
    setup: Setup,
    copies: drafts_lib.Drafts,
    model: drafts_lib.Drafts | None = None,
) -> drafts_lib.Drafts:
  """The drafts of both that pay; their costs are measured where not given."""
  draft, measure = setup.config.draft, setup.config.measure
  how = dict(steps=measure.steps, repeats=measure.step_repeats)

  def measured(name, make):
    if name not in setup.costs:
      # Every host must draft alike.
      setup.costs[name] = hosts.agreed(make())
    return setup.costs[name]

  def of(drafts):
    """c of a drafter."""
    sides = setup.plain, setup.side(drafts)
    return steps_lib.measure(*sides, setup.usual, **how).c

  c, matching, v = draft.switch.c, draft.switch.matching, draft.switch.v
  if c is None and model:
    c = measured(
        f"c {draft.checkpoint} {draft.mixed.model_gamma}", lambda: of(model)
    )
  if matching is None:
    matching = draft.gamma * measured(
        f"c {draft.copied} {draft.gamma} {getattr(draft, draft.copied)}",
        lambda: of(copies),
    )
  if v is None:
    widths = drafts_lib.draft_mixed(copies, model).drafter.widths
    costs = lambda: steps_lib.verify_costs(
        setup.plain, setup.usual, widths, **how
    )
    # One timing has its noise; a wider pass is not meant to be the cheaper one.
    v = measured(
        f"v {widths}", lambda: np.maximum.accumulate(costs()).tolist()
    )
  return drafts_lib.draft_mixed(
      copies,
      model,
      c=c or 0.0,
      matching=matching,
      v=v,
      switch=setup.config.draft.make_switch(),
  )


def _simulated(setup: Setup) -> drafts_lib.Drafts:
  """Drafts that replay `output`, as the passes that verify it have it.

  Those are wider than plain decoding's and round otherwise: in bfloat16 few
  texts come out of both. A row that left its text would draft no more.
  """

  draft = setup.config.draft

  def replaying(results, *how):
    rows = zip(setup.requests, results)
    texts = {row.id: row.prompt + result.tokens for row, result in rows}
    return drafts_lib.draft_simulated(texts, draft.gamma, *how)

  wide = setup.decode(setup.side(replaying(setup.output, 1.0)))
  source = _model(setup) if draft.paced else None
  return replaying(wide, draft.alpha, source)


def _medusa(setup: Setup) -> drafts_lib.Drafts:
  draft, shape = setup.config.draft, setup.config.draft.topology()
  make = lambda: drafts_lib.draft_medusa(
      setup.target, draft.heads, draft.gamma, shape
  )
  return errors.within("draft", make)


# draft.kind -> makes drafts of a Setup that has none yet.
DRAFTS: dict[str, Callable[[Setup], drafts_lib.Drafts]] = {
    "model": functools.partial(_branching, _model),
    "eagle": functools.partial(_branching, _eagle),
    "bigram": functools.partial(
        _branching, functools.partial(_ngrams, ngram.BIGRAM)
    ),
    "unigram": functools.partial(
        _branching, functools.partial(_ngrams, ngram.UNIGRAM)
    ),
    "lookup": _copied,
    "suffix": _copied,
    "mixed": _mixed,
    "medusa": _medusa,
    "simulated": _simulated,
    "none": lambda setup: drafts_lib.NO_DRAFTS,
}


def prepare(
    config: sections.Experiment,
    target: checkpoints.Checkpoint | None = None,
    examples: Sequence[tasks.Example] | None = None,
) -> Setup:
  """Loads what the config names; what is missing is told before the weights.

  Args:
    config: of the run.
    target: what the config names, where it was loaded before.
    examples: in place of the texts that it names.

  Raises:
    errors.UserError: something can't be had, or does not fit.
  """
  errors.require(
      config.hosts.count == 1 or jax.distributed.is_initialized(),
      "hosts.count",
      "give 1: only specjax.run takes several processes",
      config.hosts.count,
  )
  where = layout(config)
  examples = fetch.fetch(config, examples)
  if target is None:
    target = checkpoints.load(
        config.target.checkpoint,
        jnp.dtype(config.decode.dtype),
        hint=fetch.HINT,
        layout=where,
    )
  elif where:
    params = jax.tree.map(
        jax.device_put, target.params, where.target(target.params)
    )
    target = dataclasses.replace(target, params=params)
  vocabulary = target.module.config.vocab_size
  settings = config.settings(target.module.config.ends)
  errors.within("decode", lambda: settings_lib.stack([settings], vocabulary))
  requests = pipeline.make_requests(
      target,
      [example.source for example in examples],
      settings,
      max_new_tokens=config.decode.max_new_tokens,
      max_source_tokens=config.data.max_source_tokens,
      chat=config.data.chat,
  )
  # What a host is, and where one of them writes, is its own.
  asked = dataclasses.replace(config, hosts=sections.Hosts(), out="")
  hosts.check_same(options=asked, texts=requests)
  return with_drafts(
      Setup(config, target, drafts_lib.NO_DRAFTS, examples, requests),
      config.draft,
  )


def with_drafts(setup: Setup, draft: draft_section.Draft) -> Setup:
  """The same target and texts with these drafts.

  Raises:
    errors.UserError: they can't be had, or do not fit.
  """
  config = dataclasses.replace(setup.config, draft=draft)
  setup = dataclasses.replace(setup, config=config, drafts=drafts_lib.NO_DRAFTS)
  if draft.kind == "simulated":
    batches = setup.groups(len(setup.requests))
    with bar("to replay", len(batches)) as progress:
      output = setup.decode(setup.plain, progress.update)
    setup = dataclasses.replace(setup, output=output)
  drafts = DRAFTS[draft.kind](setup)
  if setup.layout:
    params = heads.placed(drafts.params, ())
    params = jax.tree.map(
        jax.device_put, params, setup.layout.draft(params)
    )
    params = heads.placed(params, setup.target.params)
    drafts = drafts_lib.Drafts(drafts.drafter, params)
  return dataclasses.replace(setup, drafts=drafts)
