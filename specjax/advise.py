"""The arithmetic of speculative decoding, without a model.

    python -m specjax.advise --alpha 0.8 --c 0.05
    python -m specjax.advise --alpha 0.8 --c 0.05 --v 2
    python -m specjax.advise --want 7.45 --c 0.05
    python -m specjax.advise --alpha 0.8 --c 0.05 --plot curve.png

With an acceptance rate: the best draft length gamma and the curve around it.
With a wanted speed-up: the acceptance rate that it takes at each gamma. Every
run of specjax.run reports alpha, c and v of its models on its device.
"""

import argparse
import difflib
import math
import os
import pathlib
import sys
from typing import Callable, NoReturn, Sequence

from specjax import errors
from specjax import pictures
from specjax import theory

_GAMMAS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
_LONGEST = 1000
_BAR = 18
_HEAD = " gamma  tokens  speed-up  operations  accepted/drafted"


class _Parser(argparse.ArgumentParser):
  """Bad input is one line, with its remedy."""

  def error(self, message: str) -> NoReturn:
    message = message.removeprefix("argument ")
    name, _, rest = message.partition(": ")
    if rest == "expected one argument":
      message = f"{name}: give a value; --help shows one"
    raise errors.UserError(message)


def _number(words: str, good: Callable[[float], bool]):
  """A type of argparse: a number for which `good` holds."""

  def parse(text: str) -> float:
    try:
      value = float(text)
    except ValueError:
      value = math.nan
    # No comparison holds for NaN.
    if not good(value):
      raise argparse.ArgumentTypeError(
          f"give {words}, got {errors.shown(text)}"
      )
    return value

  return parse


_SHARE = _number("a number from 0 to 1", lambda x: 0 <= x <= 1)
_COST = _number("a number from 0 to 1000", lambda x: 0 <= x <= 1000)
_FACTOR = _number("a number from 0.01 to 1000", lambda x: 0.01 <= x <= 1000)


def _gamma(text: str) -> int:
  """A type of argparse: a draft length."""
  # int() has a limit of its own on digits.
  whole = text.isascii() and text.isdecimal() and len(text) < 9
  if not whole or not 1 <= int(text) <= _LONGEST:
    raise argparse.ArgumentTypeError(
        f"give whole numbers from 1 to {_LONGEST}, got {errors.shown(text)}"
    )
  return int(text)


def _gammas(text: str) -> list[int]:
  """A type of argparse: draft lengths with commas between them."""
  return sorted(set(map(_gamma, text.split(","))))


def _picture(text: str) -> pathlib.Path:
  """A type of argparse: a file for a picture."""
  if not text.lower().endswith(".png"):
    raise argparse.ArgumentTypeError(
        f"give a name that ends in .png, got {errors.shown(text)}"
    )
  return pathlib.Path(os.path.expanduser(text))


# Option: its type, a value that --help shows, and what it says.
_OPTIONS = {
    "--alpha": (_SHARE, "0.8", "mean chance that a draft is accepted"),
    "--want": (_FACTOR, "7.45", "a wanted speed-up"),
    "--c": (_COST, "0.05", "time of a draft step over a target step (needed)"),
    "--v": (
        _FACTOR,
        "2",
        "time of a target step over gamma + 1 tokens, over that of one over 1"
        " token; by default 1, as in the paper",
    ),
    "--c-hat": (
        _COST,
        "0.05",
        "operations of a draft step over those of a target step; by default c",
    ),
    "--gammas": (_gammas, "4,8,16", "draft lengths to show"),
    "--most": (_gamma, "64", "longest draft in the search for the best"),
    "--plot": (_picture, "FILE.png", "also draw it; needs matplotlib"),
}


def _parser() -> argparse.ArgumentParser:
  parser = _Parser(
      prog="python -m specjax.advise",
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  for option, (kind, example, text) in _OPTIONS.items():
    parser.add_argument(option, type=kind, metavar=example, help=text)
  parser.set_defaults(v=1.0, gammas=list(_GAMMAS), most=64)
  return parser


def read(argv: Sequence[str]) -> argparse.Namespace:
  """Arguments -> their values.

  Args:
    argv: as sys.argv, the program's name first.

  Raises:
    errors.UserError: an option is unknown, missing or out of its range; one
      line, which names it.
  """
  options, rest = _parser().parse_known_args(list(argv[1:]))
  if rest:
    raise errors.UserError(_no_such(rest[0]))
  if options.alpha is None and options.want is None:
    raise errors.UserError(
        "--alpha: give the acceptance rate, such as --alpha 0.8, or a wanted"
        " speed-up, such as --want 3"
    )
  if options.c is None:
    raise errors.UserError(
        "--c: give the time of a draft step over that of a target step, such as"
        " --c 0.05"
    )
  return options


def _no_such(argument: str) -> str:
  """The line for an argument that is not understood."""
  name = argument.partition("=")[0]
  if not name.startswith("-"):
    return (
        f"{errors.shown(argument)}: is not understood; options look like"
        " --alpha 0.8"
    )
  near = difflib.get_close_matches(name, _OPTIONS, n=1)
  hint = f"did you mean {near[0]}?" if near else "--help lists all"
  return f"{errors.shown(name)[1:-1]}: there is no such option; {hint}"


def advice(options: argparse.Namespace) -> str:
  """What an acceptance rate gives: the figures, and a table over gamma."""
  alpha, c, v = options.alpha, options.c, options.v
  best = theory.best_gamma(alpha, c, v, options.most)
  lines = [
      *(_best(options, best) if best else _none(options)),
      _corollary(alpha, c, v),
      _verify(alpha, c, v),
      _line(
          "oracle gamma",
          f"{theory.oracle_speedup(alpha, c, v):.2f}x",
          "if just the accepted were drafted (section 3.5)",
      ),
      "",
      _HEAD,
  ]
  gammas = sorted({*options.gammas, *([best] if best else [])})
  speedups = [theory.speedup(alpha, gamma, c, v) for gamma in gammas]
  for gamma, speedup in zip(gammas, speedups):
    bar = "#" * round(_BAR * speedup / max(speedups))
    lines.append(
        f"{gamma:6}{theory.expected_tokens(alpha, gamma):8.2f}{speedup:9.2f}x"
        f"{theory.operations(alpha, gamma, _c_hat(options)):11.2f}x"
        f"{theory.accepted_share(alpha, gamma):18.2f}"
        f"  {bar}{' best' * (gamma == best)}"
    )
  return "\n".join(lines)


def _line(name: str, figure: str, note: str) -> str:
  """Three columns, as in a report of specjax.run."""
  return f"{name:22}{figure:8}  {note}"


def _none(options: argparse.Namespace) -> list[str]:
  note = f"of 1 to {options.most} is faster than plain decoding"
  return [_line("best gamma", "none", note)]


def _best(options: argparse.Namespace, best: int) -> list[str]:
  alpha, c, v = options.alpha, options.c, options.v
  note = f"of 1 to {options.most}"
  if c == 0 or best == options.most:
    note += "; longer may gain more, see --most"
  formula = "E[tokens] / (gamma c + 1)" if v == 1 else "with v in place of 1"
  c_hat = _c_hat(options)
  return [
      _line("best gamma", str(best), note),
      _line(
          "  speed-up",
          f"{theory.speedup(alpha, best, c, v):.2f}x",
          f"Theorem 3.8, {formula}",
      ),
      _line(
          "  tokens a round",
          f"{theory.expected_tokens(alpha, best):.2f}",
          f"Eq. 1, at most {best + 1}",
      ),
      _line(
          "  operations",
          f"{theory.operations(alpha, best, c_hat):.2f}x",
          f"Theorem 3.11, c-hat {c_hat:g}"
          + ", taken as c" * (options.c_hat is None),
      ),
  ]


def _c_hat(options: argparse.Namespace) -> float:
  return options.c if options.c_hat is None else options.c_hat


def _corollary(alpha: float, c: float, v: float) -> str:
  if not theory.improves(alpha, c):
    return _line("Corollary 3.9", "no", "alpha <= c: no gamma helps at v = 1")
  note = f"alpha > c: at least {theory.least_improvement(alpha, c):.2f}x"
  if v != 1:
    note += f" at v = 1, {theory.least_improvement(alpha, c, v):.2f}x at v"
  return _line("Corollary 3.9", "yes", note)


def _verify(alpha: float, c: float, v: float) -> str:
  bound = theory.break_even_verify_cost(alpha, c)
  note = f"drafts pay while v is below {bound:.2f}"
  note = note if bound > 0 else "c is too high"
  return _line("verify cost", f"v {v:g}", note)


def needed(options: argparse.Namespace) -> str:
  """The acceptance rate that a speed-up takes, over gamma."""
  want, c, v = options.want, options.c, options.v
  rates = {
      gamma: theory.alpha_needed(want, gamma, c, v)
      for gamma in range(1, options.most + 1)
  }
  reached = {gamma: rate for gamma, rate in rates.items() if rate is not None}
  figure, note = "none", f"at no gamma from 1 to {options.most}"
  if reached:
    easiest = min(reached, key=reached.__getitem__)
    figure = f"{reached[easiest]:.3f}"
    note = f"at gamma {easiest}, where it is least"
  lines = [
      _line(f"alpha for {want:g}x", figure, note),
      "",
      " gamma  alpha needed",
  ]
  for gamma in options.gammas:
    rate = theory.alpha_needed(want, gamma, c, v)
    if rate is None:
      most = theory.speedup(1.0, gamma, c, v)
      lines.append(f"{gamma:6}  unreachable: at most {most:.2f}x")
    else:
      lines.append(f"{gamma:6}  {rate:.3f}")
  return "\n".join(lines)


def draw(options: argparse.Namespace) -> None:
  """Writes the picture: a panel for the rate, one for the wanted speed-up.

  Raises:
    errors.UserError: it can't be written there.
  """
  kinds = [_draw_advice] * (options.alpha is not None)
  kinds += [_draw_needed] * (options.want is not None)
  figure, panels = pictures.panels(len(kinds))
  for kind, panel in zip(kinds, panels):
    kind(panel, options)
    panel.set_xlabel("gamma, drafted tokens a round")
  try:
    pictures.save(figure, options.plot)
  except OSError as error:
    raise errors.UserError(
        f"--plot: {options.plot}: {error.strerror}; give another file"
    ) from None


def _draw_advice(panel, options: argparse.Namespace) -> None:
  alpha, c, v = options.alpha, options.c, options.v
  best = theory.best_gamma(alpha, c, v, options.most)
  gammas = range(1, max(*options.gammas, 2 * best) + 1)
  for cost in sorted({1.0, v}):
    speedups = [theory.speedup(alpha, gamma, c, cost) for gamma in gammas]
    panel.plot(gammas, speedups, label=f"v {cost:g}")
  if best:
    most = theory.speedup(alpha, best, c, v)
    panel.plot(best, most, "o", label=f"best: gamma {best}, {most:.2f}x")
  panel.axhline(1, color="grey", label="plain decoding")
  panel.set_ylabel("speed-up")
  panel.set_title(f"alpha {alpha:g}, c {c:g}")


def _draw_needed(panel, options: argparse.Namespace) -> None:
  want, c, v = options.want, options.c, options.v
  gammas = range(1, max(*options.gammas, options.most) + 1)
  rates = [theory.alpha_needed(want, gamma, c, v) for gamma in gammas]
  rates = [math.nan if rate is None else rate for rate in rates]
  panel.plot(gammas, rates, label=f"{want:g}x at c {c:g}, v {v:g}")
  panel.set_xlim(0, gammas[-1] + 1)
  panel.set_ylim(0, 1.05)
  panel.set_ylabel("alpha needed")
  if all(map(math.isnan, rates)):
    panel.set_title("unreachable")


def main(argv: Sequence[str]) -> int:
  """Prints what the arguments ask for; returns the exit code."""
  if {"--help", "-h", "-help"} & set(argv[1:]):
    print(_parser().format_help(), end="")
    return 0
  try:
    options = read(argv)
    if options.plot:
      _check_pictures()
    texts = []
    if options.alpha is not None:
      texts.append(advice(options))
    if options.want is not None:
      texts.append(needed(options))
    print("\n\n".join(texts), flush=True)
    if options.plot:
      draw(options)
      print(f"\nwritten: {options.plot}")
    return 0
  except errors.UserError as error:
    print(f"specjax.advise: {error}", file=sys.stderr)
    return 1
  except BrokenPipeError:
    # A reader such as head has seen enough; Python would flush once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _check_pictures() -> None:
  try:
    pictures.check()
  except errors.UserError as error:
    raise errors.UserError(f"--plot: {error}") from None


if __name__ == "__main__":
  sys.exit(main(sys.argv))
