"""What Debian's archive gives, by apt in a state folder of its own."""

import os
import pathlib
import re
import shutil
import subprocess
from typing import Iterator

from specjax.errors import UserError

HELP_PACKAGES = ("libreoffice-help-de", "libreoffice-help-en-us")
INDICES = ("i18n_Translation-en", "i18n_Translation-de", "binary-amd64_Pack")


def _run(command: list, **options) -> bytes:
  """Runs a command of Debian's; raises UserError with its last line."""
  if not shutil.which(command[0]):
    raise UserError(
        f"corpus: {command[0]} is missing; the corpus is built where Debian's"
        " or Ubuntu's apt is"
    )
  done = subprocess.run(command, capture_output=True, check=False, **options)
  if done.returncode:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    last = lines[-1] if lines else "no message"
    raise UserError(f"corpus: {command[0]} failed ({last}); try again")
  return done.stdout


def _apt_options(state: pathlib.Path) -> list[str]:
  """Options that keep apt inside `state` and away from the system's lists."""
  for name in ("lists/partial", "archives/partial"):
    (state / name).mkdir(parents=True, exist_ok=True)
  options = {
      "Dir::State::Lists": state / "lists",
      "Dir::Cache": state,
      "Acquire::Languages": "en,de",
      "APT::Architecture": "amd64",
      "APT::Sandbox::User": "",
  }
  return [part for k, v in options.items() for part in ("-o", f"{k}={v}")]


def _found(state: pathlib.Path, ending: str) -> list[pathlib.Path]:
  return sorted((state / "lists").glob(f"*bookworm_main_{ending}*"))


def index(state: pathlib.Path, ending: str) -> str:
  """Returns the text of an index that was fetched.

  Args:
    state: apt's folder.
    ending: one of INDICES.

  Raises:
    UserError: it is missing or damaged.
  """
  found = _found(state, ending)
  if not found:
    raise UserError(
        f"corpus: no index {ending} of bookworm's main; add Debian bookworm to"
        " apt's sources"
    )
  helper = "/usr/lib/apt/apt-helper"
  try:
    return _run([helper, "cat-file", str(found[0])]).decode()
  except UnicodeDecodeError:
    raise UserError(
        f"corpus: {found[0]} is damaged; delete it and try again"
    ) from None


def archive(state: pathlib.Path) -> str:
  """Returns which archive the indices are of: its version and date.

  Raises:
    UserError: nothing there says so.
  """
  lists = state / "lists"
  found = sorted(lists.glob("*bookworm_InRelease"))
  # Of an archive that signs in a file of its own.
  found += sorted(lists.glob("*bookworm_Release"))
  if not found:
    raise UserError(
        f"corpus: {lists} has the indices of bookworm, but no InRelease file;"
        " delete that folder and try again"
    )
  release = found[0].read_text("utf-8", errors="replace")
  return "; ".join(re.findall(r"^(?:Version|Date): .*$", release, re.M))


def fetch(state: pathlib.Path) -> None:
  """Downloads the indices and the two help packages that aren't there yet.

  Raises:
    UserError: apt or dpkg-deb is missing, or failed.
  """
  options = _apt_options(state)
  if not all(_found(state, ending) for ending in INDICES):
    _run(["apt-get", *options, "-q", "update"])
  for package in HELP_PACKAGES:
    folder = state / package
    if folder.exists():
      continue
    wanted = f"{package}/bookworm"
    _run(["apt-get", *options, "-q", "download", wanted], cwd=state)
    files = sorted(state.glob(package + "_*.deb"))
    if not files:
      raise UserError(f"corpus: no {package} came to {state}; try again")
    part = state / (package + ".part")
    _run(["dpkg-deb", "-x", files[-1], part])
    os.replace(part, folder)


def help_pages(state: pathlib.Path) -> Iterator[tuple[str, str, str]]:
  """Yields each page of the help: its name, English and German text."""
  german, english = (
      state / package / "usr/share/libreoffice/help" / language / "text"
      for package, language in zip(HELP_PACKAGES, ("de", "en-US"))
  )
  for path in sorted(english.rglob("*.html")):
    page = path.relative_to(english)
    if (german / page).exists():
      texts = (
          each.read_text("utf-8", errors="replace")
          for each in (path, german / page)
      )
      yield page.with_suffix("").as_posix(), *texts
