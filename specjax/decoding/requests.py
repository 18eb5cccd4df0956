"""Requests as arrays: the door from lists of ids to padded batches."""

import dataclasses

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks
from specjax import errors
from specjax import settings as settings_lib

# Sources and prompts are padded to this at least.
SHORTEST = 64


@dataclasses.dataclass(frozen=True)
class Request:
  """One text to decode.

  Attributes:
    id: fixes the row's random numbers, wherever in a batch it stands.
    source: ids that an encoder reads, or None.
    prompt: ids that the decoder begins with; T5's start token, or the whole
      text that a decoder-only model goes on with.
    settings: sampling.
    max_new_tokens: its budget, the EOS included.

  Raises:
    errors.UserError: a field is of another type or out of its range; the
      message names it.
  """

  id: int
  source: tuple[int, ...] | None
  prompt: tuple[int, ...]
  settings: settings_lib.Settings
  max_new_tokens: int

  def __post_init__(self):
    require, whole = errors.require, checks.is_whole
    settings, budget = self.settings, self.max_new_tokens
    require(whole(self.id, 0, 2**32 - 1), "id", "give 0 to 2^32 - 1", self.id)
    require(
        isinstance(settings, settings_lib.Settings),
        "settings",
        "give a Settings",
        settings,
    )
    require(
        whole(budget, least=1),
        "max_new_tokens",
        "give 1 or more, below 2^31",
        budget,
    )
    self._check_ids("prompt", "at least one token")
    if self.source is not None:
      self._check_ids("source", "at least one token")

  def _check_ids(self, field: str, least: str) -> None:
    ids = getattr(self, field)
    errors.require(
        checks.are_ids(ids), field, "give a tuple of token ids", ids
    )
    if not ids:
      raise errors.UserError(f"{field}: is empty; give {least}")
    object.__setattr__(self, field, tuple(ids))


@struct.dataclass
class Batch:
  """Requests side by side.

  Attributes:
    id_B: uint32.
    source_BL: padded with 0, or None.
    source_mask_BL: True at real tokens, or None.
    prompt_BP: padded with 0 on the right.
    prompt_B: length of each prompt.
    budget_B: new tokens allowed; 0 marks a row that only fills the batch.
    key_B: the rows' keys.
    sampling: the rows' settings.
  """

  id_B: jax.Array
  source_BL: jax.Array | None
  source_mask_BL: jax.Array | None
  prompt_BP: jax.Array
  prompt_B: jax.Array
  budget_B: jax.Array
  key_B: jax.Array
  sampling: settings_lib.Sampling


def _pad(rows, width: int):
  ids = np.zeros((len(rows), width), np.int32)
  for row, out in zip(rows, ids):
    out[: len(row)] = row
  mask = np.arange(width) < np.array([len(row) for row in rows])[:, None]
  return jnp.asarray(ids), jnp.asarray(mask)


def _pad_sources(sources, width: int | None, vocabulary: int):
  """source_BL and its mask, or None twice where there are none."""
  if all(source is None for source in sources):
    return None, None
  if any(source is None for source in sources):
    raise errors.UserError("source: give it to all rows of a batch or to none")
  _check_vocabulary("source", sources, vocabulary)
  longest = max(map(len, sources))
  if width is None:
    width = source_width(longest)
  if longest > width:
    raise errors.UserError(
        f"source: {longest} tokens do not fit the {width} asked for"
    )
  return _pad(sources, width)


def _check_vocabulary(field: str, rows, vocabulary: int) -> None:
  """Refuses ids that a model would silently take for others."""
  highest = max(map(max, rows))
  if highest >= vocabulary:
    raise errors.UserError(
        f"{field}: give ids below the vocabulary's size {vocabulary}, got"
        f" {highest}"
    )


def _check_numbers(requests: int, seed, rows) -> None:
  errors.require(
      checks.is_whole(seed, 0, 2**32 - 1),
      "seed",
      "give 0 to 2^32 - 1",
      seed,
  )
  errors.require(
      rows is None or checks.is_whole(rows, requests),
      "rows",
      f"give as many as there are requests ({requests}), or more",
      rows,
  )


def source_width(longest: int) -> int:
  """L for a source of that length: the next of 64, 96, 128, 192, 256, 384, ...

  Few shapes are compiled, and at most a third of a row is padding.
  """
  width = SHORTEST
  while width < longest:
    power = width & (width - 1) == 0
    width += width // 2 if power else width // 3
  return width


def padded_prompt(longest: int) -> int:
  """P for a prompt of that length: 1 for a start token, else as L."""
  return 1 if longest == 1 else source_width(longest)


def unpad(ids_BP, mask_BP) -> list[tuple[int, ...]]:
  """Prompts of an array that is padded left or right, as tokenizers give it.

  Rows of a Batch begin at the left, so that a token's place is its position;
  positions that are counted from a padded start mispredict every shorter row
  (ndif-team/nnsight#673).

  Args:
    ids_BP: token ids; anything where the mask is False.
    mask_BP: True, or 1, at real tokens.

  Raises:
    errors.UserError: a row has no token, or padding between its tokens, or the
      mask has another shape.
  """
  ids_BP, mask_BP = np.asarray(ids_BP), np.asarray(mask_BP)
  errors.require(
      mask_BP.ndim == 2 and mask_BP.shape == ids_BP.shape,
      "mask_BP",
      f"give two axes, those of the ids {ids_BP.shape}",
      mask_BP.shape,
  )
  prompts = []
  for ids, mask in zip(ids_BP, mask_BP != 0):
    places = np.flatnonzero(mask)
    good = len(places) and places[-1] - places[0] + 1 == len(places)
    errors.require(
        bool(good), "mask_BP", "give each row its tokens side by side", mask
    )
    prompts.append(tuple(ids[places].tolist()))
  return prompts


def make_batch(
    requests: list[Request],
    *,
    vocabulary: int,
    seed: int,
    rows: int | None = None,
    width: int | None = None,
    prompt_width: int | None = None,
) -> Batch:
  """Pads requests into one batch.

  Args:
    requests: all with a source, or all without; ids below V.
    vocabulary: V of the target's law.
    seed: of the run, from 0 to 2^32 - 1; each row's key is made of it and the
      request's id.
    rows: B; more than there are requests adds rows that never count. As many
      as there are requests where None.
    width: L; `source_width` of the longest where None.
    prompt_width: P; the longest prompt's where None.

  Raises:
    errors.UserError: nothing to decode, more requests than rows, some with
      and some without a source, an id outside the vocabulary, a source that
      does not fit `width`, or a seed out of its range.
  """
  if not requests:
    raise errors.UserError("requests: are empty; give at least one text")
  _check_numbers(len(requests), seed, rows)
  blank = 0 if rows is None else rows - len(requests)
  filled = [*requests, *requests[:1] * blank]
  prompts = [request.prompt for request in filled]
  _check_vocabulary("prompt", prompts, vocabulary)
  prompt_BP, _ = _pad(prompts, prompt_width or max(map(len, prompts)))
  source_BL, mask_BL = _pad_sources(
      [request.source for request in filled], width, vocabulary
  )
  budgets = [request.max_new_tokens for request in requests] + [0] * blank
  id_B = jnp.asarray([request.id for request in filled], jnp.uint32)
  return Batch(
      id_B=id_B,
      source_BL=source_BL,
      source_mask_BL=mask_BL,
      prompt_BP=prompt_BP,
      prompt_B=jnp.asarray([len(prompt) for prompt in prompts], jnp.int32),
      budget_B=jnp.asarray(budgets, jnp.int32),
      key_B=jax.vmap(jax.random.fold_in, in_axes=(None, 0))(
          jax.random.key(seed), id_B
      ),
      sampling=settings_lib.stack(
          [request.settings for request in filled], vocabulary
      ),
  )


@dataclasses.dataclass(frozen=True)
class Group:
  """A batch and which of the requests it holds."""

  rows: tuple[int, ...]
  batch: Batch


def groups(
    requests: list[Request],
    batch: int,
    *,
    vocabulary: int,
    seed: int,
    rows: int | None = None,
) -> list[Group]:
  """Requests as batches of few shapes, `batch` at a time.

  Sources and prompts of one width go together, so that short ones are not
  padded to the longest; the last batch of a width is filled up.

  Args:
    requests: as `make_batch` takes them.
    batch: requests of every batch, at most.
    vocabulary: likewise.
    seed: likewise.
    rows: B of every batch; `batch` where None.
  """
  by_width: dict[tuple[int, int], list[int]] = {}
  for i, request in enumerate(requests):
    source = source_width(len(request.source or ()))
    widths = source, padded_prompt(len(request.prompt))
    by_width.setdefault(widths, []).append(i)
  chunks = [
      (widths, tuple(members[i : i + batch]))
      for widths, members in sorted(by_width.items())
      for i in range(0, len(members), batch)
  ]
  make = lambda widths, chunk: make_batch(
      [requests[i] for i in chunk],
      vocabulary=vocabulary,
      seed=seed,
      rows=batch if rows is None else rows,
      width=widths[0],
      prompt_width=widths[1],
  )
  return [Group(chunk, make(widths, chunk)) for widths, chunk in chunks]
