"""Where a run took place: device, versions, commit."""

import datetime
import os
import pathlib
import platform
import subprocess

import jax
import jaxlib


def device() -> str:
  """What it ran on."""
  first = jax.devices()[0]
  if first.platform != "cpu":
    return f"{first.platform}: {jax.device_count()} x {first.device_kind}"
  info = pathlib.Path("/proc/cpuinfo")
  lines = info.read_text().splitlines() if info.is_file() else []
  names = [line.partition(": ")[2] for line in lines if "model name" in line]
  name = names[0] if names else platform.processor() or platform.machine()
  return f"cpu: {os.cpu_count()} x {name}"


def commit() -> str | None:
  """The commit of this source, "-dirty" where it was changed; or None."""
  package = pathlib.Path(__file__).resolve().parents[1]
  git = lambda *words: subprocess.run(
      ["git", "-C", str(package), *words],
      capture_output=True,
      text=True,
      check=True,
  ).stdout.strip()
  try:
    # A virtual environment may lie inside another project's repository.
    if git("rev-parse", "--show-prefix") != f"{package.name}/":
      return None
    return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
  except (OSError, subprocess.CalledProcessError):
    return None


def versions() -> dict[str, str]:
  """Of what decides about speed."""
  return {
      "python": platform.python_version(),
      "jax": jax.__version__,
      "jaxlib": jaxlib.__version__,
  }


def where(command: str) -> dict[str, str | None]:
  """Command, commit, date and device: the head of a file of results.

  To be asked for before the work: the source may change meanwhile.
  """
  return {
      "command": command,
      "commit": commit(),
      "date": datetime.date.today().isoformat(),
      "device": device(),
  }


def headline(made) -> str:
  """The entries of `where` as one line of Markdown."""
  return (
      f"`{made['command']}`, commit {made['commit']}, {made['date']},"
      f" {made['device']}"
  )
