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


def path_to(parents, node):
  """The nodes from the root to one of them, by the parents of all."""
  above = parents[node]
  return (*(path_to(parents, above) if above >= 0 else ()), node)


@dataclasses.dataclass(eq=False)
class Case:
  """One pair of tables and how both sides sample.

  Attributes:
    vocabulary: V of the target.
    gamma: nodes of a proposal.
    length: tokens of the texts whose law is compared.
    tree: parent of each node; None is a chain of gamma.
    deepest: nodes of a path at most, as a proposal's tree says it; None is as
      many as it has.
    target: settings of the target.
    draft: settings that drafts are drawn with.
    count: nodes that count; the others hold rubbish.
    kind: Kind of the proposal.
    argmax: drafts are the argmax of the draft's logits, not drawn; of
      siblings each the best that is left.
    reported: settings of the law that the proposal reports, when it lies.
    draft_width: V of the draft, where it differs.
    target_logits, draft_logits: one row a prefix, instead of random ones.
    copied: prefix -> tokens that are drafted there as point masses, fewer
      than gamma or none; where it has no entry, drafts are drawn.
    shapes: prefix -> tokens and parents of the point masses that are drafted
      there; `tree` then only says how many, and how deep they may be.
    seed: of the random ones.
  """

  vocabulary: int = 4
  gamma: int = 3
  length: int = 3
  tree: tuple[int, ...] | None = None
  deepest: int | None = None
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
  shapes: dict[tuple[int, ...], tuple] | None = None
  seed: int = 0

  def __post_init__(self):
    if self.tree is not None:
      self.gamma = len(self.tree)
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

  @property
  def parents(self):
    """Parent of each node."""
    return tuple(range(-1, self.gamma - 1)) if self.tree is None else self.tree

  @property
  def depth(self):
    """Nodes of the longest path that counts."""
    return max(map(len, map(self.path, range(self.count))), default=0)

  def path(self, node):
    """The nodes from the root to one of them."""
    return path_to(self.parents, node)

  def index(self, length, value):
    """Row of the tables of a prefix: `value` is its digits in base V."""
    return sum(self.vocabulary**n for n in range(length)) + value


# Compiling takes longest here: it is done without optimising, and laws are
# made in one shape a vocabulary.
quick = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)
_ROWS = 1536
_FULL = 128
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
    """Rows: each prefix with each draft of it and its chance."""
    case = self.case
    rows = [
        (text, tokens, chance)
        for text in self._prefixes()
        for tokens, chance in self._drafts(text)
    ]
    # Filled up to one of few shapes, with rows that have no chance.
    rows += [(*rows[-1][:2], 0.0)] * (-len(rows) % _FULL)
    copied = case.copied or {}
    self.copied_R = np.array([text in copied for text, *_ in rows])
    self.weight_R = np.array([chance for *_, chance in rows])
    self.count_R = np.array([len(tokens) for _, tokens, _ in rows], np.int32)
    self.start_R = np.array([self._row_of(text) for text, *_ in rows])
    self.drafted_RN = np.full((len(rows), case.gamma), -7)
    shapes = case.shapes or {}
    self.parent_RN = np.array(
        [
            shapes[text][1] if text in shapes else case.parents
            for text, *_ in rows
        ],
        np.int32,
    )
    self.context_RT = np.zeros((len(rows), case.gamma + 1), np.int64)
    for r, (text, tokens, _) in enumerate(rows):
      self.drafted_RN[r, : len(tokens)] = tokens
      self.context_RT[r] = self._row_of(text)
      for node in range(len(tokens)):
        path = [tokens[i] for i in path_to(self.parent_RN[r], node)]
        if min(path) >= 0:
          self.context_RT[r, node + 1] = self._row_of((*text, *path))

  def _drafts(self, text, tokens=(), chance=1.0):
    """Every draft of a text that begins with `tokens`, and its chance."""
    case, node = self.case, len(tokens)
    if text in (case.copied or {}):
      yield case.copied[text], 1.0
    elif text in (case.shapes or {}):
      yield case.shapes[text][0], 1.0
    elif node == case.count:
      yield tokens, chance
    else:
      for token, share in self._draws(text, tokens, case.path(node)[:-1]):
        yield from self._drafts(text, (*tokens, token), chance * share)

  def _draws(self, text, tokens, above):
    """What the next node may be: tokens and their chances."""
    case, node = self.case, len(tokens)
    path = tuple(tokens[i] for i in above)
    if min(path, default=0) < 0:
      return [(-1, 1.0)]
    row = self._row_of((*text, *path))
    siblings = [
        token
        for token, parent in zip(tokens, case.parents)
        if parent == case.parents[node]
    ]
    if case.argmax and case.tree is not None:
      order = np.argsort(-case.draft_logits[row], kind="stable")
      return [(int(order[len(siblings)]), 1.0)]
    q_V = case.q[row].copy()
    if case.kind is proposals.Kind.DISTINCT:
      q_V[[token for token in siblings if token >= 0]] = 0
    if q_V.sum() < 1e-12:
      return [(-1, 1.0)]
    q_V /= q_V.sum()
    return [(token, q_V[token]) for token in range(case.vocabulary)]

  def _row_of(self, text):
    """Row of the tables that follows a text."""
    return self.case.index(len(text), self._value(text))

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
    at = lambda law, context: jax.tree.map(lambda x: x[context], law)
    self.target = at(laws(case.target_logits, case.target), self.context_RT)
    logits = jnp.asarray(case.draft_logits)
    logits = sampling.fit_width(logits, case.vocabulary)
    # The places that have children, in order.
    above = sorted({parent + 1 for parent in case.parents})
    if case.deepest is not None:
      # One shape for all trees; what is too many is never looked at.
      above += [0] * (case.gamma - len(above))
    law = at(
        laws(logits, case.reported or case.draft), self.context_RT[:, above]
    )
    counts = [i for i in range(case.count) if case.parents[i] + 1 in above]
    used = {above.index(case.parents[i] + 1) for i in counts}
    unused = [i for i in range(len(above)) if i not in used]
    for field in (law.logits, law.peak, law.log_mass, law.cut):
      field[:, unused] = np.nan
      field[self.copied_R] = np.nan
    kind = case.kind
    mixed = kind is proposals.Kind.MIXED
    tree = None
    if case.tree is not None:
      deepest = max(map(len, map(case.path, range(case.gamma))))
      tree = proposals.Tree(self.parent_RN, case.deepest or deepest)
    self.proposal = proposals.Proposal(
        tokens_BN=self.drafted_RN.astype(np.int32),
        count_B=self.count_R,
        law=law if kind in proposals.DRAWN else None,
        kind=kind,
        point_BN=np.repeat(self.copied_R[:, None], case.gamma, axis=1)
        if mixed
        else None,
        tree=tree,
    )

  def judged(self, coin_RN):
    """What given coins come to, by the rule itself."""
    coin_RN = jnp.asarray(coin_RN, jnp.float32)
    return judge(self.rule, self.target, self.proposal, coin_RN)

  def boundaries(self):
    """Where the coin of each node parts acceptance from rejection.

    As far as the coins of others let it come to that: those of the nodes above
    accept where they can, all others reject where they can.
    """
    shape = self.proposal.tokens_BN.shape
    bound_RN = np.zeros(shape)
    for i in range(self.case.count):
      coin_RN = np.full(shape, _ALMOST_ONE)
      at_R = self.parent_RN[:, i]
      for _ in range(self.case.depth):
        row_R = np.flatnonzero(at_R >= 0)
        coin_RN[row_R, at_R[row_R]] = 0
        up_R = np.take_along_axis(self.parent_RN, at_R[:, None], 1)[:, 0]
        at_R = np.where(at_R < 0, -1, up_R)

      def passes(u_R, i=i, coin_RN=coin_RN):
        coin_RN[:, i] = u_R
        path_RG = np.asarray(self.judged(coin_RN).path_BG)
        return np.any(path_RG == i, axis=1)

      self._refuse_impossible(i, passes(np.zeros(shape[0])))
      low_R, high_R = np.zeros(shape[0]), np.ones(shape[0])
      high_R[~passes(low_R)] = 0
      low_R[passes(np.full(shape[0], _ALMOST_ONE))] = 1
      for _ in range(26):
        middle_R = np.float32((low_R + high_R) / 2).astype(np.float64)
        passed_R = passes(np.minimum(middle_R, _ALMOST_ONE))
        low_R = np.where(passed_R & (high_R > low_R), middle_R, low_R)
        high_R = np.where(passed_R | (high_R <= low_R), high_R, middle_R)
      bound_RN[:, i] = (low_R + high_R) / 2
    return bound_RN

  def _refuse_impossible(self, i, passed_R):
    """A token with p = 0 must be rejected even at coin 0."""
    place_R1 = self.parent_RN[:, [i]] + 1
    p_RV = self.case.p[np.take_along_axis(self.context_RT, place_R1, 1)[:, 0]]
    target = self.case.target
    greedy = target.temperature == 0 or target.top_p == 0
    if greedy and not self.rule.lossless:
      return  # Such rows are judged by the unfiltered law.
    token_R1 = np.maximum(self.drafted_RN[:, [i]], 0)
    p_R = np.take_along_axis(p_RV, token_R1, 1)[:, 0]
    p_R = np.where(self.drafted_RN[:, i] < 0, 0, p_R)
    assert not np.any(passed_R & (p_R == 0)), "accepted a token with p = 0"

  def emitted(self):
    """{m: [prefixes, V^m]}: chance that a round emits just these m tokens."""
    case, size = self.case, self.case.vocabulary
    starts = self.start_R.max() + 1
    emitted = {
        m: np.zeros((starts, size**m)) for m in range(1, case.depth + 2)
    }
    bound_RN = self.boundaries()
    for region in itertools.product((True, False), repeat=case.count):
      below_N = np.array(region + (True,) * (case.gamma - case.count))
      coin_RN = np.where(below_N, bound_RN / 2, (1 + bound_RN) / 2)
      chance_RN = np.where(below_N, bound_RN, 1 - bound_RN)
      weight_R = self.weight_R * chance_RN[:, : case.count].prod(axis=1)
      self._emit(emitted, np.minimum(coin_RN, _ALMOST_ONE), weight_R)
    return emitted

  def _emit(self, emitted, coin_RN, weight_R):
    """Adds one region of the coins to the outcomes."""
    size = self.case.vocabulary
    judged = self.judged(coin_RN)
    weights_RV = next_weights(self.rule, self.target, self.proposal, judged)
    accepted_R, path_RG = map(np.asarray, (judged.accepted_B, judged.path_BG))
    next_RV = np.asarray(weights_RV, np.float64)
    next_RV /= next_RV.sum(axis=1, keepdims=True)
    for m, mass in emitted.items():
      row = np.flatnonzero((accepted_R == m - 1) & (weight_R > 0))
      value = np.zeros(row.size, np.int64)
      for i in range(m - 1):
        value = value * size + self.drafted_RN[row, path_RG[row, i]]
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
  """Law of depth + 1 tokens: one round, then the target's own tokens."""
  size, total = case.vocabulary, case.depth + 1
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
  want = _target_marginals(case, max(case.length, case.depth + 1))
  np.testing.assert_allclose(
      one_round(rule, case), want[case.depth + 1], rtol=0, atol=TOLERANCE
  )
  for got, text in zip(several_rounds(rule, case), want):
    np.testing.assert_allclose(got, text, rtol=0, atol=TOLERANCE)


def mean_accepted(rule, case):
  """[prefixes]: nodes that a round accepts on average, from each prefix."""
  return sum(
      (m - 1) * mass.sum(axis=1) for m, mass in outcomes(rule, case).items()
  )


def check_lenient(rule, case):
  """Raises unless out(x | prefix) <= p(x | prefix) / beta everywhere."""
  passes = several_rounds(rule, case)
  np.testing.assert_allclose(passes[-1].sum(), 1, rtol=0, atol=TOLERANCE)
  for n in range(case.length):
    p = case.p[case.index(n, np.arange(case.vocabulary**n))]
    bound = passes[n][:, None] * p / rule.lenience
    got = passes[n + 1].reshape(bound.shape)
    assert np.all(got <= bound + TOLERANCE), (got - bound).max()
