"""Settings: what is refused, and the processors that are part of the law."""

import dataclasses

import numpy as np
import pytest

from specjax import errors
from specjax import sampling
from tests import enumeration

Settings = sampling.Settings


def _processed(settings, new_tokens, logits=None):
  """dense [B, T, V] of one row of settings at each place of a block."""
  size = 6
  if logits is None:
    logits = np.arange(size, dtype=np.float32)
  new_BT = np.asarray(new_tokens, np.int32)
  law = enumeration.quick(sampling.make_law)(
      np.broadcast_to(logits, new_BT.shape + (size,)),
      sampling.stack(settings, size),
      new_BT,
  )
  return np.asarray(enumeration.dense(law))


def test_end_is_forbidden_until_enough_tokens():
  """The same at every place of a block, with sets of two ids."""
  rows = [
      Settings(temperature=1.0, eos=(5, 4), min_new_tokens=3),
      Settings(temperature=0.0, eos=(5,), min_new_tokens=2),
      Settings(temperature=1.0, eos=(5,)),
  ]
  dense = _processed(rows, [[0, 1, 2, 3, 4]] * 3)
  np.testing.assert_array_equal(dense[0, :, 5] > 0, [0, 0, 0, 1, 1])
  np.testing.assert_array_equal(dense[0, :, 4] > 0, [0, 0, 0, 1, 1])
  np.testing.assert_array_equal(dense[1].argmax(-1), [4, 4, 5, 5, 5])
  assert np.all(dense[2, :, 5] > 0)
  np.testing.assert_allclose(dense.sum(-1), 1, rtol=1e-6)


def test_first_token_is_forced():
  rows = [
      Settings(temperature=1.0, forced_first=2),
      Settings(temperature=0.0, forced_first=0),
      Settings(temperature=1.0, forced_first=3, top_k=2, top_p=0.5),
  ]
  dense = _processed(rows, [[0, 1]] * 3)
  for row, token in enumerate((2, 0, 3)):
    np.testing.assert_array_equal(dense[row, 0], np.eye(6)[token])
  assert dense[0, 1, 2] < 0.1 and dense[1, 1, 0] == 0


def test_suppressed_ids_never_come_out():
  """Before top-k, so that two others are left."""
  rows = [
      Settings(temperature=1.0, suppressed=(5, 3), top_k=2),
      Settings(temperature=0.0, suppressed=(3, 5)),
  ]
  dense = _processed(rows, [[0, 7]] * 2)
  np.testing.assert_array_equal(
      dense[0] > 0, np.bool([[0, 0, 1, 0, 1, 0]] * 2)
  )
  np.testing.assert_array_equal(dense[1].argmax(-1), 4)


def test_processors_come_before_temperature():
  """A forced or suppressed law at any temperature; the rest is scaled."""
  settings = Settings(temperature=0.5, suppressed=(5,))
  want = enumeration.reference_law(
      np.float32([0, 1, 2, 3, 4, -np.inf]), Settings(temperature=0.5)
  )
  np.testing.assert_allclose(
      _processed([settings], [[4]])[0, 0], want, rtol=1e-5
  )


@pytest.mark.parametrize(
    "arguments",
    [
        dict(temperature=-1.0),
        dict(temperature=float("nan")),
        dict(temperature=float("inf")),
        dict(temperature=1e-9),
        dict(temperature="1"),
        dict(temperature=True),
        dict(top_k=-1),
        dict(top_k=2.5),
        dict(top_k=True),
        dict(top_p=-0.1),
        dict(top_p=1.5),
        dict(top_p=float("nan")),
        dict(top_p=None),
        dict(top_p=float("inf")),
        dict(temperature=None),
        dict(top_k=None),
        dict(top_k=np.zeros((30, 30))),
        dict(min_new_tokens=-1),
        dict(min_new_tokens=None),
        dict(min_new_tokens=2**31),
        dict(forced_first=-2),
        dict(forced_first=1.0),
        dict(forced_first=2**31),
        dict(forced_first=True),
        dict(eos=1),
        dict(eos="1"),
        dict(eos=(-1,)),
        dict(eos=(2**31,)),
        dict(eos=(None,)),
        dict(eos=tuple("a" * 1000)),
        dict(suppressed=None),
        dict(suppressed=("a",)),
    ],
    ids=lambda arguments: repr(arguments)[:40],
)
def test_wrong_settings_are_refused(arguments):
  (field,) = arguments
  with pytest.raises(errors.UserError, match=f"^{field}: ") as caught:
    Settings(**arguments)
  assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_ids_given_twice_count_once():
  twice = Settings(temperature=1.0, eos=(5, 5), suppressed=(3, 3))
  twice = dataclasses.replace(twice, min_new_tokens=1)
  once = dataclasses.replace(twice, eos=(5,), suppressed=(3,))
  np.testing.assert_array_equal(
      _processed([twice], [[0, 1]]), _processed([once], [[0, 1]])
  )


def test_contradictions_are_refused():
  for other in (dict(suppressed=(3,)), dict(eos=(3,), min_new_tokens=1)):
    with pytest.raises(errors.UserError, match="^forced_first: "):
      Settings(forced_first=3, **other)


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        ([], "settings"),
        ([Settings(eos=(6,))], "eos"),
        ([Settings(suppressed=(6,))], "suppressed"),
        ([Settings(forced_first=6)], "forced_first"),
        ([Settings(), Settings(suppressed=(1,))], "suppressed"),
        ([Settings(suppressed=tuple(range(6)))], "suppressed"),
        (
            [Settings(suppressed=(0, 2, 3, 4, 5), min_new_tokens=1)],
            "suppressed",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows, field):
  with pytest.raises(errors.UserError, match=f"^{field}: "):
    sampling.stack(rows, 6)


def test_rows_are_stacked():
  rows = [
      Settings(eos=(1, 2), top_k=10**12),
      Settings(temperature=0.5, eos=[], forced_first=3),
  ]
  got = sampling.stack(rows, 6)
  np.testing.assert_array_equal(got.eos_BE, [[1, 2], [-1, -1]])
  np.testing.assert_array_equal(got.top_k_B, [6, 0])
  np.testing.assert_array_equal(got.forced_first_B, [-1, 3])
  np.testing.assert_array_equal(got.greedy_B, [True, False])
  assert sampling.stack([Settings(eos=())], 6).eos_BE.shape == (1, 0)
  assert hash(rows[1]) == hash(Settings(0.5, eos=(), forced_first=3))
