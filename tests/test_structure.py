"""What may import what: arrows run down, and there are no circles."""

import ast
import functools
import graphlib
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
# From the doors down. A room imports only from rooms further down.
ROOMS = (
    "run train advise bench tree tpu",
    "benchmark",
    "experiment",
    "prepare",
    "training",
    "pipeline",
    "hosts",
    "command_line",
    "config",
    "measure fetch stream drafts",
    "sections",
    "data draft_section heads outputs",
    "checkpoints",
    "decoding",
    "sharding",
    "drafters",
    "verify",
    "models",
    "sampling",
    "cuts",
    "settings",
    "search",
    "hlo hub kept options pictures programs topology",
    "strict_json shipped writing",
    "errors",
    "checks last_words",
    "overlap roofline",
    "theory",
)
RANK = {name: i for i, line in enumerate(ROOMS) for name in line.split()}


def modules() -> dict[str, pathlib.Path]:
  """Dotted name below specjax -> file."""
  package = ROOT / "specjax"
  out = {}
  for path in sorted(package.rglob("*.py")):
    parts = path.relative_to(package).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    out[".".join(parts)] = path
  return out


def imports(path: pathlib.Path, known) -> set[str]:
  """Modules of the project that a file imports, also inside functions."""
  out = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if not isinstance(node, ast.ImportFrom):
      continue
    base, _, rest = (node.module or "").partition(".")
    if base != "specjax":
      continue
    for alias in node.names:
      name = f"{rest}.{alias.name}".lstrip(".")
      out.add(name if name in known else rest)
  return out


def test_arrows_run_down():
  known = modules()
  wrong = []
  for name, path in known.items():
    if not name:
      continue
    here = name.partition(".")[0]
    for other in imports(path, known):
      there = other.partition(".")[0]
      if here != there and RANK[there] <= RANK[here]:
        wrong.append(f"{name} imports {other}")
  assert not wrong


def test_no_circles():
  known = modules()
  graph = {name: imports(path, known) for name, path in known.items()}
  list(graphlib.TopologicalSorter(graph).static_order())


def test_the_arithmetic_stands_alone():
  """Theory needs no model, and verification only laws."""
  known = modules()
  assert not imports(known["theory"], known)
  for name in ("overlap", "roofline"):
    assert imports(known[name], known) <= {"theory"}
  for name, path in known.items():
    if name.startswith("verify."):
      others = {
          other
          for other in imports(path, known)
          if not other.startswith("verify.")
      }
      assert others <= {"checks", "errors", "sampling"}, name


def test_the_package_knows_neither_tests_nor_experiments():
  for path in modules().values():
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
      names = [alias.name for alias in getattr(node, "names", [])]
      if isinstance(node, ast.Import | ast.ImportFrom):
        names.append(getattr(node, "module", None) or "")
        tops = {name.partition(".")[0] for name in names}
        assert not tops & {"tests", "experiments"}, path


@functools.cache
def docstrings(file: str) -> dict[str, str]:
  """Test -> docstring, of a file of tests."""
  tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
  return {
      node.name: ast.get_docstring(node) or ""
      for node in tree.body
      if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
  }


def test_every_fault_has_its_tests():
  """Those that docs/faults.md names are there; one names the report, too."""
  text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
  rows = [line for line in text.splitlines() if "::" in line]
  assert len(rows) > 30
  for row in rows:
    report = re.search(r"#\d+", row)[0]
    named = re.findall(r"`(\w+\.py)::(\w+)`", row)
    assert len(named) == row.count("::"), row
    missing = [name for file, name in named if name not in docstrings(file)]
    assert not missing, missing
    said = " ".join(docstrings(file)[name] for file, name in named)
    assert re.search(rf"{report}\b", said), row
