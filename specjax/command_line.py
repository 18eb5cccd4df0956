"""The command line of a run: --config FILE[:VARIANT] --config.SECTION.KEY=X.

ml_collections' flags do the parsing; what it would report with a traceback,
or not at all, is one line here.
"""

import pathlib
import re
import runpy
from typing import Sequence

from absl import flags
from ml_collections import config_dict
from ml_collections import config_flags

from specjax import config as config_lib
from specjax import errors
from specjax import sections

_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]*)")
_BAD_VALUE = re.compile(r"flag --config\.(\S+?)=(.*?): ", re.DOTALL)


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
  _check_names(argv)
  values = flags.FlagValues()
  holder = config_flags.DEFINE_config_dict(
      "config", config, flag_values=values, sys_argv=argv, lock_config=True
  )
  rest = _parse(values, argv)
  if rest:
    raise errors.UserError(
        f"{rest[0]}: is not understood; options look like"
        " --config.draft.gamma=4"
    )
  return config_lib.build(holder.value, name)


def load(path: str) -> tuple[str, config_dict.ConfigDict]:
  """A config file, "FILE" or "FILE:VARIANT" -> name of the run, ConfigDict."""
  file, _, variant = path.partition(":")
  if not pathlib.Path(file).is_file():
    raise errors.UserError(
        f"config: {file} is no file; give --config configs/ende_t5small.py"
    )
  try:
    module = runpy.run_path(file)
    if "get_config" not in module:
      raise errors.UserError(f"config: {file} has no get_config")
    config = module["get_config"](*([variant] if variant else []))
  except errors.UserError:
    raise
  except (
      AttributeError, ImportError, LookupError, SyntaxError, TypeError,
      ValueError,
  ) as error:
    reason = " ".join(str(error).split())
    raise errors.UserError(f"config: {file}: {reason}") from None
  if not isinstance(config, config_dict.ConfigDict):
    raise errors.UserError(
        f"config: get_config of {file} must return a ConfigDict"
    )
  stem = pathlib.Path(file).stem
  return (f"{stem}:{variant}" if variant else stem), config


def read_values(argv: Sequence[str]) -> tuple[str, config_dict.ConfigDict]:
  """Arguments -> name of the run and its ConfigDict, for other doors.

  Raises:
    errors.UserError: no config file, an unknown option, or a value of another
      type; one line.
  """
  path, argv = _take_path(argv)
  name, config = load(path)
  values = flags.FlagValues()
  try:
    holder = config_flags.DEFINE_config_dict(
        "config", config, flag_values=values, sys_argv=argv, lock_config=True
    )
    rest = values(argv)[1:]
  except (flags.Error, AttributeError, LookupError, TypeError, ValueError) as e:
    raise errors.UserError(f"options: {_message(e)}") from None
  if rest:
    raise errors.UserError(f"{rest[0]}: is not understood")
  return name, holder.value


def _message(error: BaseException) -> str:
  """One line; what ml_collections wraps several times is taken out."""
  while error.args and isinstance(error.args[0], BaseException):
    error = error.args[0]
  return " ".join(str(error.args[0] if error.args else error).split())


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


def _check_names(argv: Sequence[str]) -> None:
  """Refuses options that are not there, before absl sees them."""
  leaves = config_lib.leaves()
  for argument in argv[1:]:
    match = _OVERRIDE.match(argument)
    if match and match[1] not in leaves:
      raise errors.UserError(config_lib.no_such(match[1]))


def _parse(values: flags.FlagValues, argv: Sequence[str]) -> list[str]:
  """Sets the options; returns what was no option."""
  try:
    return values(argv)[1:]
  except flags.UnrecognizedFlagError as error:
    raise errors.UserError(config_lib.no_such(error.flagname)) from None
  except flags.Error as error:
    match = _BAD_VALUE.match(str(error))
    if match and match[1] in config_lib.leaves():
      raise errors.UserError(
          config_lib.wrong_type(match[1], match[2])
      ) from None
    line = " ".join(str(error).split())
    raise errors.UserError(f"options: {line}") from None


def usage() -> str:
  """Every option with its default, one a line."""

  def walk(config, path):
    for key, value in config.items():
      if isinstance(value, config_dict.ConfigDict):
        yield from walk(value, f"{path}{key}.")
      else:
        yield f"  --config.{path}{key}={value!r}"

  return "\n".join(walk(config_lib.default(), ""))
