"""How many drafts a row makes in a round: as many as pay, or none.

All is counted in target steps. An accepted draft saves one; a round takes
longer than a plain one by what it costs to look for drafts, to make them, and
to read them in a wider pass.
"""

import dataclasses
import math
from typing import Sequence

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks
from specjax import errors

# Classes of drafts: below COPIED those of copies, by their trust (see
# copies.Match), then drawn tokens.
COPIED = 3
DRAWN = 3
NOWHERE = -1
_CLASSES = np.arange(4)
# How many are accepted, as far as nothing is known ...
_PRIOR_C = (0.2, 0.4, 0.6, 0.6)
# ... which is worth as much as so many judged drafts.
_WEIGHT = 4.0
# Of what was judged before, so much still counts after a round of drafts, and
# after one in which the class might have had some and had none.
_KEEP, _FADE = 0.95, 0.98


@struct.dataclass
class Costs:
  """What rounds cost on a device, in target steps.

  Attributes:
    draft: c, of one token that a draft model drafts.
    matching: of looking for something to copy.
    verify_W: v of a target pass, for each of the drafter's widths.
  """

  draft: jax.Array
  matching: jax.Array
  verify_W: jax.Array

  @property
  def wider_W(self) -> jax.Array:
    """What a pass costs beyond a plain step."""
    return jnp.maximum(self.verify_W - self.verify_W[0], 0)


def costs(
    widths: Sequence[int], c: float, matching: float, v: float | Sequence[float]
) -> Costs:
  """Costs of a drafter with these widths.

  Args:
    widths: of its target passes, rising.
    c, matching: draft and matching of Costs.
    v: of each width; or of the widest, narrower ones being as much cheaper.

  Raises:
    errors.UserError: c, matching or v is out of its range.
  """
  if checks.is_number(v):
    v = [1 + (v - 1) * (width - 1) / (widths[-1] - 1) for width in widths]
  for field, values in (("c", [c]), ("matching", [matching]), ("v", v)):
    good = all(checks.is_number(x) and 0 <= x < math.inf for x in values)
    errors.require(good, field, "give numbers from 0 on", values)
  errors.require(
      len(v) == len(widths), "v", f"give one for each of {widths}", v
  )
  return Costs(
      jnp.float32(c), jnp.float32(matching), jnp.asarray(v, jnp.float32)
  )


@struct.dataclass
class Book:
  """What came of a row's drafts.

  Attributes:
    accepted_BC: drafts of each class; the older, the less they count.
    judged_BC: likewise.
    balance_B: target steps saved less those spent, in all rounds.
  """

  accepted_BC: jax.Array
  judged_BC: jax.Array
  balance_B: jax.Array

  @property
  def chance_BC(self) -> jax.Array:
    """Of a draft to be accepted, below 1."""
    known_BC = self.accepted_BC + _WEIGHT * np.asarray(_PRIOR_C, np.float32)
    return known_BC / (self.judged_BC + _WEIGHT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Switch:
  """Chooses how many drafts of a round pay, row by row.

  Of all widths that a pass may have the one is taken whose drafts are expected
  to save most beyond what they cost, if any do; and none that could bring a
  row, since it began, below

    saved - spent = -(credit + share * tokens emitted).

  A class of drafts that does not pay is slowly forgotten, and then tried
  again. All of it is known before a round's drafts are drawn, so it changes no
  law. The costs are those of a batch whose rows all draft alike.

  Attributes:
    credit: target steps that a row may lose.
    share: and so many for each token.
    margin: what drafts are to save beyond their cost.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  credit: float = 0.5
  share: float = 0.01
  margin: float = 0.03

  def __post_init__(self):
    for field in ("credit", "share", "margin"):
      value = getattr(self, field)
      errors.require(
          checks.is_number(value) and 0 <= value <= 1e6,
          field,
          "give a number from 0 to 1e+06",
          value,
      )

  def start(self, like_B) -> Book:
    """Of rows that have not begun; `like_B` has their shape."""
    nothing_BC = jnp.zeros((*like_B.shape, _CLASSES.size), jnp.float32)
    return Book(nothing_BC, nothing_BC, jnp.zeros(like_B.shape, jnp.float32))

  def look(
      self, book: Book, room_B, emitted_B, costs: Costs, widths: Sequence[int]
  ) -> tuple[jax.Array, Book]:
    """Where to look for something to copy.

    Args:
      book: before the round.
      room_B: rows that may have drafts.
      emitted_B: their tokens so far.
      costs: of the device.
      widths: of a target pass.

    Returns:
      Rows in which copies of some class and width would pay, and the book once
      looking is paid for.
    """
    drafts_W = np.asarray(widths, np.float32) - 1
    cost_W = costs.matching + costs.wider_W
    chance_BC = book.chance_BC[:, :COPIED]
    saved_BCW = _expected(chance_BC[..., None], drafts_W)
    pays_BW = jnp.any(saved_BCW - cost_W > self.margin, axis=1)
    pays_BW &= cost_W <= self._left(book, emitted_B)[:, None]
    looks_B = room_B & jnp.any(pays_BW, axis=1)
    rests_BC = (room_B & ~looks_B)[:, None] & (_CLASSES < COPIED)
    paid_B = jnp.where(looks_B, costs.matching, 0.0)
    book = book.replace(balance_B=book.balance_B - paid_B)
    return looks_B, _faded(book, rests_BC)

  def choose(
      self,
      book: Book,
      emitted_B,
      class_B,
      count_B,
      cost_W,
      widths: Sequence[int],
      paid=0.0,
  ) -> tuple[jax.Array, Book]:
    """How many drafts to make.

    Args:
      book: of the round so far.
      emitted_B: tokens before it.
      class_B: of the drafts; of no meaning where there are none.
      count_B: how many there may be.
      cost_W: of a round with drafts, by its pass's width; 0 or more.
      widths: of a target pass.
      paid: what the drafts have cost already.

    Returns:
      Their number, and the book once they are paid for.
    """
    drafts_BW = jnp.minimum(count_B[:, None], np.asarray(widths) - 1)
    chance_B1 = jnp.take_along_axis(book.chance_BC, class_B[:, None], axis=1)
    gain_BW = _expected(chance_B1, drafts_BW) - cost_W - paid - self.margin
    allowed_BW = cost_W <= self._left(book, emitted_B)[:, None]
    gain_BW = jnp.where(allowed_BW, gain_BW, -jnp.inf)
    best_B = jnp.argmax(gain_BW, axis=1)
    pays_B = jnp.max(gain_BW, axis=1) > 0
    best_B1 = best_B[:, None]
    chosen_B = jnp.take_along_axis(drafts_BW, best_B1, axis=1)[:, 0]
    chosen_B = jnp.where(pays_B, chosen_B, 0)
    spent_B = jnp.where(pays_B, cost_W[best_B], 0.0)
    book = book.replace(balance_B=book.balance_B - spent_B)
    rests_B = (count_B > 0) & ~pays_B
    return chosen_B, _faded(book, rests_B[:, None] & _is(class_B))

  def settle(self, book: Book, class_B, count_B, accepted_B) -> Book:
    """The book after a round.

    Args:
      book: once its drafts were paid for.
      class_B: of the row's drafts, or NOWHERE.
      count_B: how many there were.
      accepted_B: how many of them were emitted.
    """
    judged_B = jnp.minimum(accepted_B + 1, count_B)
    add = lambda old_BC, new_B: jnp.where(
        _is(class_B), _KEEP * old_BC + new_B[:, None], old_BC
    )
    saved_B = jnp.where(class_B == NOWHERE, 0, accepted_B)
    return Book(
        accepted_BC=add(book.accepted_BC, accepted_B),
        judged_BC=add(book.judged_BC, judged_B),
        balance_B=book.balance_B + saved_B,
    )

  def _left(self, book: Book, emitted_B):
    """Target steps that a row may still lose."""
    return book.balance_B + self.credit + self.share * emitted_B


def _is(class_B):
  """Whether that is a row's class, for each of them."""
  return class_B[:, None] == _CLASSES


def _expected(chance, drafts):
  """How many of so many drafts are accepted: a + a^2 + ... (Eq. 1)."""
  return chance * (1 - chance**drafts) / (1 - chance)


def _faded(book: Book, rests_BC) -> Book:
  """The book after a round in which these might have had drafts."""
  fade = lambda x_BC: jnp.where(rests_BC, _FADE * x_BC, x_BC)
  return book.replace(
      accepted_BC=fade(book.accepted_BC), judged_BC=fade(book.judged_BC)
  )
