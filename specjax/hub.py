"""The Hugging Face hub: all that is asked of huggingface_hub."""

import contextlib
import dataclasses
import pathlib
from typing import Iterable, Iterator

from specjax import errors


class Unavailable(Exception):
  """The hub does not give something; the text is the reason, in one line."""


@dataclasses.dataclass(frozen=True)
class Repository:
  """A repository of the hub.

  Methods raise Unavailable.

  Attributes:
    name: such as "google/flan-t5-small".
    kind: "model" or "dataset".
  """

  name: str
  kind: str = "model"

  def cached(self) -> pathlib.Path | None:
    """Its folder in the cache, which need not hold every file."""
    with _hub() as hub:
      try:
        # Asked for no file, it names the folder and misses none.
        return self._snapshot(hub, [], local_files_only=True)
      except hub.errors.LocalEntryNotFoundError:
        return None

  def files(self) -> set[str]:
    """Names of all its files, as the hub has them now."""
    with _hub() as hub:
      # list_repo_files would try for half a minute where there is no network.
      info = hub.repo_info(self.name, repo_type=self.kind, timeout=10)
      return {file.rfilename for file in info.siblings or ()}

  def fetch(self, patterns: Iterable[str]) -> pathlib.Path:
    """Its folder in the cache, with the files of `patterns`."""
    with _hub() as hub:
      return self._snapshot(hub, patterns)

  def _snapshot(self, hub, patterns, **options) -> pathlib.Path:
    folder = hub.snapshot_download(
        self.name,
        repo_type=self.kind,
        allow_patterns=list(patterns),
        **options,
    )
    return pathlib.Path(folder)


@contextlib.contextmanager
def _hub() -> Iterator:
  """Gives huggingface_hub; its errors become Unavailable."""
  try:
    import huggingface_hub as hub
  except ImportError:
    raise Unavailable(
        "huggingface_hub is not installed: pip install 'specjax[hub]'"
    ) from None
  try:
    yield hub
  # HTTPError is of the HTTP library that this huggingface_hub uses, and
  # RuntimeError of hf_xet, its other way to download.
  except (OSError, RuntimeError, ValueError, hub.errors.HTTPError) as error:
    raise Unavailable(reason(error)) from None


def reason(error: BaseException) -> str:
  """What lies at the bottom of `error`, in one line."""
  while error.__cause__ is not None:
    error = error.__cause__
  return errors.reason(error)
