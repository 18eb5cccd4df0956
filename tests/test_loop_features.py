"""The target's hidden states, on their way to a drafter."""

import numpy as np
import pytest

from specjax import sampling
from specjax.decoding import loop as loop_lib
from specjax.decoding import requests as requests_lib
from specjax.models import cache as cache_lib
from specjax.models import reading
from specjax.verify import token
from tests import mocks

Settings = sampling.Settings
quick_compiles = mocks.quick_compiles
PROMPTS = ((4,), (3, 1, 2), (0, 1, 2, 3, 4, 0, 1, 2))


@pytest.mark.parametrize("chunk", [3, 128])
@pytest.mark.parametrize("taps", [(), (-1,)])
def test_prompts_and_rounds_are_heard(chunk, taps):
  """Each token with the feature before it, the prompt's among them."""
  model = mocks.TableModel(5)
  table = mocks.counting_table(5)
  requests = mocks.requests(Settings(eos=()), [1, 4, 6], prompts=PROMPTS)
  batch = requests_lib.make_batch(requests, vocabulary=5, seed=0)
  drafter = mocks.ScriptedDrafter(2, taps=taps)
  loop = loop_lib.Loop(model, drafter, token.TokenRule(), chunk=chunk)
  params = batch.prompt_BP, np.ones((3, 6), np.int32)
  before = loop.prefill(table, params, batch, 6)
  after = mocks.decode(loop, table, params, batch, 6)
  for state, heard_B in (
      (before, batch.prompt_B),
      (after, after.length_B),
  ):
    column_S = np.arange(state.tokens_BS.shape[1])
    there_BS = (column_S > 0) & (column_S < np.asarray(heard_B)[:, None])
    if not taps:
      there_BS &= column_S >= np.asarray(batch.prompt_B)[:, None]
    tokens_BS = np.asarray(state.tokens_BS)
    np.testing.assert_array_equal(
        state.drafter.heard_BS, np.where(there_BS, tokens_BS, -1)
    )
    if taps:
      before_BS = np.roll(tokens_BS, 1, axis=1) + 1
      np.testing.assert_array_equal(
          state.drafter.before_BS, np.where(there_BS, before_BS, -1)
      )


@pytest.mark.parametrize("chunk", [3, 128])
def test_features_of_a_prompt_are_those_of_a_whole_pass(chunk):
  module, params = mocks.tiny_decoder("llama")
  rng = np.random.default_rng(0)
  tokens_BS = rng.integers(3, 29, (2, 9)).astype(np.int32)
  taps = (1, -1)
  _, features = reading.read_prompt(
      module,
      params,
      tokens_BS,
      np.array([9, 4]),
      None,
      width=9,
      slots=12,
      chunk=chunk,
      taps=taps,
  )
  _, _, whole = module.apply(
      params,
      cache_lib.whole_query(tokens_BS),
      None,
      taps=taps,
      method="decode",
  )
  for got_BTD, want_BTD in zip(features, whole, strict=True):
    assert got_BTD.shape == (2, 8, 16)
    np.testing.assert_allclose(got_BTD[0], want_BTD[0, :8], atol=1e-5)
    np.testing.assert_allclose(got_BTD[1, :3], want_BTD[1, :3], atol=1e-5)
