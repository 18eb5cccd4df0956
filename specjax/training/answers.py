"""What a target answers to many requests, kept on disk."""

import pathlib

import numpy as np
import tqdm

from specjax import errors
from specjax.checkpoints import resolve
from specjax.data import asks
from specjax.data import corpus
from specjax.training import features
from specjax.training import texts

# Answers of a file: what a kill can cost.
_PART = 256


def answered(
    config, target, split: str, count: int
) -> tuple[list[features.Row], str]:
  """Requests of a split with the target's answers, made where missing.

  Of `train` a share is answered by argmax and the rest sampled; held-out ones
  all by argmax: what is right there is what the target would say.

  Returns:
    The rows, and what the requests share with the evaluation prompts.

  Raises:
    errors.UserError: the corpus can't be had, or gives no requests.
  """
  texts_folder = pathlib.Path(config.corpus)
  corpus.build(texts_folder)
  known = asks.evaluation_texts(config.evaluation_prompts)
  stream = asks.TEXTS[config.texts](texts_folder, split, config.seed)
  chosen, overlap = asks.choose(stream, count, known)
  if not chosen:
    raise errors.UserError(
        f"corpus: {texts_folder} gives no requests of {split}"
    )
  kinds = ", ".join(f"{n} {kind}" for kind, n in asks.counts(chosen).items())
  shared = str(overlap) if known else "no evaluation prompts were given"
  print(f"{split}: {len(chosen)} requests ({kinds}); {shared}")
  said = [ask.text for ask in chosen]
  share = 1.0 if split == "dev" else config.greedy_share
  with bar(f"{split} answers", len(said)) as progress:
    rows = _answers(config, target, said, share, progress.update)
  return rows, shared


def _answers(config, target, said, share: float, tick) -> list[features.Row]:
  """Answers to some requests, a share of them by argmax."""
  place = np.arange(len(said))
  # Spread evenly, so that each kind of request has its share of both.
  greedy = np.floor((place + 1) * share) > np.floor(place * share)
  rows: list[features.Row | None] = [None] * len(said)
  questions = target.ask(said, config.max_source_tokens)
  for temperature, mine in ((0.0, greedy), (config.temperature, ~greedy)):
    members = np.flatnonzero(mine)
    if not len(members):
      continue
    how = texts.Writing(
        temperature,
        max_new_tokens=config.max_new_tokens,
        max_source_tokens=config.max_source_tokens,
        batch=config.answer_batch,
    )
    answers = texts.written(
        target,
        [said[i] for i in members],
        how,
        folder(config, "answers", target),
        tick,
        _PART,
    )
    for i, answer in zip(members, answers):
      rows[i] = features.Row(*questions[i], tuple(answer))
  return rows


def folder(config, what: str, target) -> pathlib.Path:
  """Where a target's answers or states lie: apart by its weights."""
  path = resolve.resolve(config.target, hint="")
  weights = [path] if path.is_file() else path.glob("*.safetensors")
  digest = texts.digest_of_files(weights)
  return pathlib.Path(config.out).absolute() / what / digest


def bar(name: str, total: int) -> tqdm.tqdm:
  return tqdm.tqdm(total=total, desc=name, unit="row")
