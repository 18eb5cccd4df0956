"""What the pictures share."""

from typing import Any, Sequence


def ends(speedups: Sequence[dict[str, float]]) -> list[list[float]]:
  """How far the repeats of each go down and up from its median."""
  return [
      [abs(speedup[end] - speedup["median"]) for speedup in speedups]
      for end in ("low", "high")
  ]


def plain(panel: Any) -> None:
  """Where drafts begin to pay."""
  panel.axhline(1, color="black", linestyle=":", label="plain decoding")


def measured(
    panel: Any, places: Sequence[float], lines: Sequence[dict[str, Any]]
) -> None:
  """Measured speed-ups with the ends of their repeats.

  Args:
    panel: of matplotlib.
    places: along the axis.
    lines: of a table, each with its measured_speedup.
  """
  found = [line["measured_speedup"] for line in lines]
  panel.errorbar(
      places,
      [speedup["median"] for speedup in found],
      ends(found),
      fmt="s-",
      capsize=2,
      color="saddlebrown",
      label="measured",
  )
