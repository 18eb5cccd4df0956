"""The exact output law of a verification rule, by enumeration.

Models are tables: one row of logits for every prefix. Every draft tuple is
tried, and every region of the coins; where the regions meet is found by
bisection on the rule's own judgement, so the formula under test isn't repeated
here. Probabilities of laws come from a float64 reference that sorts.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.verify import proposal as proposals

TOLERANCE = 1e-6
_ALMOST_ONE = 1 - 2.0**-24


def reference_law(logits, settings):
  """[..., V] probabilities in float64, with a sort; ties at a cut stay."""
  x = np.asarray(logits, np.float64)
  if settings.temperature == 0 or settings.top_p == 0:
    return np.eye(x.shape[-1])[np.argmax(x, axis=-1)]
  # Scores are float32, and that rounding is part of the law's definition.
  x = np.float64(np.float32(x) / np.float32(settings.temperature))
  if 0 < settings.top_k < x.shape[-1]:
    kth = np.sort(x, axis=-1)[..., -settings.top_k, None]
    x = np.where(x >= kth, x, -np.inf)
  p = np.exp(x - x.max(axis=-1, keepdims=True))
  p /= p.sum(axis=-1, keepdims=True)
  if settings.top_p < 1:
    falling = -np.sort(-p, axis=-1)
    reached = np.cumsum(falling, axis=-1) >= np.float32(settings.top_p)
    reached[..., -1] = True
    crossing = np.argmax(reached, axis=-1)[..., None]
    least = np.take_along_axis(falling, crossing, axis=-1)
    p = np.where(p >= least, p, 0)
  return p / p.sum(axis=-1, keepdims=True)


def table(seed, vocabulary, length, width=None, scale=1.5):
  """Random logits, [prefixes shorter than `length`, width]."""
  prefixes = sum(vocabulary**n for n in range(length))
  rng = np.random.default_rng(seed)
  shape = (prefixes, width or vocabulary)
  return rng.normal(scale=scale, size=shape).astype(np.float32)


@dataclasses.dataclass(eq=False)
class Case:
  """One pair of tables and how both sides sample.

  Attributes:
    vocabulary: V of the target.
    gamma: nodes of a proposal.
    length: tokens of the texts whose law is compared.
    target: settings of the target.
    draft: settings that drafts are drawn with.
    count: nodes that count; the others hold rubbish.
    kind: Kind of the proposal.
    argmax: drafts are the argmax of the draft's logits, not drawn.
    reported: settings of the law that the proposal reports, when it lies.
    draft_width: V of the draft, where it differs.
    target_logits, draft_logits: one row a prefix, instead of random ones.
    copied: prefix -> tokens that are drafted there as point masses, fewer
      than gamma or none; where it has no entry, drafts are drawn.
    seed: of the random ones.
  """

  vocabulary: int = 4
  gamma: int = 3
  length: int = 3
  target: sampling.Settings = sampling.Settings(temperature=1.0)
  draft: sampling.Settings = sampling.Settings(temperature=1.0)
  count: int | None = None
  kind: proposals.Kind = proposals.Kind.CHAIN
  argmax: bool = False
  reported: sampling.Settings | None = None
  draft_width: int | None = None
  target_logits: np.ndarray | None = None
  draft_logits: np.ndarray | None = None
  copied: dict[tuple[int, ...], tuple[int, ...]] | None = None
  seed: int = 0

  def __post_init__(self):
    self.count = self.gamma if self.count is None else self.count
    reach = self.length + self.gamma
    if self.target_logits is None:
      self.target_logits = table(self.seed, self.vocabulary, reach)
    if self.draft_logits is None:
      self.draft_logits = table(
          self.seed + 100, self.vocabulary, reach, self.draft_width
      )
    self.p = reference_law(self.target_logits, self.target)
    self.q = self._drawn_from()

  def _drawn_from(self):
    logits = np.full_like(self.target_logits, -np.inf)
    width = min(self.vocabulary, self.draft_logits.shape[1])
    logits[:, :width] = self.draft_logits[:, :width]
    greedy = sampling.Settings(temperature=0.0)
    return reference_law(logits, greedy if self.argmax else self.draft)

  def index(self, length, value):
    """Row of the tables of a prefix: `value` is its digits in base V."""
    return sum(self.vocabulary**n for n in range(length)) + value


# Compiling takes longest here: it is done without optimising, and laws are
# made in one shape a vocabulary.
quick = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)
_ROWS = 1536
_make_law = quick(sampling.make_law)


def laws(logits, settings, make_law=_make_law):
  """A Law of numpy arrays, each place that of a first new token.

  Args:
    logits: [B, ..., V].
    settings: Settings, one for each of the B rows or one for all.
    make_law: another compilation of it.
  """
  logits = np.asarray(logits)
  leading, size = logits.shape[:-1], logits.shape[-1]
  flat = logits.reshape(-1, size)
  if isinstance(settings, sampling.Settings):
    settings = [settings]
  one = jax.tree.map(np.asarray, sampling.stack(settings, size))
  row = np.arange(len(flat)) // (len(flat) // len(settings))
  parts = []
  for at in range(0, len(flat), _ROWS):
    # Rows past the end repeat the last one.
    taken = np.minimum(np.arange(at, at + _ROWS), len(flat) - 1)
    rows = one.replace(suppressed_V=None)
    sampling_B = jax.tree.map(lambda field: field[row[taken]], rows)
    sampling_B = sampling_B.replace(suppressed_V=one.suppressed_V)
    parts.append(make_law(flat[taken], sampling_B, np.zeros(_ROWS, np.int32)))
  join = lambda *fields: np.concatenate(fields)[: len(flat)].reshape(
      leading + fields[0].shape[1:]
  )
  return jax.tree.map(join, *parts)


dense = quick(lambda law: law.dense())

# A rule is a frozen dataclass, so it can be static.
judge = quick(lambda rule, *inputs: rule.judge(*inputs), static_argnums=0)
next_weights = quick(
    lambda rule, *inputs: rule.next_weights(*inputs), static_argnums=0
)
verify = quick(lambda rule, *inputs: rule(*inputs), static_argnums=0)


class Round:
  """Every outcome of one round, from every prefix shorter than the length."""

  def __init__(self, rule, case):
    self.rule, self.case = rule, case
    self._lay_out()
    self._make_laws()

  def _lay_out(self):
    """Rows: each prefix with each draft tuple, or with what is copied."""
    case, size = self.case, self.case.vocabulary
    drawn = list(itertools.product(range(size), repeat=case.count))
    rows, self.copied_R = [], []
    for text in self._prefixes():
      copied = (case.copied or {}).get(text)
      tuples = drawn if copied is None else [copied]
      rows += [(text, drafted) for drafted in tuples]
      self.copied_R += [copied is not None] * len(tuples)
    self.copied_R = np.array(self.copied_R)
    self.count_R = np.array([len(drafted) for _, drafted in rows], np.int32)
    tokens_RN = np.zeros((len(rows), case.count), np.int64)
    for row, (_, drafted) in zip(tokens_RN, rows):
      row[: len(drafted)] = drafted
    length_R = np.array([len(text) for text, _ in rows])
    value_R = np.array([self._value(text) for text, _ in rows])
    self.start_R = np.array(list(map(case.index, length_R, value_R)))
    context = []
    for i in range(case.gamma + 1):
      context.append(list(map(case.index, length_R, value_R)))
      if i < case.count:
        value_R = value_R * size + tokens_RN[:, i]
        length_R = length_R + 1
    self.context_RT = np.stack(context, axis=1)
    self.drafted_RN = tokens_RN
    picked = np.take_along_axis(
        case.q[self.context_RT[:, : case.count]], tokens_RN[..., None], -1
    )
    self.weight_R = np.where(
        self.copied_R, 1.0, picked[..., 0].prod(axis=1)
    )

  def _prefixes(self):
    """Every text shorter than the length, in the order of the tables."""
    for n in range(self.case.length):
      yield from itertools.product(range(self.case.vocabulary), repeat=n)

  def _value(self, text):
    """The text as a number in base V."""
    return functools.reduce(
        lambda value, token: value * self.case.vocabulary + token, text, 0
    )

  def _make_laws(self):
    case = self.case
    padding = ((0, 0), (0, case.gamma - case.count))
    tokens_RN = np.pad(self.drafted_RN, padding, constant_values=-7)
    at = lambda law, context: jax.tree.map(lambda x: x[context], law)
    self.target = at(laws(case.target_logits, case.target), self.context_RT)
    logits = jnp.asarray(case.draft_logits)
    logits = sampling.fit_width(logits, case.vocabulary)
    law = at(
        laws(logits, case.reported or case.draft), self.context_RT[:, :-1]
    )
    for field in (law.logits, law.peak, law.log_mass, law.cut):
      field[:, case.count :] = np.nan
      field[self.copied_R] = np.nan
    point = case.kind is proposals.Kind.POINT
    mixed = case.kind is proposals.Kind.MIXED
    self.proposal = proposals.Proposal(
        tokens_BN=tokens_RN.astype(np.int32),
        count_B=self.count_R,
        law=None if point else law,
        kind=case.kind,
        point_BN=np.repeat(self.copied_R[:, None], case.gamma, axis=1)
        if mixed
        else None,
    )

  def accepted(self, coin_RG):
    """accepted_R for given coins, by the rule itself."""
    coin_RG = jnp.asarray(coin_RG, jnp.float32)
    return np.asarray(judge(self.rule, self.target, self.proposal, coin_RG)[0])

  def boundaries(self):
    """Where the coin of each node parts acceptance from rejection."""
    shape = self.proposal.tokens_BN.shape
    bound_RG = np.zeros(shape)
    for i in range(self.case.count):
      coin_RG = np.zeros(shape)
      passes = lambda u_R: self.accepted(
          np.where(np.arange(shape[1]) == i, u_R[:, None], coin_RG)
      ) > i
      self._refuse_impossible(i, passes(np.zeros(shape[0])))
      low_R, high_R = np.zeros(shape[0]), np.ones(shape[0])
      high_R[~passes(low_R)] = 0
      low_R[passes(np.full(shape[0], _ALMOST_ONE))] = 1
      for _ in range(26):
        middle_R = np.float32((low_R + high_R) / 2).astype(np.float64)
        passed_R = passes(np.minimum(middle_R, _ALMOST_ONE))
        low_R = np.where(passed_R & (high_R > low_R), middle_R, low_R)
        high_R = np.where(passed_R | (high_R <= low_R), high_R, middle_R)
      bound_RG[:, i] = (low_R + high_R) / 2
    return bound_RG

  def _refuse_impossible(self, i, passed_R):
    """A token with p = 0 must be rejected even at coin 0."""
    p_RV = self.case.p[self.context_RT[:, i]]
    if self.case.target.temperature == 0 and self.rule.lenience < 1:
      return  # Such rows are judged by the unfiltered law.
    p_R = np.take_along_axis(p_RV, self.drafted_RN[:, [i]], 1)[:, 0]
    assert not np.any(passed_R & (p_R == 0)), "accepted a token with p = 0"

  def emitted(self):
    """{m: [prefixes, V^m]}: chance that a round emits just these m tokens."""
    case, size = self.case, self.case.vocabulary
    starts = self.start_R.max() + 1
    emitted = {
        m: np.zeros((starts, size**m)) for m in range(1, case.count + 2)
    }
    bound_RG = self.boundaries()
    for region in itertools.product((True, False), repeat=case.count):
      below_G = np.array(region + (True,) * (case.gamma - case.count))
      coin_RG = np.where(below_G, bound_RG / 2, (1 + bound_RG) / 2)
      chance_RG = np.where(below_G, bound_RG, 1 - bound_RG)
      weight_R = self.weight_R * chance_RG[:, : case.count].prod(axis=1)
      self._emit(emitted, np.minimum(coin_RG, _ALMOST_ONE), weight_R)
    return emitted

  def _emit(self, emitted, coin_RG, weight_R):
    """Adds one region of the coins to the outcomes."""
    size = self.case.vocabulary
    accepted_R = self.accepted(coin_RG)
    weights_RV = next_weights(
        self.rule, self.target, self.proposal, accepted_R
    )
    next_RV = np.asarray(weights_RV, np.float64)
    next_RV = np.exp(next_RV - next_RV.max(axis=1, keepdims=True))
    next_RV /= next_RV.sum(axis=1, keepdims=True)
    for m, mass in emitted.items():
      row = (accepted_R == m - 1) & (weight_R > 0)
      value = np.zeros(row.sum(), np.int64)
      for i in range(m - 1):
        value = value * size + self.drafted_RN[row, i]
      for token in range(size):
        np.add.at(
            mass,
            (self.start_R[row], value * size + token),
            weight_R[row] * next_RV[row, token],
        )


def _target_marginals(case, length):
  """[V^n] for n = 0..length: the target's own law of texts."""
  marginals = [np.ones(1)]
  for n in range(length):
    p = case.p[case.index(n, np.arange(case.vocabulary**n))]
    marginals.append((marginals[-1][:, None] * p).reshape(-1))
  return marginals


@functools.lru_cache(maxsize=None)
def outcomes(rule, case):
  """{m: [prefixes, V^m]}: chance that a round emits just these m tokens."""
  return Round(rule, case).emitted()


def one_round(rule, case):
  """Law of count + 1 tokens: one round, then the target's own tokens."""
  size, total = case.vocabulary, case.count + 1
  law = np.zeros(size**total)
  for m, mass in outcomes(rule, case).items():
    text = mass[0]
    for n in range(m, total):
      p = case.p[case.index(n, np.arange(size**n))]
      text = (text[:, None] * p).reshape(-1)
    law += text
  return law


def several_rounds(rule, case):
  """[V^n] for n = 0..length: marginal laws of texts made by rounds alone."""
  size, length = case.vocabulary, case.length
  ends_at = [np.zeros(size**n) for n in range(length + 1)]
  ends_at[0][0] = 1
  passes = [np.zeros(size**n) for n in range(length + 1)]
  passes[0][0] = 1
  for n in range(length):
    start = case.index(n, np.arange(size**n))
    for m, mass in outcomes(rule, case).items():
      joint = (ends_at[n][:, None] * mass[start]).reshape(-1)
      if n + m <= length:
        ends_at[n + m] += joint
      for shorter in range(n + 1, min(n + m, length) + 1):
        passes[shorter] += joint.reshape(size**shorter, -1).sum(axis=1)
  return passes


def check_exact(rule, case):
  """Raises AssertionError unless the output law is the target's."""
  want = _target_marginals(case, max(case.length, case.count + 1))
  np.testing.assert_allclose(
      one_round(rule, case), want[case.count + 1], rtol=0, atol=TOLERANCE
  )
  for got, text in zip(several_rounds(rule, case), want):
    np.testing.assert_allclose(got, text, rtol=0, atol=TOLERANCE)


def check_lenient(rule, case):
  """Raises unless out(x | prefix) <= p(x | prefix) / beta everywhere."""
  passes = several_rounds(rule, case)
  np.testing.assert_allclose(passes[-1].sum(), 1, rtol=0, atol=TOLERANCE)
  for n in range(case.length):
    p = case.p[case.index(n, np.arange(case.vocabulary**n))]
    bound = passes[n][:, None] * p / rule.lenience
    got = passes[n + 1].reshape(bound.shape)
    assert np.all(got <= bound + TOLERANCE), (got - bound).max()
