"""Times of several programs that take turns, row by row."""

import statistics
import time
from typing import Any, Callable, Mapping, Sequence


def seconds(
    runs: Mapping[str, Callable[[int], Any]], rows: int, repeats: int
) -> dict[str, list[float]]:
  """Seconds that each takes for all rows, repeat by repeat.

  Args:
    runs: name -> does one row, given its number; called for each before.
    rows: how many there are.
    repeats: of all rows; every second one goes the other way round.
  """
  out = {name: [] for name in runs}
  for repeat in range(repeats):
    total = dict.fromkeys(runs, 0.0)
    order = list(runs.items())[:: -1 if repeat % 2 else 1]
    for row in range(rows):
      for name, run in order:
        began = time.perf_counter()
        run(row)
        total[name] += time.perf_counter() - began
    for name, value in total.items():
      out[name].append(value)
  return out


def spread(values: Sequence[float]) -> dict[str, float]:
  """Median, least and most."""
  return {
      "median": statistics.median(values),
      "low": min(values),
      "high": max(values),
  }
