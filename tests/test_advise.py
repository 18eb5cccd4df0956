"""The door to the arithmetic: what it prints, draws and refuses."""

import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

from experiments import paper
from specjax import advise
from specjax import pictures
from specjax import theory
from specjax.errors import UserError


@pytest.fixture(name="run")
def fixture_run(capsys):
  """Runs the door with options in one string; returns what it printed."""

  def run(options: str) -> str:
    assert advise.main(["advise", *options.split()]) == 0
    printed = capsys.readouterr()
    assert not printed.err
    table, _, _ = printed.out.partition("written: ")
    assert max(map(len, table.splitlines())) <= 80
    return printed.out

  return run


@pytest.fixture(name="refusal")
def fixture_refusal(capsys):
  """The same for bad input: the one line on the error stream."""

  def refusal(*arguments: str) -> str:
    assert advise.main(["advise", *arguments]) == 1
    line, end = capsys.readouterr().err.removeprefix("specjax.advise: "), "\n"
    assert line.count(end) == 1 and line.endswith(end)
    return line.removesuffix(end)

  return refusal


WHOLE = "give whole numbers from 1 to 1000"
NO_SUCH = "there is no such option"


def table(text: str, columns: int) -> dict[int, list[str]]:
  """The rows under a heading that starts with gamma."""
  lines = text.split("\n gamma  ")[1].splitlines()[1:]
  cells = [line.split(maxsplit=columns) for line in lines]
  return {int(first): rest for first, *rest in cells}


def figure(text: str, name: str) -> str:
  """The second column of a line."""
  [line] = [line for line in text.splitlines() if line.startswith(name)]
  return line[22:].split()[0]


def test_best_gamma_curve_and_corollary(run):
  text = run("--alpha 0.8 --c 0.05")
  assert figure(text, "best gamma") == "8"
  assert figure(text, "  speed-up") == "3.09x"
  assert figure(text, "  tokens a round") == "4.33"
  assert figure(text, "  operations") == "2.17x"
  assert "Corollary 3.9         yes       alpha > c: at least 1.71x" in text
  assert figure(text, "oracle gamma") == "4.17x"
  rows = table(text, 5)
  assert list(rows) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32]
  for gamma, (tokens, speedup, operations, share, bar) in rows.items():
    assert tokens == f"{theory.expected_tokens(0.8, gamma):.2f}"
    assert speedup == f"{theory.speedup(0.8, gamma, 0.05):.2f}x"
    assert operations == f"{theory.operations(0.8, gamma, 0.05):.2f}x"
    assert share == f"{theory.accepted_share(0.8, gamma):.2f}"
    assert bar.endswith(" best") == (gamma == 8)
  assert rows[8][4].count("#") > rows[32][4].count("#") > rows[1][4].count("#")


def test_rows_of_table_1(run):
  """The paper's table, by the command."""
  for row in paper.rows("table1"):
    gamma = row["gamma"]
    text = run(f"--alpha {row['alpha']} --c 0 --gammas {gamma} --most {gamma}")
    assert figure(text, "  speed-up") == f"{row['speedup']:.2f}x"
    assert figure(text, "  operations") == f"{row['operations']:.2f}x"
    assert "longer may gain more, see --most" in text


def test_verify_cost(run):
  text = run("--alpha 0.8 --c 0.05 --v 2")
  assert figure(text, "  speed-up") == "1.83x"
  assert "with v in place of 1" in text
  assert "at least 1.71x at v = 1, 0.88x at v" in text
  assert "drafts pay while v is below 4.13" in text
  text = run("--alpha 0.8 --c 0.05 --v 4.2")
  assert "best gamma            none" in text and " best\n" not in text


def test_drafts_that_never_pay(run):
  text = run("--alpha 0.1 --c 0.2")
  assert figure(text, "best gamma") == "none"
  assert "alpha <= c: no gamma helps at v = 1" in text
  assert "drafts pay while v is below 0.90" in text
  assert figure(run("--alpha 0.1 --c 0.2 --v 0.8"), "best gamma") == "1"
  assert "c is too high" in run("--alpha 0.1 --c 2")


def test_operations_of_the_draft(run):
  text = run("--alpha 0.8 --c 0.05 --c-hat 1")
  assert figure(text, "  operations") == f"{theory.operations(0.8, 8, 1):.2f}x"
  assert "taken as c" not in text
  assert "c-hat 0.05, taken as c" in run("--alpha 0.8 --c 0.05")


def test_ends_of_the_range(run):
  assert figure(run("--alpha 1 --c 0"), "best gamma") == "64"
  assert figure(run("--alpha 0 --c 0"), "best gamma") == "none"
  assert figure(run("--alpha 1 --c 1000"), "best gamma") == "none"
  assert figure(run("--alpha 0.8 --c 0 --v 1000"), "best gamma") == "none"
  assert figure(run("--alpha 1 --c 0 --v 0.01"), "  speed-up") == "6500.00x"


def test_wanted_speedup(run):
  text = run("--want 7.45 --c 0.05 --gammas 32,4,8,16,8")
  assert table(text, 1) == {
      4: ["unreachable: at most 4.17x"],
      8: ["unreachable: at most 6.43x"],
      16: ["0.969"],
      32: ["0.964"],
  }
  assert "alpha for 7.45x       0.962     at gamma 25" in text


def test_wanted_speedup_out_of_reach(run):
  """1 / c is the limit of all gammas."""
  text = run("--want 21 --c 0.05")
  assert "alpha for 21x         none      at no gamma from 1 to 64" in text
  rows = table(text, 1)
  assert len(rows) == 13 and rows[1] == ["unreachable: at most 1.90x"]
  assert all("unreachable" in row for [row] in rows.values())


def test_both_at_once(run):
  text = run("--alpha 0.8 --want 3 --c 0.05")
  assert figure(text, "best gamma") == "8"
  assert "alpha for 3x" in text


@pytest.mark.parametrize("v", ("1", "2"))
@pytest.mark.parametrize("asked", ("--alpha 0.8", "--want 21", "--want 0.5"))
def test_picture(run, tmp_path, asked, v):
  file = tmp_path / "new" / "curve.png"
  text = run(f"{asked} --c 0.05 --v {v} --gammas 3 --plot {file}")
  assert f"written: {file}" in text
  assert file.read_bytes().startswith(b"\x89PNG")
  assert list(file.parent.iterdir()) == [file]


def test_picture_that_cannot_be_written(refusal, tmp_path):
  file = tmp_path / "curve.png"
  file.mkdir()
  line = refusal("--alpha=0.8", "--c=0.05", f"--plot={file}")
  assert line == f"--plot: {file}: Is a directory; give another file"
  assert list(tmp_path.iterdir()) == [file]


def test_picture_under_no_ones_home(run, tmp_path, monkeypatch):
  """An unknown user is a folder's name, as it is to the shell."""
  monkeypatch.chdir(tmp_path)
  run("--alpha 0.8 --c 0.05 --plot ~no.one/curve.png")
  assert (tmp_path / "~no.one" / "curve.png").is_file()


def test_picture_without_matplotlib(refusal, monkeypatch, tmp_path):
  monkeypatch.setattr(pictures.importlib.util, "find_spec", lambda _: None)
  file = tmp_path / "curve.png"
  line = refusal("--alpha", "0.8", "--c", "0.05", "--plot", str(file))
  assert line.startswith("--plot: matplotlib is not installed: pip install ")
  assert not file.exists()


@pytest.mark.parametrize(
    "options, line",
    [
        ("", "--alpha: give the acceptance rate, such as --alpha 0.8"),
        ("--alpha 0.8", "--c: give the time of a draft step over that of a"),
        ("--alpha", "--alpha: give a value"),
        ("--alpha 1.2 --c 0", "--alpha: give a number from 0 to 1, got '1.2'"),
        ("--alpha x --c 0", "--alpha: give a number from 0 to 1, got 'x'"),
        ("--alpha nan --c 0", "--alpha: give a number from 0 to 1, got 'nan'"),
        ("--alpha= --c 0", "--alpha: give a number from 0 to 1, got ''"),
        ("--alpha 0.8 --c -1", "--c: give a number from 0 to 1000, got '-1'"),
        ("--alpha 0.8 --c inf", "--c: give a number from 0 to 1000, got 'inf'"),
        ("--v 0 --c 0", "--v: give a number from 0.01 to 1000, got '0'"),
        ("--want 0 --c 0", "--want: give a number from 0.01 to 1000, got '0'"),
        ("--c-hat -1", "--c-hat: give a number from 0 to 1000, got '-1'"),
        ("--gammas 4,,8", f"--gammas: {WHOLE}, got ''"),
        ("--gammas 0", f"--gammas: {WHOLE}, got '0'"),
        ("--gammas \u0664", f"--gammas: {WHOLE}, got"),
        ("--most 1001", f"--most: {WHOLE}, got '1001'"),
        ("--plot a.pdf", "--plot: give a name that ends in .png, got 'a.pdf'"),
        ("--alpah 0.8", f"--alpah: {NO_SUCH}; did you mean --alpha?"),
        ("--gamma=4", f"--gamma: {NO_SUCH}; did you mean --gammas?"),
        ("--zzz", f"--zzz: {NO_SUCH}; --help lists all"),
        ("0.8 0.05", "'0.8': is not understood; options look like --alpha"),
    ],
)
def test_bad_input_is_one_line(refusal, options, line):
  assert refusal(*options.split()).startswith(line)


def test_help(capsys):
  assert advise.main(["advise", "--help"]) == 0
  text = capsys.readouterr().out
  for option in advise._OPTIONS:
    assert f"  {option} " in text
  assert "python -m specjax.advise --alpha 0.8 --c 0.05" in text


def test_parsing_needs_neither_jax_nor_matplotlib():
  """So the answer is there at once, on any machine with numpy."""
  code = (
      "import sys\n"
      "from specjax import advise\n"
      "assert advise.main(['advise', '--alpha=0.8', '--c=0.05']) == 0\n"
      "assert advise.main(['advise', '--alpha=8', '--c=0.05']) == 1\n"
      "heavy = {'jax', 'flax', 'matplotlib', 'absl'} & set(sys.modules)\n"
      "assert not heavy, heavy\n"
  )
  done = subprocess.run(
      [sys.executable, "-c", code], capture_output=True, text=True
  )
  assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr


def test_the_door_itself():
  command = [sys.executable, "-m", "specjax.advise", "--alpha", "2"]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 1
  assert done.stderr == (
      "specjax.advise: --alpha: give a number from 0 to 1, got '2'\n"
  )


def test_commands_of_the_document(run):
  """Each prints what docs/theory.md shows under it."""
  path = pathlib.Path(__file__).parents[1] / "docs" / "theory.md"
  shown = re.findall(
      r"^    \$ python -m specjax\.advise (.*)\n((?:    .*\n|\n)+)",
      path.read_text("utf-8"),
      re.MULTILINE,
  )
  assert len(shown) == 3
  for options, output in shown:
    assert run(options).strip() == textwrap.dedent(output).strip()


def test_a_reader_that_stops():
  """Such as head: no traceback."""
  read, write = os.pipe()
  os.close(read)
  command = [sys.executable, "-m", "specjax.advise", "--alpha=1", "--c=0"]
  done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE)
  os.close(write)
  assert (done.returncode, done.stderr) == (0, b"")


def test_read_raises_for_other_doors():
  with pytest.raises(UserError, match="^--c: "):
    advise.read(["advise", "--alpha", "0.8"])
