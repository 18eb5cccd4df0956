"""Table 3 of the paper: alpha of n-grams and of draft models.

    python -m experiments.table3
    python -m experiments.table3 --config configs/ende_t5small.py \\
        --config configs/ende_t5base.py --config.draft.table=

alpha is the mean of sum min(p, q) over every place of the target's own plain
output, by one teacher-forced pass of both; beside it the paper's figure. The
shipped drafts are those distilled from the target, and those that learnt from
references alone, as the paper's. The unigrams and bigrams of each task are
those of draft.table; where that is empty there are none.

Then the same at temperature 1 by counting: the share accepted of the drafts
that speculative decoding judged in text of its own making. Judged places are
not all places: after a round without a rejection the target adds a token that
no draft is judged for, and such rounds are in easy text. What that selection
does is shown: by the overlaps at the judged places and at the others.

Writes results/table3.json, .md and .png. About seven minutes on two CPU cores.
"""

import dataclasses
import functools
import sys
from typing import Any, Callable, Sequence

from experiments import intervals
from experiments import pairs
from experiments import paper
from experiments import results
from specjax import experiment
from specjax import options
from specjax import pictures
from specjax import prepare
from specjax.measure import environment
from specjax.measure import tables

NAME = "table3"
_NGRAMS = ("unigram", "bigram")


def sources(of_task: Sequence[pairs.Pair]) -> list[pairs.Pair]:
  """The n-grams of a task, where there are any, and its drafts."""
  first = of_task[0]
  if not first.config.draft.table:
    return list(of_task)
  return [
      pairs.Pair(first.task, kind, first.at(0, kind=kind)) for kind in _NGRAMS
  ] + list(of_task)


def overlaps(
    setup: prepare.Setup, texts: Sequence[Any], tick: Callable[[], None]
) -> intervals.Share:
  """Chance of acceptance over every place of each text."""
  rows = experiment.chances(setup, texts, tick=tick)
  return intervals.Share(
      [float(chance.sum(dtype="float64")) for [chance] in rows],
      [len(chance) for [chance] in rows],
  )


def alpha(source: pairs.Pair, temperature: int) -> dict:
  """One figure of the table."""
  setup = pairs.setup(source.at(temperature))
  with prepare.bar("alpha", len(setup.output)) as bar:
    share = overlaps(setup, setup.output, bar.update)
  size = source.draft.partition(" ")[0]
  name = size if size in _NGRAMS else f"t5-{size}"
  theirs = paper.find(NAME, task=source.task, draft=name)
  return {
      "task": source.task,
      "draft": source.draft,
      "temperature": temperature,
      "alpha": share.mean,
      "half_width": share.half_width,
      "places": sum(share.count_R),
      "paper": theirs.get(f"alpha_T{temperature}"),
  }


def count(pair: pairs.Pair) -> dict:
  """alpha at temperature 1 by overlaps and by counting."""
  setup = pairs.setup(pair.at(1))
  side = setup.speculative
  rule = dataclasses.replace(side.loop.rule, overlap=True)
  loop = dataclasses.replace(side.loop, rule=rule)
  with prepare.bar("judged", 3 * len(setup.requests)) as bar:
    made = setup.decode(dataclasses.replace(side, loop=loop), bar.update)
    plain = overlaps(setup, setup.output, bar.update)
    own = overlaps(setup, made, bar.update)
  return {
      "task": pair.task,
      "draft": pair.draft,
      "gamma": setup.config.draft.gamma,
  } | compare(plain, own, made)


def compare(
    plain: intervals.Share, own: intervals.Share, made: Sequence[Any]
) -> dict:
  """Five shares, and whether the first and the last but one agree.

  Args:
    plain: overlaps over every place of plain output.
    own: the same of speculative output.
    made: that output, whose rule reported overlaps.
  """
  number = [sum(row.judged) for row in made]
  judged = intervals.Share([sum(row.overlap) for row in made], number)
  accepted = intervals.Share([sum(row.accepted) for row in made], number)
  rest = intervals.Share(
      [max(0.0, a - b) for a, b in zip(own.sum_R, judged.sum_R)],
      [a - b for a, b in zip(own.count_R, number)],
  )
  shares = {
      "plain": plain,
      "own": own,
      "judged": judged,
      "accepted": accepted,
      "not_judged": rest,
  }
  difference, half_width = accepted - plain
  return {
      key: {
          "mean": share.mean,
          "half_width": share.half_width,
          "places": sum(share.count_R),
      }
      for key, share in shares.items()
  } | {
      "difference": difference,
      "difference_half_width": half_width,
      "agree": half_width is not None and abs(difference) <= half_width,
  }


def _figure(mean: float, half_width: float | None) -> str:
  return f"{mean:.3f} +- {tables.number(half_width, 3)}"


def markdown(made: dict) -> str:
  """The tables for people."""
  models = [x for x in made["alphas"] if x["draft"] not in _NGRAMS]
  both = {}
  for line in made["alphas"]:
    both.setdefault((line["task"], line["draft"]), []).append(line)
  rows = []
  for (task, draft), entries in both.items():
    cells = [task, draft]
    for line in entries:
      cells += [
          tables.number(line["paper"]),
          _figure(line["alpha"], line["half_width"]),
      ]
    rows.append([*cells, " / ".join(str(line["places"]) for line in entries)])
  head = "task | draft"
  for temperature in pairs.TEMPERATURES:
    head += f" | T = {temperature}: paper | ours"
  counts = [
      [
          *(line[key] for key in ("task", "draft", "gamma")),
          *(
              _figure(line[key]["mean"], line[key]["half_width"])
              for key in ("plain", "own", "accepted", "judged", "not_judged")
          ),
          _figure(line["difference"], line["difference_half_width"]),
          "yes" if line["agree"] else "no",
      ]
      for line in made["counts"]
  ]
  by_counting = [
      "",
      "Temperature 1, by overlaps and by counting. Speculative output has the"
      " law of plain output, so the first two figures differ by chance alone;"
      " so do accepted drafts and the overlaps at the places where a draft was"
      " judged. Judged and plain also differ by selection: the places that are"
      " not judged follow rounds whose every draft was accepted.",
      "",
      *results.table(
          "task | draft | gamma | plain output: all | speculative output: all |"
          " accepted of judged | overlap at judged | overlap at the others |"
          " accepted less plain | within its interval",
          counts,
      ),
  ]
  return "\n".join([
      "# Table 3: alpha",
      "",
      f"{environment.headline(made)}, {made['dtype']}.",
      "",
      "Mean of sum min(p, q) over every place of the target's own plain"
      " output; the paper's target is T5-XXL. +- is a 95 % interval over texts."
      f"{pairs.rising(models)}",
      "",
      *results.table(f"{head} | places", rows),
      *(by_counting if counts else ()),
      "",
      f"![]({NAME}.png)",
  ]) + "\n"


def draw(made: dict):
  """alpha by task and temperature; the paper's figures beside ours."""
  keys = dict.fromkeys((x["task"], x["temperature"]) for x in made["alphas"])
  figure, panels = pictures.panels(len(keys), columns=2)
  for panel, key in zip(panels, keys):
    lines = [
        x for x in made["alphas"] if (x["task"], x["temperature"]) == key
    ]
    places = range(len(lines))
    left, right = ([x + d for x in places] for d in (-0.2, 0.2))
    theirs = [x["paper"] or float("nan") for x in lines]
    panel.bar(left, theirs, 0.4, color="grey", label="paper: T5-XXL")
    panel.bar(
        right,
        [x["alpha"] for x in lines],
        0.4,
        yerr=[x["half_width"] or 0.0 for x in lines],
        capsize=2,
        color="darkorange",
        label="ours, 95 % interval",
    )
    panel.set_xticks(places, [x["draft"] for x in lines])
    panel.set_ylim(0, 1)
    panel.set_ylabel("alpha")
    panel.set_title(f"{key[0]}, temperature {key[1]}")
  return figure


def _parser() -> options.Parser:
  return pairs.parser(NAME, __doc__, rows=100)


def work(argv: Sequence[str]) -> None:
  """Runs, prints and writes."""
  configs = *pairs.CONFIGS, *pairs.REFERENCES
  _, script, chosen = pairs.start(_parser(), NAME, argv, configs)
  alphas = {
      f"{source} {temperature}": functools.partial(alpha, source, temperature)
      for of_task in pairs.by_task(chosen).values()
      for source in sources(of_task)
      for temperature in pairs.TEMPERATURES
  }
  counts = {
      f"{pair} counted": functools.partial(count, pair)
      for pair in chosen
      if not pair.on_references
  }
  made = script.cells(alphas | counts)
  script.write(
      {
          "dtype": chosen[0].config.decode.dtype,
          "alphas": [made[key] for key in alphas],
          "counts": [made[key] for key in counts],
      },
      markdown,
      {NAME: draw},
  )


def main(argv: Sequence[str]) -> int:
  """Runs the script; returns the exit code."""
  return results.door(NAME, _parser().format_help, work, argv)


if __name__ == "__main__":
  options.leave(main(sys.argv))
