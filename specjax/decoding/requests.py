"""Requests as arrays: the door from lists of ids to padded batches."""

import dataclasses

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from specjax import errors
from specjax import settings as settings_lib

# Sources are padded to a multiple of this, so that few shapes are compiled.
SOURCE_MULTIPLE = 32


@dataclasses.dataclass(frozen=True)
class Request:
  """One text to decode.

  Attributes:
    id: fixes the row's random numbers, wherever in a batch it stands.
    source: ids that an encoder reads, or None.
    prompt: ids that the decoder begins with; T5's start token.
    settings: sampling.
    max_new_tokens: its budget, the EOS included.
  """

  id: int
  source: tuple[int, ...] | None
  prompt: tuple[int, ...]
  settings: settings_lib.Settings
  max_new_tokens: int

  def __post_init__(self):
    if not 0 <= self.id < 2**32:
      raise errors.UserError(f"id: give 0 to 2^32 - 1, got {self.id}")
    if self.max_new_tokens < 1:
      raise errors.UserError(
          f"max_new_tokens: must be 1 or more, got {self.max_new_tokens}"
      )
    if not self.prompt:
      raise errors.UserError(
          "prompt: is empty; give at least the decoder's start token"
      )
    if self.source is not None and not self.source:
      raise errors.UserError("source: is empty; give at least one token")


@struct.dataclass
class Batch:
  """Requests side by side.

  Attributes:
    source_BL: padded with 0, or None.
    source_mask_BL: True at real tokens, or None.
    prompt_BP: padded with 0 on the right.
    prompt_B: length of each prompt.
    budget_B: new tokens allowed; 0 marks a row that only fills the batch.
    key_B: the rows' keys.
    sampling: the rows' settings.
  """

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


def round_up(value: int, multiple: int) -> int:
  """The smallest multiple that is not under `value`."""
  return -(-value // multiple) * multiple


def make_batch(
    requests: list[Request],
    *,
    vocabulary: int,
    seed: int,
    rows: int | None = None,
    source_width: int | None = None,
) -> Batch:
  """Pads requests into one batch.

  Args:
    requests: all with a source, or all without.
    vocabulary: V of the target's law.
    seed: of the run; each row's key is made of it and the request's id.
    rows: B; more than there are requests adds rows that never count.
    source_width: L; the longest source, rounded up, where None.

  Raises:
    errors.UserError: nothing to decode, some with and some without a source,
      or a source that does not fit `source_width`.
  """
  if not requests:
    raise errors.UserError("requests: are empty; give at least one text")
  blank = (rows or len(requests)) - len(requests)
  filled = requests + requests[:1] * blank
  sources = [request.source for request in filled]
  if any(s is None for s in sources) != all(s is None for s in sources):
    raise errors.UserError("source: give it to all rows of a batch or to none")
  source_BL = mask_BL = None
  if sources[0] is not None:
    longest = max(map(len, sources))
    width = source_width or round_up(longest, SOURCE_MULTIPLE)
    if longest > width:
      raise errors.UserError(
          f"source: {longest} tokens do not fit the {width} asked for"
      )
    source_BL, mask_BL = _pad(sources, width)
  prompts = [request.prompt for request in filled]
  prompt_BP, _ = _pad(prompts, max(map(len, prompts)))
  budgets = [request.max_new_tokens for request in requests] + [0] * blank
  ids = jnp.asarray([request.id for request in filled], jnp.uint32)
  return Batch(
      source_BL=source_BL,
      source_mask_BL=mask_BL,
      prompt_BP=prompt_BP,
      prompt_B=jnp.asarray([len(prompt) for prompt in prompts], jnp.int32),
      budget_B=jnp.asarray(budgets, jnp.int32),
      key_B=jax.vmap(jax.random.fold_in, in_axes=(None, 0))(
          jax.random.key(seed), ids
      ),
      sampling=settings_lib.stack(
          [request.settings for request in filled], vocabulary
      ),
  )
