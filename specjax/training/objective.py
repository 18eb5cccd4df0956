"""What a training step minimises: references, or the laws of a teacher.

  cross_entropy    -log q(y), y the next token of the text
  forward_kl       sum_x p(x) log(p(x) / q(x))
  reverse_kl       sum_x q(x) log(q(x) / p(x))
  total_variation  sum_x |p(x) - q(x)| / 2, which is 1 - alpha of the position
                   (arXiv 2211.17192, Theorem 3.5)

p is the teacher's law and q the student's, both at temperature 1 and teacher
forced on the same text. Drafts distilled from their target are accepted more
often than drafts trained on references (DistillSpec, arXiv 2310.08461).
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from specjax import checks
from specjax import errors
from specjax.models import t5

DIVERGENCES = ("forward_kl", "reverse_kl", "total_variation")


@dataclasses.dataclass(frozen=True)
class Objective:
  """A loss: (1 - weight) * cross-entropy + weight * divergence.

  Attributes:
    model: shape of the student.
    teacher: shape of the teacher, of the student's vocabulary; None is
      cross-entropy alone.
    divergence: one of DIVERGENCES; read where there is a teacher.
    weight: of the divergence, in [0, 1]; at 0 only texts teach, and a teacher's
      law is not asked for.

  Raises:
    errors.UserError: a value is out of its range; the message names it.
  """

  model: t5.T5Config
  teacher: t5.T5Config | None = None
  divergence: str = "forward_kl"
  weight: float = 1.0

  def __post_init__(self):
    errors.require(
        self.divergence in DIVERGENCES,
        "divergence",
        f"give one of {', '.join(DIVERGENCES)}",
        self.divergence,
    )
    errors.require(
        checks.is_number(self.weight) and 0 <= self.weight <= 1,
        "weight",
        "give a number in [0, 1]",
        self.weight,
    )
    width = self.model.vocab_size
    if self.teacher:
      errors.require(
          self.teacher.vocab_size == width,
          "teacher",
          f"give one whose vocabulary is {width} wide, as the student's",
          self.teacher.vocab_size,
      )

  # There is no target that is trained with heads.
  target_share = 1.0

  @property
  def head_width(self) -> int:
    """K of the student."""
    return self.model.d_kv

  @property
  def held(self) -> "Objective":
    """The same for held-out rows."""
    return self

  def init(self, key):
    """Random variables of the student."""
    ids_B1 = jnp.zeros((1, 1), jnp.int32)
    return t5.T5(self.model).init(key, ids_B1, ids_B1 == 0, ids_B1)

  def means(self, sums) -> dict[str, jax.Array]:
    """Means over the tokens, and how many those are."""
    tokens = sums["tokens"]
    means = {name: value / tokens for name, value in sums.items()}
    return means | {"tokens": tokens}

  def sums(self, params, teacher_params, batch) -> dict[str, jax.Array]:
    """Sums over the real target tokens of a batch.

    Args:
      params: variables of the student.
      teacher_params: variables of the teacher; anything where there is none.
      batch: source_BL, source lengths, target_BT (EOS included; the decoder
        reads it shifted right), target lengths.

    Returns:
      Scalars: `tokens`, `loss`, `cross_entropy`; with a teacher also
      `overlap`, the sum of sum_x min(p, q), and `agreement`, the number of
      positions where both have the same best token.
    """
    _, _, target_BT, length_B = batch
    mask_BT = jnp.arange(target_BT.shape[1]) < length_B[:, None]
    total = lambda value_BT: jnp.sum(value_BT * mask_BT)
    logits_BTV = _logits(self.model, params, batch)
    losses_BT = optax.softmax_cross_entropy_with_integer_labels(
        logits_BTV, target_BT
    )
    out = {
        "tokens": jnp.sum(mask_BT).astype(jnp.float32),
        "cross_entropy": total(losses_BT),
    }
    if self.teacher is None:
      return out | {"loss": out["cross_entropy"]}
    teacher_BTV = jax.lax.stop_gradient(
        _logits(self.teacher, teacher_params, batch)
    )
    variation_BT = divergence("total_variation", teacher_BTV, logits_BTV)
    chosen_BT = divergence(self.divergence, teacher_BTV, logits_BTV)
    best = lambda logits_BTV: jnp.argmax(logits_BTV, axis=-1)
    return out | {
        "loss": (1 - self.weight) * out["cross_entropy"]
        + self.weight * total(chosen_BT),
        "overlap": total(1 - variation_BT),
        "agreement": total(best(teacher_BTV) == best(logits_BTV)),
    }


def divergence(kind: str, teacher_logits, logits) -> jax.Array:
  """Divergence of softmax(logits) from softmax(teacher_logits).

  Args:
    kind: one of DIVERGENCES.
    teacher_logits: [..., V], of p.
    logits: [..., V], of q.

  Returns:
    [...], in nats; a share of 1 for the total variation.
  """
  log_p = jax.nn.log_softmax(teacher_logits)
  log_q = jax.nn.log_softmax(logits)
  p, q = jnp.exp(log_p), jnp.exp(log_q)
  if kind == "forward_kl":
    return jnp.sum(p * (log_p - log_q), axis=-1)
  if kind == "reverse_kl":
    return jnp.sum(q * (log_q - log_p), axis=-1)
  return jnp.sum(jnp.abs(p - q), axis=-1) / 2


def _logits(model: t5.T5Config, params, batch):
  """Teacher-forced logits_BTV of a batch."""
  source_BL, source_B, target_BT, _ = batch
  start_B1 = jnp.full_like(target_BT[:, :1], model.decoder_start_token_id)
  inputs_BT = jnp.concatenate([start_B1, target_BT[:, :-1]], axis=1)
  mask_BL = jnp.arange(source_BL.shape[1]) < source_B[:, None]
  return t5.T5(model).apply(params, source_BL, mask_BL, inputs_BT)
