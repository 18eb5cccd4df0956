"""The table of tests.mutants is about the package and the tests that are."""

import ast
import dataclasses
import functools

import pytest

from tests import changes
from tests import mutants

CHANGES = pytest.mark.parametrize(
    "change", changes.CHANGES, ids=lambda change: change.what
)


@CHANGES
def test_texts_stand_where_a_change_is_made(change):
  """And what comes of it is Python."""
  for before, after in mutants.edited(change, mutants.ROOT).values():
    assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))


@functools.cache
def quick(file):
  """Tests of a file that are not slow."""
  tree = ast.parse((mutants.ROOT / "tests" / file).read_text("utf-8"))
  return {
      node.name
      for node in tree.body
      if isinstance(node, ast.FunctionDef)
      and "slow" not in "".join(map(ast.dump, node.decorator_list))
  }


@CHANGES
def test_tests_are_there(change):
  file, _, name = change.test.partition("::")
  assert name.partition("[")[0] in quick(file)


def test_no_change_is_listed_twice():
  assert len({change.what for change in changes.CHANGES}) == len(
      {change.edits for change in changes.CHANGES}
  ) == len(changes.CHANGES)


def test_every_report_has_a_change():
  """Noticed by one of the tests that docs/faults.md names beside it."""
  text = (mutants.ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
  rows = {}
  for line in text.splitlines():
    if line.startswith("| ") and "::" in line:
      rows[line[2:].split(",")[0].split(" |")[0]] = line
  assert len(rows) > 30
  for table, made in changes.TABLES.items():
    _, _, below = text.partition(f"\n## {table}\n")
    reports = {change.report for change in made} - {""}
    assert all(report in below.partition("\n## ")[0] for report in reports)
  told = {change.report for change in changes.CHANGES} - {""}
  assert told == rows.keys()
  for change in changes.CHANGES:
    if change.report:
      assert change.test.partition("[")[0] in rows[change.report], change.what


def test_what_is_noticed_is_counted_by_tables():
  heads = list(changes.HEADS)
  assert mutants.table(heads, heads[1:]).splitlines()[2:] == [
      f"| Heads that read the target's hidden states | {len(heads)} |"
      f" {len(heads) - 1} |",
      f"| all | {len(heads)} | {len(heads) - 1} |",
  ]


def test_a_text_that_is_not_there_is_told():
  change = dataclasses.replace(changes.CHANGES[0], old="nothing of the kind")
  with pytest.raises(ValueError, match="has 0 times 'nothing of the kind'"):
    mutants.edited(change, mutants.ROOT)


def test_what_a_file_of_tests_depends_on():
  found = mutants.sources("test_loop_tree.py")
  names = {path.name for path in found}
  assert {"conftest.py", "test_loop_law.py", "text_laws.py", "loop.py"} <= names
  assert not {"test_loop_tree.pyc", "mutants.py", "test_run.py"} & names


SET_UP = """
import pytest
@pytest.fixture
def broken():
  assert 0
def test_a(broken):
  pass
"""


@pytest.mark.parametrize(
    "text, verdict",
    (
        ("def test_a(): pass", "UNNOTICED"),
        ("def test_a(): assert 1 == 2", "red"),
        ("def test_a(): nowhere", "no test"),
        (SET_UP, "no test"),
        ("def test_a(:", "no test"),
        ("", "no test"),
        ("import os\ndef test_a(): os._exit(1)", "no test"),
    ),
    ids=("passes", "fails", "slip", "set up", "spelling", "none", "dies"),
)
def test_verdicts(text, verdict, tmp_path):
  """Only a test that fails by itself has noticed."""
  (tmp_path / "tests").mkdir()
  (tmp_path / "tests" / "test_it.py").write_text(text)
  a, b = "test_it.py::test_a", "test_it.py::test_b"
  ran = mutants.run(tmp_path, [a])
  assert ran.verdict == verdict
  assert ran.missing([a]) == ([] if verdict == "UNNOTICED" else [a])
  assert ran.missing([b]) == [b]


def test_a_change_is_taken_back(tmp_path):
  (tmp_path / "specjax").mkdir()
  path = tmp_path / "specjax" / "it.py"
  path.write_text("a = 1\nb = 1\n")
  change = changes.Change(
      "", "", "it.py", "a = 1", "a = 2", "",
      (changes.Edit("it.py", "b = 1", "b = 3"),),
  )
  with pytest.raises(KeyError):
    with mutants.broken(change, tmp_path):
      assert path.read_text() == "a = 2\nb = 3\n"
      raise KeyError
  assert path.read_text() == "a = 1\nb = 1\n"
