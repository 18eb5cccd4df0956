"""The one exception that the doors turn into a line and an exit code."""


class UserError(ValueError):
  """Bad input. The message is one line: the field, then the remedy."""
