"""config.json: read strictly, written for every transformers."""

import json
import pathlib

import jax.numpy as jnp

from specjax.checkpoints import families
from specjax.checkpoints import fields as fields_lib
from specjax.checkpoints import files
from specjax.checkpoints.families import base

FILE = "config.json"
GENERATION = "generation_config.json"


def fields(path) -> fields_lib.Getter:
  """Reads a config.json, and with it what generation_config.json holds.

  Raises:
    UserError: a file is missing or no JSON object.
  """
  path = pathlib.Path(path)
  held = files.read_json(path)
  generation = path.with_name(GENERATION)
  there = generation.is_file()
  held["generation_config"] = files.read_json(generation) if there else {}
  return fields_lib.Getter(held, path)


def parse(get: fields_lib.Getter) -> tuple[base.Family, base.Config]:
  """Fields -> the family that they name, and the model's shape.

  Raises:
    UserError: a field is missing, mistyped or means another architecture.
  """
  known = tuple(families.FAMILIES)
  family = families.FAMILIES[get.one_of("model_type", None, known)]
  get.architectures(family.architectures)
  return family, family.parse(get)


def read(path) -> base.Config:
  """Reads the shape in a config.json; raises what `fields` and `parse` do."""
  return parse(fields(path))[1]


def dumps(config: base.Config, dtype) -> str:
  """The text of a config.json."""
  name = families.model_type(config)
  family = families.FAMILIES[name]
  held = family.unparse(config) | {
      "architectures": [family.architectures[0]],
      "model_type": name,
      "torch_dtype": jnp.dtype(dtype).name,
  }
  return json.dumps(held, indent=2, sort_keys=True) + "\n"
