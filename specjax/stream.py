"""One text in pieces, while it is decoded.

The loop stays on the device. It is told after which round to come back; what
is new is read, and it goes on from its own state. Its rounds are those of a
text that is decoded at once, and so are its tokens.

    round  tokens so far  of their text settled  piece
    1      ▁Gr            Gr                     Gr
    2      ▁Gr C3         Gr                     none: half of a character
    3      ▁Gr C3 B6 ße   Größe                  öße
"""

from typing import Callable, Iterator

import numpy as np

from specjax import checkpoints
from specjax import outputs
from specjax.decoding import requests as requests_lib
from specjax.decoding import side as side_lib
from specjax.decoding import state as state_lib


class Stream:
  """Pieces of one text; joined they are all of it.

  Each is as long as can be that no later token changes; none is empty. Rounds
  are run when a piece is asked for: who stops asking stops the decoding.

  Attributes:
    result: what became of the text; None until the last piece is there.
  """

  def __init__(
      self,
      target: checkpoints.Checkpoint,
      side: side_lib.Side,
      batch: requests_lib.Batch,
      every: int = 1,
      ended: Callable[[state_lib.State], None] = lambda state: None,
  ):
    """Begins one.

    Args:
      target: whose tokenizer makes texts of ids.
      side: drafts or none.
      batch: of one row.
      every: rounds from one look at what is new to the next.
      ended: is told the finished state.
    """
    self.result: outputs.Result | None = None
    self._pieces = self._decoded(target, side, batch, every, ended)

  def __iter__(self) -> Iterator[str]:
    return self

  def __next__(self) -> str:
    return next(self._pieces)

  def _decoded(self, target, side, batch, every, ended) -> Iterator[str]:
    state, until, told = side.prefill(batch), 0, ""
    while self.result is None:
      until += every
      state = side.run(state, until)
      if np.asarray(state.done_B)[0]:
        [self.result] = outputs.results(target, state, 1)
        ended(state)
        text = self.result.text
      else:
        [ids] = state_lib.responses(state)
        text = target.tokenizer.settled(ids)
      if len(text) > len(told):
        piece, told = text[len(told) :], text
        yield piece
