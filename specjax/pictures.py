"""Pictures, for those who have matplotlib."""

import importlib.util
import pathlib
from typing import Any

from specjax import errors
from specjax import writing


def check() -> None:
  """Raises errors.UserError where pictures can't be made."""
  if importlib.util.find_spec("matplotlib") is None:
    raise errors.UserError(
        "matplotlib is not installed: pip install 'specjax[plot]'"
    )


def panels(count: int) -> tuple[Any, list[Any]]:
  """A figure and its panels, one below the other."""
  # Slow to import, and only some want pictures.
  import matplotlib.figure

  figure = matplotlib.figure.Figure(figsize=(8, 4 * count))
  return figure, list(figure.subplots(count, squeeze=False)[:, 0])


def save(figure: Any, path: pathlib.Path) -> None:
  """Writes a figure as PNG; the file is whole or not there."""
  for panel in figure.axes:
    panel.legend(fontsize="small")
    panel.grid(alpha=0.3)
  with writing.whole(path) as part:
    figure.savefig(part, format="png", dpi=120, bbox_inches="tight")
