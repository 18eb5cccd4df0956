"""report.html: whole, safe, on its own, and right; also in a browser."""

import html
import html.parser
import json
import re
import shutil
import subprocess

import pytest

from specjax import draft_section
from specjax import sections
from specjax import topology
from specjax.measure import report as report_lib
from specjax.measure import steps as steps_lib
from specjax.measure.page import bars
from specjax.measure.page import curve
from specjax.measure.page import html as html_lib
from specjax.measure.page import markup
from tests import test_measure_report

VOID = {"meta", "br"}
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Page(html.parser.HTMLParser):
  """Collects words; notes what is not closed, or fetched from outside."""

  def __init__(self):
    super().__init__()
    self.open, self.words, self.outside, self.attributes = [], [], [], []
    self.count = 0

  def handle_starttag(self, tag, attrs):
    if tag not in VOID:
      self.open.append(tag)
    self._note(tag, attrs)

  def handle_startendtag(self, tag, attrs):
    assert "svg" in self.open, tag
    self._note(tag, attrs)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    self.words.append(data.strip())

  def _note(self, tag, attrs):
    self.count += 1
    names = [name for name, _ in attrs]
    assert len(set(names)) == len(names)
    self.attributes += attrs
    if tag in ("script", "link", "img", "iframe", "object", "form"):
      self.outside.append(tag)
    self.outside += {"src", "href", "srcset", "action"} & set(names)
    self.outside += [name for name in names if name.startswith("on")]


def read(text: str) -> Page:
  """A page, which is whole and needs nothing else."""
  page = Page()
  page.feed(text)
  page.close()
  assert not page.open and not page.outside
  assert not re.search(r"url\(|@import|https?:", text)
  return page


def make(**fields) -> tuple[dict, dict]:
  return report_lib.make(test_measure_report.measured(**fields))


def experiment(**fields) -> sections.Experiment:
  return sections.Experiment(name="mine", **fields)


SAMPLED = sections.Sampling(temperature=1.0)
UNDRAFTED = dict(
    alpha=None,
    positions=0,
    gamma=0,
    steps=steps_lib.Steps(0.0, 1.0, 1.0),
    speculative=[test_measure_report.result("x", (1,), 1, (), ())] * 2,
    traced=[],
)
SHAPE = topology.Topology(((0,), (1,), (0, 0)))
TREE = dict(
    config=experiment(
        draft=draft_section.Draft(tree="[[0], [1], [0, 0]]"), sampling=SAMPLED
    ),
    mismatches=None,
    nodes=3,
    tree=SHAPE,
)
CASES = {
    "greedy": {},
    "sampled": dict(
        config=experiment(
            sampling=SAMPLED, data=sections.Data(task="file")
        ),
        mismatches=None,
    ),
    "lenient": dict(config=experiment(verify=sections.Verify(lenience=0.5))),
    "typical": dict(config=experiment(verify=sections.Verify("typical"))),
    "tree": TREE,
    "no drafts": UNDRAFTED,
    "no trace": dict(traced=[]),
    "nothing judged": dict(
        alpha=0.0,
        speculative=[
            test_measure_report.result("x", (1,), 1, (0, 0), (0, 0))
        ] * 2,
    ),
    "no alpha": dict(alpha=None, positions=0),
    "no round": dict(
        traced=[test_measure_report.result("", (), 0, (), (), ())]
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_whole_and_on_its_own(case):
  report, details = make(**CASES[case])
  page = read(html_lib.page(report, details))
  assert {"Round by round", "All figures", "speed-up", "alpha"} <= set(
      page.words
  )
  assert f"specjax: {report['config']['name']}" in page.words


def section(page: Page, title: str) -> list[str]:
  """The words below a heading."""
  start = page.words.index(title)
  return page.words[start:]


def test_every_token_of_the_trace():
  page = read(html_lib.page(*make()))
  words = section(page, "Round by round")
  for piece in ("Ein", "schnell", "er", "<b>Editor", "ist", ".", "</s>", "<9>"):
    assert piece in words, piece
  assert ("title", "corrected") in page.attributes
  assert ("title", "extra") in page.attributes
  assert "7 tokens in 3 rounds: 2.33 a round" in words
  assert "1 token in 1 round: 1.00 a round" in words


def rounds(text: str) -> list[str]:
  return re.findall(r"<li>.*?</li>", text, re.DOTALL)


def classes(line: str) -> list[str]:
  return re.findall(r'<span class="([arn])"', line)


def test_colours():
  """Accepted, rejected, next: as the rounds were; the text so far is grey."""
  lines = rounds(html_lib.page(*make()))
  assert [classes(line) for line in lines] == [
      ["a", "r", "n"], ["a", "a", "n"], ["a", "a"], ["r", "n"]
  ]
  before = [re.search("<bdi>(.*?)</bdi>", line)[1] for line in lines]
  assert before == [
      "", "Ein schnell", "Ein schneller &lt;b&gt;Editor ist", ""
  ]


def test_p_q_and_coin():
  """Of each judged token, with how they compare; reached by the keyboard."""
  text = html_lib.page(*make())
  tips = re.findall(r'tabindex="0">[^<]*<span class="tip".*?</span>', text)
  assert len(tips) == 7
  words = re.sub("<[^>]*>", " ", tips[1])
  assert html.unescape(words).split()[1:] == (
      "rejected: coin × q ≥ p q 0.75 coin 0.875 coin × q 0.656 p 0.125 token 5"
  ).split()
  assert "accepted: coin × q &lt; p" in tips[0]
  # Bars: shares of the largest.
  shares = re.findall("--w:([0-9.]+)", tips[1])
  assert shares == ["1.00", "0.00", "0.88", "0.17"]


def test_rules_in_words():
  words = lambda **fields: "\n".join(read(html_lib.page(*make(**fields))).words)
  assert "any coin says the same" in words()
  sampled = words(config=experiment(sampling=SAMPLED), mismatches=None)
  assert "A draft is accepted when coin × q < p." in sampled
  lenient = sections.Verify(lenience=0.5)
  both = experiment(sampling=SAMPLED, verify=lenient)
  assert "when coin × 0.5 × q < p." in words(config=both, mismatches=None)
  # No coin there: the test is another one.
  greedy = words(config=experiment(verify=lenient))
  assert "at least 0.5 of its largest" in greedy
  assert "rejected: coin" not in greedy and "rejected" in greedy
  for rule, said in (("block", "as a whole"), ("typical", "above a threshold")):
    other = words(config=experiment(verify=sections.Verify(rule)))
    assert said in other and "rejected: coin" not in other
    assert ("LOSSY" in other) == (rule == "typical")


def test_trees_in_words():
  """Nodes, depth, what siblings add; no curve over gamma."""
  report, details = make(**TREE)
  text = "\n".join(read(html_lib.page(report, details)).words)
  for said in (
      "trees of 3 nodes, depth 2, siblings top",
      "4-token step",
      "siblings add to it",
      "one of the siblings judged",
      "There is no curve: drafts are a tree",
      "2 levels of drafts",
      "Of siblings the accepted one is shown",
      "when coin × q < p.",
  ):
    assert said in text, said
  assert "LOSSY" not in text and report["rule"] == "tree"
  assert details["tree"] == [[0], [1], [0, 0]]


HOSTILE = [
    "</span><script>alert(1)</script>",
    "\" onmouseover='x'",
    "&lt;&#60;",
    "\x00\x1b[2J\r",
    "\u202egnp.\u2066",
    "\ud800\ufffe\U000e0001",
    "]]>-->",
    "\n",
]


def test_hostile_pieces():
  """All that is hostile is seen, and none of it works."""
  report, details = make()
  row = details["trace"][0]
  numbers = {"p": 0.5, "q": 0.5, "coin": 0.5}
  token = lambda piece: {"id": 7, "piece": piece} | numbers
  for i, piece in enumerate(HOSTILE):
    row["rounds"].append({
        "judged": [token("▁" + piece)],
        "accepted": i % 2,
        "next": {"id": 7, "piece": piece},
    })
  row["source"] = report["config"]["name"] = "".join(HOSTILE)
  details["command"] = "".join(HOSTILE)
  text = html_lib.page(report, details)
  page = read(text)
  text.encode("utf-8")
  assert all(c.isprintable() or c == "\n" for c in text)
  for piece in HOSTILE[:3]:
    assert piece in page.words
  for piece in ("\\u0000\\u001b[2J\\u000d", "\\u202egnp.\\u2066", "\\u000a",
                "\\ud800\\ufffe\\U000e0001"):
    assert page.words.count(piece) == 2, piece


def test_markup():
  assert markup.text("a\u00a0<b> ü \u200d") == "a\u00a0&lt;b&gt; ü \\u200d"
  assert markup.Scale(0.0).at(1.0) == 0.0
  assert [markup.Scale(2.0).at(x) for x in (-1, 0.5, 3)] == [0, 25, 100]


def marks(text: str, kind: str) -> list[tuple[float, float]]:
  """Start and end of bars, per cent of the width."""
  found = re.findall(
      rf'<i class="bar ({kind})" style="left:([\d.]+)%;width:([\d.]+)%">', text
  )
  return [(float(left), float(left) + float(width)) for _, left, width in found]


def test_gap_is_a_waterfall():
  """Each bar begins where the last one ended."""
  report, _ = make()
  text = bars.gap(report)
  [(_, value)] = marks(text, "theory")
  for factor, bar in zip(report["gap"].values(), marks(text, "gain|loss")):
    ends = bar if factor > 1 else bar[::-1]
    assert ends[0] == pytest.approx(value, abs=0.03)
    assert ends[1] / ends[0] == pytest.approx(factor, rel=0.01)
    value = ends[1]
  assert marks(text, "measured") == [(0, pytest.approx(value, abs=0.03))]
  assert text.count('class="line"') == 8


def test_timing_shows_every_repeat():
  text = bars.timing(*make())
  assert text.count('class="dot"') == 4 * 3
  assert "each of 3 repeats over 2 rows" in text
  assert "1.50x to 2.00x" in text
  [_, speedup, whole] = marks(text, "measured")
  assert speedup[1] == pytest.approx(100 * (7 / 4) / 1.02 / 2.0, abs=0.01)
  assert whole[1] == pytest.approx(100 * (10 / 6) / 1.02 / 2.0, abs=0.01)


def test_positions():
  report, details = make()
  text = bars.positions(report, details)
  assert marks(text, "measured") == [(0, 66.67), (0, 50.0)]
  assert text.count('<i class="line" style="left:50.00%">') == 2
  assert "0.67 of 3" in text and "No bar" not in text
  # Far positions that were never judged do not fill the page.
  report["acceptance_by_position"] += [None] * 98
  details["judged_by_position"] += [0] * 98
  text = bars.positions(report, details)
  assert text.count("<tr>") == 2
  assert "No bar: 98 of 100 positions." in text


def test_interval():
  """Wilson's, as Brown, Cai, DasGupta (2001) have it."""
  assert bars.interval(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
  assert bars.interval(1.0, 5) == pytest.approx((0.5655, 1.0), abs=1e-4)


def test_parts_of_a_round():
  """Two drafts of 0.1 s and a verify step of 1.5 in a round of 4 / 3."""
  report, details = make()
  text = bars.rounds(report, details)
  most = 1.02 * 1700
  [(start, end)] = marks(text, "draft")
  assert (start, end) == (0, pytest.approx(100 * 200 / most, abs=0.01))
  [_, verify] = marks(text, "verify")
  assert verify == pytest.approx((end, 100 * 1700 / most), abs=0.02)
  assert "-367 are left" in text
  assert "1.33e+03 ms" in text


def test_curve():
  """The point lies on the curve where theory is right."""
  report, _ = make()
  right = report["predicted_speedup"]["with_verify_cost"]
  report["measured_speedup"] = {"median": right, "low": right, "high": right}
  text = curve.picture(report)
  place = re.search(r'class="point" cx="([\d.]+)" cy="([\d.]+)"', text)
  line = re.search(r'class="with-v" points="([^"]*)"', text)[1].split()
  assert f"{place[1]},{place[2]}" in line
  assert "gamma up to 8: 2 (1.46x) by the theorem, 1 (1.11x) with v" in text


def test_curve_of_long_drafts():
  """Few points, and round ticks."""
  report, _ = make()
  text = curve.picture(report | {"gamma": 1024})
  assert len(text) < 5000
  assert ">500</text>" in text and ">1000</text>" in text


def test_verify_cost_between():
  """1 without drafts, as measured at gamma, and evenly on."""
  costs = [curve.verify_cost(g, 4, 3.0) for g in (0, 2, 4, 8)]
  assert costs == [1.0, 2.0, 3.0, 5.0]
  assert [curve.verify_cost(g, 4, 0.8) for g in (0, 2, 40)] == [1.0, 0.8, 0.8]


# --- in a browser -----------------------------------------------------------

FRAME = (
    '<iframe srcdoc="{}" style="width:390px;height:800px;border:0"></iframe>'
)
PROBE = """
<pre id="found"></pre>
<script>
function look(view) {
  const page = view.document, draft = page.querySelector("[tabindex]");
  const shown = tip => view.getComputedStyle(tip).display !== "none";
  const found = {
    elements: page.querySelectorAll("*").length,
    letters: page.body.innerText.length,
    width: page.documentElement.scrollWidth,
  };
  if (draft) {
    const tip = draft.querySelector(".tip");
    found.before = shown(tip);
    view.focus();
    draft.focus();
    found.after = shown(tip);
    found.right = tip.getBoundingClientRect().right;
  }
  return found;
}
onload = () => {
  const found = JSON.stringify(Array.from(frames, look));
  document.getElementById("found").textContent = found;
};
</script>
"""


def browse(folder, text: str) -> tuple[str, list[str]]:
  """The document that a browser makes of a page, and what its console says."""
  path = folder / "page.html"
  path.write_text(text, encoding="utf-8")
  done = subprocess.run(
      [
          CHROMIUM,
          "--headless",
          "--no-sandbox",
          "--disable-gpu",
          f"--user-data-dir={folder / 'profile'}",
          "--enable-logging=stderr",
          "--dump-dom",
          path.as_uri(),
      ],
      capture_output=True,
      check=True,
      text=True,
      timeout=600,
  )
  console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
  return done.stdout, console


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_in_a_browser(tmp_path):
  """No complaints; on a phone nothing is too wide, and focus unfolds a draft.

  Elements: as many as were written, and a tbody a table. The browser adds or
  drops more where tags are misplaced.
  """
  texts = [html_lib.page(*make(**fields)) for fields in CASES.values()]
  frames = "".join(FRAME.format(html.escape(text)) for text in texts)
  document, console = browse(tmp_path, f"<!DOCTYPE html>{frames}{PROBE}")
  assert console == []
  found = re.search('<pre id="found">(.*?)</pre>', document, re.DOTALL)[1]
  for text, seen in zip(texts, json.loads(found), strict=True):
    assert seen["elements"] == read(text).count + text.count("<table")
    assert seen["letters"] > 1000
    assert seen["width"] <= 390
    assert ("before" in seen) == (' tabindex=' in text)
    if "before" in seen:
      assert (seen["before"], seen["after"]) == (False, True)
      assert seen["right"] <= 390


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_the_console_is_heard(tmp_path):
  """Else its silence would say nothing."""
  text = "<!DOCTYPE html><script>nothing();</script>"
  _, [line] = browse(tmp_path, text)
  assert "nothing is not defined" in line
