"""Tasks: files, shipped rows, refusals; the hub has tests of its own."""

import json
import sys
import types

import pytest

from specjax.data import tasks
from specjax.errors import UserError


def write_rows(path, *rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
  return path


@pytest.mark.parametrize(
    "name, prefix",
    [("mini_ende", tasks.TRANSLATE), ("mini_summ", tasks.SUMMARIZE)],
)
def test_shipped_rows(name, prefix):
  examples = tasks.load_task(name)
  assert len(examples) == 200
  assert len({example.id for example in examples}) == 200
  assert all(e.source.startswith(prefix) and e.reference for e in examples)
  assert not any(prefix in e.source[len(prefix):] for e in examples)
  assert tasks.load_task(name, rows=3) == examples[:3]
  with pytest.raises(UserError, match="data.split: .* only 'test'"):
    tasks.load_task(name, split="dev")


def test_shipped_translations_are_mixed_from_the_front():
  origins = {e.id.split("/")[0] for e in tasks.load_task("mini_ende", rows=16)}
  assert origins == {"debian", "libreoffice"}


def test_jsonl_takes_unicode_line_separators_and_a_byte_order_mark(tmp_path):
  path = tmp_path / "rows.jsonl"
  row = '{"id": 7, "source": "one\u2028two", "reference": "Übung"}\r\n\n'
  path.write_bytes(b"\xef\xbb\xbf" + row.encode())
  assert tasks.load_task("file", path=path) == [
      tasks.Example("7", "one\u2028two", "Übung")
  ]


def test_a_given_path_replaces_the_download(tmp_path):
  path = write_rows(tmp_path / "a.jsonl", {"source": "Hi.", "reference": "Na."})
  assert tasks.load_task("wmt14_ende", path=str(path)) == [
      tasks.Example("1", tasks.TRANSLATE + "Hi.", "Na.")
  ]


@pytest.mark.parametrize("joined", [True, False])
def test_a_pair_of_text_files(tmp_path, joined):
  left, right = tmp_path / "a.en", tmp_path / "a.de"
  left.write_text("Good morning.\nGood night.\n", "utf-8")
  right.write_text("Guten Morgen.\nGute Nacht.", "utf-8")
  path = f"{left},{right}" if joined else (left, right)
  examples = tasks.load_task("wmt14_ende", path=path)
  assert [(e.id, e.reference) for e in examples] == [
      ("1", "Guten Morgen."), ("2", "Gute Nacht.")
  ]
  right.write_text("Guten Morgen.\n", "utf-8")
  with pytest.raises(UserError, match="a.de, line 2 is missing"):
    tasks.load_task("wmt14_ende", path=path)
  with pytest.raises(UserError, match="one file or two, not 3"):
    tasks.load_task("wmt14_ende", path=[left, right, right])


GOOD = '{"id": "x", "source": "a", "reference": "b"}'


@pytest.mark.parametrize(
    "line, message",
    [
        ("{source: 1}", r"line 2 is not JSON"),
        ("9" * 5000, r"line 2 is not JSON"),
        ("[" * 100_000, r"line 2 is not JSON \(it is nested too deeply"),
        (GOOD.replace("{", '{"id": 3, '), r"key 'id' comes twice"),
        (GOOD.replace('"a"', '"\\ud800"'), r"surrogates not allowed"),
        ("[1, 2]", r"line 2 is not a JSON object"),
        ('{"reference": "b"}', r"line 2 field 'source' is missing"),
        ('{"source": "a"}', r"line 2 field 'reference' is missing"),
        ('{"source": 5, "reference": "b"}', r"'source' is int, not a string"),
        ('{"source": "a", "reference": null}', r"'reference' is NoneType"),
        ('{"source": " ", "reference": "b"}', r"field 'source' is empty"),
        ('{"id": [1], "source": "a", "reference": "b"}', r"'id' is list"),
        (GOOD, r"line 2 field 'id' 'x' is line 1's"),
        (b"\xff", r"line 2 is not UTF-8"),
    ],
)
def test_bad_rows_are_named(tmp_path, line, message):
  path = tmp_path / "rows.jsonl"
  line = line if isinstance(line, bytes) else line.encode()
  path.write_bytes(GOOD.encode() + b"\n" + line + b"\n")
  with pytest.raises(UserError, match=message) as caught:
    tasks.load_task("file", path=path)
  assert str(path) in str(caught.value)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(name="wmt15"), r"data.task: no task 'wmt15'; .*mini_ende"),
        (dict(name="file"), r"data.path: .* needs the path"),
        (dict(name="file", path="no/such.jsonl"), r"no/such.jsonl: No such"),
        (dict(name="mini_ende", rows=0), r"data.rows: 0"),
    ],
)
def test_refusals(arguments, message):
  with pytest.raises(UserError, match=message):
    tasks.load_task(**arguments)


def test_an_empty_file_is_refused(tmp_path):
  with pytest.raises(UserError, match="has no rows"):
    tasks.load_task("file", path=write_rows(tmp_path / "none.jsonl"))


def test_own_text():
  (example,) = tasks.from_text("Good morning.", tasks.TRANSLATE)
  assert example.source == tasks.TRANSLATE + "Good morning."
  assert example.reference == ""
  with pytest.raises(UserError, match="data.text"):
    tasks.from_text("  ")


@pytest.mark.parametrize(
    "name, config",
    [
        ("wmt14_ende", "configs/ende_t5small.py:mini"),
        ("cnndm", "configs/cnndm_t5small.py:mini"),
    ],
)
@pytest.mark.parametrize("package", ["datasets", "huggingface_hub"])
def test_without_the_extra_one_line_says_what_to_do(
    monkeypatch, name, config, package
):
  monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))
  monkeypatch.setitem(sys.modules, package, None)
  with pytest.raises(UserError) as caught:
    tasks.load_task(name)
  message = str(caught.value)
  assert f"{package} is not installed: pip install 'specjax[hub]'" in message
  assert "from the checkout, python -m specjax.run" in message
  assert f"--config {config} runs the shipped family" in message
  repository, folder = tasks.TASKS[name].hub
  command = f"hf download {repository} --repo-type dataset --include"
  assert f"`{command} '{folder}/test-*' --local-dir DIR`" in message
  assert "--config.data.path=DIR" in message and "\n" not in message
