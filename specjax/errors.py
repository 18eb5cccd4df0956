"""The one exception that the doors turn into a line and an exit code."""

import math
from typing import Callable, Collection, Iterable, TypeVar

from specjax import checks

_T = TypeVar("_T")


class UserError(ValueError):
  """Bad input. The message is one line: the field, then the remedy."""


def require(good: bool, field: str, remedy: str, value) -> None:
  """Raises UserError unless `good`: field, remedy and the value."""
  if not good:
    raise UserError(f"{field}: {remedy}, got {shown(value)}")


def require_within(field: str, value, least: int, most: int) -> None:
  """Raises UserError unless it is a whole number of this range."""
  whole = checks.is_whole(value, least, math.inf)
  require(whole, field, f"give {least} or more", value)
  require(value <= most, field, f"give {most:,} or less", value)


def require_one_of(field: str, value: str, known: Collection[str]) -> None:
  """Raises UserError unless it is one of these."""
  require(value in known, field, f"give one of {', '.join(known)}", value)


def within(section: str, make: Callable[[], _T]) -> _T:
  """`make()`; what it refuses is said to be of `section`.

  Raises:
    UserError: in place of a ValueError.
  """
  try:
    return make()
  except ValueError as error:
    raise UserError(f"{section}.{error}") from None


def shown(value) -> str:
  """A value as a message shows it: one line, not too long."""
  try:
    return line(repr(value))
  # Python does not print all numbers, nor all nesting.
  except (ValueError, RecursionError):
    return f"a {type(value).__name__} that is too long to show"


def reason(error: BaseException) -> str:
  """What another library raised, likewise."""
  return line(str(error), 200) or type(error).__name__


def line(text: str, most: int = 100) -> str:
  """Text from outside as a part of a message, likewise."""
  # What a terminal takes for a command may be in it, too.
  text = "".join(char if char.isprintable() else " " for char in text[:10_000])
  text = " ".join(text.split())
  return text if len(text) <= most else f"{text[:most]} ..."


def several(parts: Iterable[str], between: str = ", ", most: int = 20) -> str:
  """Some parts of a message, and how many more there are."""
  parts = list(parts)
  more = [f"and {len(parts) - most} more"] if len(parts) > most else []
  return between.join(parts[:most] + more)
