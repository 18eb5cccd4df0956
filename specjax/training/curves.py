"""The curves of a training run as a picture."""

import importlib.util
import pathlib

from specjax import errors
from specjax import writing
from specjax.training import log as log_lib


def check() -> None:
  """Raises errors.UserError where pictures can't be made."""
  if importlib.util.find_spec("matplotlib") is None:
    raise errors.UserError(
        "matplotlib is not installed: pip install 'specjax[train]'"
    )


def draw(log: pathlib.Path, picture: pathlib.Path) -> None:
  """Draws losses and held-out figures of a log over its steps, as PNG.

  Args:
    log: log.jsonl of a run.
    picture: where it goes; whole or not there.
  """
  # Slow to import, and only wanted at the end of a training run.
  import matplotlib.figure

  entries = log_lib.read(log)
  names = sorted({
      name for entry in entries for name in entry if name.startswith("held_")
  })
  shares = [name for name in names if name.endswith(("overlap", "agreement"))]
  losses = [name for name in names if name not in shares]
  figure = matplotlib.figure.Figure(figsize=(8, 4 * (1 + bool(shares))))
  panels = figure.subplots(1 + bool(shares), squeeze=False)[:, 0]
  _plot(panels[0], entries, ["loss"], alpha=0.3)
  _plot(panels[0], entries, losses)
  panels[0].set_ylabel("nats a target token")
  if shares:
    _plot(panels[1], entries, shares)
    panels[1].set_ylabel("share of positions")
  panels[-1].set_xlabel("step")
  with writing.whole(picture) as part:
    figure.savefig(part, format="png", dpi=120, bbox_inches="tight")


def _plot(panel, entries, names, **style) -> None:
  for name in names:
    points = [(each["step"], each[name]) for each in entries if name in each]
    panel.plot(*zip(*points), label=name.replace("_", " "), **style)
  panel.legend(fontsize="small")
  panel.grid(alpha=0.3)
