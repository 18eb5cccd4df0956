"""The one exception that the doors turn into a line and an exit code."""


class UserError(ValueError):
  """Bad input. The message is one line: the field, then the remedy."""


def require(good: bool, field: str, remedy: str, value) -> None:
  """Raises UserError unless `good`: field, remedy and the value."""
  if not good:
    raise UserError(f"{field}: {remedy}, got {shown(value)}")


def shown(value) -> str:
  """A value as a message shows it: one line, not too long."""
  # What numpy prints has several lines.
  text = " ".join(repr(value).split())
  return text if len(text) <= 100 else f"{text[:100]} ..."
