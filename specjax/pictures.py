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


def panels(count: int, columns: int = 1) -> tuple[Any, list[Any]]:
  """A figure and its panels, row by row; with one column below each other."""
  # Slow to import, and only some want pictures.
  import matplotlib.figure

  rows = -(-count // columns)
  size = (8 if columns == 1 else 5 * columns, 4 * rows)
  figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
  made = list(figure.subplots(rows, columns, squeeze=False).flat)
  for panel in made[count:]:
    figure.delaxes(panel)
  return figure, made[:count]


def save(figure: Any, path: pathlib.Path) -> None:
  """Writes a figure as PNG; the file is whole or not there.

  Several panels with the same labels share one legend, below them.
  """
  legends = [panel.get_legend_handles_labels() for panel in figure.axes]
  if len(legends) > 1 and len({tuple(labels) for _, labels in legends}) == 1:
    figure.legend(
        *legends[0], loc="outside lower center", ncols=3, fontsize="small"
    )
  else:
    for panel in figure.axes:
      panel.legend(fontsize="small")
  for panel in figure.axes:
    panel.grid(alpha=0.3)
  with writing.whole(path) as part:
    figure.savefig(part, format="png", dpi=120, bbox_inches="tight")
