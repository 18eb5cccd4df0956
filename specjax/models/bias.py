"""T5's learned bias by relative position (arXiv 1910.10683, 2.1)."""

import math

from flax import linen as nn
import jax.numpy as jnp


def relative_bucket(distance, *, bidirectional, buckets, max_distance):
  """Bucket of key position minus query position (arXiv 1910.10683, 2.1).

  Half of the buckets are exact, the other half grow logarithmically up to
  `max_distance`; in the encoder keys after the query have buckets of their
  own.

  Args:
    distance: int array, key position - query position.
    bidirectional: True in the encoder.
    buckets: number of buckets in all.
    max_distance: distances from here on share the last bucket.

  Returns:
    int32 array of the shape of `distance`.
  """
  offset = 0
  if bidirectional:
    buckets //= 2
    offset = jnp.where(distance > 0, buckets, 0)
    distance = jnp.abs(distance)
  else:
    distance = jnp.maximum(-distance, 0)
  exact = buckets // 2
  # The maximum keeps log's argument positive where the exact branch is taken.
  log_ratio = jnp.log(
      jnp.maximum(distance, 1).astype(jnp.float32) / exact
  ) / math.log(max_distance / exact)
  log_bucket = exact + (log_ratio * (buckets - exact)).astype(jnp.int32)
  log_bucket = jnp.minimum(log_bucket, buckets - 1)
  return offset + jnp.where(distance < exact, distance, log_bucket)


class RelativeBias(nn.Module):
  """Bias [B, H, T, S] by the distance of key and query positions.

  Attributes:
    heads: H.
    buckets: how many distances are told apart.
    max_distance: see `relative_bucket`.
    stddev: of the initial values.
    bidirectional: True in the encoder.
  """

  heads: int
  buckets: int
  max_distance: int
  stddev: float
  bidirectional: bool

  @nn.compact
  def __call__(self, query_position_BT, key_position_BS):
    table_XH = self.param(
        "table",
        nn.initializers.normal(self.stddev),
        (self.buckets, self.heads),
    )
    bucket_BTS = relative_bucket(
        key_position_BS[:, None, :] - query_position_BT[:, :, None],
        bidirectional=self.bidirectional,
        buckets=self.buckets,
        max_distance=self.max_distance,
    )
    bias_BTSH = table_XH.astype(jnp.float32)[bucket_BTS]
    return jnp.transpose(bias_BTSH, (0, 3, 1, 2))
