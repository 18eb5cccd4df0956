"""The exact law of a mock model's whole texts, and how well samples fit it."""

import collections
import zlib

import numpy as np
from scipy import stats

from tests import enumeration


def next_law(model, table, settings, text, new):
  """float64 law of the token after `text`, of whose tokens `new` are new."""
  if settings.forced_first is not None and new == 0:
    return np.eye(model.vocabulary)[settings.forced_first]
  logits = np.array(table[model.code(text)], np.float64)
  logits[list(settings.suppressed)] = -np.inf
  if new < settings.min_new_tokens:
    logits[list(settings.eos)] = -np.inf
  return enumeration.reference_law(logits, settings)


def text_law(model, table, settings, prompt, length):
  """{text: probability} of the new tokens, cut at EOS and at `length`."""
  law, open_texts = {}, {(): 1.0}
  for new in range(length):
    longer = {}
    for text, mass in open_texts.items():
      p_V = next_law(model, table, settings, prompt + text, new)
      for token in np.flatnonzero(p_V):
        ended = token in settings.eos or new == length - 1
        into = law if ended else longer
        into[(*text, int(token))] = mass * p_V[token]
    open_texts = longer
  return law


def greedy_text(model, table, settings, prompt, budget):
  """The new tokens of plain greedy decoding, cut at EOS and at the budget."""
  text = ()
  while len(text) < budget:
    p_V = next_law(model, table, settings, prompt + text, len(text))
    text += (int(np.argmax(p_V)),)
    if text[-1] in settings.eos:
      break
  return text


def misfit(texts, law, least=5.0):
  """How far counted texts lie from a law: chi-square, in standard deviations.

  Texts that are expected fewer than `least` times share one bin. A text of
  probability 0 is an infinite misfit.
  """
  expected, observed = _counted(texts, law)
  rare = expected < least
  bins = lambda x: np.append(x[~rare], x[rare].sum())
  chi2, freedom = _chi_square(bins(expected), bins(observed))
  return (chi2 - freedom) / np.sqrt(2 * freedom) if freedom else chi2


def chi_square(texts, law, least=10.0):
  """Chi-square of counted texts, and its degrees of freedom.

  No bin is expected fewer than `least` times: rarer texts share one, together
  with the next rarest. A text of probability 0 makes it infinite.
  """
  expected, observed = _counted(texts, law)
  order = np.argsort(-expected)
  expected, observed = expected[order], observed[order]
  # From the first one on behind which too few are left.
  behind = np.append(expected[::-1].cumsum()[::-1][1:], 0.0)
  last = int(np.argmax((expected < least) | (behind < least)))
  bins = lambda x: np.append(x[:last], x[last:].sum())
  return _chi_square(bins(expected), bins(observed))


def tail(chi2, freedom):
  """The chance that a chi-square comes out as large, or larger."""
  if not freedom:
    # One bin: all counts are right, but for rounding, or a text can't be.
    return float(chi2 < 1e-6)
  return float(stats.chi2.sf(chi2, freedom))


def apart(texts, others, *, own=64, shared=32):
  """How likely two lists of texts, as long, lie so far apart: a p-value.

  Chi-square of homogeneity. The `own` most frequent texts of both together
  have bins of their own, as far as they come 20 times; the rest is spread over
  `shared` bins by a checksum.
  """
  assert len(texts) == len(others)
  most = collections.Counter(texts)
  most.update(others)
  frequent = [text for text, times in most.most_common(own) if times >= 20]
  place = {text: i for i, text in enumerate(frequent)}

  def binned(texts):
    counts = np.zeros(own + shared)
    for text, times in collections.Counter(texts).items():
      number = zlib.crc32(np.int32(text).tobytes()) % shared
      counts[place.get(text, own + number)] += times
    return counts

  a, b = binned(texts), binned(others)
  used = a + b > 0
  a, b = a[used], b[used]
  return tail(np.sum((a - b) ** 2 / (a + b)), len(a) - 1)


def _counted(texts, law):
  """How often each text of the law is expected, and came; inf for others."""
  counts = collections.Counter(texts)
  expected = np.array([mass * len(texts) for mass in law.values()])
  observed = np.array([counts.get(text, 0) for text in law], float)
  if not counts.keys() <= law.keys():
    observed[np.argmax(expected)] = np.inf
  return expected, observed


def _chi_square(expected, observed):
  """Of bins; those without expectation do not count."""
  used = expected > 0
  expected, observed = expected[used], observed[used]
  return np.sum((observed - expected) ** 2 / expected), len(expected) - 1
