"""The curves of a training run as a picture."""

import pathlib
import re

from specjax import pictures
from specjax.training import log as log_lib

_SHARE = re.compile(r"_(overlap|agreement|accepted_\d+)$")


def draw(log: pathlib.Path, picture: pathlib.Path) -> None:
  """Draws losses and held-out figures of a log over its steps, as PNG.

  Args:
    log: log.jsonl of a run.
    picture: where it goes; whole or not there.
  """
  entries = log_lib.read(log)
  names = sorted({
      name for entry in entries for name in entry if name.startswith("held_")
  })
  shares = [name for name in names if _SHARE.search(name)]
  losses = [name for name in names if name not in shares]
  figure, panels = pictures.panels(1 + bool(shares))
  _plot(panels[0], entries, ["loss"], alpha=0.3)
  _plot(panels[0], entries, losses)
  panels[0].set_ylabel("nats a target token")
  if shares:
    _plot(panels[1], entries, shares)
    panels[1].set_ylabel("share of positions")
  panels[-1].set_xlabel("step")
  pictures.save(figure, picture)


def _plot(panel, entries, names, **style) -> None:
  for name in names:
    points = [(each["step"], each[name]) for each in entries if name in each]
    panel.plot(*zip(*points), label=name.replace("_", " "), **style)
