"""Which of a node's children are accepted, by depth and rank."""

from typing import Any, Iterable

import numpy as np

from specjax import topology as topology_lib

# A depth that was seldom reached leans on all depths together: by so many
# rounds.
_LEAN = 50.0


class Ranks:
  """Counts of rounds with trees, of whatever shapes.

  Attributes:
    tried_GC: how often a child of rank c was there when depth g was judged.
    accepted_GC: how often it was the accepted one.
  """

  def __init__(self, depth: int, ranks: int):
    self.tried_GC = np.zeros((depth, ranks), np.int64)
    self.accepted_GC = np.zeros((depth, ranks), np.int64)

  def count(
      self, tree: topology_lib.Topology, results: Iterable[Any]
  ) -> None:
    """Adds the rounds of some results, which have their traces.

    Args:
      tree: that was drafted.
      results: outputs.Result.
    """
    ranks = lambda nodes: [tree.paths[node][-1] for node in nodes]
    for result in results:
      for round_ in result.trace:
        place = 0
        for g, node in enumerate(round_.nodes):
          self.tried_GC[g, ranks(tree.children(place))] += 1
          if g < round_.accepted:
            self.accepted_GC[g, ranks([node])] += 1
          place = node + 1

  def chance_GC(self) -> np.ndarray:
    """Chance of the child of each rank to be accepted, at each depth."""
    total_C = self.tried_GC.sum(axis=0)
    all_C = self.accepted_GC.sum(axis=0) / np.maximum(total_C, 1)
    return (self.accepted_GC + _LEAN * all_C) / (self.tried_GC + _LEAN)
