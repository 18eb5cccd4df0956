"""The pictures of experiments.figures, from what figures.json holds."""

import math
import statistics
from typing import Sequence

from experiments import pairs
from experiments import paper
from experiments import plots
from specjax import pictures
from specjax import theory
from specjax.measure.page import bars


def gamma(made: dict):
  """A panel a draft: speed-up against gamma."""
  lines = pairs.by_draft(made["gammas"])
  figure, panels = pictures.panels(len(lines), columns=len(lines))
  for panel, (draft, of_draft) in zip(panels, lines.items()):
    alpha = of_draft[0]["alpha"]
    c = statistics.median(line["c"] for line in of_draft)
    places = [line["gamma"] for line in of_draft]
    gammas = range(1, max(places) + 1)
    curve = [theory.speedup(alpha, gamma, c) for gamma in gammas]
    panel.plot(gammas, curve, color="grey", label="Theorem 3.8")
    with_v = [
        line["predicted_speedup"]["with_verify_cost"] for line in of_draft
    ]
    panel.plot(places, with_v, "o--", color="orange", label="with measured v")
    plots.measured(panel, places, of_draft)
    panel.set_title(f"{draft}: alpha {alpha:.2f}, c {c:.3f}")
    plots.plain(panel)
    panel.set_xlabel("gamma, drafted tokens a round")
    panel.set_ylabel("speed-up")
    panel.set_ylim(bottom=0)
  return figure


def operations(made: dict):
  """Operations a token against gamma, by the theorem and as counted."""
  figure, [panel] = pictures.panels(1)
  gammas = range(1, max(line["gamma"] for line in made["gammas"]) + 1)
  for i, (draft, lines) in enumerate(pairs.by_draft(made["gammas"]).items()):
    alpha, c_hat = lines[0]["alpha"], lines[0]["c_hat"]
    panel.plot(
        gammas,
        [theory.operations(alpha, gamma, c_hat) for gamma in gammas],
        color=f"C{i}",
        label=f"{draft}: Theorem 3.11, alpha {alpha:.2f}, c-hat {c_hat:.3f}",
    )
    panel.plot(
        [line["gamma"] for line in lines],
        [line["operations"] for line in lines],
        "o",
        color=f"C{i}",
        label=f"{draft}: counted",
    )
  panel.set_xlabel("gamma, drafted tokens a round")
  panel.set_ylabel("operations a token, over plain decoding")
  panel.set_ylim(bottom=0)
  return figure


def positions(made: dict):
  """A panel a draft: acceptance by position, and alpha."""
  lines = last_of_each(made["gammas"])
  figure, panels = pictures.panels(len(lines), columns=len(lines))
  for panel, line in zip(panels, lines):
    counts = zip(line["acceptance_by_position"], line["judged_by_position"])
    judged = [(i, *pair) for i, pair in enumerate(counts, 1) if pair[1]]
    shares = [share for _, share, _ in judged]
    ends = [bars.interval(share, count) for _, share, count in judged]
    panel.errorbar(
        [i for i, _, _ in judged],
        shares,
        [
            [share - low for share, (low, _) in zip(shares, ends)],
            [high - share for share, (_, high) in zip(shares, ends)],
        ],
        fmt="o",
        capsize=2,
        color="saddlebrown",
        label="accepted of judged, 95 % interval",
    )
    panel.axhline(line["alpha"], color="grey", label="alpha: if i.i.d.")
    panel.set_title(f"{line['draft']}: alpha {line['alpha']:.2f}")
    panel.set_xlabel("draft position")
    panel.set_xticks(range(1, line["gamma"] + 1))
    panel.set_ylim(0, 1)
  return figure


def predicted(made: dict):
  """Predicted against measured: ours, and the paper's Table 4."""
  figure, (ours, theirs) = pictures.panels(2, columns=2)
  lines = made["gammas"]
  measured = [line["measured_speedup"]["median"] for line in lines]
  for key, marker, label in (
      ("theorem_3_8", "o", "Theorem 3.8"),
      ("with_verify_cost", "s", "with measured v"),
  ):
    expected = [line["predicted_speedup"][key] for line in lines]
    ours.plot(expected, measured, marker, label=label)
  factors = [
      line["predicted_speedup"]["theorem_3_8"]
      * math.prod(
          line["gap"][key] for key in ("sample", "ends", "tokens", "verify")
      )
      for line in lines
  ]
  ours.plot(factors, measured, "^", label="with v and the tokens counted")
  ours.set_title("ours, every draft and gamma")
  for task, marker in (("ende", "o"), ("cnndm", "s")):
    rows = [row for row in paper.rows("table2_and_4") if row["task"] == task]
    theirs.plot(
        [row["expected_speedup"] for row in rows],
        [row["measured_speedup"] for row in rows],
        marker,
        label=task,
    )
  theirs.set_title("the paper's Table 4")
  for panel in (ours, theirs):
    most = max(*panel.get_xlim(), *panel.get_ylim())
    panel.plot([0, most], [0, most], color="grey", label="as predicted")
    panel.set_xlabel("predicted speed-up")
    panel.set_ylabel("measured speed-up")
  return figure


def batch(made: dict):
  """Speed-up against the batch."""
  figure, (speed, cost) = pictures.panels(2, columns=2)
  lines = made["batches"]
  places = [line["batch"] for line in lines]
  for key, style, colour, label in (
      ("theorem_3_8", "-", "grey", "Theorem 3.8"),
      ("with_verify_cost", "o--", "orange", "with measured v"),
  ):
    values = [line["predicted_speedup"][key] for line in lines]
    speed.plot(places, values, style, color=colour, label=label)
  plots.measured(speed, places, lines)
  plots.plain(speed)
  most = lines[0]["gamma"] + 1
  speed.set_ylabel(f"speed-up, {lines[0]['drafter']}, gamma {most - 1}")
  speed.set_ylim(bottom=0)
  cost.plot(
      places, [line["verify_cost"] for line in lines], "o-", label="v, measured"
  )
  cost.plot(
      places,
      [line["gap"]["idle_rows"] for line in lines],
      "s-",
      label="idle rows, a factor",
  )
  cost.axhline(1, color="black", linestyle=":", label="what the paper takes")
  words = "v where arithmetic is the limit"
  cost.axhline(most, color="grey", linestyle="--", label=words)
  for panel in (speed, cost):
    panel.set_xscale("log", base=2)
    panel.set_xticks(places, list(map(str, places)))
    panel.set_xlabel("batch")
  return figure


def last_of_each(lines: Sequence[dict]) -> list[dict]:
  """Each draft's line of the largest gamma."""
  return list({line["draft"]: line for line in lines}.values())
