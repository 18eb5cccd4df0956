"""One of the two ways to decode that are compared: plain and speculative."""

import dataclasses
from typing import Any

from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.decoding import state as state_lib


@dataclasses.dataclass(frozen=True)
class Side:
  """A loop, the parameters it runs on, and the budget of its buffers."""

  loop: loop_lib.Loop
  target_params: Any
  drafter_params: Any
  budget: int

  def prefill(self, batch: requests_lib.Batch):
    """The state before the first round."""
    return self.loop.prefill(
        self.target_params, self.drafter_params, batch, self.budget
    )

  def run(self, state, until=None):
    """All rounds, or up to round `until`; `state` is donated."""
    return self.loop.run(
        self.target_params, self.drafter_params, state, until
    )

  def adopt(self, state) -> "Side":
    """The same, its drafts having learnt from a finished batch.

    Drafts that do not learn stay as they are.
    """
    drafter = self.loop.drafter
    if not drafter.learns:
      return self
    params = drafter.adopt(self.drafter_params, state_lib.responses(state))
    return dataclasses.replace(self, drafter_params=params)
