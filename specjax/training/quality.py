"""BLEU and ROUGE of a trained model on the shipped held-out rows."""

import json
import pathlib

from specjax import pipeline
from specjax import writing
from specjax.data import metrics
from specjax.data import tasks

TASKS = ("mini_ende", "mini_summ")


def measure(checkpoint, rows: int | None = None) -> dict[str, dict]:
  """Greedy outputs against references, beside the source copied as it is.

  Args:
    checkpoint: a checkpoints.Checkpoint.
    rows: of each task, from the front; None takes all.

  Returns:
    Task -> metric, score, copy (the score of the copied sources).
  """
  decoder = pipeline.Decoder(checkpoint, batch=32)
  out = {}
  for name in TASKS:
    task = tasks.get_task(name)
    examples = tasks.load_task(name, rows=rows)
    references = [example.reference for example in examples]
    sources = [example.source for example in examples]
    outputs = [result.text for result in decoder(sources)]
    copies = [source.removeprefix(task.prefix) for source in sources]
    score = lambda texts: metrics.score(task.metric, texts, references)
    out[name] = {
        "metric": metrics.NAMES[task.metric],
        "score": score(outputs),
        "copy": score(copies),
        "outputs": outputs,
    }
  return out


def save(path: pathlib.Path, scores: dict) -> None:
  """Writes the scores as JSON."""
  text = json.dumps(scores, indent=2, ensure_ascii=False)
  writing.write(path, text + "\n")


def line(scores: dict) -> str:
  """The scores as one line."""
  return ", ".join(
      f"{name} {each['metric']} {each['score']:.1f} (sources copied:"
      f" {each['copy']:.1f})"
      for name, each in scores.items()
  )
