"""Text in, text out: a target, a source of drafts, and lists of strings.

    target = load("mini/target")
    drafts = drafts_lib.draft_model(target, "mini/small", gamma=5)
    decoder = Decoder(target, drafts)
    for result in decoder(["translate English to German: A fast editor."]):
      print(result.text, result.rounds)
"""

import dataclasses
from typing import Callable, Sequence

from specjax import checkpoints
from specjax import checks
from specjax import drafts as drafts_lib
from specjax import errors
from specjax import outputs as outputs_lib
from specjax import settings as settings_lib
from specjax import stream as stream_lib
from specjax.checkpoints import chat as chat_lib
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.decoding import side as side_lib
from specjax.verify import rule as rule_lib
from specjax.verify import token
from specjax.verify import tree as tree_rule

load = checkpoints.load


def make_requests(
    target: checkpoints.Checkpoint,
    texts: Sequence[chat_lib.Said],
    settings: settings_lib.Settings,
    *,
    max_new_tokens: int,
    ids: Sequence[int] | None = None,
    max_source_tokens: int = 512,
    chat: bool | None = None,
    mask=None,
) -> list[requests_lib.Request]:
  """Texts -> requests: what an encoder reads, or a decoder-only model's prompt.

  Args:
    target: whose tokenizer and start token are used.
    texts: with their task's prefix; or conversations, lists of messages as
      {"role": "user", "content": "Good morning."}, the last of them a user's.
    settings: sampling of all of them; eos None is the model's own.
    max_new_tokens: budget of each.
    ids: of the requests; 0, 1, ... where None.
    max_source_tokens: longer texts are cut, at their end; 2 or more.
    chat: put texts in the model's chat template; None where it has one.
    mask: texts are token ids then, padded left or right to one array, and this
      is True, or 1, at those that count. They are taken as they are.

  Raises:
    errors.UserError: a text is empty or no string, or another argument does
      not fit; the message names it.
  """
  if isinstance(texts, str):
    raise errors.UserError("texts: give a list of strings, got one string")
  if mask is not None:
    errors.require(not chat, "chat", "token ids stay as they are", chat)
    texts = requests_lib.unpad(texts, mask)
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
  if mask is None:
    for i, said in enumerate(texts):
      chat_lib.check(i, said)
    questions = target.ask(texts, max_source_tokens, chat)
  else:
    questions = target.ask_ids(texts)
  config = target.module.config
  if settings.eos is None:
    settings = dataclasses.replace(settings, eos=config.ends)
  rows = [
      requests_lib.Request(i, *asked, settings, max_new_tokens)
      for i, asked in zip(
          range(len(texts)) if ids is None else ids, questions
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
) -> tuple[list[outputs_lib.Result], side_lib.Side]:
  """Decodes batch by batch; drafts that learn do so after each of them.

  Args:
    target: whose tokenizer makes texts of ids.
    side: drafts or none.
    groups: from decoding.requests.
    tick: called after each batch.

  Returns:
    Results in the order of the requests, and the side as it is now.
  """
  out = {}
  for group in groups:
    state = side.run(side.prefill(group.batch))
    read = outputs_lib.results(target, state, len(group.rows))
    out.update(zip(group.rows, read))
    side = side.adopt(state)
    tick()
  return [out[i] for i in range(len(out))], side


@dataclasses.dataclass(frozen=True)
class Decoder:
  """Decodes lists of strings.

  Compiles once for each number of rows (`batch`, or fewer texts), padded
  width of source or prompt (64, 96, 128, ...), max_new_tokens and number of
  EOS ids, and once more for streams; other settings, seeds and texts cost
  nothing. What drafts have learnt in one call they know in the next.

  Attributes:
    target: whose law comes out.
    drafts: where drafts come from; drafts.NO_DRAFTS is plain decoding.
    rule: how they are judged; None is without loss, token by token.
    batch: rows decoded at a time.

  Raises:
    errors.UserError: an attribute is of another kind; the message names it.
  """

  target: checkpoints.Checkpoint
  drafts: drafts_lib.Drafts = drafts_lib.NO_DRAFTS
  rule: rule_lib.Rule | None = None
  batch: int = 8

  def __post_init__(self):
    for field, kind, remedy in (
        ("target", checkpoints.Checkpoint, 'load("mini/target")'),
        (
            "drafts",
            drafts_lib.Drafts,
            'draft_model(target, "mini/small", gamma=4)',
        ),
    ):
      value = getattr(self, field)
      errors.require(
          isinstance(value, kind), field, f"give {remedy} or alike", value
      )
    good = checks.is_whole(self.batch, 1)
    errors.require(good, "batch", "give 1 or more", self.batch)

  def __call__(
      self,
      texts: Sequence[chat_lib.Said],
      settings: settings_lib.Settings = settings_lib.Settings(),
      *,
      max_new_tokens: int = 128,
      max_source_tokens: int = 512,
      chat: bool | None = None,
      mask=None,
      ids: Sequence[int] | None = None,
      seed: int = 0,
      log_probs: bool = False,
      trace: bool = False,
  ) -> list[outputs_lib.Result]:
    """Decodes `texts`.

    Args:
      texts: with their task's prefix; or conversations, see make_requests.
      settings: temperature 0 is greedy.
      max_new_tokens: budget of each.
      max_source_tokens: longer texts are cut, at their end.
      chat: put texts in the model's chat template; None where it has one.
      mask: of token ids in the place of texts, see make_requests.
      ids: of the requests; a text keeps its random numbers with its id.
      seed: of the run.
      log_probs: also report each token's log-probabilities.
      trace: also report each round, as a rule with a trace does anyway.

    Returns:
      One Result a text, in order.

    Raises:
      errors.UserError: an argument does not fit; the message names it.
    """
    side, groups = self._begin(
        texts,
        settings,
        max_new_tokens=max_new_tokens,
        max_source_tokens=max_source_tokens,
        chat=chat,
        mask=mask,
        ids=ids,
        seed=seed,
        log_probs=log_probs,
        trace=trace,
    )
    results, side = decode(self.target, side, groups)
    self.drafts.params = side.drafter_params
    return results

  def stream(
      self,
      text: chat_lib.Said,
      settings: settings_lib.Settings = settings_lib.Settings(),
      *,
      max_new_tokens: int = 128,
      every: int = 1,
      **options,
  ) -> stream_lib.Stream:
    """Decodes one text, as a call does, and gives it piece by piece.

    Args:
      text: or a conversation.
      settings: temperature 0 is greedy.
      max_new_tokens: budget.
      every: rounds from one look at what is new to the next.
      **options: further ones of a call.

    Returns:
      An iterator of pieces, which joined are the text; see stream.Stream.

    Raises:
      errors.UserError: an argument does not fit; the message names it.
    """
    errors.require(checks.is_whole(every, 1), "every", "give 1 or more", every)
    options["max_new_tokens"] = max_new_tokens
    side, [group] = self._begin([text], settings, **options)

    def learn(state):
      # Other texts may have ended in the meantime.
      now = dataclasses.replace(side, drafter_params=self.drafts.params)
      self.drafts.params = now.adopt(state).drafter_params

    return stream_lib.Stream(self.target, side, group.batch, every, learn)

  def _begin(
      self, texts, settings, *, seed=0, log_probs=False, trace=False, **options
  ) -> tuple[side_lib.Side, list[requests_lib.Group]]:
    """What decodes, and the batches; `options` are of make_requests."""
    requests = make_requests(self.target, texts, settings, **options)
    rule = self.rule
    if rule is None:
      branches = self.drafts.drafter.trees
      rule = tree_rule.TreeRule() if branches else token.TokenRule()
    trace = trace or rule.trace
    side = side_lib.Side(
        loop_lib.Loop(
            self.target.module,
            self.drafts.drafter,
            dataclasses.replace(rule, trace=trace),
            log_probs=log_probs,
            trace=trace,
        ),
        self.target.params,
        self.drafts.params,
        options["max_new_tokens"],
    )
    groups = requests_lib.groups(
        requests,
        min(self.batch, max(1, len(requests))),
        vocabulary=self.target.module.config.vocab_size,
        seed=seed,
    )
    return side, groups
