"""What the doors share: bad input is one line, and so is an end by Ctrl-C.

    def main(argv):
      return options.door("specjax.advise", _parser().format_help, work, argv)

    if __name__ == "__main__":
      options.leave(main(sys.argv))

`Parser` is for those without a config: argparse, and a guess where an option
is mistyped.
"""

import _thread
import argparse
import difflib
import functools
import os
import sys
import threading
from typing import Any, Callable, Container, Mapping, NoReturn, Sequence

from specjax import checks
from specjax import errors

# Exit code after Ctrl-C.
INTERRUPTED = 130


def leave(code: int) -> NoReturn:
  """Ends the program with the exit code of its door.

  After Ctrl-C at once: threads of libraries may be in the middle of something,
  and some abort while Python takes itself down.
  """
  if code == INTERRUPTED:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
  sys.exit(code)


def door(
    name: str,
    usage: Callable[[], str],
    work: Callable[[Sequence[str]], int | None],
    argv: Sequence[str],
    *,
    interrupted: str = "interrupted",
) -> int:
  """Does the work of a door; returns its exit code.

  What the system refuses is one line, too: a disk that is full, say.

  Args:
    name: of the module, which begins its lines.
    usage: makes the text that --help shows.
    work: takes the arguments; bad input raises errors.UserError. It returns
      an exit code, or None for 0.
    argv: as sys.argv, the program's name first.
    interrupted: what Ctrl-C leaves behind.
  """
  hook = sys.unraisablehook
  sys.unraisablehook = functools.partial(_again, hook)
  try:
    if {"--help", "-h", "-help"} & set(argv[1:]):
      print(usage().rstrip())
      code = 0
    else:
      code = work(argv) or 0
    # What a reader no longer takes is told here, not at Python's end.
    sys.stdout.flush()
    return code
  except errors.UserError as error:
    line, code = str(error), 1
  except KeyboardInterrupt:
    line, code = interrupted, INTERRUPTED
  except BrokenPipeError:
    # A reader such as head has seen enough.
    _stop_printing()
    return 0
  except OSError as error:
    line, code = _refused(error), 1
  except MemoryError:
    line, code = "this machine has too little memory for it; give less", 1
  finally:
    sys.unraisablehook = hook
  print(f"{name}: {line}", file=sys.stderr)
  return code


def _again(hook: Callable[[Any], None], unraisable: Any) -> None:
  """Ctrl-C where Python lets nothing through, as in a callback, comes again."""
  if issubclass(unraisable.exc_type, KeyboardInterrupt):
    # Not from here, where nothing comes through either.
    threading.Timer(0.01, _thread.interrupt_main).start()
  else:
    hook(unraisable)


def _refused(error: OSError) -> str:
  """What the system refused: a full disk, or one that may not be written."""
  try:
    sys.stdout.flush()
  except OSError:
    _stop_printing()
  where = f"{error.filename}: " if error.filename else ""
  return (
      f"{where}{error.strerror or errors.reason(error)}; make room there, or"
      " give another place"
  )


def _stop_printing() -> None:
  """Python would flush once more at its end, and fail."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser(
    name: str, doc: str, table: Mapping[str, tuple[Callable, Any, str]]
) -> "Parser":
  """A Parser of a table of options.

  Args:
    name: of the module.
    doc: its docstring.
    table: option -> its type, its default, and what it says.
  """
  made = Parser(name, doc)
  for option, (kind, default, text) in table.items():
    text = text if default is None else f"{text}; {default} if not given"
    made.add_argument(
        option, type=kind, default=default, metavar="X", help=text
    )
  return made


def split(
    argv: Sequence[str], names: Container[str]
) -> tuple[list[str], list[str]]:
  """Arguments -> those of a door's own options, and a config's.

  Args:
    argv: as sys.argv; the program's name begins both.
    names: of the door's own, each of which takes a value.
  """
  own, rest = [argv[0]], [argv[0]]
  words = iter(argv[1:])
  for word in words:
    name, equals, _ = word.partition("=")
    if name in names:
      own += [word] if equals else [word, next(words, "")]
    else:
      rest.append(word)
  return own, rest


def whole(least: int, most: int) -> Callable[[str], int]:
  """A type of argparse: whole numbers of a range."""

  def parse(text: str) -> int:
    # int() has a limit of its own on digits.
    good = text.isascii() and text.isdecimal() and len(text) < 9
    if not good or not checks.is_whole(int(text), least, most):
      raise argparse.ArgumentTypeError(
          f"give whole numbers from {least} to {most}, got"
          f" {errors.shown(text)}"
      )
    return int(text)

  return parse


class Parser(argparse.ArgumentParser):
  """Options of a door without a config.

  Args:
    name: of its module.
    doc: the module's docstring.
  """

  def __init__(self, name: str, doc: str):
    super().__init__(
        prog=f"python -m {name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

  def read(self, argv: Sequence[str]) -> argparse.Namespace:
    """Arguments -> their values.

    Args:
      argv: as sys.argv, the program's name first.

    Raises:
      errors.UserError: an option is unknown, missing or out of its range; one
        line, which names it.
    """
    for argument in argv[1:]:
      # Told before what is missing, which may be what was meant.
      if argument[:2] == "--" and argument.partition("=")[0] not in self._known:
        raise errors.UserError(self._no_such(argument))
    options, rest = self.parse_known_args(list(argv[1:]))
    if rest:
      raise errors.UserError(self._no_such(rest[0]))
    return options

  def error(self, message: str) -> NoReturn:
    """Bad input is one line, with its remedy.

    Raises:
      errors.UserError: always.
    """
    message = message.removeprefix("argument ")
    name, _, rest = message.partition(": ")
    if rest == "expected one argument":
      message = f"{name}: give a value; --help shows one"
    raise errors.UserError(message)

  @property
  def _known(self) -> list[str]:
    """Names of all options, --help the first of the long ones."""
    return [x for action in self._actions for x in action.option_strings]

  def _no_such(self, argument: str) -> str:
    """The line for an argument that is not understood."""
    name = argument.partition("=")[0]
    if not name.startswith("-"):
      return (
          f"{errors.shown(argument)}: is not understood; options look like"
          f" {[x for x in self._known if x.startswith('--')][1]}"
      )
    near = difflib.get_close_matches(name, self._known, n=1)
    hint = f"did you mean {near[0]}?" if near else "--help lists all"
    return f"{errors.shown(name)[1:-1]}: there is no such option; {hint}"
