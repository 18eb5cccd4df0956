"""Text in, text out: a target, a source of drafts, and lists of strings.

    target = load("mini/target")
    decoder = Decoder(target, draft_model(target, "mini/small", gamma=5))
    for result in decoder(["translate English to German: A fast editor."]):
      print(result.text, result.rounds)
"""

import dataclasses
from typing import Any, Callable, Mapping, Sequence

import jax.numpy as jnp

from specjax import checkpoints
from specjax import checks
from specjax import errors
from specjax import outputs as outputs_lib
from specjax import settings as settings_lib
from specjax.checkpoints import ngrams
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.decoding import side as side_lib
from specjax.drafters import model as model_drafter
from specjax.drafters import ngram
from specjax.drafters import none
from specjax.drafters import simulated
from specjax.verify import token

load = checkpoints.load


@dataclasses.dataclass(frozen=True)
class Drafts:
  """A source of drafts with its parameters."""

  drafter: Any
  params: Any


NO_DRAFTS = Drafts(none.NoDrafter(), ())


def draft_model(
    target: checkpoints.Checkpoint,
    name: str,
    gamma: int,
    *,
    dtype=jnp.float32,
    hint: str = "mini/small is a draft that ships with the package",
    **options,
) -> Drafts:
  """Drafts by a smaller model.

  Args:
    target: the model they are for.
    name: of the draft checkpoint, as `load` takes it.
    gamma: tokens a round.
    dtype: of the draft model.
    hint: what a person can do where the draft can't be had.
    **options: further fields of drafters.model.ModelDrafter.

  Raises:
    errors.UserError: it can't be had, or its tokenizer is not the target's.
  """
  draft = load(name, dtype, hint=hint)
  tokenizer_lib.check_same(target.tokenizer, draft.tokenizer)
  kinds = [type(each.module).__name__ for each in (target, draft)]
  if kinds[0] != kinds[1]:
    raise errors.UserError(
        f"draft: give a {kinds[0]}, which reads what the target reads, got a"
        f" {kinds[1]}"
    )
  drafter = model_drafter.ModelDrafter(draft.module, gamma, **options)
  return Drafts(drafter, draft.params)


def draft_ngrams(
    target: checkpoints.Checkpoint,
    name: str,
    gamma: int,
    *,
    order: int = ngram.BIGRAM,
    **options,
) -> Drafts:
  """Drafts from a table of unigrams and bigrams.

  Args:
    target: the model they are for.
    name: of the table, as checkpoints.ngrams.find takes it.
    gamma: tokens a round.
    order: ngram.UNIGRAM or ngram.BIGRAM.
    **options: further fields of drafters.ngram.NgramDrafter.

  Raises:
    errors.UserError: it can't be had, or was counted with another vocabulary.
  """
  drafter = ngram.NgramDrafter(order, gamma, **options)
  return Drafts(drafter, ngrams.load(name, target.tokenizer).on_device())


def draft_simulated(
    texts: Mapping[int, Sequence[int]], gamma: int, alpha: float
) -> Drafts:
  """Drafts that replay plain decoding's greedy output, right at a given rate.

  Args:
    texts: request id -> its prompt and plain decoding's new tokens.
    gamma: tokens a round.
    alpha: chance of each drafted token to be right, in [0, 1].

  Raises:
    errors.UserError: gamma or alpha is out of its range, or there is nothing
      to replay.
  """
  errors.require(
      checks.is_number(alpha) and 0 <= alpha <= 1,
      "alpha",
      "give a number from 0 to 1",
      alpha,
  )
  errors.require(bool(texts), "texts", "give at least one", texts)
  texts = {name: tuple(text) for name, text in texts.items()}
  drafter = simulated.SimulatedDrafter(gamma)
  return Drafts(drafter, simulated.replay(texts, alpha))


def make_requests(
    target: checkpoints.Checkpoint,
    texts: Sequence[str],
    settings: settings_lib.Settings,
    *,
    max_new_tokens: int,
    ids: Sequence[int] | None = None,
    max_source_tokens: int = 512,
    chat: bool | None = None,
) -> list[requests_lib.Request]:
  """Texts -> requests: what an encoder reads, or a decoder-only model's prompt.

  Args:
    target: whose tokenizer and start token are used.
    texts: with their task's prefix.
    settings: sampling of all of them; eos None is the model's own.
    max_new_tokens: budget of each.
    ids: of the requests; 0, 1, ... where None.
    max_source_tokens: longer texts are cut, at their end; 2 or more.
    chat: put texts in the model's chat template; None where it has one.

  Raises:
    errors.UserError: a text is empty or no string, or another argument does
      not fit; the message names it.
  """
  if isinstance(texts, str):
    raise errors.UserError("texts: give a list of strings, got one string")
  texts = list(texts)
  errors.require(
      checks.is_whole(max_source_tokens, 2),
      "max_source_tokens",
      "give 2 or more",
      max_source_tokens,
  )
  if ids is not None and len(ids) != len(texts):
    raise errors.UserError(
        f"ids: give one a text, got {len(ids)} for {len(texts)} texts"
    )
  for i, text in enumerate(texts):
    if not isinstance(text, str) or not text.strip():
      raise errors.UserError(f"texts: number {i} is empty or not a string")
    if any("\ud800" <= character <= "\udfff" for character in text):
      raise errors.UserError(
          f"texts: number {i} holds half of a surrogate pair; give Unicode text"
      )
  config = target.module.config
  if settings.eos is None:
    settings = dataclasses.replace(settings, eos=config.ends)
  rows = [
      requests_lib.Request(i, *asked, settings, max_new_tokens)
      for i, asked in zip(
          range(len(texts)) if ids is None else ids,
          target.ask(texts, max_source_tokens, chat),
      )
  ]
  for i, row in enumerate(rows):
    length = len(row.prompt) + max_new_tokens
    if config.max_positions is not None and length > config.max_positions:
      raise errors.UserError(
          f"max_new_tokens: text {i} may grow to {length} tokens, but the model"
          f" was made for {config.max_positions}; give fewer, or shorter texts"
      )
  return rows


def decode(
    target: checkpoints.Checkpoint,
    side: side_lib.Side,
    groups: Sequence[requests_lib.Group],
    tick: Callable[[], None] = lambda: None,
) -> list[outputs_lib.Result]:
  """Decodes batch by batch; results in the order of the requests.

  Args:
    target: whose tokenizer makes texts of ids.
    side: drafts or none.
    groups: from decoding.requests.
    tick: called after each batch.
  """
  out = {}
  for group in groups:
    state = side.run(side.prefill(group.batch))
    read = outputs_lib.results(target, state, len(group.rows))
    out.update(zip(group.rows, read))
    tick()
  return [out[i] for i in range(len(out))]


@dataclasses.dataclass(frozen=True)
class Decoder:
  """Decodes lists of strings.

  Compiles once for each number of rows (`batch`, or fewer texts), padded
  width of source or prompt (64, 128, 256, ...), max_new_tokens and number of
  EOS ids; other settings, seeds and texts cost nothing.

  Attributes:
    target: whose law comes out.
    drafts: where drafts come from; NO_DRAFTS is plain decoding.
    rule: how they are judged.
    batch: rows decoded at a time.

  Raises:
    errors.UserError: an attribute is of another kind; the message names it.
  """

  target: checkpoints.Checkpoint
  drafts: Drafts = NO_DRAFTS
  rule: token.TokenRule = token.TokenRule()
  batch: int = 8

  def __post_init__(self):
    for field, kind, remedy in (
        ("target", checkpoints.Checkpoint, 'load("mini/target")'),
        ("drafts", Drafts, 'draft_model(target, "mini/small", gamma=4)'),
    ):
      value = getattr(self, field)
      errors.require(
          isinstance(value, kind), field, f"give {remedy} or alike", value
      )
    good = checks.is_whole(self.batch, 1)
    errors.require(good, "batch", "give 1 or more", self.batch)

  def __call__(
      self,
      texts: Sequence[str],
      settings: settings_lib.Settings = settings_lib.Settings(),
      *,
      max_new_tokens: int = 128,
      max_source_tokens: int = 512,
      chat: bool | None = None,
      ids: Sequence[int] | None = None,
      seed: int = 0,
      log_probs: bool = False,
      trace: bool = False,
  ) -> list[outputs_lib.Result]:
    """Decodes `texts`.

    Args:
      texts: with their task's prefix.
      settings: temperature 0 is greedy.
      max_new_tokens: budget of each.
      max_source_tokens: longer texts are cut, at their end.
      chat: put texts in the model's chat template; None where it has one.
      ids: of the requests; a text keeps its random numbers with its id.
      seed: of the run.
      log_probs: also report each token's log-probabilities.
      trace: also report each round, as a rule with a trace does anyway.

    Returns:
      One Result a text, in order.

    Raises:
      errors.UserError: an argument does not fit; the message names it.
    """
    requests = make_requests(
        self.target,
        texts,
        settings,
        max_new_tokens=max_new_tokens,
        max_source_tokens=max_source_tokens,
        chat=chat,
        ids=ids,
    )
    trace = trace or self.rule.trace
    side = side_lib.Side(
        loop_lib.Loop(
            self.target.module,
            self.drafts.drafter,
            dataclasses.replace(self.rule, trace=trace),
            log_probs=log_probs,
            trace=trace,
        ),
        self.target.params,
        self.drafts.params,
        max_new_tokens,
    )
    groups = requests_lib.groups(
        requests,
        min(self.batch, max(1, len(requests))),
        vocabulary=self.target.module.config.vocab_size,
        seed=seed,
    )
    return decode(self.target, side, groups)
