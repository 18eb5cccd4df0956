"""What a compiled program reads, moves and waits for, by XLA's own account."""

import math
import re

# What only moves bytes: to a memory nearer to the cores, in one piece or in
# slices, or to another order or type. Its first group is what comes of it.
_SHAPE = r"(\w+\[[\d,]*\])"
_COPY = re.compile(
    rf" = (?:\({_SHAPE}.* copy-start\(|\(\(.*?\), {_SHAPE}.* slice-start\(|"
    rf"{_SHAPE}\S* (?:copy|bitcast-convert)\()"
)
_FUSED = re.compile(r"calls=%([\w.\-]+)")
# What leaves the device, or waits for the host.
_HOST = re.compile(r" (infeed|outfeed|send|recv)(-done)?\(|python_.*callback")


def transfers(program: str) -> int:
  """Transfers between host and device in a compiled program's text."""
  return len(_HOST.findall(program))


def operands(costs: dict[str, float]) -> float:
  """Bytes that XLA counts as read, of a program's cost analysis."""
  keys = [key for key in costs if re.fullmatch(r"bytes accessed\d+\{\}", key)]
  return sum(costs[key] for key in keys)


def copies(program: str) -> int:
  """Bytes that are only moved, each counted once, in a program's text."""
  fused = set(_FUSED.findall(program))
  total = 0
  for computation in program.split("\n\n"):
    name = re.match(r"\s*(?:ENTRY )?%?([\w.\-]+)", computation)
    if name and name[1] not in fused:
      for found in _COPY.findall(computation):
        total += _size(next(filter(None, found)))
  return total


def _size(shape: str) -> int:
  """Bytes of an array as XLA writes it: bf16[8,128]."""
  kind, _, lengths = shape.removesuffix("]").partition("[")
  bits = 8 if kind == "pred" else int(re.search(r"\d+", kind)[0])
  return math.prod(map(int, filter(None, lengths.split(",")))) * bits // 8
