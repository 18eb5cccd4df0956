"""The static tree of drafts that is fastest on this device.

    python -m specjax.tree --config configs/ende_t5small.py:mini \\
        --out out/tree.json
    python -m specjax.run --config configs/ende_t5small.py:mini \\
        --config.draft.tree=out/tree.json

draft.tree=out/tree.json:8 is the tree of 8 nodes that should give most tokens a
pass, whatever its levels cost.

It decodes the config's texts twice, with a star of children and with the best
tree that this makes one hope for, and counts which children are accepted by
depth and rank; it times target passes and levels of drafts in trees of several
sizes; and writes the tree that should be fastest (Sequoia, arXiv 2402.12374).
Sampling, kind of drafts, siblings and rule are the config's.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shlex
import sys
from typing import Any, Sequence

import numpy as np

from specjax import command_line
from specjax import drafts as drafts_lib
from specjax import errors
from specjax import experiment
from specjax import options
from specjax import prepare
from specjax import search
from specjax import sections
from specjax import topology
from specjax import writing
from specjax.measure import environment
from specjax.measure import ranks as ranks_lib
from specjax.measure import steps as steps_lib
from specjax.measure import tables

# Option: its type, its default, and what it says.
_OPTIONS = {
    "--out": (str, None, "file that the tree is written to (needed)"),
    "--nodes": (options.whole(1, 256), 64, "of the largest tree"),
    "--depth": (options.whole(1, topology.DEPTH), 6, "of the deepest"),
    "--ranks": (options.whole(1, topology.RANKS), 8, "children of a node"),
}


def _parser() -> options.Parser:
  return options.parser("specjax.tree", __doc__, _OPTIONS)


def usage() -> str:
  """What --help shows."""
  return command_line.usage_below(_parser().format_help())


def read(
    argv: Sequence[str],
) -> tuple[argparse.Namespace, sections.Experiment]:
  """Arguments -> this door's own options, and the config with a star.

  Raises:
    errors.UserError: as command_line.read; or no file is given to write to, or
      the drafts are no trees.
  """
  own, rest = options.split(argv, _OPTIONS)
  asked = _parser().read(own)
  if not asked.out:
    raise errors.UserError(
        "--out: give a file for the tree, such as --out out/tree.json"
    )
  star = json.dumps([[rank] for rank in range(asked.ranks)])
  return asked, command_line.read([*rest, f"--config.draft.tree={star}"])


def main(argv: Sequence[str]) -> int:
  """Finds the tree of the arguments' config; returns the exit code."""
  return options.door(
      "specjax.tree",
      usage,
      work,
      argv,
      interrupted="interrupted; no tree was written",
  )


def work(argv: Sequence[str]) -> None:
  """Measures, looks for the tree, prints and writes.

  Raises:
    errors.UserError: the config can't be run here, or nothing can be written.
  """
  asked, config = read(argv)
  out = pathlib.Path(os.path.expanduser(asked.out))
  # Told now, not after minutes of work.
  _write(out, "", ".test").unlink()
  command = shlex.join(["python", "-m", "specjax.tree", *argv[1:]])
  made = find(prepare.prepare(config), asked.nodes, asked.depth)
  where = environment.where(command)
  _write(out, _dumps(made | dict(where)))
  print(table(made))
  print(f"\nwritten: {out}")


def find(
    setup: prepare.Setup, nodes: int, depth: int
) -> dict[str, Any]:
  """The fastest tree of a setup whose drafts are a star, and why it is.

  Args:
    setup: of a tree of depth 1; its children are as many as are looked at.
    nodes: of the largest tree.
    depth: of the deepest.
  """
  heads = getattr(setup.drafts.drafter, "heads", None)
  if heads is not None:
    # Each level takes one of them.
    depth = min(depth, heads.config.heads)
  counted = ranks_lib.Ranks(depth, setup.drafts.tree.nodes)
  _count(setup, counted, "star")
  probe = search.Best(counted.chance_GC(), nodes)
  size = int(np.flatnonzero(probe.worth > -np.inf)[-1])
  setup = _branched(setup, probe.tree(size))
  _count(setup, counted, "tree")
  chance_GC = counted.chance_GC()
  widths, verify, draft = _costs(setup, probe, size)
  found = search.fastest(chance_GC.tolist(), widths, verify, draft)
  best = max(found, key=lambda each: each.speedup)
  config = setup.config
  return {
      "paths": topology.dump(best.topology.paths),
      "nodes": best.topology.nodes,
      "depth": best.topology.depth,
      "expected_tokens": best.tokens,
      "expected_speedup": best.speedup,
      "by_nodes": [
          [
              each.topology.nodes,
              each.topology.depth,
              round(each.tokens, 4),
              round(each.speedup, 4),
          ]
          for each in found
      ],
      "trees": search.by_size(chance_GC.tolist(), range(1, size + 1)),
      "acceptance": np.round(chance_GC, 4).tolist(),
      "tried": counted.tried_GC.tolist(),
      "widths": list(widths),
      "verify_costs": list(verify),
      "draft_costs": list(draft),
      "drafter": config.draft.name,
      "siblings": config.draft.siblings,
      "rule": config.rule().name,
      "lossless": config.rule().lossless,
      "sampling": dataclasses.asdict(config.sampling),
      "dtype": config.decode.dtype,
      "batch": config.decode.batch,
      "rows": len(setup.requests),
  }


def table(made: dict[str, Any]) -> str:
  """The best tree of some sizes, and the one that was chosen."""
  lines = [" nodes  depth  tokens  speed-up"]
  sizes = {width - 1 for width in made["widths"]} | {made["nodes"]}
  for nodes, depth, tokens, speedup in made["by_nodes"]:
    if nodes in sizes:
      mark = "  chosen" if nodes == made["nodes"] else ""
      lines.append(
          f"{nodes:6}{depth:7}{tokens:8.2f}{speedup:9.2f}x{mark}"
      )
  if not made["lossless"]:
    lines.append(tables.LOSSY)
  return "\n".join(lines)


def _dumps(made: dict[str, Any]) -> str:
  """JSON with a line for each key."""
  lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in made.items()]
  return "{\n" + ",\n".join(lines) + "\n}\n"


def _branched(setup: prepare.Setup, tree: topology.Topology) -> prepare.Setup:
  """The same with drafts of another shape."""
  drafter = dataclasses.replace(setup.drafts.drafter, topology=tree)
  drafts = drafts_lib.Drafts(drafter, setup.drafts.params)
  return dataclasses.replace(setup, drafts=drafts)


def _count(
    setup: prepare.Setup, counted: ranks_lib.Ranks, name: str
) -> None:
  """Decodes all rows, and counts what became of their drafts."""
  rows = len(setup.requests)
  with prepare.bar(name, len(setup.groups(rows))) as progress:
    results = experiment.traces(setup, rows, progress.update)
  counted.count(setup.drafts.tree, results)


def _costs(setup: prepare.Setup, probe: search.Best, nodes: int):
  """Widths of target passes, what they cost, and what a level of drafts is.

  Args:
    setup: whose device and whose texts they are timed on.
    probe: whose trees of as many nodes stand for all of their size.
    nodes: of the largest tree.
  """
  measure = setup.config.measure
  batches = setup.groups(len(setup.requests))
  batch = batches[len(batches) // 2].batch
  sizes = [2**i - 1 for i in range(1, nodes.bit_length()) if 2**i - 1 < nodes]
  sizes.append(nodes)
  costs = []
  for size in sizes:
    timed = steps_lib.measure(
        setup.plain,
        _branched(setup, probe.tree(size)).speculative,
        batch,
        steps=measure.steps,
        repeats=measure.repeats,
    )
    costs.append((timed.verify_cost, timed.c))
  # One timing has its noise; a wider pass is not meant to be the cheaper one,
  # of target or draft.
  verify, draft = np.maximum.accumulate(costs).T.tolist()
  # The pass without drafts is what the costs are counted in.
  return [1, *(size + 1 for size in sizes)], [1.0, *verify], [0.0, *draft]


def _write(path: pathlib.Path, text: str, ending: str = "") -> pathlib.Path:
  """Writes the file, or one beside it with another ending."""
  written = path.with_name(path.name + ending)
  try:
    writing.write(written, text)
  except OSError as error:
    raise errors.UserError(
        f"--out: {path}: {error.strerror}; give another file"
    ) from None
  return written


if __name__ == "__main__":
  options.leave(main(sys.argv))
