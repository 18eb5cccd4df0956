"""What a run can be told: one frozen dataclass a section, checked on entry.

These dataclasses are the only list of options; `config` makes the ConfigDict
that config files and flags fill in, and turns it back.
"""

import dataclasses
import functools
import math
import re
from typing import Callable, TypeVar

from specjax import checks
from specjax import errors
from specjax import settings as settings_lib
from specjax import sharding
from specjax import topology as topology_lib
from specjax.checkpoints import published
from specjax.data import tasks
from specjax.drafters import chain
from specjax.drafters import copies as copies_lib
from specjax.drafters import dynamic
from specjax.drafters import lookup
from specjax.drafters import suffix_dynamic
from specjax.drafters import switch as switch_lib
from specjax.drafters import tree as tree_drafter
from specjax.models import reading
from specjax.verify import block
from specjax.verify import rule as rule_lib
from specjax.verify import token
from specjax.verify import tree
from specjax.verify import typical

KINDS = (
    "model", "bigram", "unigram", "lookup", "suffix", "mixed", "medusa",
    "eagle", "simulated", "none",
)
COPIES = ("lookup", "suffix")
# Kinds whose drafts are drawn from a law.
LAWS = ("model", "eagle", "bigram", "unigram")
# Kinds of heads that read the target's states.
HEADS = ("medusa", "eagle")
# Kinds whose drafts may be trees.
TREES = ("medusa", *LAWS)
RULES = ("token", "block", "typical")
# T5 overflows in float16.
DTYPES = ("float32", "bfloat16")
# Option -> least and most. Buffers are sized by some of these numbers: beyond
# the upper ends no device holds them, or 32 bits don't.
LIMITS = {
    "draft.gamma": chain.GAMMAS,
    "draft.mixed.model_gamma": chain.GAMMAS,
    "draft.suffix.memory": (0, 2**24),
    "data.rows": (0, 10**9),
    "data.max_source_tokens": (2, 2**16),
    "decode.max_new_tokens": (1, 2**16),
    "decode.min_new_tokens": (0, 2**16),
    "decode.batch": (1, 2**16),
    "decode.seed": (0, 2**32 - 1),
    "decode.prefill_chunk": (1, 2**16),
    "mesh.data": (1, 2**16),
    "mesh.model": (1, 2**16),
    "measure.repeats": (1, 10**4),
    "measure.warmup": (1, 10**4),
    "measure.timed_rows": (0, 10**9),
    "measure.steps": (1, 10**6),
    # A row may take a hundred kilobytes of report.html.
    "measure.traced_rows": (0, 1000),
}
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Target:
  """The model whose law comes out."""

  checkpoint: str = "mini/target"


@dataclasses.dataclass(frozen=True)
class Lookup:
  """Prompt lookup; see drafters.lookup.LookupDrafter.

  Attributes:
    min_n: of the shortest n-gram that may match.
    max_n: of the longest.
    latest: of several matches take the last one, else the first.
    source: look into the source, too; for outputs in its language.
  """

  min_n: int = 1
  max_n: int = 3
  latest: bool = False
  source: bool = True


@dataclasses.dataclass(frozen=True)
class Suffix:
  """Suffix decoding; see drafters.suffix.SuffixDrafter.

  Attributes:
    nodes: of a tree of drafts, at most, for kind suffix; draft.gamma is its
      depth. 0 drafts a path. See drafters.suffix_dynamic.SuffixTreeDrafter.
    reach: tokens of a context and what follows it, at most.
    factor: longer contexts are followed by more tokens ...
    offset: ... and by so many more.
    least: probability of a path, at least.
    source: the source is part of the text; for outputs in its language.
    learns: finished responses serve the requests after them.
    memory: tokens of those; 0 keeps none.
    load: file of responses to begin with.
    save: file that all responses go to at the end of a run.
  """

  nodes: int = 0
  reach: int = 64
  factor: float = 1.0
  offset: float = 0.0
  least: float = 0.1
  source: bool = True
  learns: bool = True
  memory: int = 2**16
  load: str = ""
  save: str = ""


@dataclasses.dataclass(frozen=True)
class Dynamic:
  """Trees that follow the text; see drafters.dynamic.DynamicTreeDrafter.

  Attributes:
    nodes: that are proposed; 0 is no such tree.
    top_k: nodes of a level that are read, and tokens below each.
    depth: levels.
  """

  nodes: int = 0
  top_k: int = 10
  depth: int = 6


@dataclasses.dataclass(frozen=True)
class Mixed:
  """Drafts that are copied or drawn; see drafters.mixed.MixedDrafter.

  Attributes:
    copies: one of COPIES; their options are in its own section.
    model: draft.checkpoint drafts where nothing can be copied.
    model_gamma: tokens a round of that model.
  """

  copies: str = "lookup"
  model: bool = True
  model_gamma: int = 3


@dataclasses.dataclass(frozen=True)
class Switch:
  """How many drafts of a round pay; see drafters.switch.Switch.

  Attributes:
    on: a row makes the drafts that pay, of kinds lookup, suffix and mixed; else
      all there are. None: of kind mixed alone.
    c: what a token of a draft model's costs, in target steps; None is measured.
    matching: what it costs to look for something to copy; likewise.
    v: what a pass over gamma + 1 tokens costs; likewise, for each width.
    credit: target steps that a row may lose ...
    share: ... and so many for each token.
    margin: what drafts are to save beyond their cost.
  """

  on: bool | None = None
  c: float | None = None
  matching: float | None = None
  v: float | None = None
  credit: float = 0.5
  share: float = 0.01
  margin: float = 0.03


@dataclasses.dataclass(frozen=True)
class Draft:
  """Where drafts come from.

  Attributes:
    kind: one of KINDS.
    checkpoint: the model, for kinds model and mixed, and for paced ones.
    table: of n-grams, for kinds bigram and unigram.
    heads: file of them, for kinds of HEADS; of kind eagle or a folder.
    alpha: how often drafts are right, for kind simulated.
    paced: simulated drafts take the steps of the draft model, too, and put
      aside what it says: they cost what drafts of it do.
    gamma: tokens a round; at most, where they are copied; of a tree, its own
      depth counts.
    tree: rank paths, or a file of them, for kinds of TREES; "" is a chain. See
      topology.read.
    siblings: how a tree's are chosen, one of drafters.tree.SIBLINGS.
    confidence: a row drafts on while its drafts are all right with this chance
      at least, by a draft model's own laws; 0: always gamma tokens.
    dynamic: in place of `tree`, one that follows the text, for kinds of LAWS.
    argmax: draft the argmax, as a point mass, at any temperature.
    temperature: of sampled drafts; None is the request's own value.
    top_k: likewise.
    top_p: likewise.
    lookup: for kinds lookup and mixed.
    suffix: for kinds suffix and mixed.
    mixed: for kind mixed.
    switch: for kinds lookup, suffix and mixed.
  """

  kind: str = "model"
  checkpoint: str = "mini/small"
  table: str = "mini/bigram"
  heads: str = "mini/medusa"
  alpha: float | None = None
  paced: bool = False
  gamma: int = 3
  tree: str = ""
  siblings: str = "top"
  confidence: float = 0.0
  dynamic: Dynamic = Dynamic()
  argmax: bool = False
  temperature: float | None = None
  top_k: int | None = None
  top_p: float | None = None
  lookup: Lookup = Lookup()
  suffix: Suffix = Suffix()
  mixed: Mixed = Mixed()
  switch: Switch = Switch()

  @property
  def name(self) -> str:
    """Kind and source, for reports."""
    copies = self.mixed.copies
    sources = {
        "model": self.checkpoint,
        "bigram": self.table,
        "unigram": self.table,
        "mixed": f"{copies}+{self.checkpoint}" if self.mixed.model else copies,
        "medusa": self.heads,
        "eagle": self.heads,
        "simulated": f"alpha={self.alpha}",
    }
    if self.paced:
      sources["simulated"] += f" at the cost of {self.checkpoint}"
    source = sources.get(self.kind)
    return f"{self.kind}:{source}" if source else self.kind

  @property
  def copied(self) -> str | None:
    """Which of COPIES there are drafts of, if any."""
    kind = self.mixed.copies if self.kind == "mixed" else self.kind
    return kind if kind in COPIES else None

  @property
  def switched(self) -> bool:
    """Whether a row makes only those copies that pay."""
    on = self.switch.on
    return self.kind == "mixed" if on is None else on

  @property
  def branches(self) -> bool:
    """Whether a round's drafts are a tree."""
    counted = self.kind == "suffix" and self.suffix.nodes
    return bool(self.tree or self.dynamic.nodes or counted)

  @property
  def has_model(self) -> bool:
    """Whether a draft model is needed."""
    mixes = self.kind == "mixed" and self.mixed.model
    return self.kind == "model" or mixes or self.paced


@dataclasses.dataclass(frozen=True)
class Data:
  """The texts.

  Attributes:
    task: one of data.tasks.TASKS.
    path: of files that it is read from.
    split: of a public dataset.
    rows: how many, from the front; 0 takes all there are.
    text: a person's own, in place of the task's.
    max_source_tokens: longer texts are cut.
    chat: put texts in the model's chat template; None where it has one.
  """

  task: str = "mini_ende"
  path: str = ""
  split: str = "test"
  rows: int = 0
  text: str = ""
  max_source_tokens: int = 512
  chat: bool | None = None


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How tokens are drawn; temperature 0 is greedy."""

  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0


@dataclasses.dataclass(frozen=True)
class Decode:
  """How much is decoded, and how; a pass reads `prefill_chunk` of a prompt."""

  max_new_tokens: int = 128
  min_new_tokens: int = 0
  suppressed: tuple = ()
  forced_first: int | None = None
  batch: int = 1
  dtype: str = "float32"
  seed: int = 0
  prefill_chunk: int = reading.CHUNK


@dataclasses.dataclass(frozen=True)
class Mesh:
  """Devices, data x model of them; see sharding.

  Attributes:
    data: groups of devices that the rows of a batch are spread over.
    model: devices of a group, over which the target is spread.
    draft: how a draft model lies in a group, one of sharding.DRAFTS.
  """

  data: int = 1
  model: int = 1
  draft: str = sharding.REPLICATED


@dataclasses.dataclass(frozen=True)
class Hosts:
  """Processes of one run, each with the devices of its host; see hosts.

  Attributes:
    count: how many; 0 asks the environment, as on a Cloud TPU or under Slurm.
    index: which of them this is.
    coordinator: address of the first one, as 10.0.0.1:1234.

  Raises:
    errors.UserError: they would not find one another.
  """

  count: int = 1
  index: int = 0
  coordinator: str = ""

  def __post_init__(self):
    errors.require(
        checks.is_whole(self.count), "hosts.count", "give 0 or more", self.count
    )
    errors.require(
        self.count < 2 or bool(re.fullmatch(r"\S+:\d+", self.coordinator)),
        "hosts.coordinator",
        "give the first process's address, as 10.0.0.1:1234",
        self.coordinator,
    )
    errors.require(
        checks.is_whole(self.index, 0, max(1, self.count) - 1),
        "hosts.index",
        f"give a number from 0 on, below hosts.count ({self.count})",
        self.index,
    )


@dataclasses.dataclass(frozen=True)
class Verify:
  """How drafts are judged.

  Attributes:
    rule: one of RULES. "token" is the token rule, of trees the tree rule;
      "block" judges drawn chains as a whole; "typical" is lossy: it changes the
      output law.
    lenience: of the token rule; below 1 it changes the output law.
    residual: likewise.
    epsilon: of typical acceptance.
    delta: likewise.
  """

  rule: str = "token"
  lenience: float = 1.0
  residual: str = "exact"
  epsilon: float = 0.09
  delta: float = 0.3


@dataclasses.dataclass(frozen=True)
class Measure:
  """How time is measured.

  Attributes:
    repeats: how often plain and speculative decoding are timed, in turn.
    warmup: calls of each shape before that; the first one compiles.
    timed_rows: rows that are timed, from the front; 0 takes all.
    steps: dependent steps in one timing of a model's step; there are up to
      eight of each step in a repeat, between the batches.
    traced_rows: rows, from the front, whose rounds report.html shows; decoded
      once more for it, untimed.
  """

  repeats: int = 5
  warmup: int = 2
  timed_rows: int = 40
  steps: int = 25
  traced_rows: int = 3


@dataclasses.dataclass(frozen=True)
class Experiment:
  """One run, whole.

  Raises:
    errors.UserError: a value is out of its range; section and key are named.
  """

  name: str = "run"
  target: Target = Target()
  draft: Draft = Draft()
  data: Data = Data()
  sampling: Sampling = Sampling()
  decode: Decode = Decode()
  mesh: Mesh = Mesh()
  hosts: Hosts = Hosts()
  verify: Verify = Verify()
  measure: Measure = Measure()
  out: str = ""

  def __post_init__(self):
    _one_of("draft.kind", self.draft.kind, KINDS)
    _one_of("decode.dtype", self.decode.dtype, DTYPES)
    _one_of("mesh.draft", self.mesh.draft, sharding.DRAFTS)
    tasks.get_task(self.data.task)
    for path, limits in LIMITS.items():
      value = functools.reduce(getattr, path.split("."), self)
      _within_limits(path, value, *limits)
    least, most = self.decode.min_new_tokens, self.decode.max_new_tokens
    if least > most:
      raise errors.UserError(
          f"decode.min_new_tokens: give decode.max_new_tokens ({most}) or"
          f" less, got {least}"
      )
    if self.draft.kind == "simulated":
      self._check_simulated()
    else:
      errors.require(
          self.draft.alpha is None,
          "draft.alpha",
          "only draft.kind=simulated has it; give that kind or no alpha",
          self.draft.alpha,
      )
      errors.require(
          not self.draft.paced,
          "draft.paced",
          "only draft.kind=simulated has it; give that kind, or false",
          self.draft.paced,
      )
    if self.draft.copied or self.draft.kind == "mixed":
      self._check_copies()
    else:
      errors.require(
          not self.draft.switch.on,
          "draft.switch.on",
          "only drafts that are copied have it; leave it out",
          self.draft.switch.on,
      )
    if self.draft.kind == "medusa":
      self._check_not_drawn(self.draft.kind)
      errors.require(
          self.draft.siblings == Draft().siblings,
          "draft.siblings",
          f"drafts of {self.draft.kind} are the likeliest; give"
          f" {Draft().siblings}",
          self.draft.siblings,
      )
    self._check_tree()
    self._check_rule()
    self._check_confidence()
    # What the parts refuse is refused here, before anything is loaded.
    self.settings(eos=(1,))
    self.draft_settings(eos=(1,))
    self.rule()

  @property
  def greedy(self) -> bool:
    """Whether requests take the argmax."""
    return self.sampling.temperature == 0 or self.sampling.top_p == 0

  @property
  def synthetic(self) -> str:
    """What of a run is made up, in words; "" is nothing."""
    parts = []
    if self.target.checkpoint.startswith(published.RANDOM):
      parts.append("random weights")
    if self.draft.kind == "simulated":
      parts.append("drafts that are right at a rate which was prescribed")
    return " and ".join(parts)

  def _check_simulated(self) -> None:
    """Refuses what a simulated rate of acceptance does not go with."""
    alpha = self.draft.alpha
    errors.require(
        checks.is_number(alpha) and 0 <= alpha <= 1,
        "draft.alpha",
        "simulated drafts need it; give a number from 0 to 1",
        alpha,
    )
    errors.require(
        self.greedy,
        "sampling.temperature",
        "give 0: simulated drafts replay greedy output, and in sampled rows"
        " no rate can be prescribed; or take another draft.kind",
        self.sampling.temperature,
    )
    errors.require(
        self.verify.lenience == 1,
        "verify.lenience",
        "give 1: a lenient rule accepts what simulated drafts mean to be wrong",
        self.verify.lenience,
    )
    self._check_not_drawn("simulated")

  def _check_copies(self) -> None:
    """Refuses what drafts that are copied do not go with."""
    draft = self.draft
    _one_of("draft.mixed.copies", draft.mixed.copies, COPIES)
    self.copies()
    if not draft.has_model:
      self._check_not_drawn("copied")
    self.switch()
    for key in ("c", "matching", "v"):
      value = getattr(draft.switch, key)
      errors.require(
          value is None or 0 <= value <= 1e6,
          f"draft.switch.{key}",
          "give a number from 0 to 1e+06",
          value,
      )
    nodes = draft.suffix.nodes
    if nodes and draft.copied == "suffix":
      errors.require(
          draft.kind == "suffix",
          "draft.suffix.nodes",
          "only chains are mixed; give 0, or draft.kind=suffix",
          nodes,
      )
      errors.require(
          not draft.switch.on,
          "draft.switch.on",
          "it is for chains; give false, or draft.suffix.nodes=0",
          draft.switch.on,
      )
    memory = draft.suffix.memory
    errors.require(
        memory != 1, "draft.suffix.memory", "give 0, or 2 or more", memory
    )
    for key in ("load", "save"):
      value = getattr(draft.suffix, key)
      errors.require(
          not value or memory > 0,
          f"draft.suffix.{key}",
          "give draft.suffix.memory for it, too",
          value,
      )

  def _check_tree(self) -> None:
    """Refuses what a tree of drafts does not go with."""
    draft = self.draft
    _one_of("draft.siblings", draft.siblings, tuple(tree_drafter.SIBLINGS))
    if not draft.tree:
      default = Draft().siblings
      errors.require(
          draft.siblings == default,
          "draft.siblings",
          f"only a tree has some; give draft.tree, or {default}",
          draft.siblings,
      )
    if not (draft.tree or draft.dynamic.nodes):
      return
    field, value, known = "draft.tree", draft.tree, TREES
    if draft.dynamic.nodes:
      errors.require(
          not draft.tree,
          "draft.tree",
          "draft.dynamic.nodes gives a tree of its own; leave out one of them",
          draft.tree,
      )
      field, value, known = "draft.dynamic.nodes", draft.dynamic.nodes, LAWS
      shape = dataclasses.asdict(draft.dynamic)
      within("draft.dynamic", lambda: dynamic.check(**shape))
    errors.require(
        draft.kind in known,
        field,
        f"drafts of kind {draft.kind} are no trees; give draft.kind one of"
        f" {', '.join(known)}, or no tree",
        value,
    )
    errors.require(
        not draft.argmax,
        "draft.argmax",
        "a tree of draft.siblings=top is of the likeliest tokens; leave it out",
        draft.argmax,
    )
    errors.require(
        not draft.confidence,
        "draft.confidence",
        "a tree has all its nodes in every round; leave it 0",
        draft.confidence,
    )
    self.topology()

  def _check_confidence(self) -> None:
    """Refuses a stop that there can't be."""
    draft = self.draft
    errors.require(
        checks.is_number(draft.confidence) and 0 <= draft.confidence <= 1,
        "draft.confidence",
        "give a number from 0 to 1",
        draft.confidence,
    )
    errors.require(
        draft.has_model or not draft.confidence,
        "draft.confidence",
        "only a draft model's drafts have it; leave it 0",
        draft.confidence,
    )

  def _check_rule(self) -> None:
    """Refuses what a rule of verification does not go with."""
    verify, draft = self.verify, self.draft
    _one_of("verify.rule", verify.rule, RULES)
    lenient = verify.rule == "token" and not draft.branches
    owns = {
        "lenience": (lenient, "chains judged by verify.rule=token"),
        "residual": (lenient, "chains judged by verify.rule=token"),
        "epsilon": (verify.rule == "typical", "verify.rule=typical"),
        "delta": (verify.rule == "typical", "verify.rule=typical"),
    }
    for key, (own, whose) in owns.items():
      value, default = getattr(verify, key), getattr(Verify(), key)
      errors.require(
          own or value == default,
          f"verify.{key}",
          f"is for {whose}; give {default}",
          value,
      )
    drawn = draft.kind in LAWS and not draft.argmax and not draft.branches
    errors.require(
        verify.rule != "block" or drawn or draft.kind == "none",
        "verify.rule",
        "block verification is for chains that are drawn: of draft.kind"
        f" {', '.join(LAWS)}, without draft.argmax and trees; give token",
        verify.rule,
    )

  def _check_not_drawn(self, what: str) -> None:
    """Refuses options of drafts that are drawn from logits."""
    for key in ("argmax", "temperature", "top_k", "top_p"):
      value = getattr(self.draft, key)
      errors.require(
          value is None or value is False,
          f"draft.{key}",
          f"{what} drafts are not drawn from logits; leave it out",
          value,
      )

  def copies(self) -> copies_lib.Copies:
    """What copies drafts, where something does."""
    draft, kind = self.draft, self.draft.copied
    options = dataclasses.asdict(getattr(draft, kind))
    if kind == "lookup":
      make = lookup.LookupDrafter
    else:
      make = suffix_dynamic.make
      for key in ("memory", "load", "save"):
        del options[key]
    return within(f"draft.{kind}", lambda: make(gamma=draft.gamma, **options))

  def switch(self) -> switch_lib.Switch:
    """How many copied and mixed drafts a row makes."""
    keys = ("credit", "share", "margin")
    options = {key: getattr(self.draft.switch, key) for key in keys}
    return within("draft.switch", lambda: switch_lib.Switch(**options))

  def settings(self, eos: tuple[int, ...]) -> settings_lib.Settings:
    """How every request samples."""
    drawn = within(
        "sampling",
        lambda: settings_lib.Settings(
            **dataclasses.asdict(self.sampling), eos=eos
        ),
    )
    return within(
        "decode",
        lambda: dataclasses.replace(
            drawn,
            min_new_tokens=self.decode.min_new_tokens,
            suppressed=self.decode.suppressed,
            forced_first=self.decode.forced_first,
        ),
    )

  def draft_settings(self, eos: tuple[int, ...]) -> settings_lib.Settings:
    """How drafts of those requests are drawn.

    Greedy wherever the requests are; simulated ones have a law of their own.
    """
    settings = self.settings(eos)
    if self.draft.kind == "simulated":
      return settings_lib.Settings(temperature=1.0, eos=eos)
    own = {
        key: value
        for key in ("temperature", "top_k", "top_p")
        if (value := getattr(self.draft, key)) is not None
    }
    drawn = within("draft", lambda: dataclasses.replace(settings, **own))
    return settings if self.greedy else drawn

  def topology(self) -> topology_lib.Topology | None:
    """The tree of a round's drafts; None where they have none that stays."""
    if not self.draft.tree:
      return None
    return within("draft", lambda: topology_lib.read(self.draft.tree))

  def token_rule(self) -> token.TokenRule:
    """The token rule: what acceptance is measured by, whatever the rule."""
    verify = self.verify
    return within(
        "verify", lambda: token.TokenRule(verify.lenience, verify.residual)
    )

  def rule(self) -> rule_lib.Rule:
    """How drafts are judged."""
    verify = self.verify
    if verify.rule == "block":
      return block.BlockRule()
    if verify.rule == "typical":
      return within(
          "verify", lambda: typical.TypicalRule(verify.epsilon, verify.delta)
      )
    return tree.TreeRule() if self.draft.branches else self.token_rule()


def within(section: str, make: Callable[[], _T]) -> _T:
  """`make()`; what it refuses is said to be of `section`.

  Raises:
    errors.UserError: in place of a ValueError.
  """
  try:
    return make()
  except ValueError as error:
    raise errors.UserError(f"{section}.{error}") from None


def _within_limits(path: str, value, least: int, most: int) -> None:
  errors.require(
      checks.is_whole(value, least, math.inf),
      path,
      f"give {least} or more",
      value,
  )
  errors.require(value <= most, path, f"give {most:,} or less", value)


def _one_of(path: str, value: str, known) -> None:
  if value not in known:
    raise errors.UserError(
        f"{path}: give one of {', '.join(known)}, got {errors.shown(value)}"
    )
