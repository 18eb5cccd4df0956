"""What a run can be told of its drafts: the section `draft` and its own ones.

Checked on entry, as all of `sections`.
"""

import dataclasses
import functools

from specjax import checks
from specjax import errors
from specjax import topology as topology_lib
from specjax.drafters import chain
from specjax.drafters import copies as copies_lib
from specjax.drafters import dynamic
from specjax.drafters import lookup
from specjax.drafters import suffix_dynamic
from specjax.drafters import switch as switch_lib
from specjax.drafters import tree as tree_drafter

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
# Option -> least and most. Buffers are sized by some of these numbers: beyond
# the upper ends no device holds them.
LIMITS = {
    "draft.gamma": chain.GAMMAS,
    "draft.mixed.model_gamma": chain.GAMMAS,
    "draft.suffix.memory": (0, 2**24),
}


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

  Raises:
    errors.UserError: a value is out of its range, or does not go with others;
      section and key are named.
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

  def __post_init__(self):
    errors.require_one_of("draft.kind", self.kind, KINDS)
    for path, limits in LIMITS.items():
      value = functools.reduce(getattr, path.split(".")[1:], self)
      errors.require_within(path, value, *limits)
    if self.kind == "simulated":
      self._check_simulated()
    else:
      errors.require(
          self.alpha is None,
          "draft.alpha",
          "only draft.kind=simulated has it; give that kind or no alpha",
          self.alpha,
      )
      errors.require(
          not self.paced,
          "draft.paced",
          "only draft.kind=simulated has it; give that kind, or false",
          self.paced,
      )
    if self.copied or self.kind == "mixed":
      self._check_copies()
    else:
      errors.require(
          not self.switch.on,
          "draft.switch.on",
          "only drafts that are copied have it; leave it out",
          self.switch.on,
      )
    if self.kind == "medusa":
      self._check_not_drawn(self.kind)
      errors.require(
          self.siblings == Draft.siblings,
          "draft.siblings",
          f"drafts of {self.kind} are the likeliest; give"
          f" {Draft.siblings}",
          self.siblings,
      )
    self._check_tree()
    self._check_confidence()

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

  def make_copies(self) -> copies_lib.Copies:
    """What copies drafts, where something does."""
    kind = self.copied
    options = dataclasses.asdict(getattr(self, kind))
    if kind == "lookup":
      make = lookup.LookupDrafter
    else:
      make = suffix_dynamic.make
      for key in ("memory", "load", "save"):
        del options[key]
    return errors.within(
        f"draft.{kind}", lambda: make(gamma=self.gamma, **options)
    )

  def make_switch(self) -> switch_lib.Switch:
    """How many copied and mixed drafts a row makes."""
    keys = ("credit", "share", "margin")
    options = {key: getattr(self.switch, key) for key in keys}
    return errors.within("draft.switch", lambda: switch_lib.Switch(**options))

  def topology(self) -> topology_lib.Topology | None:
    """The tree of a round's drafts; None where they have none that stays."""
    if not self.tree:
      return None
    return errors.within("draft", lambda: topology_lib.read(self.tree))

  def _check_simulated(self) -> None:
    """Refuses what a simulated rate of acceptance does not go with."""
    errors.require(
        checks.is_number(self.alpha) and 0 <= self.alpha <= 1,
        "draft.alpha",
        "simulated drafts need it; give a number from 0 to 1",
        self.alpha,
    )
    self._check_not_drawn("simulated")

  def _check_copies(self) -> None:
    """Refuses what drafts that are copied do not go with."""
    errors.require_one_of("draft.mixed.copies", self.mixed.copies, COPIES)
    self.make_copies()
    if not self.has_model:
      self._check_not_drawn("copied")
    self.make_switch()
    for key in ("c", "matching", "v"):
      value = getattr(self.switch, key)
      errors.require(
          value is None or 0 <= value <= 1e6,
          f"draft.switch.{key}",
          "give a number from 0 to 1e+06",
          value,
      )
    nodes = self.suffix.nodes
    if nodes and self.copied == "suffix":
      errors.require(
          self.kind == "suffix",
          "draft.suffix.nodes",
          "only chains are mixed; give 0, or draft.kind=suffix",
          nodes,
      )
      errors.require(
          not self.switch.on,
          "draft.switch.on",
          "it is for chains; give false, or draft.suffix.nodes=0",
          self.switch.on,
      )
    memory = self.suffix.memory
    errors.require(
        memory != 1, "draft.suffix.memory", "give 0, or 2 or more", memory
    )
    for key in ("load", "save"):
      value = getattr(self.suffix, key)
      errors.require(
          not value or memory > 0,
          f"draft.suffix.{key}",
          "give draft.suffix.memory for it, too",
          value,
      )

  def _check_tree(self) -> None:
    """Refuses what a tree of drafts does not go with."""
    siblings = tuple(tree_drafter.SIBLINGS)
    errors.require_one_of("draft.siblings", self.siblings, siblings)
    if not self.tree:
      default = Draft.siblings
      errors.require(
          self.siblings == default,
          "draft.siblings",
          f"only a tree has some; give draft.tree, or {default}",
          self.siblings,
      )
    if not (self.tree or self.dynamic.nodes):
      return
    field, value, known = "draft.tree", self.tree, TREES
    if self.dynamic.nodes:
      errors.require(
          not self.tree,
          "draft.tree",
          "draft.dynamic.nodes gives a tree of its own; leave out one of them",
          self.tree,
      )
      field, value, known = "draft.dynamic.nodes", self.dynamic.nodes, LAWS
      shape = dataclasses.asdict(self.dynamic)
      errors.within("draft.dynamic", lambda: dynamic.check(**shape))
    errors.require(
        self.kind in known,
        field,
        f"drafts of kind {self.kind} are no trees; give draft.kind one of"
        f" {', '.join(known)}, or no tree",
        value,
    )
    errors.require(
        not self.argmax,
        "draft.argmax",
        "a tree of draft.siblings=top is of the likeliest tokens; leave it out",
        self.argmax,
    )
    errors.require(
        not self.confidence,
        "draft.confidence",
        "a tree has all its nodes in every round; leave it 0",
        self.confidence,
    )
    self.topology()

  def _check_confidence(self) -> None:
    """Refuses a stop that there can't be."""
    errors.require(
        checks.is_number(self.confidence) and 0 <= self.confidence <= 1,
        "draft.confidence",
        "give a number from 0 to 1",
        self.confidence,
    )
    errors.require(
        self.has_model or not self.confidence,
        "draft.confidence",
        "only a draft model's drafts have it; leave it 0",
        self.confidence,
    )

  def _check_not_drawn(self, what: str) -> None:
    """Refuses options of drafts that are drawn from logits."""
    for key in ("argmax", "temperature", "top_k", "top_p"):
      value = getattr(self, key)
      errors.require(
          value is None or value is False,
          f"draft.{key}",
          f"{what} drafts are not drawn from logits; leave it out",
          value,
      )
