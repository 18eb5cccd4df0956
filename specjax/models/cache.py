"""Keys and values by slot, and the queries that read and write them.

A *slot* is where a token's key and value are written; a *position* is where
the token stands in the text. For a chain the two are equal; siblings of a
tree share a position, never a slot. Rows move on by their own lengths, so
every write names a slot for each row and token; a token that must leave no
trace (a finished row, a padding node) is given slot S, one past the end, and
the write is dropped.
"""

from flax import struct
import jax
import jax.numpy as jnp


@struct.dataclass
class Cache:
  """Keys and values of every layer.

  Attributes:
    key: one key_BHKS a layer: what a product over K wants, on a CPU above all.
    value: one value_BHSK a layer.
  """

  key: tuple[jax.Array, ...]
  value: tuple[jax.Array, ...]

  @property
  def slots(self) -> int:
    """S."""
    return self.value[0].shape[2]


@struct.dataclass
class Query:
  """T tokens a row for one pass of a decoder.

  Attributes:
    tokens_BT: token ids.
    position_BT: where each token stands in the text (start token is 0).
    slot_BT: where its key and value are written; S drops the write.
    mask_BTS: True where the token sees the slot, after the write.
    position_BS: where the token in each slot stands in the text.
  """

  tokens_BT: jax.Array
  position_BT: jax.Array
  slot_BT: jax.Array
  mask_BTS: jax.Array
  position_BS: jax.Array


def empty_cache(
    batch: int, slots: int, layers: int, heads: int, head_width: int, dtype
) -> Cache:
  """A cache of zeros, `layers` pairs of arrays."""
  zeros = lambda *shape: tuple(
      jnp.zeros((batch, heads, *shape), dtype) for _ in range(layers)
  )
  return Cache(zeros(head_width, slots), zeros(slots, head_width))


def write(key_BHKS, value_BHSK, new_key_BHTK, new_value_BHTK, slot_BT):
  """Puts each token's key and value in its slot, at or past S in none.

  Returns:
    key_BHKS and value_BHSK.
  """

  def write_key(cache_KS, new_TK, slot_T):
    new_KT = new_TK.astype(cache_KS.dtype).T
    return cache_KS.at[:, slot_T].set(new_KT, mode="drop")

  def write_value(cache_SK, new_TK, slot_T):
    return cache_SK.at[slot_T].set(new_TK.astype(cache_SK.dtype), mode="drop")

  # An index for each head too: XLA turns a scatter with one index in all into
  # slices that cost copies of the whole cache.
  slot_BHT = jnp.broadcast_to(slot_BT[:, None], new_key_BHTK.shape[:-1])
  by_head = lambda put: jax.vmap(jax.vmap(put))
  return (
      by_head(write_key)(key_BHKS, new_key_BHTK, slot_BHT),
      by_head(write_value)(value_BHSK, new_value_BHTK, slot_BHT),
  )


def extend(
    cache: Cache | None, layer: int, new_key_BHTK, new_value_BHTK, slot_BT
):
  """`write` of one layer; what is new is all there is where there is no cache.

  Returns:
    key_BHKS and value_BHSK.
  """
  if cache is None:
    return jnp.swapaxes(new_key_BHTK, 2, 3), new_value_BHTK
  key_BHKS, value_BHSK = cache.key[layer], cache.value[layer]
  return write(key_BHKS, value_BHSK, new_key_BHTK, new_value_BHTK, slot_BT)


def chain_query(tokens_BT, start_B, slots: int, active_BT) -> Query:
  """A query whose tokens follow one another from position `start_B`.

  Each token sees every slot up to its own. Where `active_BT` is False the
  token is computed but writes nothing.

  Args:
    tokens_BT: token ids.
    start_B: position of the first token of each row; may be negative, those
      tokens are then treated as inactive.
    slots: S of the cache.
    active_BT: bool, which tokens count.
  """
  batch, width = tokens_BT.shape
  position_BT = start_B[:, None] + jnp.arange(width)
  active_BT = active_BT & (position_BT >= 0)
  position_S = jnp.arange(slots)
  return Query(
      tokens_BT=tokens_BT,
      position_BT=position_BT,
      slot_BT=jnp.where(active_BT, position_BT, slots),
      mask_BTS=position_S <= position_BT[:, :, None],
      position_BS=jnp.broadcast_to(position_S, (batch, slots)),
  )


def tree_query(
    tokens_BT, place_T, start_B, sees_BTT, slots: int, active_BT
) -> Query:
  """A query of some tokens of a tree, whose root stands at `start_B`.

  Place 0 is the root, and each place has a slot of its own behind it; a token
  sees the text before the root, and of the tree what `sees_BTT` says.

  Args:
    tokens_BT: token ids, of T of the tree's places.
    place_T: which those are; all of them, or what is read now of a tree whose
      upper places were read before.
    start_B: position of the root in each row, 0 or more.
    sees_BTT: bool, which places each place of the whole tree sees, itself
      among them.
    slots: S of the cache.
    active_BT: bool, which tokens count; others write nothing.
  """
  places = sees_BTT.shape[1]
  depth_BT = jnp.sum(sees_BTT, axis=-1) - 1
  index_BS = jnp.arange(slots) - start_B[:, None]
  inside_BS = (index_BS >= 0) & (index_BS < places)
  in_tree_BS = jnp.clip(index_BS, 0, places - 1)
  at_slot = lambda array, index: jnp.take_along_axis(array, index, axis=-1)
  sees_BTS = at_slot(sees_BTT[:, place_T], in_tree_BS[:, None])
  return Query(
      tokens_BT=tokens_BT,
      position_BT=start_B[:, None] + depth_BT[:, place_T],
      slot_BT=jnp.where(
          active_BT, start_B[:, None] + jnp.asarray(place_T), slots
      ),
      mask_BTS=jnp.where(
          inside_BS[:, None], sees_BTS, index_BS[:, None] < 0
      ),
      position_BS=start_B[:, None]
      + jnp.where(inside_BS, at_slot(depth_BT, in_tree_BS), index_BS),
  )


def keep_path(cache: Cache, start_B, path_BG) -> Cache:
  """Moves keys and values of a tree's path to where a chain has them.

  Args:
    cache: into which the tree was read.
    start_B: slot of the root in each row.
    path_BG: the path's nodes, -1 beyond.
  """
  behind_B1 = start_B[:, None] + 1
  from_BG = behind_B1 + jnp.maximum(path_BG, 0)
  to_BG = jnp.where(
      path_BG >= 0, behind_B1 + jnp.arange(path_BG.shape[1]), cache.slots
  )

  def move(key_BHKS, value_BHSK):
    key_BHKG = jnp.take_along_axis(key_BHKS, from_BG[:, None, None], axis=3)
    value_BHGK = jnp.take_along_axis(
        value_BHSK, from_BG[:, None, :, None], axis=2
    )
    key_BHGK = jnp.swapaxes(key_BHKG, 2, 3)
    return write(key_BHKS, value_BHSK, key_BHGK, value_BHGK, to_BG)

  return Cache(*zip(*map(move, cache.key, cache.value)))


def whole_query(tokens_BT) -> Query:
  """A query of whole texts, for a pass without a cache."""
  batch, length = tokens_BT.shape
  return chain_query(
      tokens_BT,
      jnp.zeros((batch,), jnp.int32),
      length,
      jnp.ones((batch, length), bool),
  )
