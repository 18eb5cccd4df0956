"""The families of models whose checkpoints are read, by model_type."""

from specjax.checkpoints.families import base
from specjax.checkpoints.families import gpt2
from specjax.checkpoints.families import llama
from specjax.checkpoints.families import t5
from specjax.errors import UserError

FAMILIES: dict[str, base.Family] = {
    "t5": t5.FAMILY,
    "llama": llama.LLAMA,
    "qwen2": llama.QWEN2,
    "gpt2": gpt2.FAMILY,
}


def model_type(config: base.Config) -> str:
  """The family of a config.

  Raises:
    UserError: no family has such a shape.
  """
  for name, family in FAMILIES.items():
    if family.fits(config):
      return name
  known = ", ".join(FAMILIES)
  raise UserError(f"config: no {known} has this shape, got {config}")


def of(config: base.Config) -> base.Family:
  """`model_type`'s family."""
  return FAMILIES[model_type(config)]
