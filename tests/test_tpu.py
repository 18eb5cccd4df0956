"""The door that compiles for a TPU: here for the devices that there are."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from specjax import checkpoints
from specjax import errors
from specjax import hlo
from specjax import prepare
from specjax import roofline
from specjax import tpu
from specjax.measure import weights
from tests import tiny

CHIP = roofline.TPUS["v4"]


@pytest.fixture(scope="module")
def family(tmp_path_factory):
  return tiny.write_family(tmp_path_factory.mktemp("family"))


def estimated(config, chip=CHIP):
  with tiny.quick_compilation():
    return tpu.estimate(tpu.abstract(config, jax.devices()), chip)


def test_bytes_are_those_of_real_arrays(family):
  config = tiny.config(family, decode__batch=2)
  made = estimated(config)
  nbytes = lambda leaves: sum(leaf.nbytes for leaf in leaves)
  target, draft = (
      checkpoints.load(family[name]).params for name in ("target", "draft")
  )
  assert made.memory["weights"] == nbytes(jax.tree.leaves((target, draft)))
  assert set(made.steps) == {"target", "verify", "draft"}
  of = {"target": target, "verify": target, "draft": draft}
  for name, params in of.items():
    step = made.steps[name]
    assert step.weights == nbytes(weights.of_a_step(params))
    # 2 rows, 2 heads of 4, keys and values: 1 + 16 + 2 + 1 slots and a source.
    length = config.data.max_source_tokens
    assert step.caches == 2 * 2 * 4 * 2 * 4 * (20 + length)
    assert step.seconds >= step.needed / CHIP.bandwidth
    assert step.counted > step.read > 0
  assert made.hosts == 0 and made.rows == 2
  c, v = made.costs
  assert c == pytest.approx(1, rel=0.01) and v >= 1
  text = tpu.table(made, CHIP, 0.75)
  assert "fits" in text and "host transfers     0" in text
  assert f"with gamma {config.draft.gamma}" in text
  assert "heads of 4 fill 4 of 128 lanes. All" in text.replace("\n", " ")
  # The prefill and the rounds come one after the other.
  assert made.memory["prefill"] > 0 and made.memory["rounds"] > 0
  memory = {"weights": 5, "state": 3, "rounds": 1, "prefill": 7}
  peaks = dataclasses.replace(made, memory=memory, rows=2)
  assert peaks.peak == 15 and peaks.rows_that_fit(100) == 19
  small = roofline.Chip(1e12, 1e9, made.memory["weights"])
  assert "DOES NOT FIT" in tpu.table(made, small, 0.75)
  assert made.rows_that_fit(small.memory) == 0


@pytest.mark.parametrize(
    "arguments, line",
    (
        ([], "--topology: give one of v4, v5e, v5p, v6e"),
        (["--topology", "v9:2x2"], "--topology: give one of v4"),
        (["--topology=v4:2x2x1", "--alpha", "2"], "--alpha: give a number"),
    ),
)
def test_bad_arguments(family, capsys, arguments, line):
  rest = tiny.arguments(family)
  assert tpu.main([*rest, *arguments]) == 1
  told = capsys.readouterr().err
  assert line in told and told.count("\n") == 1


def test_the_compiler_is_missing(family, capsys, monkeypatch):
  monkeypatch.setattr(tpu.util, "find_spec", lambda name: None)
  assert tpu.main([*tiny.arguments(family), "--topology=v4:2x2x1"]) == 1
  assert "pip install 'specjax[tpu]'" in capsys.readouterr().err


def test_drafts_of_another_kind(family):
  config = tiny.config(family, draft__kind="lookup")
  with pytest.raises(errors.UserError, match="draft.kind: give one of model"):
    tpu.abstract(config, jax.devices())


def test_each_gamma_has_a_v_of_its_own():
  """At batch 64 a v4 is short of arithmetic, and longer drafts lose."""
  target, draft = roofline.Weights(11e9), roofline.Weights(77e6)

  def made(rows, gamma):
    c, v = roofline.costs(CHIP, target, draft, gamma, rows)
    one = dict(weights=1, caches=0, counted=1.0, read=1.0)
    return tpu.Estimate(
        memory=dict.fromkeys(("weights", "state", "rounds", "prefill"), 1),
        rows=rows,
        hosts=0,
        steps={
            "target": tpu.Step(**one, seconds=1.0, model=target),
            "verify": tpu.Step(**one, seconds=v, model=target),
            "draft": tpu.Step(**one, seconds=c, model=draft),
        },
        gamma=gamma,
        fixed=True,
        heads=(64, 128),
    )

  last = lambda *how: tpu.table(made(*how), CHIP, 0.75).splitlines()[-1]
  gain = lambda rows, gamma: roofline.speedup(
      CHIP, target, draft, 0.75, gamma, rows
  )
  for rows, best in ((1, 12), (64, 3)):
    assert best == max(range(1, 65), key=lambda gamma: gain(rows, gamma))
    for gamma in (1, 7, 16):
      assert last(rows, gamma) == (
          f"at alpha 0.75      {gain(rows, gamma):.2f}x with gamma {gamma};"
          f" fastest {gain(rows, best):.2f}x with {best}"
      )
  assert last(256, 7).endswith("fastest without drafts")


def test_padding_is_told_where_there_is_some():
  assert "padding: heads of 32 fill 32 of 128 lanes, heads of 64" in (
      tpu.why((64, 32, 64, 128))
  )
  assert "padding" not in tpu.why((128, 256))


@pytest.mark.parametrize(
    "how, depth, nodes, widest",
    (
        pytest.param(
            {"tree": "[[0],[1],[0,0],[0,1],[1,0]]"},
            *(2, 5, 2),
            id="static",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"dynamic.nodes": 6, "dynamic.depth": 3, "dynamic.top_k": 4},
            *(3, 6, 4),
            id="dynamic",
        ),
        pytest.param(
            {"confidence": 0.5, "gamma": 4},
            *(4, 4, 1),
            id="chains that may stop",
            marks=pytest.mark.slow,
        ),
    ),
)
def test_no_eq_1(family, how, depth, nodes, widest):
  """No gamma is fastest by it; a tree's draft step is a level."""
  options = {f"draft__{key}": value for key, value in how.items()}
  config = tiny.config(family, decode__batch=64, **options)
  chip = dataclasses.replace(CHIP, operations=1e9)
  made = estimated(config, chip)
  assert made.gamma == depth and not made.fixed
  target = made.steps["target"].model
  _, v = roofline.costs(chip, target, target, nodes, 64)
  draft = made.steps["draft"]
  assert draft.seconds == (
      roofline.seconds(chip, draft.model, 64 * widest, 64)
  )
  c = draft.seconds / made.steps["target"].seconds
  assert made.costs == pytest.approx((c, v)) and v > 2
  *_, c_line, v_line, last = tpu.table(made, chip, 0.75).splitlines()
  assert c_line.split() == ["c", f"{c:.4f}"]
  assert v_line.split() == ["v", f"{v:.2f}"]
  assert last.startswith(f"drafts pay above   {depth * c + v:.2f} tokens")


OPTIONS = {
    "confidence": 0.5,
    "argmax": True,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "gamma": 5,
    "tree": "[[0],[1],[0,0]]",
    "dynamic.nodes": 4,
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_are_those_of_a_run(family, option):
  """The very drafter that a run makes, which an option makes another one."""
  asked = {f"draft__{option}": OPTIONS[option], "sampling__temperature": 1.0}
  config = tiny.config(family, **asked)
  mine = tpu.abstract(config, jax.devices()).drafts.drafter
  assert mine == prepare.prepare(config).drafts.drafter
  plain = tpu.abstract(tiny.config(family), jax.devices()).drafts.drafter
  assert mine != plain


def test_siblings_and_trees_are_those_of_a_run(family):
  """What only trees have."""
  tree = {"draft__tree": "[[0],[1],[0,0]]"}
  grown = {"draft__dynamic.nodes": 4}
  for less, more in (
      (tree, {"draft__siblings": "distinct"}),
      (grown, {"draft__dynamic.top_k": 3}),
      (grown, {"draft__dynamic.depth": 3}),
  ):
    made = [
        tpu.abstract(tiny.config(family, **how), jax.devices()).drafts.drafter
        for how in (less, less | more)
    ]
    assert made[0] != made[1]
    config = tiny.config(family, **less, **more)
    assert made[1] == prepare.prepare(config).drafts.drafter


def test_positions_and_a_draft_of_another_kind(family, tmp_path):
  """A decoder's drafts end where its positions do."""
  shape = dataclasses.replace(tiny.GPT2, max_positions=48)
  decoders = tiny.write_decoders(tmp_path, shape)
  config = tiny.config(decoders, "lm1b_gpt.py")
  setup = tpu.abstract(config, jax.devices())
  assert setup.drafts.drafter.positions == 48
  # No text is longer than the model.
  batch = tpu._batch(setup, setup.speculative)
  assert batch.prompt_B.tolist() == [48 - 16] * 2
  mixed = family | {"draft": decoders["draft"]}
  with pytest.raises(errors.UserError, match="draft: give a T5, which reads"):
    tpu.abstract(tiny.config(mixed), jax.devices())


def test_a_shape_without_weights():
  """configs/lm1b has a config.json for each of the paper's pair."""
  folder = tiny.CONFIGS / "lm1b"
  config = tiny.config(
      {
          "target": str(folder / "gpt97m"),
          "draft": str(folder / "gpt6m"),
          "rows.jsonl": "none.jsonl",
      },
      "lm1b_gpt.py",
  )
  setup = tpu.abstract(config, jax.devices())
  assert setup.target.module.config.num_layers == 12
  assert sum(x.size for x in jax.tree.leaves(setup.drafts.params)) < 6e6


@pytest.mark.slow
def test_a_transfer_is_seen():
  """A callback in a loop sends and receives, each begun and ended."""
  pytest.importorskip("libtpu")

  def step(carry):
    jax.debug.callback(lambda x: None, carry[1])
    return carry[0] + 1, carry[1] * 2

  [device, *_] = tpu.find_devices("v5e:2x2")
  where = jax.sharding.SingleDeviceSharding(device)
  x = jax.ShapeDtypeStruct((), jnp.float32, sharding=where)
  loop = lambda x: jax.lax.while_loop(lambda c: c[0] < 5, step, (0, x))
  program = jax.jit(loop).lower(x).compile().as_text()
  assert hlo.transfers(program) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "topology", ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2"]
)
def test_real_topologies(family, capsys, topology):
  """A device is a chip: four there are in each of these."""
  pytest.importorskip("libtpu")
  assert len(tpu.find_devices(topology)) == 4
  arguments = tiny.arguments(family, mesh__model=2, decode__dtype="bfloat16")
  assert tpu.main([*arguments, f"--topology={topology}"]) == 0
  assert "host transfers     0" in capsys.readouterr().out
