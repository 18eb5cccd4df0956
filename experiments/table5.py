"""Table 5 of the paper: what lenience buys, and at what price.

    python -m experiments.table5
    python -m experiments.table5 --config configs/ende_t5small.py

Lenience 1, .5, .3 and .1, English to German, in two kinds (section A.5):

- sampled, temperature 1: a draft x is accepted where u l q(x) < p(x). alpha is
  the mean of sum min(p / l, q) over every place of the target's own plain
  output; what it gains over l = 1 is how far the next token's law moves from
  the target's, in total variation.
- argmax, temperature 0: a draft x is accepted where p(x) >= l max p, which the
  paper prints the other way round.

alpha of every draft; of the first config's draft also the speed-up: by Theorem
3.8 with the c measured here, with the measured v too, and timed, each at the
gamma that is best with v. Beside them the paper's alpha, its speed-ups (c
0.015), and those that its alpha gives by Theorem 3.8: for argmax drafts they
follow, for sampled ones they do not.

Writes results/table5.json, .md and .png. About five minutes on two CPU cores.
"""

import functools
import sys
from typing import Any, Sequence

from experiments import pairs
from experiments import paper
from experiments import plots
from experiments import results
from experiments import table3
from specjax import experiment
from specjax import options
from specjax import pictures
from specjax import prepare
from specjax import theory
from specjax.measure import acceptance
from specjax.measure import environment
from specjax.measure import tables
from specjax.verify import token

NAME = "table5"
LENIENCES = (1.0, 0.5, 0.3, 0.1)
# Kind -> temperature.
_KINDS = {"sampled": 1, "argmax": 0}
_ENDE = pairs.CONFIGS[:3]


def alphas(source: pairs.Pair, kind: str) -> dict[str, Any]:
  """alpha of one draft at every lenience."""
  setup = pairs.setup(source.at(_KINDS[kind]))
  rules = [token.TokenRule(lenience=lenience) for lenience in LENIENCES]
  with prepare.bar("alpha", len(setup.output)) as bar:
    rows_JT = experiment.chances(setup, setup.output, rules, bar.update)
  found = list(map(acceptance.alpha, zip(*rows_JT)))
  return {
      "draft": source.draft,
      "alpha": [alpha for alpha, _ in found],
      "places": found[0][1],
      "paper": [_published(kind, source, x).get("alpha") for x in LENIENCES],
  }


def _published(kind: str, source: pairs.Pair, lenience: float) -> dict:
  """The paper's alpha; {} where it has none."""
  if source.task != "ende":
    return {}
  name = source.draft
  name = name if name in ("unigram", "bigram") else f"t5-{name}"
  table = {"sampled": "table5", "argmax": "table5_argmax"}[kind]
  return paper.find(table, draft=name, lenience=lenience)


def run(script, pair: pairs.Pair, kind: str, i: int) -> dict[str, Any]:
  """One timed line: the i-th lenience.

  Args:
    script: whose cells hold the alphas and the costs.
    pair: of the line.
    kind: sampled or argmax.
    i: place among LENIENCES.
  """
  lenience = LENIENCES[i]
  alpha = script.cell(f"{pair.draft} {kind}")["alpha"][i]
  costs = script.cell(f"costs {kind}")
  c = costs["c"][pair.draft]
  gamma, with_v = pairs.best_gamma(
      alpha, costs["c_by_gamma"][pair.draft], costs["verify_cost"]
  )
  best = theory.best_gamma(alpha, c)
  report = pairs.measured(
      pair.at(_KINDS[kind], lenience=lenience, gamma=gamma)
  )
  exact = script.cell(f"{pair.draft} {kind}")["alpha"][0]
  return report | {
      "kind": kind,
      "lenience": lenience,
      "alpha": alpha,
      "moved": alpha - exact if kind == "sampled" else None,
      "c": c,
      "best_gamma": best,
      "theorem_3_8": theory.speedup(alpha, best, c),
      "with_verify_cost": with_v,
      "paper": theirs(kind, lenience) if str(pair) == "ende small" else {},
  }


def theirs(kind: str, lenience: float) -> dict[str, float]:
  """The paper's speed-up with t5-small, and what its alpha gives."""
  key = dict(draft="t5-small", lenience=lenience)
  if kind == "argmax":
    row = paper.find("table5_argmax", **key)
    follows = theory.speedup(row["alpha"], row["gamma"], row["c"])
  else:
    row = paper.find("table5_speedup", **key)
    rate = paper.find("table5", **key)["alpha"]
    gamma = theory.best_gamma(rate, row["c"])
    follows = theory.speedup(rate, gamma, row["c"])
  return {"speedup": row["speedup"], "theorem_3_8": follows}


def markdown(made: dict) -> str:
  """The tables for people."""
  lines = [
      "# Table 5: lenience",
      "",
      f"{environment.headline(made)}, {made['dtype']}, {made['task']}.",
  ]
  for kind, temperature in _KINDS.items():
    lines += [
        "",
        f"{kind.capitalize()}, temperature {temperature}: alpha, the paper's /"
        " ours.",
        "",
        *results.table(
            " | ".join(["draft", *(f"l = {x:g}" for x in LENIENCES)]),
            [
                [
                    entry["draft"],
                    *(
                        f"{tables.number(a)} / {b:.3f}"
                        for a, b in zip(entry["paper"], entry["alpha"])
                    ),
                ]
                for entry in made["alphas"][kind]
            ],
        ),
        "",
        f"The speed-up with {made['draft']}. The paper's: as printed / by"
        " Theorem 3.8 from its alpha. Rows that differ from plain decoding"
        " are expected where l is below 1.",
        "",
        *results.table(
            "l | paper | alpha | moved in law | c | Thm 3.8, best gamma | gamma"
            " | with v | measured | tokens a pass | rows that differ | quality,"
            " plain / lenient",
            map(_cells, made["lines"][kind]),
        ),
    ]
  return "\n".join([*lines, "", f"![]({NAME}.png)"]) + "\n"


def _cells(line: dict) -> list[str]:
  """One row of a table of speed-ups."""
  printed, number, quality = line["paper"], tables.number, line["quality"]
  return [
      f"{line['lenience']:g}",
      f"{number(printed.get('speedup'), 1)} /"
      f" {number(printed.get('theorem_3_8'))}",
      f"{line['alpha']:.3f}",
      number(line["moved"], 3),
      f"{line['c']:.3f}",
      f"{line['theorem_3_8']:.2f} at {line['best_gamma']}",
      line["gamma"],
      number(line["with_verify_cost"]),
      pairs.spread(line["measured_speedup"]),
      number(line["block_efficiency"]),
      number(line["mismatched_rows"], 0),
      f"{number(quality['plain'], 1)} / {number(quality['speculative'], 1)}",
  ]


def draw(made: dict):
  """alpha over lenience, ours and the paper's; then the speed-ups."""
  figure, panels = pictures.panels(4, columns=2)
  for panel, (kind, entries) in zip(panels, made["alphas"].items()):
    for i, entry in enumerate(entries):
      label = entry["draft"]
      panel.plot(LENIENCES, entry["alpha"], "o-", color=f"C{i}", label=label)
      if None not in entry["paper"]:
        panel.plot(
            LENIENCES, entry["paper"], "x--", color=f"C{i}", alpha=0.6
        )
    panel.plot([], [], "x--", color="grey", label="paper")
    # Room for the legend.
    panel.set_ylim(0, 1.4)
    panel.set_ylabel("alpha")
    panel.set_title(f"{kind}, temperature {_KINDS[kind]}")
  for panel, (kind, lines) in zip(panels[2:], made["lines"].items()):
    plots.measured(panel, LENIENCES, lines)
    theirs = [line["paper"] for line in lines]
    for label, style, colour, rows, key in (
        ("with v", "o--", "orange", lines, "with_verify_cost"),
        ("Theorem 3.8", "o:", "orange", lines, "theorem_3_8"),
        ("paper: printed", "x-", "grey", theirs, "speedup"),
        ("paper: Theorem 3.8", "x:", "grey", theirs, "theorem_3_8"),
    ):
      if all(rows):
        values = [row[key] for row in rows]
        panel.plot(LENIENCES, values, style, color=colour, label=label)
    plots.plain(panel)
    panel.set_ylim(bottom=0)
    panel.set_ylabel(f"speed-up with {made['draft']}")
  for panel in panels:
    panel.invert_xaxis()
    panel.set_xlabel("lenience l")
  return figure


def _parser() -> options.Parser:
  return pairs.parser(NAME, __doc__, rows=40, timed_rows=8)


def work(argv: Sequence[str]) -> None:
  """Runs, prints and writes."""
  _, script, chosen = pairs.start(_parser(), NAME, argv, _ENDE)
  first = chosen[0]
  chosen = pairs.by_task(chosen)[first.task]
  found, costs, lines = {}, {}, {}
  for kind, temperature in _KINDS.items():
    found[kind] = {
        f"{source.draft} {kind}": functools.partial(alphas, source, kind)
        for source in table3.sources(chosen)
    }
    costs[f"costs {kind}"] = functools.partial(
        pairs.costs, [first], temperature
    )
    lines[kind] = {
        f"{kind} {lenience}": functools.partial(run, script, first, kind, i)
        for i, lenience in enumerate(LENIENCES)
    }
  makers = {}
  for part in (*found.values(), costs, *lines.values()):
    makers |= part
  made = script.cells(makers)
  of_kind = lambda parts: {
      kind: [made[key] for key in keys] for kind, keys in parts.items()
  }
  script.write(
      {
          "dtype": first.config.decode.dtype,
          "task": first.task,
          "draft": first.draft,
          "alphas": of_kind(found),
          "costs": {key: made[key] for key in costs},
          "lines": of_kind(lines),
      },
      markdown,
      {NAME: draw},
  )


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door(NAME, _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
