"""specjax: speculative decoding in JAX and Flax.

Dimension key (an array's name ends in the letters of its axes):

  B  batch rows
  L  encoder length
  T  query tokens of this call
  S  cache slots
  G  draft length gamma
  N  nodes of a proposal
  D  model width
  F  feed-forward width
  H  heads
  K  head width
  V  vocabulary
  R  rounds of a trace; texts that are replayed
  P  longest prompt of a batch; places of a token in a text
  E  entries of a list: EOS ids, pairs of n-grams; before its split, H times K
  M  matrices of one product; contexts, the newest 1, 2, ... tokens
  W  widths that a target pass may have
  X  buckets of relative positions

So `logits_BTV`, `key_BHSK`, `draft_BG`. The letters p and q are laws
(target, draft) and nothing else.
"""

import sys

__version__ = "0.1.0"


def _tell(kind, error, traceback):
  """Ctrl-C while modules are imported is one line, as it is later."""
  if issubclass(kind, KeyboardInterrupt):
    print("interrupted", file=sys.stderr)
  else:
    sys.__excepthook__(kind, error, traceback)


# `python -m` imports this before the door that it runs, and names itself so
# until then.
if sys.argv[:1] == ["-m"]:
  sys.excepthook = _tell
