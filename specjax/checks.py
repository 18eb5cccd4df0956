"""Is a value what a field asks for? Of whatever came in from outside."""

import numbers


def is_whole(value, least: int = 0, most: float = 2**31 - 1) -> bool:
  """Whether it is a whole number of a range; by default ids and counts."""
  # To Python a bool is an int.
  whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  return whole and least <= value <= most


def is_number(value) -> bool:
  """Whether it is a real number."""
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


def are_ids(values) -> bool:
  """Whether it is a tuple or list of token ids, or an empty one."""
  return isinstance(values, (tuple, list)) and all(map(is_whole, values))
