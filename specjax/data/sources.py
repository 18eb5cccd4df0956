"""Reads text pairs out of Debian's package indices and LibreOffice's help.

Pure functions from the files' texts to rows; which files, and which split a row
goes to, is corpus.py's matter.
"""

import html.parser
import re
from typing import Iterable, Iterator, NamedTuple

_BULLET = re.compile(r"^\s*(?:[-*+•·o–]|\d{1,2}[.)])\s+(?=\S)")
_ENGLISH = frozenset(
    "the and of for to with is are this that from by it be which you can as an"
    " or provides contains package".split()
)
_GERMAN = frozenset(
    "der die das und von für zu mit ist sind dieses diese dieser dem den ein"
    " eine einen einer es wird werden sie kann als im auf oder aus enthält"
    " paket bietet nicht zum zur".split()
)
# Descriptions that say nothing of what is in the package.
BOILERPLATE = re.compile(
    r"metapackage enables feature|transitional|dummy package|empty package"
    r"|debug(?:ging)? symbols|source for the Rust",
    re.I,
)
# After "low-" these go on with another word: "low- and high-level".
_SUSPENDED = re.compile(r"(?:und|oder|bzw|sowie|and|or|nor|to|as)\b", re.I)


class Row(NamedTuple):
  """One text pair; `kind` steers the choice of test rows and isn't written."""

  id: str
  source: str
  reference: str
  origin: str
  group: str
  kind: str


# --- text -------------------------------------------------------------------


def normalised(text: str) -> str:
  """Returns text in small letters, with single spaces and digits as zeros."""
  return re.sub(r"\d+", "0", " ".join(text.casefold().split()))


def clean(text: str) -> str:
  """Returns text with single spaces and without soft or zero-width marks."""
  return " ".join(re.sub("[\xad\u200b-\u200f\ufeff]", "", text).split())


def join_lines(lines: Iterable[str]) -> str:
  """Joins wrapped lines; a word broken at its hyphen gets no space."""
  text = ""
  for line in (clean(line) for line in lines):
    if not line:
      continue
    broken = re.search(r"\w-$", text) and re.match(r"[^\W\d_]", line)
    if text and (not broken or _SUSPENDED.match(line)):
      text += " "
    text += line
  return text


def _units(paragraph: list[str]) -> list[tuple[bool, str]]:
  """Splits a paragraph's lines into its text and its list items."""
  blocks: list[tuple[bool, list[str]]] = []
  for line in paragraph:
    bullet = _BULLET.match(line)
    if bullet and (line[0].isspace() or bullet[0].strip() in "-*+•"):
      blocks.append((True, [line[bullet.end():]]))
    elif not blocks:
      blocks.append((False, [line]))
    elif blocks[-1][0] and not line[0].isspace():
      blocks.append((False, [line]))
    else:
      blocks[-1][1].append(line)
  return [(is_item, join_lines(lines)) for is_item, lines in blocks]


def parse_description(value: list[str]) -> tuple[str, list[list[str]]]:
  """Returns (synopsis, paragraphs as lists of lines) of a Description field."""
  paragraphs: list[list[str]] = [[]]
  for line in value[1:]:
    if line.strip() == ".":
      paragraphs.append([])
    elif line.strip():
      paragraphs[-1].append(line[1:])
  return join_lines(value[:1]), [lines for lines in paragraphs if lines]


def read_stanzas(text: str) -> Iterator[dict[str, list[str]]]:
  """Yields Debian control stanzas as {field: lines}, first line stripped."""
  for block in re.split(r"\n(?:\s*\n)+", text):
    fields: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in block.split("\n"):
      if line[:1].isspace():
        lines.append(line)
      elif ":" in line:
        key, _, value = line.partition(":")
        lines = fields[key] = [value.strip()]
    if fields:
      yield fields


def acceptable_pair(english: str, german: str) -> bool:
  """Whether a pair looks translated: unequal, of like length, two languages."""
  if not english or not german or normalised(english) == normalised(german):
    return False
  if "<trans>" in german or re.search(r"[<>]\w+/?>|&\w+;|\ufffd", german):
    return False
  ratio = len(german) / len(english)
  slack = 12 / min(len(english), len(german))
  if not 0.55 - slack < ratio < 2.1 + slack:
    return False
  if any(letters(text) < 0.6 for text in (english, german)):
    return False
  return _looks(german, _GERMAN, _ENGLISH) and _looks(
      english, _ENGLISH, _GERMAN
  )


def letters(text: str) -> float:
  """Returns the share of a text's characters that are letters or spaces."""
  return sum(c.isalpha() or c.isspace() for c in text) / len(text)


def _looks(text: str, right: frozenset[str], wrong: frozenset[str]) -> bool:
  words = re.findall(r"\w+", text.lower())
  return sum(w in wrong for w in words) <= sum(w in right for w in words)


# --- sources ----------------------------------------------------------------


def group_of(source_package: str) -> str:
  """Returns the split group of a Debian source package: its unnumbered name."""
  stem = re.sub(r"[-.]?\d[\d.]*", "", source_package).strip("-.")
  return "debian:" + (stem or source_package)


def source_packages(packages_text: str) -> dict[str, str]:
  """Maps a Packages index's binary package names to their source packages."""
  owners = {}
  for stanza in read_stanzas(packages_text):
    name = _first_word(stanza, "Package")
    if name:
      owners[name] = _first_word(stanza, "Source") or name
  return owners


def _first_word(stanza: dict[str, list[str]], field: str) -> str:
  """Returns the first word of a field; "" where it is empty or missing."""
  words = stanza.get(field, [""])[0].split()
  return words[0] if words else ""


def _descriptions(text: str, language: str) -> dict[str, tuple]:
  needed = {"Package", "Description-md5", "Description-" + language}
  return {
      s["Description-md5"][0]: (s["Package"][0], s["Description-" + language])
      for s in read_stanzas(text)
      if needed <= s.keys()
  }


def debian_pairs(
    english_text: str, german_text: str, sources: dict[str, str]
) -> Iterator[Row]:
  """Yields EN-DE rows of two Translation indices joined by Description-md5."""
  german = _descriptions(german_text, "de")
  for md5, (package, value) in _descriptions(english_text, "en").items():
    if md5 not in german:
      continue
    synopsis, paragraphs = parse_description(value)
    synopsis_de, paragraphs_de = parse_description(german[md5][1])
    pairs = [("synopsis", synopsis, synopsis_de)]
    if len(paragraphs) == len(paragraphs_de):
      units, units_de = map(_units, paragraphs), map(_units, paragraphs_de)
      for left, right in zip(units, units_de):
        # Units are only paired where both sides have the same structure.
        if [item for item, _ in left] == [item for item, _ in right]:
          for (item, text), (_, text_de) in zip(left, right):
            pairs.append(("item" if item else "paragraph", text, text_de))
    group = group_of(sources.get(package, package))
    for number, (kind, text, text_de) in enumerate(pairs):
      if acceptable_pair(text, text_de):
        name = f"debian/{package}/{md5[:6]}/{number}"
        yield Row(name, text, text_de, "debian", group, kind)


def debian_summaries(
    english_text: str, sources: dict[str, str]
) -> Iterator[Row]:
  """Yields description -> synopsis rows of a Translation-en index."""
  for md5, (package, value) in _descriptions(english_text, "en").items():
    synopsis, paragraphs = parse_description(value)
    units = [unit for lines in paragraphs for unit in _units(lines)]
    text = " ".join(("- " if item else "") + text for item, text in units)
    words, target = len(text.split()), len(synopsis.split())
    # A description shorter than twice its synopsis has nothing to summarise.
    if words < max(12, 2 * target) or target < 2 or letters(synopsis) < 0.6:
      continue
    if BOILERPLATE.search(text + " " + synopsis):
      continue
    group = group_of(sources.get(package, package))
    name = f"debian/{package}/{md5[:6]}"
    yield Row(name, text, synopsis, "debian", group, "summary")


class HelpPage(html.parser.HTMLParser):
  """Collects the text of every paragraph and heading that has an id.

  Text that the help shows on one platform or module only (`switchinline`) is
  read in its default variant; an element without a default is left out.
  """

  _BLOCKS = frozenset(("p", "h1", "h2", "h3", "h4", "h5", "h6"))
  _SKIPPED = ("code", "bascode", "pycode", "smathcode", "image", "youtube")

  def __init__(self, text: str):
    super().__init__(convert_charrefs=True)
    self.elements: dict[str, str] = {}
    self._id = ""
    self._parts: list[str] = []
    self._spans: list[str] = []
    self._defaults = 0
    self._switches = 0
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    attributes = dict(attrs)
    if tag in self._BLOCKS:
      skipped = (attributes.get("class") or "").startswith(self._SKIPPED)
      self._id = "" if skipped else attributes.get("id") or ""
      self._parts, self._spans = [], []
      self._defaults = self._switches = 0
    elif tag == "br":
      self._parts.append(" ")
    elif tag == "span":
      name = attributes.get("id") or ""
      hidden = "hidden" in attributes
      self._defaults += hidden and name.startswith("default")
      self._switches += attributes.get("class") == "switchinline"
      shown = not hidden or name.startswith("default")
      self._spans.append("shown" if shown else "hidden")

  def handle_endtag(self, tag):
    if tag == "span" and self._spans:
      self._spans.pop()
    elif tag in self._BLOCKS and self._id:
      if self._defaults == self._switches:
        self.elements[self._id] = clean("".join(self._parts))
      self._id = ""

  def handle_data(self, data):
    if self._id and "hidden" not in self._spans:
      self._parts.append(data)


def help_pairs(pages: Iterable[tuple[str, str, str]]) -> Iterator[Row]:
  """Yields EN-DE rows of (page name, English HTML, German HTML) triples."""
  for page, english, german in pages:
    elements = HelpPage(english).elements
    elements_de = HelpPage(german).elements
    group = "libreoffice:" + page
    for name, text in elements.items():
      text_de = elements_de.get(name, "")
      if acceptable_pair(text, text_de):
        name = f"libreoffice/{page}#{name}"
        yield Row(name, text, text_de, "libreoffice", group, "element")
