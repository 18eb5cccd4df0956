"""EAGLE heads through the door, on tiny random models."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import checkpoints
from specjax import command_line
from specjax import drafts as drafts_lib
from specjax import errors
from specjax import fetch
from specjax import prepare
from specjax import run
from specjax import topology
from specjax.checkpoints import eagle as eagle_file
from specjax.models import eagle as eagle_model
from tests import tiny


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
  with tiny.quick_compilation():
    yield


@pytest.fixture(scope="module")
def family(tmp_path_factory):
  """A T5, rows, and a random head of it."""
  folder = tmp_path_factory.mktemp("family")
  made = tiny.write_family(folder)
  target = checkpoints.load(made["target"])
  model = eagle_model.of(target.module)
  head = jax.jit(model.init)(jax.random.key(0))
  eagle_file.save(folder / "head", model.head.config, head)
  return made | {"head": str(folder / "head")}


@pytest.mark.slow
def test_a_run(family, tmp_path):
  """Texts are plain ones; the report has no alpha and no tree that stays."""
  arguments = tiny.arguments(
      family,
      draft__kind="eagle",
      draft__heads=family["head"],
      draft__dynamic__nodes=6,
      draft__dynamic__top_k=3,
      draft__dynamic__depth=2,
      data__rows=2,
      out=tmp_path / "out",
  )
  assert run.main(arguments) == 0
  report = json.loads((tmp_path / "out/report.json").read_text())
  assert report["mismatched_rows"] == 0 and report["alpha"] is None
  assert report["drafter"] == f"eagle:{family['head']}"
  assert report["c"] >= 0 and report["block_efficiency"] >= 1


def options_of(setup):
  """What a drafter was made with."""
  drafter = setup.drafts.drafter
  source = getattr(drafter, "source", drafter)
  return type(drafter).__name__, source.gamma, source.temperature, source.chunk


def test_options_arrive(family):
  how = dict(
      draft__kind="eagle",
      draft__heads=family["head"],
      draft__gamma=5,
      draft__temperature=0.5,
      decode__prefill_chunk=7,
  )
  setup = prepare.prepare(tiny.config(family, **how))
  assert options_of(setup) == ("EagleDrafter", 5, 0.5, 7)
  assert family["head"] in "".join(fetch.contents(setup.config))
  how["draft__tree"] = "[[0],[1]]"
  setup = prepare.prepare(tiny.config(family, **how))
  assert options_of(setup)[0] == "TreeDrafter"
  assert setup.drafts.tree.nodes == 2
  del how["draft__tree"]
  how |= dict(draft__dynamic__nodes=4, draft__dynamic__top_k=2)
  setup = prepare.prepare(tiny.config(family, **how))
  assert options_of(setup)[0] == "DynamicTreeDrafter"
  assert setup.drafts.tree is None and setup.speculative.loop.rule.trees
  # What serves both is the target's own.
  shared = setup.drafts.params.target["params"]["shared"]
  assert shared is setup.target.params["params"]["shared"]


def test_what_is_missing_is_told_before_the_weights(family):
  config = tiny.config(
      family,
      draft__kind="eagle",
      draft__heads="no/such",
      target__checkpoint="no/target",
  )
  with pytest.raises(errors.UserError) as told:
    prepare.prepare(config)
  lines = str(told.value).splitlines()
  assert any(
      line.startswith("draft.heads: 'no/such' is no file here")
      for line in lines
  )
  assert any(line.startswith("target.checkpoint: ") for line in lines)


def test_a_head_in_bfloat16(family):
  """Its matrices stay as they are stored; the law of drafts is float32's."""
  target = checkpoints.load(family["target"])
  drafts = drafts_lib.draft_eagle(target, family["head"], gamma=2)
  fc = drafts.params.head["params"]["fc"]
  assert fc["kernel"].dtype == jnp.bfloat16 and fc["bias"].dtype == np.float32


def test_heads_that_ship():
  """For the mini family's target: heads that its configs name, and trees."""
  target = checkpoints.load("mini/target")
  kinds = {"ende_eagle2": "eagle", "ende_medusa": "medusa"}
  for name, kind in kinds.items():
    config = command_line.read(
        ["run", "--config", f"{tiny.CONFIGS / name}.py:mini"]
    )
    assert config.draft.heads == f"mini/{kind}"
    drafts = prepare.DRAFTS[kind](
        prepare.Setup(config, target, drafts_lib.NO_DRAFTS, [], [])
    )
    assert drafts.drafter.depth >= 1
    for tree in (f"mini/{kind}_tree", f"mini/{kind}_tree_8"):
      assert topology.read(tree).nodes in (2, 8)
