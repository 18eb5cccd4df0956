"""Published figures, for scripts and tests to hold theirs against.

paper_tables.json has a table a key: its source, its columns and its rows.
"""

import functools
import json
import pathlib
from typing import Any

_FILE = pathlib.Path(__file__).with_name("paper_tables.json")


@functools.cache
def tables() -> dict[str, dict[str, Any]]:
  """All of them by name: source, note, columns, rows."""
  return json.loads(_FILE.read_text("utf-8"))


def rows(name: str) -> list[dict[str, Any]]:
  """The rows of one table, each by its columns; None is not published.

  >>> rows("table1")[0]
  {'alpha': 0.6, 'gamma': 2, 'operations': 1.53, 'speedup': 1.96}
  """
  table = tables()[name]
  return [
      dict(zip(table["columns"], row, strict=True)) for row in table["rows"]
  ]


def find(name: str, **key: Any) -> dict[str, Any]:
  """The first row of a table with these values; {} where there is none.

  >>> find("table3", task="ende", draft="bigram")["alpha_T0"]
  0.2
  >>> find("table3", task="ende", draft="mine")
  {}
  """
  wanted = key.items()
  return next((row for row in rows(name) if wanted <= row.items()), {})
