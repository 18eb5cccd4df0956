"""What every source of drafts is shown and must answer."""

from typing import Any, Protocol

from flax import struct
import jax

from specjax import settings
from specjax.verify import proposal as proposals


@struct.dataclass
class Context:
  """What a drafter may see of the batch at the top of a round.

  Attributes:
    id_B: the requests' ids, uint32.
    tokens_BS: committed tokens, prompt first; 0 beyond the row's length.
    length_B: how many are committed.
    prompt_B: how many of them are the prompt.
    source_BL: source ids of an encoder-decoder, else None.
    source_mask_BL: True at real source tokens, else None.
    memory: the target's encoder output and what was made of it, else None.
    sampling: the rows' settings.
    remaining_B: new tokens that the row may still emit.
    active_B: False once the row has ended.
  """

  id_B: jax.Array
  tokens_BS: jax.Array
  length_B: jax.Array
  prompt_B: jax.Array
  source_BL: jax.Array | None
  source_mask_BL: jax.Array | None
  memory: Any
  sampling: settings.Sampling
  remaining_B: jax.Array
  active_B: jax.Array


class Drafter(Protocol):
  """A source of drafts. Instances are frozen and hashable: static under jit.

  Attributes:
    kind: how its tokens come about; decides which verifier is exact.
    nodes: N, tokens of one proposal at most.
    depth: G, the longest path in it.
    trees: whether its proposals are trees; else chains.
    widths: of how many tokens a target pass may be, rising; N + 1 is the last,
      and the only one where all rounds draft alike.
    taps: the target's hidden states that `observe` is given (models' order).
    whole: the same drafter, but making all its drafts in every round.
    reader: gives its laws along a text, the same at any gamma: a module, or
      what has `along(params, text_BS, width)`, logits_BTV of which place t is
      of the draft of text_BS[:, t + 1]. None where its drafts have no such
      law: alpha is then not asked for.
    learns: its `adopt(params, responses)`, run between requests, gives params
      of the same shapes that know these ids, too.
  """

  kind: proposals.Kind
  nodes: int
  depth: int
  trees: bool
  widths: tuple[int, ...]
  taps: tuple[int, ...]
  whole: "Drafter"
  reader: Any
  learns: bool

  def prefill(
      self, params, context: Context, *, prompt_width: int, slots: int
  ) -> Any:
    """The state before the first round.

    Args:
      params: of the drafter.
      context: of the prompts.
      prompt_width: the longest prompt, static.
      slots: S of the caches, static.
    """

  def propose(
      self, params, state, context: Context, key_B, width: int
  ) -> tuple[proposals.Proposal, Any]:
    """Drafts for one round, in a vocabulary of the target's `width`."""

  def observe(
      self, params, state, tokens_BT, features, count_B, context: Context
  ) -> Any:
    """Hears the tokens that were really emitted, after the cut.

    A drafter with taps also hears each prompt, before the first round, as if
    one round had emitted it behind its first token: `length_B` is 1 then. A
    prompt of one token has no features; its count is 0, as that of a row that
    has ended. Where all prompts are of one token it is not called.

    Args:
      params: of the drafter.
      state: as `propose` or `prefill` returned it.
      tokens_BT: the round's emitted tokens.
      features: one hidden_BTD a tap, of `last` and the accepted path: entry
        t stands before tokens_BT[:, t]. The newest token has none yet.
      count_B: how many of the T count.
      context: as it was at the top of the round.
    """
