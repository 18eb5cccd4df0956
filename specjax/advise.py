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
import math
import os
import pathlib
import sys
from typing import Callable, Sequence

from specjax import errors
from specjax import options
from specjax import pictures
from specjax import theory

_GAMMAS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
_GAMMA = options.whole(1, 1000)
_BAR = 18
_HEAD = " gamma  tokens  speed-up  operations  accepted/drafted"


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


def _gammas(text: str) -> list[int]:
  """A type of argparse: draft lengths with commas between them."""
  return sorted(set(map(_GAMMA, text.split(","))))


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
    "--most": (_GAMMA, "64", "longest draft in the search for the best"),
    "--plot": (_picture, "FILE.png", "also draw it; needs matplotlib"),
}


def _parser() -> options.Parser:
  parser = options.Parser("specjax.advise", __doc__)
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
  asked = _parser().read(argv)
  if asked.alpha is None and asked.want is None:
    raise errors.UserError(
        "--alpha: give the acceptance rate, such as --alpha 0.8, or a wanted"
        " speed-up, such as --want 3"
    )
  if asked.c is None:
    raise errors.UserError(
        "--c: give the time of a draft step over that of a target step, such as"
        " --c 0.05"
    )
  return asked


def advice(asked: argparse.Namespace) -> str:
  """What an acceptance rate gives: the figures, and a table over gamma."""
  alpha, c, v = asked.alpha, asked.c, asked.v
  best = theory.best_gamma(alpha, c, v, asked.most)
  lines = [
      *(_best(asked, best) if best else _none(asked)),
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
  gammas = sorted({*asked.gammas, *([best] if best else [])})
  speedups = [theory.speedup(alpha, gamma, c, v) for gamma in gammas]
  for gamma, speedup in zip(gammas, speedups):
    bar = "#" * round(_BAR * speedup / max(speedups))
    lines.append(
        f"{gamma:6}{theory.expected_tokens(alpha, gamma):8.2f}{speedup:9.2f}x"
        f"{theory.operations(alpha, gamma, _c_hat(asked)):11.2f}x"
        f"{theory.accepted_share(alpha, gamma):18.2f}"
        f"  {bar}{' best' * (gamma == best)}"
    )
  return "\n".join(lines)


def _line(name: str, figure: str, note: str) -> str:
  """Three columns, as in a report of specjax.run."""
  return f"{name:22}{figure:8}  {note}"


def _none(asked: argparse.Namespace) -> list[str]:
  note = f"of 1 to {asked.most} is faster than plain decoding"
  return [_line("best gamma", "none", note)]


def _best(asked: argparse.Namespace, best: int) -> list[str]:
  alpha, c, v = asked.alpha, asked.c, asked.v
  note = f"of 1 to {asked.most}"
  if c == 0 or best == asked.most:
    note += "; longer may gain more, see --most"
  formula = "E[tokens] / (gamma c + 1)" if v == 1 else "with v in place of 1"
  c_hat = _c_hat(asked)
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
          + ", taken as c" * (asked.c_hat is None),
      ),
  ]


def _c_hat(asked: argparse.Namespace) -> float:
  return asked.c if asked.c_hat is None else asked.c_hat


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


def needed(asked: argparse.Namespace) -> str:
  """The acceptance rate that a speed-up takes, over gamma."""
  want, c, v = asked.want, asked.c, asked.v
  rates = {
      gamma: theory.alpha_needed(want, gamma, c, v)
      for gamma in range(1, asked.most + 1)
  }
  reached = {gamma: rate for gamma, rate in rates.items() if rate is not None}
  figure, note = "none", f"at no gamma from 1 to {asked.most}"
  if reached:
    easiest = min(reached, key=reached.__getitem__)
    figure = f"{reached[easiest]:.3f}"
    note = f"at gamma {easiest}, where it is least"
  lines = [
      _line(f"alpha for {want:g}x", figure, note),
      "",
      " gamma  alpha needed",
  ]
  for gamma in asked.gammas:
    rate = theory.alpha_needed(want, gamma, c, v)
    if rate is None:
      most = theory.speedup(1.0, gamma, c, v)
      lines.append(f"{gamma:6}  unreachable: at most {most:.2f}x")
    else:
      lines.append(f"{gamma:6}  {rate:.3f}")
  return "\n".join(lines)


def draw(asked: argparse.Namespace) -> None:
  """Writes the picture: a panel for the rate, one for the wanted speed-up.

  Raises:
    errors.UserError: it can't be written there.
  """
  kinds = [_draw_advice] * (asked.alpha is not None)
  kinds += [_draw_needed] * (asked.want is not None)
  figure, panels = pictures.panels(len(kinds))
  for kind, panel in zip(kinds, panels):
    kind(panel, asked)
    panel.set_xlabel("gamma, drafted tokens a round")
  try:
    pictures.save(figure, asked.plot)
  except OSError as error:
    raise errors.UserError(
        f"--plot: {asked.plot}: {error.strerror}; give another file"
    ) from None


def _draw_advice(panel, asked: argparse.Namespace) -> None:
  alpha, c, v = asked.alpha, asked.c, asked.v
  best = theory.best_gamma(alpha, c, v, asked.most)
  gammas = range(1, max(*asked.gammas, 2 * best) + 1)
  for cost in sorted({1.0, v}):
    speedups = [theory.speedup(alpha, gamma, c, cost) for gamma in gammas]
    panel.plot(gammas, speedups, label=f"v {cost:g}")
  if best:
    most = theory.speedup(alpha, best, c, v)
    panel.plot(best, most, "o", label=f"best: gamma {best}, {most:.2f}x")
  panel.axhline(1, color="grey", label="plain decoding")
  panel.set_ylabel("speed-up")
  panel.set_title(f"alpha {alpha:g}, c {c:g}")


def _draw_needed(panel, asked: argparse.Namespace) -> None:
  want, c, v = asked.want, asked.c, asked.v
  gammas = range(1, max(*asked.gammas, asked.most) + 1)
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
  return options.door("specjax.advise", _parser().format_help, work, argv)


def work(argv: Sequence[str]) -> None:
  """Prints figures and tables, and draws them where a picture is asked for."""
  asked = read(argv)
  if asked.plot:
    _check_pictures()
  texts = []
  if asked.alpha is not None:
    texts.append(advice(asked))
  if asked.want is not None:
    texts.append(needed(asked))
  print("\n\n".join(texts), flush=True)
  if asked.plot:
    draw(asked)
    print(f"\nwritten: {asked.plot}")


def _check_pictures() -> None:
  try:
    pictures.check()
  except errors.UserError as error:
    raise errors.UserError(f"--plot: {error}") from None


if __name__ == "__main__":
  options.leave(main(sys.argv))
