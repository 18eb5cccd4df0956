"""Prompts of benchmarks: formats, faults in one line, and the project's own."""

import collections
import json

import pytest

from specjax.data import agent
from specjax.data import prompts
from specjax.errors import UserError


def write(path, *rows):
  path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
  return str(path)


def test_formats(tmp_path):
  """Spec-Bench's rows, rows with one prompt, and lines of text."""
  path = write(
      tmp_path / "question.jsonl",
      {"question_id": 81, "category": "writing", "turns": ["A?", "B?"]},
      {"prompt": "C?"},
      {"id": "mine", "category": "own", "prompt": "D?", "reference": "no"},
  )
  made = prompts.load(path)
  assert made == [
      prompts.Prompt("81", "writing", ("A?", "B?")),
      prompts.Prompt("2", "prompts", ("C?",)),
      prompts.Prompt("mine", "own", ("D?",)),
  ]
  text = tmp_path / "mine.txt"
  text.write_text('{"prompt": 1}\n\nHow?\n')
  assert [(row.id, row.turns) for row in prompts.load(str(text))] == [
      ("1", ('{"prompt": 1}',)), ("3", ("How?",))
  ]


def test_choose():
  made = [prompts.Prompt(str(i), "abc"[i % 3], ("x",)) for i in range(9)]
  ids = lambda *options: [row.id for row in prompts.choose(made, *options)]
  assert ids() == [row.id for row in made]
  assert ids(2) == ["0", "1", "2", "3", "4", "5"]
  assert ids(1, ["c", "a"]) == ["0", "2"]
  with pytest.raises(UserError, match="--only: no category 'd'; give a, b, c"):
    prompts.choose(made, 1, ["d"])


@pytest.mark.parametrize(
    "line, words",
    [
        ("{", "line 2 is not JSON"),
        ("9" * 5000, "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON (it is nested too deeply)"),
        ('{"prompt": "x", "prompt": "y"}', "key 'prompt' comes twice"),
        ('{"prompt": "x", "id": "\\ud800"}', "surrogates not allowed"),
        ("[1]", "line 2 is not a JSON object"),
        ('{"turn": ["x"]}', "line 2 has neither field 'turns' nor 'prompt'"),
        ('{"turns": []}', "line 2 field 'turns' holds no text"),
        ('{"turns": "x"}', "line 2 field 'turns' holds no text"),
        ('{"turns": ["x", " "]}', "line 2 field 'turns' holds no text"),
        ('{"prompt": "\\ud800"}', "surrogates not allowed"),
        ('{"prompt": "x", "category": 1.5}', "field 'category' is float"),
        ('{"prompt": "x", "question_id": "a"}', "has the id 'a' of an earlier"),
    ],
)
def test_faults_are_one_line(line, words, tmp_path):
  path = tmp_path / "q.jsonl"
  path.write_text('{"question_id": "a", "prompt": "x"}\n' + line)
  with pytest.raises(UserError) as caught:
    prompts.load(str(path))
  assert str(caught.value).startswith(f"--prompts: {path}, line 2 ")
  assert words in str(caught.value) and "\n" not in str(caught.value)


def test_long_names_are_cut(tmp_path):
  path = tmp_path / "q.jsonl"
  row = json.dumps({"id": "x" * 9999, "category": "a\nb", "prompt": "x"})
  path.write_text(row)
  made = prompts.load(str(path))
  with pytest.raises(UserError, match="no category 'd'; give a b$"):
    prompts.choose(made, 1, ["d"])
  path.write_text(row + "\n" + row)
  with pytest.raises(UserError) as caught:
    prompts.load(str(path))
  assert len(str(caught.value)) < 400


def test_files_that_are_no_prompts(tmp_path):
  empty = tmp_path / "empty.txt"
  empty.write_text("\n \n")
  bytes_ = tmp_path / "bytes.txt"
  bytes_.write_bytes(b"a\n\xff\n")
  for path, words in (
      (empty, "has no prompts; give some"),
      (bytes_, "line 2 is not UTF-8"),
      (tmp_path / "none.jsonl", "No such file"),
      (tmp_path, "Is a directory"),
  ):
    with pytest.raises(UserError, match=words) as caught:
      prompts.load(str(path))
    assert str(caught.value).startswith("--prompts: ")


def test_the_agents_prompts():
  """Always alike; loops have turns, and every text is used once."""
  made = prompts.load("agent")
  assert made == prompts.load("agent")
  kinds = collections.Counter((row.category, len(row.turns)) for row in made)
  assert kinds == {
      ("edits", 4): 8,
      ("corrections", 4): 8,
      ("retries", 1): 24,
      ("requests", 1): 24,
  }
  edit = made[0].turns
  word = edit[0].partition('but replace "')[2].partition('"')[0]
  assert word in edit[0].partition("\n\n")[2].partition("\n\n")[0]
  assert not any("{" in turn for row in made for turn in row.turns)
  tries = [row.turns[0] for row in made if row.category == "retries"][:3]
  texts = [turn.partition("\n\n")[2] for turn in tries]
  assert len(set(tries)) == 3 and len(set(texts)) == 1
  assert len({row.id for row in made}) == len(list(agent.rows()))
