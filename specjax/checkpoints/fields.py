"""Fields of a config: typed access, and refusals in one line."""

import dataclasses
from typing import Any

from specjax import checks
from specjax.errors import shown, UserError

# The deepest model; a table of its tensors is built before one is read.
LAYERS = 1000


@dataclasses.dataclass(frozen=True)
class Getter:
  """Typed access to the fields; null is the same as absent.

  Attributes:
    fields: of a config.json, or what stands for them in another format.
    path: of the file, for messages.
  """

  fields: dict[str, Any]
  path: Any

  def refuse(self, name, remedy):
    value = self.fields.get(name)
    state = "is missing" if value is None else f"is {shown(value)}"
    raise UserError(f"{self.path}: field {name} {state}; it {remedy}")

  def typed(self, name, kinds, default, remedy):
    value = self.fields.get(name)
    value = default if value is None else value
    # To Python a bool is an int; to a config it is a mistake.
    if not isinstance(value, kinds) or (
        isinstance(value, bool) and kinds is not bool
    ):
      self.refuse(name, remedy)
    return value

  def integer(self, name, default=None, least=0, most=2**31 - 1):
    remedy = f"must be an integer from {least} on"
    value = self.typed(name, int, default, remedy)
    if value < least:
      self.refuse(name, remedy)
    if value > most:
      self.refuse(name, f"must be {most} or less")
    return value

  def real(self, name, default=None, least=0, most=1):
    remedy = f"must be a number from {least} to {most}"
    value = self.typed(name, (int, float), default, remedy)
    if not least <= value <= most:
      self.refuse(name, remedy)
    return float(value)

  def boolean(self, name, default):
    return self.typed(name, bool, default, "must be true or false")

  def one_of(self, name, default, known):
    """A string among `known`."""
    remedy = f"must be one of {', '.join(known)}"
    value = self.typed(name, str, default, remedy)
    if value not in known:
      self.refuse(name, remedy)
    return value

  def ids(self, name, size):
    """Token ids below `size`: one, several, or none."""
    value = self.fields.get(name)
    value = () if value is None else value
    value = value if isinstance(value, list | tuple) else [value]
    if not all(checks.is_whole(each, most=size - 1) for each in value):
      self.refuse(name, f"must be token ids below vocab_size, {size}")
    return tuple(value)

  def architectures(self, known):
    """Checks the class that the weights are for; most files name it."""
    remedy = f"must be [{known[0]!r}]"
    for name in self.typed("architectures", list, [], remedy):
      if name not in known:
        self.refuse("architectures", remedy)
