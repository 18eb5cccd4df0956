"""JSON from outside: what is no value, and how it is told."""

import json

import pytest

from specjax import strict_json

VALUES = (
    *(3, -0.5, "x", None, True, [], {}, "größe \u2028"),
    {"a": [{"a": 1}, {"a": 2}]},
)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values(value):
  for ascii_ in (True, False):
    text = json.dumps(value, ensure_ascii=ascii_)
    assert strict_json.loads(text) == strict_json.loads(text.encode()) == value


def test_whole_characters_may_be_escaped_in_two_halves():
  assert strict_json.loads(r'["\ud83d\ude00"]') == ["\U0001f600"]
  assert strict_json.loads(r'"\\ud83d"') == r"\ud83d"


@pytest.mark.parametrize(
    "text, words",
    (
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[1] 2", "Extra data"),
        (b'"\xff"', "can't decode byte 0xff"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("9" * 5000, "4300"),
        ('{"a": 1, "b": 2, "a": 1}', "key 'a' comes twice"),
        ('[{"b": {"": 1, "": 2}}]', "key '' comes twice"),
        (json.dumps({"x" * 9999: 1})[:-1] + f', "{"x" * 9999}": 1}}', "xx ..."),
        (r'"\ud800"', "surrogates not allowed"),
        (r'{"\uDFFF": 1}', "surrogates not allowed"),
        ("{'a': 1}", "Expecting property name"),
    ),
    ids=lambda value: str(value)[:20],
)
def test_what_is_none(text, words):
  with pytest.raises(ValueError) as caught:
    strict_json.loads(text)
  line = str(caught.value)
  assert words in line and "\n" not in line and len(line) < 300
