"""Tells in one line that a host was lost, in place of XLA's screenful.

Where the first process is gone, XLA ends the others from a thread of its own,
in which no Python runs. So hosts.together has what XLA prints come here, to a
process that outlives the other one:

    python last_words.py DOOR REMEDY < PIPE
"""

import re
import signal
import sys
from typing import Sequence

# What XLA says at the end, and before it; each begins like so.
LOST = b"JAX distributed service detected fatal errors"
_BEFORE = b"coordination_service", b"oordination service"
_RECORD = re.compile(rb"[IWEF]\d{4} \d\d:")
_REASON = b"absl::Status: "


def line(reason: bytes) -> bytes:
  """What is written to the pipe where Python hears of a loss itself."""
  return LOST + b": " + _REASON + reason.replace(b"\n", b" ") + b"\n"


def main(argv: Sequence[str]) -> None:
  """Hands on all lines but the last ones, of which it makes one."""
  # Ctrl-C is the other process's matter.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  _, door, remedy = argv
  reason, hidden = None, False
  for said in sys.stdin.buffer:
    if reason is None and LOST in said:
      reason = said.rpartition(_REASON)[2]
    # Some go on in lines of their own.
    if _RECORD.match(said):
      hidden = any(words in said for words in _BEFORE)
    if reason is None and not hidden:
      sys.stderr.buffer.write(said)
      sys.stderr.flush()
  if reason is not None:
    short = " ".join(reason.decode(errors="replace").split())[:150]
    print(
        # Over a bar, where there is one.
        f"\r{door}: hosts: another process has ended or is out of reach"
        f" ({short}); {remedy}",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
  main(sys.argv)
