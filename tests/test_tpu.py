"""The door that compiles for a TPU: here for the devices that there are."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from specjax import checkpoints
from specjax import errors
from specjax import roofline
from specjax import tpu
from specjax.measure import weights
from tests import tiny

CHIP = roofline.TPUS["v4"]


@pytest.fixture(scope="module")
def family(tmp_path_factory):
  return tiny.write_family(tmp_path_factory.mktemp("family"))


def test_bytes_are_those_of_real_arrays(family):
  config = tiny.config(family, decode__batch=2)
  with tiny.quick_compilation():
    made = tpu.estimate(tpu.abstract(config, jax.devices()), CHIP)
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
  # The prefill and the rounds come one after the other.
  assert made.memory["prefill"] > 0 and made.memory["rounds"] > 0
  memory = {"weights": 5, "state": 3, "rounds": 1, "prefill": 7}
  peaks = dataclasses.replace(made, memory=memory, rows=2)
  assert peaks.peak == 15 and peaks.rows_that_fit(100) == 19
  small = roofline.Chip(1e12, 1e9, made.memory["weights"])
  assert "DOES NOT FIT" in tpu.table(made, small, 0.75)
  assert made.rows_that_fit(small.memory) == 0


def test_copies():
  """What only moves, as a program for a TPU writes it; not inside a fusion."""
  program = """HloModule test

%fused_computation.3 (p: f32[9,9]) -> f32[9,9] {
  ROOT %copy.7 = f32[9,9]{1,0} copy(%p)
}

ENTRY %main (a: bf16[8,128]) -> pred[100] {
  %a = bf16[8,128]{1,0:T(8,128)} parameter(0)
  %b = (bf16[8,128]{1,0:S(1)}, bf16[8,128]{1,0}, u32[]) copy-start(%a)
  %c = bf16[8,128]{1,0:T(8,128)S(1)} copy-done(%b)
  %d = ((f32[6,4]{1,0}), f32[3,4]{1,0:S(1)}, s32[]) slice-start(%x), slice={}
  %e = f32[3,4]{1,0:S(1)} slice-done(%d)
  %f = u32[2,4]{0,1:T(2,128)} copy(%y)
  %g = f32[9,9]{1,0} fusion(%z), kind=kLoop, calls=%fused_computation.3
  ROOT %h = pred[100]{0} custom-call(%e), custom_call_target="Other"
}
"""
  assert tpu.copies(program) == 2 * 8 * 128 + 4 * 3 * 4 + 4 * 2 * 4
  costs = {"bytes accessed": 9.0, "bytes accessed0{}": 4.0}
  costs |= {"bytes accessed12{}": 2.0, "bytes accessedout{}": 3.0}
  assert tpu.operands(costs) == 6


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


def test_drafts_that_have_no_shape(family):
  config = tiny.config(family, draft__kind="lookup")
  with pytest.raises(errors.UserError, match="draft.kind: give one of model"):
    tpu.abstract(config, jax.devices())


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
  assert tpu.transfers(program) == 4


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
