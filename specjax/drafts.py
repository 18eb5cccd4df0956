"""Where drafts come from, each source with the parameters it runs on.

    target = pipeline.load("mini/target")
    drafts = draft_model(target, "mini/small", gamma=5)
    drafts = draft_tree(drafts, "[[0], [1], [0, 0]]")
"""

import dataclasses
from typing import Any, Mapping, Sequence

from flax import linen as nn
import jax.numpy as jnp

from specjax import checkpoints
from specjax import checks
from specjax import errors
from specjax import heads as heads_lib
from specjax import sharding
from specjax import topology as topology_lib
from specjax.checkpoints import ngrams
from specjax.checkpoints import responses as responses_lib
from specjax.checkpoints import tokenizer as tokenizer_lib
from specjax.drafters import dynamic
from specjax.drafters import lookup
from specjax.drafters import mixed
from specjax.drafters import model as model_drafter
from specjax.drafters import ngram
from specjax.drafters import none
from specjax.drafters import simulated
from specjax.drafters import suffix_array
from specjax.drafters import suffix_dynamic
from specjax.drafters import switch as switch_lib
from specjax.drafters import tree as tree_drafter


@dataclasses.dataclass(eq=False)
class Drafts:
  """A source of drafts with its parameters.

  A Decoder replaces those of drafts that learn from finished responses.
  """

  drafter: Any
  params: Any

  @property
  def tree(self) -> topology_lib.Topology | None:
    """The shape of a round's drafts; None where they are a chain."""
    return self.drafter.topology if self.drafter.trees else None


NO_DRAFTS = Drafts(none.NoDrafter(), ())


def draft_model(
    target: checkpoints.Checkpoint,
    name: str,
    gamma: int,
    *,
    dtype=jnp.float32,
    hint: str = "mini/small is a draft that ships with the package",
    layout: sharding.Layout | None = None,
    **options,
) -> Drafts:
  """Drafts by a smaller model.

  Args:
    target: the model they are for.
    name: of the draft checkpoint, as `checkpoints.load` takes it.
    gamma: tokens a round.
    dtype: of the draft model.
    hint: what a person can do where the draft can't be had.
    layout: of a draft that is spread over devices as the target is; else it
      lies on the first one.
    **options: further fields of drafters.model.ModelDrafter.

  Raises:
    errors.UserError: it can't be had, or its tokenizer is not the target's.
  """
  draft = checkpoints.load(name, dtype, layout=layout, hint=hint)
  tokenizer_lib.check_same(target.tokenizer, draft.tokenizer)
  return of_module(target.module, draft.module, draft.params, gamma, **options)


def of_module(
    target: nn.Module, module: nn.Module, params: Any, gamma: int, **options
) -> Drafts:
  """Drafts by a module, of whose parameters the shapes may be all there is.

  Args:
    target: the module that they are for.
    module: drafts.
    params: of it.
    gamma: tokens a round.
    **options: further fields of drafters.model.ModelDrafter.

  Raises:
    errors.UserError: it does not read what the target reads.
  """
  kinds = [type(each).__name__ for each in (target, module)]
  if kinds[0] != kinds[1]:
    raise errors.UserError(
        f"draft: give a {kinds[0]}, which reads what the target reads, got a"
        f" {kinds[1]}"
    )
  drafter = model_drafter.ModelDrafter(
      module, gamma, positions=module.config.max_positions, **options
  )
  return Drafts(drafter, params)


def draft_ngrams(
    target: checkpoints.Checkpoint,
    name: str,
    gamma: int,
    *,
    order: int = ngram.BIGRAM,
    **options,
) -> Drafts:
  """Drafts from a table of unigrams and bigrams.

  Args:
    target: the model they are for.
    name: of the table, as checkpoints.ngrams.find takes it.
    gamma: tokens a round.
    order: ngram.UNIGRAM or ngram.BIGRAM.
    **options: further fields of drafters.ngram.NgramDrafter.

  Raises:
    errors.UserError: it can't be had, or was counted with another vocabulary.
  """
  drafter = ngram.NgramDrafter(order, gamma, **options)
  return Drafts(drafter, ngrams.load(name, target.tokenizer).on_device())


def draft_tree(
    drafts: Drafts,
    shape: topology_lib.Topology | str,
    siblings: str = "top",
) -> Drafts:
  """Trees of the drafts of a model, an EAGLE head or n-grams.

  Args:
    drafts: from `draft_model`, `draft_eagle` or `draft_ngrams`; their gamma
      plays no part.
    shape: of the trees, or as topology.read takes it.
    siblings: see drafters.tree.TreeDrafter.

  Raises:
    errors.UserError: there is no such tree, or an option does not go with it.
  """
  if isinstance(shape, str):
    shape = topology_lib.read(shape)
  drafter = tree_drafter.TreeDrafter(
      source=drafts.drafter, topology=shape, siblings=siblings
  )
  return Drafts(drafter, drafts.params)


def draft_medusa(
    target: checkpoints.Checkpoint,
    name: str,
    gamma: int,
    shape: topology_lib.Topology | str | None = None,
) -> Drafts:
  """Drafts by heads that read the target's states; see heads.draft_medusa.

  Args:
    target: the model that they were trained for.
    name: of their file, or of shipped ones.
    gamma: tokens a round, where there is no tree.
    shape: of the trees, or as topology.read takes it; None is a chain.

  Raises:
    errors.UserError: they can't be had, are another target's, or too few.
  """
  if isinstance(shape, str):
    shape = topology_lib.read(shape)
  return Drafts(*heads_lib.draft_medusa(target, name, gamma, shape))


def draft_eagle(
    target: checkpoints.Checkpoint, name: str, gamma: int, **options
) -> Drafts:
  """Drafts by an EAGLE head, of which there may also be trees.

  Args:
    target: the model that the head was trained for.
    name: of its file or folder.
    gamma: tokens a round.
    **options: see heads.draft_eagle.

  Raises:
    errors.UserError: it can't be had, or is another target's.
  """
  return Drafts(*heads_lib.draft_eagle(target, name, gamma, **options))


def draft_dynamic(
    drafts: Drafts, *, top_k: int = 10, depth: int = 6, nodes: int = 59
) -> Drafts:
  """Trees of drafts whose shape follows the text.

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
  return Drafts(drafter, drafts.params)


def draft_simulated(
    texts: Mapping[int, Sequence[int]],
    gamma: int,
    alpha: float,
    source: Drafts | None = None,
) -> Drafts:
  """Drafts that replay plain decoding's greedy output, right at a given rate.

  Args:
    texts: request id -> its prompt and plain decoding's new tokens.
    gamma: tokens a round.
    alpha: chance of each drafted token to be right, in [0, 1].
    source: whose steps are taken as well, gamma tokens a round.

  Raises:
    errors.UserError: gamma or alpha is out of its range, or there is nothing
      to replay.
  """
  errors.require(
      checks.is_number(alpha) and 0 <= alpha <= 1,
      "alpha",
      "give a number from 0 to 1",
      alpha,
  )
  errors.require(bool(texts), "texts", "give at least one", texts)
  texts = {name: tuple(text) for name, text in texts.items()}
  drafter = simulated.SimulatedDrafter(gamma, source and source.drafter)
  params = source.params if source else ()
  return Drafts(drafter, simulated.replay(texts, alpha, params))


def draft_lookup(gamma: int, **options) -> Drafts:
  """Drafts that are copied from where the text was alike before.

  Args:
    gamma: tokens a round at most.
    **options: further fields of drafters.lookup.LookupDrafter; `source` is for
      texts whose output is in the source's language.

  Raises:
    errors.UserError: an option is out of its range.
  """
  return Drafts(lookup.LookupDrafter(gamma=gamma, **options), ())


def draft_suffix(
    target: checkpoints.Checkpoint,
    gamma: int,
    *,
    memory: int = 2**16,
    load: str = "",
    **options,
) -> Drafts:
  """Drafts from suffix trees over the row's text and earlier responses.

  Args:
    target: the model they are for.
    gamma: tokens a round at most.
    memory: tokens of earlier responses, each with one more; the oldest give
      way. 0 keeps none.
    load: file of responses to begin with, as `save_responses` writes it.
    **options: further fields of drafters.suffix.SuffixDrafter; `nodes` of a
      tree of drafts, see drafters.suffix_dynamic.SuffixTreeDrafter.

  Raises:
    errors.UserError: an option is out of its range, or the file can't be had
      or is another vocabulary's.
  """
  errors.require(
      checks.is_whole(memory, 0, 2**24) and memory != 1,
      "memory",
      f"give 0, or a whole number from 2 to {2**24}",
      memory,
  )
  errors.require(
      bool(memory) or not load, "load", "give memory for it, too", load
  )
  if not memory:
    options["learns"] = False
  drafter = suffix_dynamic.make(gamma=gamma, **options)
  known = []
  if load:
    width = target.module.config.vocab_size
    known = responses_lib.load(load, target.tokenizer, width)
  tree = suffix_array.build(known, memory, drafter.reach) if memory else None
  return Drafts(drafter, tree)


def responses(drafts: Drafts) -> list:
  """Ids of the earlier responses that drafts know, oldest first."""
  params = drafts.params
  if isinstance(params, mixed.MixedParams):
    params = params.copies
  known = isinstance(params, suffix_array.SuffixArray)
  return params.responses() if known else []


def save_responses(
    target: checkpoints.Checkpoint, drafts: Drafts, path: str
) -> None:
  """Writes the responses that drafts know, for `draft_suffix` to load.

  Raises:
    errors.UserError: nothing can be written there.
  """
  responses_lib.save(path, responses(drafts), target.tokenizer)


def draft_mixed(
    copies: Drafts,
    model: Drafts | None = None,
    *,
    c: float = 0.0,
    matching: float = 0.0,
    v: float | Sequence[float] | None = None,
    switch: switch_lib.Switch = switch_lib.Switch(),
) -> Drafts:
  """Copies where it can, and drafts by a model, or not at all, elsewhere.

  Args:
    copies: from `draft_lookup` or `draft_suffix`.
    model: from `draft_model`, or None.
    c: what a token of the model's costs, in target steps.
    matching: what it costs to look for something to copy.
    v: what a target pass over gamma + 1 tokens costs; a narrower one is taken
      to cost as much less, or give one figure for each of the drafter's
      widths. None: all drafts are made that there are.
    switch: how many are made else.

  Raises:
    errors.UserError: c, matching or v is out of its range.
  """
  drafter = mixed.MixedDrafter(
      copies=copies.drafter,
      model=model and model.drafter,
      switch=None if v is None else switch,
  )
  widths = drafter.widths
  costs = None if v is None else switch_lib.costs(widths, c, matching, v)
  model_params = None if model is None else model.params
  return Drafts(drafter, mixed.MixedParams(copies.params, model_params, costs))
