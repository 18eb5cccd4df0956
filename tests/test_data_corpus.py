"""The corpus, built from small index files and help pages written here."""

import json
import pathlib
import random
import shutil
import subprocess

import pytest

from specjax import writing
from specjax.data import apt
from specjax.data import corpus
from specjax.data import sources
from specjax.data import tasks
from specjax.errors import UserError

ENGLISH = """\
Package: chess
Description-md5: 01
Description-en: program that plays chess with you
 This program plays chess against you or against itself, with a full screen-
 oriented display, low- and high-level
 play.
 .
 Features:
  * it shows the
    pieces
  * it knows 12 openings
 .
 Written by:
  * the authors

Package: chess-data
Description-md5: 02
Description-en: data of the chess program
 Only in English, and long enough to be summed up: the pictures, the openings
 and the sounds.

Package: snake
Description-md5: 03
Description-en: a game of snakes
 One paragraph.
 .
 Two paragraphs.
"""
GERMAN = """\
Package: chess
Description-md5: 01
Description-de: Programm, das mit Ihnen Schach spielt
 Dieses Programm spielt Schach gegen Sie oder gegen sich, mit einer voll-
 ständigen Anzeige, auf nied-
 riger oder hoher Stufe.
 .
 Merkmale:
  * es zeigt die Figuren
  * es kennt 12
    Eröffnungen
 .
 Geschrieben von:
 die Autoren

Package: snake
Description-md5: 03
Description-de: ein Spiel mit Schlangen
 Nur ein Absatz.
"""
PACKAGES = """\
Package: chess
Version: 1
Description: program that plays chess with you

Package: chess-data
Source: chess (1.2)
Depends: chess,
 snake

Package: snake
"""


def test_stanzas_keep_continuation_lines_apart_from_fields():
  stanzas = list(sources.read_stanzas(PACKAGES))
  names = [stanza["Package"][0] for stanza in stanzas]
  assert names == ["chess", "chess-data", "snake"]
  assert stanzas[1]["Depends"] == ["chess,", " snake"]
  assert sources.source_packages(PACKAGES) == {
      "chess": "chess", "chess-data": "chess", "snake": "snake"
  }


def test_debian_pairs_join_units_of_like_structure():
  owners = sources.source_packages(PACKAGES)
  rows = list(sources.debian_pairs(ENGLISH, GERMAN, owners))
  by_name = {(row.id.split("/")[1], row.kind, row.source) for row in rows}
  first = (
      "This program plays chess against you or against itself, with a full"
      " screen-oriented display, low- and high-level play."
  )
  assert by_name == {
      ("chess", "synopsis", "program that plays chess with you"),
      ("chess", "paragraph", first),
      ("chess", "paragraph", "Features:"),
      ("chess", "item", "it shows the pieces"),
      ("chess", "item", "it knows 12 openings"),
      # The list of authors is no list in German, so it isn't paired; here the
      # paragraphs differ in number.
      ("snake", "synopsis", "a game of snakes"),
  }
  pairs = {row.source: row.reference for row in rows}
  assert pairs["it knows 12 openings"] == "es kennt 12 Eröffnungen"
  assert len({row.id for row in rows}) == len(rows)


def test_summaries_leave_out_what_says_nothing():
  owners = sources.source_packages(PACKAGES)
  text = ENGLISH + (
      "\nPackage: old\nDescription-md5: 04\n"
      "Description-en: name of old times\n"
      " This is a transitional package, and everything that once was in it is"
      " now in\n another package; it can be removed safely.\n"
  )
  rows = {row.id.split("/")[1]: row for row in
          sources.debian_summaries(text, owners)}
  assert set(rows) == {"chess", "chess-data"}
  assert rows["chess"].source.endswith(
      "- it knows 12 openings Written by: - the authors"
  )
  assert rows["chess-data"].group == rows["chess"].group == "debian:chess"


@pytest.mark.parametrize(
    "name, group",
    [("gcc-12", "gcc"), ("gcc-12-cross", "gcc-cross"), ("2048", "2048"),
     ("postgresql-15", "postgresql"), ("php8.2", "php")],
)
def test_versions_of_one_package_are_one_group(name, group):
  assert sources.group_of(name) == "debian:" + group


@pytest.mark.parametrize(
    "english, german, good",
    [
        ("Opens the file.", "Öffnet die Datei.", True),
        ("Time", "Uhrzeit", True),
        ("Opens the  file 1.", "opens the file 2.", False),
        ("This is the text of the file", "This is a text of the file", False),
        ("Closes the window", "<trans>", False),
        ("Closes the window", "", False),
        ("Font", "Legt die Schriftart fest, in der Text erscheint.", False),
        ("=SUM(A1:A9;2)", "=SUMME(A1:A9;2)", False),
        ("the <b>bold</b> text", "der <b>fette</b> Text", False),
    ],
)
def test_pairs_that_are_no_translation_are_dropped(english, german, good):
  assert sources.acceptable_pair(english, german) is good


def test_lines_join_without_a_gap_only_inside_a_word():
  join = sources.join_lines
  assert join(["a command-", "line tool"]) == "a command-line tool"
  assert join(["a screen-", "oriented display"]) == "a screen-oriented display"
  assert join(["Bild-", "und Tonformate"]) == "Bild- und Tonformate"
  assert join(["the tool -", "a summary"]) == "the tool - a summary"
  assert join([" soft\xadware ", "", "two  spaces"]) == "software two spaces"


def page(*elements: str) -> str:
  return "<html><body><p>no id</p>" + "\n".join(elements) + "</body></html>"


def switch(default: str, name: str = "default_1") -> str:
  return (
      '<span class="switchinline"><span hidden="true" class="MAC" id="MAC_1">'
      f'Command</span><span hidden="true" id="{name}"><span class="key">'
      f"{default}</span></span></span>"
  )


def test_help_pages_are_joined_by_element():
  english = page(
      '<h1 id="hd_1">Find &amp; Replace</h1>',
      f'<p id="p_1" class="paragraph">Press <b>{switch("Ctrl")}</b>+F to<br>'
      "search\n the text.</p>",
      f'<p id="p_2">Press {switch("Ctrl", "WIN_1")} to go on.</p>',
      '<p id="p_3" class="bascode">Print a</p>',
      '<p id="p_4">LibreOffice</p>',
      '<p id="p_5">Only in English.</p>',
  )
  german = page(
      '<h1 id="hd_1">Suchen &amp; Ersetzen</h1>',
      f'<p id="p_1">Drücken Sie {switch("Strg")}+F, um zu suchen.</p>',
      '<p id="p_2">Drücken Sie diese Taste, um fortzufahren.</p>',
      '<p id="p_3" class="bascode">Drucke a</p>',
      '<p id="p_4">LibreOffice</p>',
  )
  rows = list(sources.help_pairs([("scalc/find", english, german)]))
  assert [(row.id, row.source, row.reference) for row in rows] == [
      ("libreoffice/scalc/find#hd_1", "Find & Replace", "Suchen & Ersetzen"),
      (
          "libreoffice/scalc/find#p_1",
          "Press Ctrl+F to search the text.",
          "Drücken Sie Strg+F, um zu suchen.",
      ),
  ]
  assert rows[0].group == "libreoffice:scalc/find"


WORDS = (
    "window file chess program network mail picture sound editor server song"
    " clock garden river letter button page colour cell table"
).split()


def make_rows(count: int, kind: str, origin: str = "debian") -> list:
  rng = random.Random(kind)
  text = lambda: " ".join(rng.choice(WORDS) for _ in range(14)) + "."
  return [
      sources.Row(
          f"{origin}/{kind}{i}", text(), text(), origin, f"g{i // 2}", kind
      )
      for i in range(count)
  ]


def test_no_text_or_group_is_in_two_splits():
  rows = make_rows(600, "paragraph")
  train = next(row for row in rows if corpus.split_of(row.group) == "train")
  later = [row for row in rows if corpus.split_of(row.group) != "train"]
  # Training texts in other groups and in the other task, case and spaces apart.
  copy = train.source.upper() + "  "
  ende = rows + [
      row._replace(id=row.id + "r", source="1 " + row.source, reference=copy)
      for row in later
  ]
  summ = [row._replace(source="The " + row.source) for row in rows]
  summ = [row for row in summ if row.group != train.group] + [
      row._replace(id=row.id + "s", source=copy) for row in later
  ]
  splits = corpus.split_rows({"ende": ende, "summ": summ})
  texts: dict[str, set[str]] = {}
  groups: dict[str, set[str]] = {}
  for task in splits.values():
    for split, found in task.items():
      assert found
      for row in found:
        groups.setdefault(row.group, set()).add(split)
        texts.setdefault(row.source.casefold().strip(), set()).add(split)
  assert all(len(each) == 1 for each in [*groups.values(), *texts.values()])
  for task in splits.values():
    held_out = task["dev"] + task["test"]
    assert not [row for row in held_out if row.id.endswith(("r", "s"))]


def test_splits_do_not_depend_on_the_order_of_rows():
  rows = make_rows(300, "paragraph") + make_rows(300, "element", "libreoffice")
  rows += [row._replace(id=row.id + "b", reference="Twice.") for row in rows]
  shuffled = random.Random(1).sample(rows, len(rows))
  wanted = corpus.split_rows({"ende": rows}, dev=10, test=20)
  assert corpus.split_rows({"ende": shuffled}, dev=10, test=20) == wanted
  assert len(wanted["ende"]["dev"]) == 10
  kinds = [row.kind for row in wanted["ende"]["test"]]
  assert (kinds.count("paragraph"), kinds.count("element")) == (9, 7)


def test_test_rows_do_not_resemble_training_rows():
  rows = make_rows(600, "paragraph")
  train = [row for row in rows if corpus.split_of(row.group) == "train"]
  test = [row for row in rows if corpus.split_of(row.group) == "test"]
  near = [
      row._replace(id=f"{row.id}n", source=train[0].source[:-1] + f" {i} end.")
      for i, row in enumerate(test)
  ]
  chosen = corpus.split_rows({"ende": rows + near})["ende"]["test"]
  assert chosen and not [row for row in chosen if row.id.endswith("n")]


def write_archive(state):
  """Lays out what apt.fetch would bring."""
  (state / "lists").mkdir(parents=True)
  prefix = "mirror_debian_dists_bookworm_"
  texts = {
      "main_i18n_Translation-en": ENGLISH,
      "main_i18n_Translation-de": GERMAN,
      "main_binary-amd64_Packages": PACKAGES,
      "InRelease": "Version: 12.1\nDate: today\n",
  }
  for name, text in texts.items():
    (state / "lists" / (prefix + name)).write_text(text, "utf-8")
  texts = ("Öffnet die Datei.", "Opens the file.")
  for package, language, text in zip(
      apt.HELP_PACKAGES, ("de", "en-US"), texts
  ):
    folder = state / package / "usr/share/libreoffice/help" / language
    folder = folder / "text/scalc"
    folder.mkdir(parents=True)
    (folder / "main.html").write_text(page(f'<p id="a">{text}</p>'), "utf-8")


def stub_run(command, **options):
  assert command[1] == "cat-file", f"{command} would use the network"
  return pathlib.Path(command[2]).read_bytes()


def test_build_writes_every_file_once(tmp_path, monkeypatch):
  write_archive(tmp_path / "apt")
  monkeypatch.setattr(apt, "_run", stub_run)
  corpus.build(tmp_path)
  path = corpus.split_file(tmp_path, "ende", "train")
  rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
  assert {"id", "source", "reference", "origin", "group"} == set(rows[0])
  assert "Version: 12.1; Date: today" in (tmp_path / "README.md").read_text()
  pairs = corpus.read_split(tmp_path, "ende", "train")
  wanted = (tasks.TRANSLATE + "Opens the file.", "Öffnet die Datei.")
  assert wanted in pairs and len(pairs) == len(rows)
  assert not list(tmp_path.glob("*.part"))
  # A second call reads nothing and changes nothing.
  monkeypatch.setattr(apt, "_run", None)
  stamp = path.stat().st_mtime_ns
  corpus.build(tmp_path)
  assert path.stat().st_mtime_ns == stamp


@pytest.fixture
def archive(tmp_path, monkeypatch) -> pathlib.Path:
  """A folder where all but the splits is there."""
  write_archive(tmp_path / "apt")
  monkeypatch.setattr(apt, "_run", stub_run)
  return tmp_path


def refusal(call, *arguments) -> str:
  with pytest.raises(UserError, match="^corpus: ") as caught:
    call(*arguments)
  assert "\n" not in str(caught.value)
  return str(caught.value)


def test_archive_without_its_release_file(archive):
  """Told before a single split is written."""
  lists = archive / "apt" / "lists"
  [release] = lists.glob("*InRelease")
  other = release.with_name(release.name.replace("InRelease", "Release"))
  release.rename(other)
  corpus.build(archive)
  assert "Version: 12.1; Date: today" in (archive / "README.md").read_text()
  for path in [other, *archive.glob("*.jsonl"), archive / "README.md"]:
    path.unlink()
  assert "no InRelease file; delete that folder" in refusal(
      corpus.build, archive
  )
  assert not list(archive.glob("*.jsonl"))


@pytest.mark.parametrize("ending", apt.INDICES)
def test_damaged_index(archive, ending):
  [path] = (archive / "apt" / "lists").glob(f"*{ending}*")
  path.write_bytes(b"\xff\xfe")
  assert f"{path} is damaged; delete it" in refusal(corpus.build, archive)


@pytest.mark.parametrize("text", ("", "\n\n", "no stanza", " : x", "Package:"))
def test_indices_without_rows(archive, text):
  for path in (archive / "apt" / "lists").glob("*main*"):
    path.write_text(text)
  line = refusal(corpus.build, archive)
  assert "give no rows of summ; delete that folder" in line
  assert not list(archive.glob("*.jsonl"))


def test_stanzas_that_lack_a_field():
  text = "\n\n".join((
      "Package:\nSource: a",
      "Package: b\nSource:",
      "Package: c\nSource:\td (1)",
      "Source: e",
      "Description-md5: 1\nDescription-en: a word",
      "Package: f\nDescription-md5: 2",
      "Package: g\nDescription-md5:\nDescription-en:",
  ))
  assert sources.source_packages(text) == {
      "b": "b", "c": "d", "f": "f", "g": "g"
  }
  assert not list(sources.debian_pairs(text, text, {}))
  assert not list(sources.debian_summaries(text, {}))


def test_folder_that_cannot_be(archive):
  (archive / "file").touch()
  for path in (archive / "file", archive / "file" / "out"):
    line = refusal(corpus.build, path)
    assert str(path) in line and line.endswith((": Not a directory", "exists"))


def test_folder_that_may_not_be_written(archive, monkeypatch):
  def refused(*_, **__):
    raise PermissionError(13, "Permission denied", "out/x")

  monkeypatch.setattr(pathlib.Path, "write_bytes", refused)
  want = "corpus: out/x: Permission denied"
  assert refusal(corpus.build, archive) == want
  row = json.dumps({"id": "a", "source": "b", "reference": "c"})
  corpus.split_file(archive, "ende", "test").write_text(row)
  line = refusal(corpus.write_heldout, archive, archive / "heldout")
  assert line == want


def test_package_that_did_not_come(archive, monkeypatch):
  shutil.rmtree(archive / "apt" / apt.HELP_PACKAGES[0])
  monkeypatch.setattr(apt, "_run", lambda *_, **__: b"")
  line = refusal(corpus.build, archive)
  assert f"no {apt.HELP_PACKAGES[0]} came to" in line


def test_the_command(archive, capsys):
  """It prints the README, and goes without one."""
  argv = ["corpus", "--out", str(archive)]
  assert corpus.main(argv) == 0
  assert capsys.readouterr().out.startswith("# Texts for")
  (archive / "README.md").unlink()
  assert corpus.main(argv) == 0
  assert capsys.readouterr().out == f"{archive}\n"
  (archive / "README.txt").touch()
  assert corpus.main([*argv[:-1], str(archive / "README.txt")]) == 1
  line = capsys.readouterr().err
  assert line.startswith("specjax.data.corpus: corpus: ")
  assert line.count("\n") == 1


def test_shipped_rows_are_the_test_split(tmp_path):
  row = {"id": "a", "source": "ö", "reference": "b", "group": "d"}
  for task in corpus.TASKS:
    path = corpus.split_file(tmp_path, task, "test")
    writing.write(path, json.dumps(row) + "\n")
  corpus.write_heldout(tmp_path, tmp_path / "heldout")
  text = (tmp_path / "heldout/summ.jsonl").read_text("utf-8")
  assert text == '{"id": "a", "source": "ö", "reference": "b"}\n'


def test_missing_apt_and_its_failures_are_one_line(monkeypatch):
  with pytest.raises(UserError, match="no-such-apt is missing"):
    apt._run(["no-such-apt"])
  failed = subprocess.CompletedProcess([], 100, b"", b"W: x\nE: no network\n")
  monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
  with pytest.raises(UserError, match=r"failed \(E: no network\)"):
    apt._run(["sh"])
  failed = subprocess.CompletedProcess([], 100, b"", b"E: gr\xf6\xdfe\n")
  with pytest.raises(UserError, match=r"failed \(E: gr..e\)"):
    apt._run(["sh"])
