"""The command line of a run: --config FILE[:VARIANT] --config.SECTION.KEY=X.

ml_collections' flags do the parsing; what it would report with a traceback,
or not at all, is one line here.
"""

import os
import pathlib
import re
import runpy
import traceback
from typing import Any, Callable, Iterator, Sequence

from absl import flags
from ml_collections import config_dict
from ml_collections import config_flags

from specjax import config as config_lib
from specjax import errors
from specjax import sections

_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]*)")
_BAD_VALUE = re.compile(r"flag --config\.(\S+?)=(.*?): ", re.DOTALL)
# Options of absl's own, which it takes though nobody defined them.
_ABSL = re.compile(r"--?(flagfile|undefok)(=|$)")
# Longer messages of others are cut.
_WIDTH = 300

_EMPTY_TEXT = re.compile(r"--?config\.data\.text=\s*")


def read(argv: Sequence[str]) -> sections.Experiment:
  """Arguments -> the frozen config.

  Args:
    argv: as sys.argv, the program's name first.

  Raises:
    errors.UserError: no config file, an unknown or misplaced option, or a
      value of another type or out of its range; one line.
  """
  path, argv = _take_path(argv)
  name, config = load(path)
  _check_names(argv, list(config_lib.leaves()))
  if any(map(_EMPTY_TEXT.fullmatch, argv)):
    # Else an unset shell variable would start the whole experiment.
    raise errors.UserError("data.text: is empty; give a text, or no option")
  return config_lib.build(_override(config, argv, _explain), name)


def load(path: str) -> tuple[str, config_dict.ConfigDict]:
  """A config file, "FILE" or "FILE:VARIANT" -> name of the run, ConfigDict.

  Raises:
    errors.UserError: there is none, or running it failed; file and line are
      named.
  """
  file, variant = path, ""
  if not os.path.isfile(file):
    file, _, variant = path.partition(":")
  if not os.path.isfile(file):
    raise errors.UserError(
        f"config: {_short(file)} is no file here; give the path of one, such"
        " as configs/ende_t5small.py in the checkout"
    )
  try:
    config = _run_file(file, variant)
  except errors.UserError:
    raise
  # The file is a person's own program: anything may come, and an exit in it
  # would end the run as if all were well.
  except (Exception, SystemExit) as error:
    raise errors.UserError(f"config: {_in_file(file, error)}") from None
  stem = pathlib.Path(file).stem
  return (f"{stem}:{variant}" if variant else stem), config


def _run_file(file: str, variant: str) -> config_dict.ConfigDict:
  """What the file's get_config returns, every value of it readable."""
  module = runpy.run_path(file)
  if "get_config" not in module:
    raise errors.UserError(f"config: {file} has no get_config")
  config = module["get_config"](*([variant] if variant else []))
  if not isinstance(config, config_dict.ConfigDict):
    raise errors.UserError(
        f"config: get_config of {file} must return a ConfigDict"
    )
  # Keys of several types, and references that nothing fills, fail here.
  for _ in _leaves(config):
    pass
  return config


def read_values(argv: Sequence[str]) -> tuple[str, config_dict.ConfigDict]:
  """Arguments -> name of the run and its ConfigDict, for other doors.

  Raises:
    errors.UserError: no config file, an unknown option, or a value of another
      type; one line.
  """
  path, argv = _take_path(argv)
  name, config = load(path)
  _check_names(argv, [leaf for leaf, _ in _leaves(config)])
  return name, _override(config, argv, lambda e: f"options: {_message(e)}")


def _override(
    config: config_dict.ConfigDict,
    argv: Sequence[str],
    explain: Callable[[Exception], str],
) -> config_dict.ConfigDict:
  """The config with the options of the arguments in it.

  Args:
    config: of a config file.
    argv: arguments without that file.
    explain: what absl or ml_collections raised -> one line.
  """
  for argument in argv[1:]:
    if match := _ABSL.match(argument):
      raise errors.UserError(f"{match[1]}: there is no such option")
  values = flags.FlagValues()
  try:
    holder = config_flags.DEFINE_config_dict(
        "config", config, flag_values=values, sys_argv=argv, lock_config=True
    )
    rest = values(argv)[1:]
  # Neither library says all that it raises.
  except Exception as error:
    raise errors.UserError(explain(error)) from None
  if rest:
    raise errors.UserError(
        f"{_short(rest[0]) or repr('')}: is not understood; options look like"
        " --config.SECTION.KEY=VALUE"
    )
  return holder.value


def _explain(error: Exception) -> str:
  """The line for an option of a run that absl did not take."""
  if isinstance(error, flags.UnrecognizedFlagError):
    return config_lib.no_such(error.flagname)
  match = _BAD_VALUE.match(str(error))
  if match and match[1] in config_lib.leaves():
    return config_lib.wrong_type(match[1], match[2])
  return f"options: {_message(error)}"


def _message(error: BaseException) -> str:
  """One line; what ml_collections wraps several times is taken out."""
  while error.args and isinstance(error.args[0], BaseException):
    error = error.args[0]
  message = str(error.args[0] if error.args else error)
  return _short(message) or type(error).__name__


def _short(text: str) -> str:
  """One line of no more than so many characters."""
  line = " ".join(text.split())
  return line if len(line) <= _WIDTH else f"{line[:_WIDTH]} ..."


def _in_file(file: str, error: BaseException) -> str:
  """Where in a config file something was raised, and what."""
  own = lambda name: name and os.path.abspath(name) == os.path.abspath(file)
  message = str(error)
  lines = [
      frame.lineno
      for frame in traceback.extract_tb(error.__traceback__)
      if own(frame.filename)
  ]
  if isinstance(error, SyntaxError) and own(error.filename):
    message, lines = error.msg, [error.lineno]
  where = f"{file}, line {lines[-1]}" if lines else file
  return _short(f"{where}: {type(error).__name__}: {message}".rstrip(": "))


def _take_path(argv: Sequence[str]) -> tuple[str, list[str]]:
  """The value of --config, and the other arguments."""
  rest, path = [argv[0]], None
  arguments = iter(argv[1:])
  for argument in arguments:
    key, equals, value = argument.partition("=")
    if key not in ("--config", "-config"):
      rest.append(argument)
    else:
      path = value if equals else next(arguments, "")
  if not path:
    raise errors.UserError(
        "config: which? give --config configs/ende_t5small.py, or"
        " --config configs/ende_t5small.py:mini for the shipped family"
    )
  return path, rest


def _check_names(argv: Sequence[str], known: Sequence[str]) -> None:
  """Refuses options that are not there, before absl sees them."""
  for argument in argv[1:]:
    match = _OVERRIDE.match(argument)
    if match and match[1] not in known:
      raise errors.UserError(config_lib.no_such(match[1], known))


def _leaves(
    config: config_dict.ConfigDict, path: str = ""
) -> Iterator[tuple[str, Any]]:
  """Path and value of every option of a config."""
  for key, value in config.items():
    if isinstance(value, config_dict.ConfigDict):
      yield from _leaves(value, f"{path}{key}.")
    else:
      yield f"{path}{key}", value


def usage_below(own: str) -> str:
  """The text of --help of a door that has options of its own, too."""
  return f"{own}\nOptions of the config and their defaults:\n{usage()}"


def usage() -> str:
  """Every option with its default, one a line."""
  leaves = _leaves(config_lib.default())
  return "\n".join(f"  --config.{path}={value!r}" for path, value in leaves)
