"""The exact law of a mock model's whole texts, and how well samples fit it."""

import numpy as np

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
  counts = {}
  for text in texts:
    counts[text] = counts.get(text, 0) + 1
  if not counts.keys() <= law.keys():
    return np.inf
  expected = np.array([mass * len(texts) for mass in law.values()])
  observed = np.array([counts.get(text, 0) for text in law], float)
  rare = expected < least
  bins = lambda x: np.append(x[~rare], x[rare].sum())
  expected, observed = bins(expected), bins(observed)
  used = expected > 0
  expected, observed = expected[used], observed[used]
  chi2 = np.sum((observed - expected) ** 2 / expected)
  freedom = len(expected) - 1
  if not freedom:
    return 0.0
  return (chi2 - freedom) / np.sqrt(2 * freedom)
