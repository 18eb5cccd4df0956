"""What a run can be told: one frozen dataclass a section, checked on entry.

These dataclasses are the only list of options; `config` makes the ConfigDict
that config files and flags fill in, and turns it back.
"""

import dataclasses
from typing import Callable, TypeVar

from specjax import errors
from specjax import settings as settings_lib
from specjax.data import tasks
from specjax.verify import token

KINDS = ("model", "none")
# T5 overflows in float16.
DTYPES = ("float32", "bfloat16")
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Target:
  """The model whose law comes out."""

  checkpoint: str = "mini/target"


@dataclasses.dataclass(frozen=True)
class Draft:
  """Where drafts come from; None in sampling is the request's own value."""

  kind: str = "model"
  checkpoint: str = "mini/small"
  gamma: int = 3
  argmax: bool = False
  temperature: float | None = None
  top_k: int | None = None
  top_p: float | None = None


@dataclasses.dataclass(frozen=True)
class Data:
  """The texts; `text` is a person's own, `rows` 0 takes all there are."""

  task: str = "mini_ende"
  path: str = ""
  split: str = "test"
  rows: int = 0
  text: str = ""
  max_source_tokens: int = 512


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How tokens are drawn; temperature 0 is greedy."""

  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0


@dataclasses.dataclass(frozen=True)
class Decode:
  """How much is decoded, and how."""

  max_new_tokens: int = 128
  min_new_tokens: int = 0
  suppressed: tuple = ()
  forced_first: int | None = None
  batch: int = 1
  dtype: str = "float32"
  seed: int = 0


@dataclasses.dataclass(frozen=True)
class Verify:
  """How drafts are judged; lenience below 1 changes the output law."""

  lenience: float = 1.0
  residual: str = "exact"


@dataclasses.dataclass(frozen=True)
class Measure:
  """How time is measured.

  Attributes:
    repeats: how often plain and speculative decoding are timed, in turn.
    warmup: calls of each shape before that; the first one compiles.
    timed_rows: rows that are timed, from the front; 0 takes all.
    steps: dependent steps in one timing of a model's step.
  """

  repeats: int = 5
  warmup: int = 2
  timed_rows: int = 40
  steps: int = 50


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
  verify: Verify = Verify()
  measure: Measure = Measure()
  out: str = ""

  def __post_init__(self):
    _one_of("draft.kind", self.draft.kind, KINDS)
    _one_of("decode.dtype", self.decode.dtype, DTYPES)
    tasks.get_task(self.data.task)
    for path, least in (
        ("draft.gamma", 1),
        ("data.rows", 0),
        ("data.max_source_tokens", 2),
        ("decode.max_new_tokens", 1),
        ("decode.batch", 1),
        ("decode.seed", 0),
        ("measure.repeats", 1),
        ("measure.warmup", 1),
        ("measure.timed_rows", 0),
        ("measure.steps", 1),
    ):
      section, key = path.split(".")
      value = getattr(getattr(self, section), key)
      if value < least:
        raise errors.UserError(f"{path}: give {least} or more, got {value}")
    if self.decode.seed >= 2**32:
      raise errors.UserError("decode.seed: give a number below 2^32")
    # What the parts refuse is refused here, before anything is loaded.
    self.settings(eos=(1,))
    self.draft_settings(eos=(1,))
    self.rule()

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
    """How drafts of those requests are drawn: greedy wherever they are."""
    settings = self.settings(eos)
    own = {
        key: value
        for key in ("temperature", "top_k", "top_p")
        if (value := getattr(self.draft, key)) is not None
    }
    drawn = within("draft", lambda: dataclasses.replace(settings, **own))
    greedy = settings.temperature == 0 or settings.top_p == 0
    return settings if greedy else drawn

  def rule(self) -> token.TokenRule:
    """How drafts are judged."""
    return within(
        "verify", lambda: token.TokenRule(**dataclasses.asdict(self.verify))
    )


def within(section: str, make: Callable[[], _T]) -> _T:
  """`make()`; what it refuses is said to be of `section`."""
  try:
    return make()
  except ValueError as error:
    raise errors.UserError(f"{section}.{error}") from None


def _one_of(path: str, value: str, known) -> None:
  if value not in known:
    raise errors.UserError(
        f"{path}: give one of {', '.join(known)}, got {value!r}"
    )
