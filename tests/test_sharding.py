"""What is split on several devices, and that nothing else changes.

Eight devices need a process of their own: their number is fixed when JAX
starts.
"""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from specjax import errors
from specjax import sharding
from specjax.checkpoints import families
from specjax.checkpoints import hf
from tests import mocks

MODEL = sharding.MODEL


def specs(module_and_params):
  """Path -> spec of every parameter that is split."""
  found = {}
  params = module_and_params[1]["params"]
  for keys, leaf in jax.tree_util.tree_leaves_with_path(params):
    path = jax.tree_util.keystr(keys, simple=True, separator="/")
    spec = tuple(sharding.parameter_spec(path, leaf.shape, 2))
    if any(spec):
      found[path] = spec
  return found


def test_t5():
  layer = "decoder_layers_0"
  found = specs(mocks.tiny_t5(vocabulary=32, layers=1))
  assert found == {
      "shared": (MODEL, None),
      "lm_head/kernel": (None, MODEL),
      "encoder_bias/table": (None, MODEL),
      "decoder_bias/table": (None, MODEL),
      f"{layer}/attention/qkv/kernel": (None, None, MODEL),
      f"{layer}/attention/o/kernel": (MODEL, None),
      f"{layer}/cross/q/kernel": (None, MODEL),
      f"{layer}/cross/kv/kernel": (None, None, MODEL),
      f"{layer}/cross/o/kernel": (MODEL, None),
      f"{layer}/feed_forward/wi/kernel": (None, None, MODEL),
      f"{layer}/feed_forward/wo/kernel": (MODEL, None),
      "encoder_layers_0/attention/qkv/kernel": (None, None, MODEL),
      "encoder_layers_0/attention/o/kernel": (MODEL, None),
      "encoder_layers_0/feed_forward/wi/kernel": (None, None, MODEL),
      "encoder_layers_0/feed_forward/wo/kernel": (MODEL, None),
  }


def test_gpt2():
  """No gate, and a bias everywhere; positions are whole."""
  found = specs(mocks.tiny_decoder("gpt2", vocabulary=32, layers=1))
  assert found == {
      "embedding": (MODEL, None),
      "lm_head/kernel": (None, MODEL),
      "layers_0/attention/qkv/kernel": (None, MODEL, None),
      "layers_0/attention/qkv/bias": (MODEL, None),
      "layers_0/attention/o/kernel": (MODEL, None),
      "layers_0/feed_forward/wi/kernel": (None, MODEL),
      "layers_0/feed_forward/wi/bias": (MODEL,),
      "layers_0/feed_forward/wo/kernel": (MODEL, None),
  }


def test_every_line_of_the_table_serves(monkeypatch):
  models = [mocks.tiny_t5(vocabulary=32)] + [
      mocks.tiny_decoder(kind, vocabulary=32) for kind in ("llama", "gpt2")
  ]
  before = sharding.PARAMETERS
  whole = [specs(model) for model in models]
  for line in before:
    others = tuple(other for other in before if other is not line)
    monkeypatch.setattr(sharding, "PARAMETERS", others)
    assert [specs(model) for model in models] != whole, line[0]


@pytest.mark.parametrize(
    "path, shape, line",
    (
        ("shared", (29, 16), "29, the ids of the vocabulary of shared, got 2"),
        ("encoder_bias/table", (8, 3), "3, the heads of encoder_bias/table"),
        (
            "layers_0/attention/qkv/kernel",
            (16, 3, 12),
            "3, the heads of keys and values of layers_0/attention/qkv/kernel",
        ),
        (
            "layers_0/feed_forward/wo/kernel",
            (9, 16),
            "9, the columns of the feed-forward of layers_0",
        ),
    ),
)
def test_what_does_not_divide_is_named(path, shape, line):
  with pytest.raises(errors.UserError, match="mesh.model: give a div") as told:
    sharding.parameter_spec(path, shape, 2)
  assert line in str(told.value)


def test_one_device_has_no_layout():
  assert sharding.layout(1, 1) is None
  with pytest.raises(errors.UserError, match="mesh: give data x model of 1 "):
    sharding.layout(2, 4, devices=jax.devices()[:1])


def test_weights_leave_the_host_one_by_one():
  """No second parameter is read before the first one is on its devices."""
  config = mocks.tiny_t5()[0].config
  events = []

  def tensor(name, place):
    def read():
      events.append(("read", place.path))
      return np.zeros(place.shape, np.float32)

    return hf.Tensor(place.shape, read)

  def put(path, array):
    events.append(("put", tuple(path.split("/"))))
    return jax.device_put(array)

  table = families.of(config).table(config)
  tensors = {name: tensor(name, place) for name, place in table.items()}
  hf.params_from_tensors(config, tensors, np.float32, "here", put=put)
  paths = list(dict.fromkeys(place.path for place in table.values()))
  parts = lambda path: sum(place.path == path for place in table.values())
  assert events == [
      event
      for path in paths
      for event in [("read", path)] * parts(path) + [("put", path)]
  ]


@pytest.mark.parametrize(
    "chosen", ["not slow", pytest.param("slow", marks=pytest.mark.slow)]
)
def test_on_eight_devices(chosen):
  """Same tokens on 1 and 8 devices; see the file that is run."""
  file = pathlib.Path(__file__).with_name("eight_devices.py")
  flags = "--xla_force_host_platform_device_count=8"
  words = ["pytest", "-x", "-p", "no:cacheprovider", "-m", chosen, file]
  done = subprocess.run(
      [sys.executable, "-m", *words],
      env=os.environ | {"XLA_FLAGS": flags},
      cwd=file.parents[1],
      capture_output=True,
      text=True,
  )
  assert done.returncode == 0, done.stdout[-5000:]

