"""Suffix decoding: drafts are what followed the same tokens most often.

Oliaro et al. (arXiv 2411.04975), whose code is Snowflake's ArcticInference. A
tree over earlier responses and one over the row's own text count what followed
what. The likeliest path is drafted here; drafters.suffix_dynamic drafts trees.
"""

import dataclasses
import functools

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks
from specjax import errors
from specjax.drafters import copies
from specjax.drafters import suffix_array
from specjax.drafters import suffix_own
from specjax.drafters import suffix_walk

NOTHING = copies.NOTHING
# Of a tree's longest strings.
_LONGEST = 1024
# Of the newest token's earlier places: few are looked at in a quick program.
_FEW = (32, 512)


@struct.dataclass
class Path:
  """What a tree would draft.

  Attributes:
    tokens_BN: ids; no meaning from the path's end on.
    count_B: the path's length.
    score_B: the sum of its tokens' probabilities: how many of them are
      expected to be accepted.
  """

  tokens_BN: jax.Array
  count_B: jax.Array
  score_B: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuffixDrafter(copies.Copies):
  """Drafts the likeliest path of two suffix trees.

  For each m below `reach` the newest m tokens are a context. Where they came
  before, a path follows them: each of its tokens is the child that came most
  often, of several the smallest id. It ends before a token of which

    count(context + path) / count(context) < least,

  before it is longer than min(gamma, factor * m + offset), and where context
  and path are `reach` tokens. The path with the highest score is drafted, ties
  to the longer context, and to the row's own tree.

  A row's own tree is over its prompt and output, the newest tokens among them,
  and where asked over an encoder's source. It is never built: the newest
  token's earlier places, sorted by what follows, are all of it that is read.

  `params` is a suffix_array.SuffixArray of earlier responses, or None.

  Attributes:
    gamma: tokens a round at most; below `reach`.
    reach: tokens of the trees' longest strings.
    factor: more tokens are drafted behind a longer context.
    offset: so many more, or fewer.
    least: the path's probability, at least.
    source: an encoder's source is part of the row's own text.
    learns: finished responses are taken into the tree of earlier ones.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  gamma: int
  reach: int = 64
  factor: float = 1.0
  offset: float = 0.0
  least: float = 0.1
  source: bool = True
  learns: bool = True

  def __post_init__(self):
    super().__post_init__()
    low = self.gamma + 1
    errors.require(
        checks.is_whole(self.reach, low, _LONGEST),
        "reach",
        f"give a whole number from {low} (gamma + 1) to {_LONGEST}",
        self.reach,
    )
    for field, least, most in (
        ("factor", 0, 1024), ("offset", -1024, 1024), ("least", 0, 1)
    ):
      value = getattr(self, field)
      errors.require(
          checks.is_number(value) and least <= value <= most,
          field,
          f"give a number from {least} to {most}",
          value,
      )
    for field in ("source", "learns"):
      value = getattr(self, field)
      errors.require(
          isinstance(value, bool), field, "give True or False", value
      )

  @property
  def budget_M(self) -> np.ndarray:
    """The longest path behind each context."""
    deepest_M = self.reach - np.arange(1, self.reach)
    return np.minimum(self.asked_M(self.gamma), deepest_M)

  def asked_M(self, most: int) -> np.ndarray:
    """How many tokens factor and offset ask for behind each context."""
    context_M = np.arange(1, self.reach)
    asked_M = np.floor(context_M * self.factor + self.offset + 1e-6)
    return np.clip(asked_M, 0, most).astype(np.int32)

  def adopt(self, params, responses):
    """The tree with these responses, newest last, in the place of the oldest.

    Args:
      params: a SuffixArray or None.
      responses: ids.
    """
    if params is None:
      return None
    return suffix_array.build(
        [*params.responses(), *responses], params.capacity, params.depth
    )

  def prefill(self, params, context, *, prompt_width, slots):
    """Walks the prompts through the tree of earlier responses.

    Raises:
      ValueError: the tree is too shallow.
    """
    del slots
    if params is None:
      return ()
    if params.depth < self.reach:
      raise ValueError(
          f"params: a tree of depth {params.depth}, want {self.reach}"
      )
    # What stands further back is no part of any context.
    steps = min(prompt_width, self.reach - 1)
    index_BT = context.length_B[:, None] - steps + jnp.arange(steps)
    tokens_BT = jnp.take_along_axis(
        context.tokens_BS, jnp.maximum(index_BT, 0), axis=1
    )
    return suffix_walk.walk(
        params,
        suffix_walk.start(context.length_B.size, self.reach - 1),
        jnp.where(index_BT >= 0, tokens_BT, NOTHING),
        jnp.full_like(context.length_B, steps),
    )

  def observe(self, params, state, tokens_BT, features, count_B, context):
    """Walks on with what was emitted."""
    del features, context
    if params is None:
      return state
    return suffix_walk.walk(params, state, tokens_BT, count_B)

  def match(self, params, state, context) -> copies.Match:
    """The best path of either tree; trust is by its tokens' probability."""
    path = self._own(context)
    if params is not None:
      other = jax.vmap(
          lambda loci: self._path(*suffix_walk.paths(params, loci, self.gamma))
      )(state)
      better_B = other.score_B > path.score_B
      choose = lambda b, a: jnp.where(
          better_B.reshape(-1, *[1] * (a.ndim - 1)), b, a
      )
      path = jax.tree.map(choose, other, path)
    mean_B = path.score_B / jnp.maximum(path.count_B, 1)
    trust_B = jnp.clip(jnp.floor(3 * mean_B), 0, 2).astype(jnp.int32)
    return copies.Match(path.tokens_BN, path.count_B, trust_B)

  def _own(self, context) -> Path:
    """The best path of each row's own tree."""

    def of(size):
      paths = functools.partial(
          suffix_own.paths,
          size=size,
          contexts=self.reach - 1,
          gamma=self.gamma,
      )
      return jax.vmap(lambda *row: self._path(*paths(*row)))

    return self._read_own(context, of)

  def _read_own(self, context, of):
    """What is read off the newest token's earlier places.

    Args:
      context: at the top of the round.
      of: a size -> a function of text_BS and newest_B, as copies.own_text has
        them, and of here_BS, those places: at most so many a row.
    """
    text_BS, newest_B = copies.own_text(context, self.source)
    columns = text_BS.shape[1]
    newest_B1 = jnp.take_along_axis(text_BS, newest_B[:, None], axis=1)
    before_BS = jnp.arange(columns) < newest_B[:, None]
    here_BS = (text_BS == newest_B1) & before_BS & context.active_B[:, None]
    most = jnp.max(jnp.sum(here_BS, axis=1))
    sizes = [size for size in _FEW if size < columns] + [columns]
    which = jnp.searchsorted(jnp.asarray(sizes), most)
    return jax.lax.switch(
        which, [*map(of, sizes)], text_BS, newest_B, here_BS
    )

  def _path(self, tokens_GM, times_GM, total_M) -> Path:
    """The best of one row, from paths and how often each comes that far."""
    chance_GM = times_GM / jnp.maximum(total_M, 1).astype(jnp.float32)
    node_G1 = jnp.arange(self.gamma)[:, None]
    good_GM = (times_GM > 0) & (chance_GM >= self.least)
    good_GM &= node_G1 < self.budget_M
    good_GM = jnp.cumprod(good_GM, axis=0, dtype=jnp.int32)
    # In order: another would round otherwise, and part equal scores.
    score_M, _ = jax.lax.scan(
        lambda score_M, more_M: (score_M + more_M, None),
        jnp.zeros(chance_GM.shape[1]),
        chance_GM * good_GM,
    )
    # Of several the longest context.
    at = score_M.size - 1 - jnp.argmax(score_M[::-1])
    return Path(tokens_GM[:, at], jnp.sum(good_GM[:, at]), score_M[at])
