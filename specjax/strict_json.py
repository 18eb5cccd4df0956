"""JSON that came in from outside, read strictly."""

import json
import re
from typing import Any

from specjax import errors

# Escapes of half a character; two of them can be a whole one.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def loads(text: str | bytes) -> Any:
  """Text, or its bytes in UTF-8 -> value.

  Raises:
    ValueError: it is no JSON, a key comes twice, a number has too many digits,
      a character is a half one, or it is nested too deeply; one line.
  """
  text = text.decode("utf-8") if isinstance(text, bytes) else text
  try:
    value = json.loads(text, object_pairs_hook=_once)
    if _HALF.search(text):
      json.dumps(value, ensure_ascii=False).encode("utf-8")
  except RecursionError:
    raise ValueError("it is nested too deeply") from None
  return value


def fields(text: str | bytes) -> dict[str, Any]:
  """The same of an object; raises ValueError where it is none, too."""
  made = loads(text)
  if not isinstance(made, dict):
    raise ValueError("it is no object")
  return made


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """An object, whose keys differ."""
  made: dict[str, Any] = {}
  for key, value in pairs:
    if key in made:
      raise ValueError(f"key {errors.shown(key)} comes twice")
    made[key] = value
  return made
