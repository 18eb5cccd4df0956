"""What a run can be told: one frozen dataclass a section, checked on entry.

These dataclasses are the only list of options; `config` makes the ConfigDict
that config files and flags fill in, and turns it back.
"""

import dataclasses
import functools
import re

from specjax import checks
from specjax import draft_section
from specjax import errors
from specjax import settings as settings_lib
from specjax import sharding
from specjax.checkpoints import published
from specjax.data import tasks
from specjax.models import reading
from specjax.verify import block
from specjax.verify import rule as rule_lib
from specjax.verify import token
from specjax.verify import tree
from specjax.verify import typical

RULES = ("token", "block", "typical")
# T5 overflows in float16.
DTYPES = ("float32", "bfloat16")
# Option -> least and most. Buffers are sized by some of these numbers: beyond
# the upper ends no device holds them, or 32 bits don't.
LIMITS = {
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


@dataclasses.dataclass(frozen=True)
class Target:
  """The model whose law comes out."""

  checkpoint: str = "mini/target"


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

  @property
  def step_repeats(self) -> int:
    """How often single steps are timed on their own, which takes little."""
    return max(5, self.repeats)


@dataclasses.dataclass(frozen=True)
class Experiment:
  """One run, whole.

  Raises:
    errors.UserError: a value is out of its range; section and key are named.
  """

  name: str = "run"
  target: Target = Target()
  draft: draft_section.Draft = draft_section.Draft()
  data: Data = Data()
  sampling: Sampling = Sampling()
  decode: Decode = Decode()
  mesh: Mesh = Mesh()
  hosts: Hosts = Hosts()
  verify: Verify = Verify()
  measure: Measure = Measure()
  out: str = ""

  def __post_init__(self):
    errors.require_one_of("decode.dtype", self.decode.dtype, DTYPES)
    errors.require_one_of("mesh.draft", self.mesh.draft, sharding.DRAFTS)
    tasks.get_task(self.data.task)
    for path, limits in LIMITS.items():
      value = functools.reduce(getattr, path.split("."), self)
      errors.require_within(path, value, *limits)
    least, most = self.decode.min_new_tokens, self.decode.max_new_tokens
    if least > most:
      raise errors.UserError(
          f"decode.min_new_tokens: give decode.max_new_tokens ({most}) or"
          f" less, got {least}"
      )
    self._check_simulated()
    self._check_rule()
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
    if self.draft.kind != "simulated":
      return
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

  def _check_rule(self) -> None:
    """Refuses what a rule of verification does not go with."""
    verify, draft = self.verify, self.draft
    errors.require_one_of("verify.rule", verify.rule, RULES)
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
    laws = draft_section.LAWS
    drawn = draft.kind in laws and not draft.argmax and not draft.branches
    errors.require(
        verify.rule != "block" or drawn or draft.kind == "none",
        "verify.rule",
        "block verification is for chains that are drawn: of draft.kind"
        f" {', '.join(laws)}, without draft.argmax and trees; give token",
        verify.rule,
    )

  def settings(self, eos: tuple[int, ...]) -> settings_lib.Settings:
    """How every request samples."""
    drawn = errors.within(
        "sampling",
        lambda: settings_lib.Settings(
            **dataclasses.asdict(self.sampling), eos=eos
        ),
    )
    return errors.within(
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
    drawn = errors.within("draft", lambda: dataclasses.replace(settings, **own))
    return settings if self.greedy else drawn

  def token_rule(self) -> token.TokenRule:
    """The token rule: what acceptance is measured by, whatever the rule."""
    verify = self.verify
    return errors.within(
        "verify", lambda: token.TokenRule(verify.lenience, verify.residual)
    )

  def rule(self) -> rule_lib.Rule:
    """How drafts are judged."""
    verify = self.verify
    if verify.rule == "block":
      return block.BlockRule()
    if verify.rule == "typical":
      return errors.within(
          "verify", lambda: typical.TypicalRule(verify.epsilon, verify.delta)
      )
    return tree.TreeRule() if self.draft.branches else self.token_rule()
