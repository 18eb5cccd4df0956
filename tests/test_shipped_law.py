"""Sampling with drafts has the law of sampling without, on real models.

The first five tokens of as many texts, drawn either way, are compared by
chi-square: those that begin alike share a bin, rare ones that of a checksum.
The chance of a false alarm anywhere is ALARM; every one of a pair's TESTS has
the same share of it (Bonferroni). Seeds are fixed.

Some ten minutes on two CPU cores, or an hour with eight times the draws, which
see a bias a third as large:

    python -m pytest -m slow tests/test_shipped_law.py
    python -m pytest -m slow tests/test_shipped_law.py --draws 131072
"""

import dataclasses
import functools
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import pipeline
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.settings import Settings
from specjax.verify import block
from specjax.verify import token
from specjax.verify import tree as tree_rule
from tests import rounds
from tests import text_laws

TokenRule = token.TokenRule

ROWS, TOKENS = 64, 5
SETTINGS = {
    "temperature 1": Settings(temperature=1.0),
    "top-k": Settings(temperature=1.0, top_k=20),
    "top-p": Settings(temperature=1.0, top_p=0.9),
}
SHAPE = "[[0],[1],[0,0],[0,1],[1,0]]"
# Rule -> drafts of a model or of heads, as it judges them; and itself.
RULES = {
    "token": (lambda drafts: drafts, TokenRule()),
    "block": (lambda drafts: drafts, block.BlockRule()),
    "tree": (
        lambda drafts: pipeline.draft_tree(drafts, SHAPE, "distinct"),
        tree_rule.TreeRule(),
    ),
}
CASES = [("token", name) for name in SETTINGS] + [
    (rule, "temperature 1") for rule in RULES if rule != "token"
]
ALARM = 1e-3
TESTS = len(CASES) * TOKENS


@dataclasses.dataclass(frozen=True)
class Pair:
  """A target, its drafts, and texts: as many rows of each.

  A text whose first token is all but sure tells most of a rule that rejects
  too often; one that may go on in many ways, of all else.
  """

  target: str
  drafts: Callable[[Any], pipeline.Drafts]
  texts: tuple[str, ...]


def small(target):
  """The smallest of the shipped family."""
  return pipeline.draft_model(target, "mini/small_distilled", 3)


ENGLISH = tuple(
    "translate English to German: " + text
    for text in (
        "This package contains a plugin to make devices managed by the"
        " PipeWire server available as GStreamer sources and sinks.",
        "Lists the available patterns.",
    )
)
PAIRS = {"mini": Pair("mini/target", small, ENGLISH)}


class Stingy(TokenRule):
  """Its coins come out larger by a twentieth."""

  def accepts(self, coin, p, q):
    return super().accepts(1.05 * coin, p, q)


BIASES = {"residual is p": rounds.PlainResidual(), "coins": Stingy()}

_load = functools.cache(pipeline.load)


@functools.partial(
    jax.jit,
    static_argnums=0,
    # The suite compiles in a hurry; here programs run for long.
    compiler_options={"xla_backend_optimization_level": 2},
)
def _drawn(loop, target_params, drafter_params, state, key, id_B):
  """New tokens of rows that differ by their ids alone."""
  key_B = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, id_B)
  state = state.replace(id_B=id_B, key_B=key_B)
  end = loop.run(target_params, drafter_params, state)
  place_BT = end.prompt_B[:, None] + jnp.arange(TOKENS)
  return jnp.take_along_axis(end.tokens_BS, place_BT, axis=1)


def draw(pair, drafts, rule, settings, draws, seed):
  """Beginnings of a pair's texts in turn, as rows of TOKENS ids."""
  target = _load(pair.target)
  loop = loop_lib.Loop(target.module, drafts.drafter, rule)
  batch = requests_lib.make_batch(
      pipeline.make_requests(
          target,
          pair.texts * (ROWS // len(pair.texts)),
          settings,
          max_new_tokens=TOKENS,
      ),
      vocabulary=target.module.config.vocab_size,
      seed=0,
  )
  params = target.params, drafts.params
  # Read once: then rows of a text differ by their keys alone.
  state = loop.prefill(*params, batch, TOKENS)
  ids = np.arange(ROWS, dtype=np.uint32)
  parts = [
      _drawn(loop, *params, state, jax.random.key(seed), ids + np.uint32(at))
      for at in range(0, draws, ROWS)
  ]
  return np.asarray(jnp.concatenate(parts))


@functools.cache
def plain(pair, settings, draws):
  """Texts without drafts."""
  return draw(pair, pipeline.NO_DRAFTS, TokenRule(), settings, draws, 1)


def drafted(pair, kind, settings, draws, rule=None):
  """Texts with drafts."""
  shape, own = RULES[kind]
  drafts = shape(pair.drafts(_load(pair.target)))
  return draw(pair, drafts, rule or own, settings, draws, 2)


def p_values(pair, kind, name, draws, rule=None):
  """How likely drafted texts and plain ones lie so far apart.

  By the first token, by the first two, and so on.
  """
  settings = SETTINGS[name]
  both = (
      drafted(pair, kind, settings, draws, rule),
      plain(pair, settings, draws),
  )
  values = []
  for n in range(1, TOKENS + 1):
    first = [
        [(i % len(pair.texts), *row) for i, row in enumerate(texts)]
        for texts in (texts[:, :n].tolist() for texts in both)
    ]
    values.append(text_laws.apart(*first))
  print(pair.target, kind, name, draws, *(f"{x:.2g}" for x in values))
  return values


def test_a_quick_look():
  """Of small ones: the rule is right, and coins too large are seen."""
  pair = Pair("mini/base", small, ENGLISH[:1])
  look = functools.partial(p_values, pair, "token", "temperature 1", 2048)
  assert min(look()) > ALARM / TESTS
  assert min(look(Stingy())) < ALARM / TESTS


@pytest.fixture(name="draws")
def fixture_draws(request):
  """As asked for."""
  return request.config.getoption("--draws")


@pytest.mark.slow
@pytest.mark.parametrize("kind, name", CASES)
@pytest.mark.parametrize("pair", PAIRS)
def test_the_law_is_that_of_plain_sampling(pair, kind, name, draws):
  values = p_values(PAIRS[pair], kind, name, draws)
  assert min(values) > ALARM / TESTS


@pytest.mark.slow
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("pair", PAIRS)
def test_a_small_bias_is_seen(pair, bias, draws):
  """Else the test above would say little."""
  values = p_values(
      PAIRS[pair], "token", "temperature 1", draws, BIASES[bias]
  )
  assert min(values) < ALARM / TESTS
