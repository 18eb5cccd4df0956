"""Configs and the command line: what is taken, what is refused and how."""

import functools
import pathlib

import pytest

from specjax import command_line
from specjax import config as config_lib
from specjax import draft_section
from specjax import errors
from specjax import prepare
from specjax import sections

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
# The paper's gamma of each row at T = 0 and T = 1 (Table 2).
ROWS = {
    ("ende", "small"): (7, 7),
    ("ende", "base"): (7, 5),
    ("ende", "large"): (7, 3),
    ("cnndm", "small"): (5, 5),
    ("cnndm", "base"): (5, 3),
    ("cnndm", "large"): (3, 3),
}
SMALL = str(CONFIGS / "ende_t5small.py")


def read(*arguments, path=SMALL) -> sections.Experiment:
  return command_line.read(["run", f"--config={path}", *arguments])


def leaf(config, path):
  """The value of one option."""
  return functools.reduce(getattr, path.split("."), config)


def refusal(*arguments, path=SMALL) -> str:
  with pytest.raises(errors.UserError) as caught:
    read(*arguments, path=path)
  line = str(caught.value)
  assert "\n" not in line and "Traceback" not in line
  return line


@pytest.mark.parametrize("task,draft", ROWS)
def test_paper_rows(task, draft):
  """Gamma, temperature and checkpoints of each row, by variant."""
  path = CONFIGS / f"{task}_t5{draft}.py"
  greedy, sampled = ROWS[task, draft]
  for variant, temperature, gamma in (("", 0, greedy), (":T1", 1, sampled)):
    config = read(path=f"{path}{variant}")
    assert config.draft.gamma == gamma
    assert config.sampling.temperature == temperature
    assert config.target.checkpoint == "google/flan-t5-xxl"
    assert config.draft.checkpoint == f"google/flan-t5-{draft}"
    assert config.data.task == {"ende": "wmt14_ende", "cnndm": "cnndm"}[task]
    assert config.decode.batch == 1
    assert config.name == f"{task}_t5{draft}{variant}"
  config = read(path=f"{path}:t5,T1")
  assert config.target.checkpoint == "google-t5/t5-11b"
  assert config.draft.checkpoint == f"google-t5/t5-{draft}"
  assert (config.sampling.temperature, config.draft.gamma) == (1, sampled)
  config = read(path=f"{path}:mini,T1")
  assert config.target.checkpoint == "mini/target"
  assert config.draft.checkpoint == f"mini/{draft}_distilled"
  references = read(path=f"{path}:mini,references")
  assert references.draft.checkpoint == f"mini/{draft}"
  assert config.data.task == {"ende": "mini_ende", "cnndm": "mini_summ"}[task]
  assert (config.decode.dtype, config.decode.batch) == ("bfloat16", 1)
  assert config.sampling.temperature == 1


@pytest.mark.parametrize("task,draft", ROWS)
def test_docstrings_name_their_own_command(task, draft):
  name = f"configs/{task}_t5{draft}.py"
  text = (CONFIGS.parent / name).read_text()
  assert f"python -m specjax.run --config {name}\n" in text
  assert "11B" in text and "results/table2_and_4.md" in text


@pytest.mark.parametrize("variant", ("mimi", "mini,t5", "T1,x", "references"))
def test_unknown_variants(variant):
  line = refusal(path=f"{SMALL}:{variant}")
  assert variant in line and "T1, t5, mini" in line


@pytest.mark.parametrize(
    "argument,parts",
    (
        ("--config.decode.gama=4", ("decode.gama", "section decode has")),
        ("--config.data.text=", ("data.text: is empty",)),
        ("--config.draft.gama=4", ("draft.gama", "draft.gamma?")),
        ("--config.decode.gamma=4", ("decode.gamma", "draft.gamma?")),
        ("--config.gamma=4", ("gamma: ", "draft.gamma?")),
        ("--gamma=4", ("gamma: ", "draft.gamma?")),
        ("--num-drafts=4", ("num-drafts", "no such option")),
        ("--config.draft.num-drafts=4", ("num-drafts", "section draft has")),
        ("--config.data.max-source-tokens=4", ("data.max_source_tokens?",)),
        ("--config.draft.gamma=four", ("draft.gamma: give a whole", "'four'")),
        ("--config.draft.gamma=3.5", ("draft.gamma: give a whole", "'3.5'")),
        ("--config.draft.gamma=-1", ("draft.gamma: give 1 or more", "-1")),
        ("--config.draft.gamma=0", ("draft.gamma: give 1 or more", "0")),
        ("--config.draft.argmax=maybe", ("draft.argmax: give true",)),
        ("--config.draft.top_p=x", ("draft.top_p: give a number",)),
        ("--config.draft.top_k=-2", ("draft.top_k: ", "-2")),
        ("--config.draft.kind=tree", ("draft.kind: give one of model",)),
        ("--config.draft={'gamma': 4}", ("draft: is a section",)),
        ("--config.sampling.temperature=-1", ("sampling.temperature: ", "-1")),
        ("--config.sampling.temperature=nan", ("sampling.temperature: ",)),
        ("--config.sampling.top_k=-1", ("sampling.top_k: ",)),
        ("--config.sampling.top_p=1.5", ("sampling.top_p: ",)),
        ("--config.decode.suppressed=x", ("decode.suppressed: ", "x")),
        ("--config.decode.suppressed=(-3,)", ("decode.suppressed: ",)),
        ("--config.decode.forced_first=-3", ("decode.forced_first: ",)),
        ("--config.decode.min_new_tokens=-3", ("decode.min_new_tokens: ",)),
        ("--config.decode.max_new_tokens=0", ("decode.max_new_tokens: ",)),
        ("--config.decode.batch=0", ("decode.batch: ",)),
        ("--config.decode.seed=-1", ("decode.seed: ",)),
        ("--config.decode.seed=4294967296", ("decode.seed: ",)),
        ("--config.decode.dtype=int8", ("decode.dtype: give one of float32",)),
        ("--config.data.task=wmt", ("data.task: ", "wmt14_ende")),
        ("--config.data.rows=-1", ("data.rows: ",)),
        ("--config.verify.lenience=0", ("verify.lenience: ",)),
        ("--config.verify.residual=half", ("verify.residual: ",)),
        ("--config.measure.repeats=0", ("measure.repeats: ",)),
        ("config.draft.gamma=4", ("config.draft.gamma=4: is not understood",)),
        ("", ("'': is not understood",)),
        ("--flagfile=/nowhere", ("flagfile: there is no such option",)),
        ("--undefok=gamma", ("undefok: there is no such option",)),
        # Bounds, of which some would fill any memory and others any integer.
        ("--config.draft.gamma=10000000000", ("draft.gamma: give 1,024 or",)),
        ("--config.draft.gamma=1" + 30 * "0", ("draft.gamma: ", "digits")),
        ("--config.draft.gamma=1" + 5000 * "0", ("draft.gamma: ",)),
        ("--config.data.rows=99999999999", ("data.rows: give 1,000,000,000",)),
        (
            "--config.data.max_source_tokens=3000000000",
            ("data.max_source_tokens: give 65,536 or less",),
        ),
        (
            "--config.decode.max_new_tokens=3000000000",
            ("decode.max_new_tokens: give 65,536 or less", "3000000000"),
        ),
        (
            "--config.decode.min_new_tokens=3000000000",
            ("decode.min_new_tokens: give 65,536 or less",),
        ),
        (
            "--config.decode.min_new_tokens=129",
            ("decode.min_new_tokens: give decode.max_new_tokens (128) or",),
        ),
        ("--config.decode.batch=99999999999", ("decode.batch: give 65,536",)),
        ("--config.decode.suppressed=(2147483648,)", ("decode.suppressed: ",)),
        ("--config.decode.suppressed=(1.5,)", ("decode.suppressed: ", "1.5")),
        ("--config.decode.forced_first=2147483648", ("decode.forced_first",)),
        ("--config.measure.repeats=99999999999", ("measure.repeats: ",)),
        ("--config.measure.warmup=99999999999", ("measure.warmup: ",)),
        ("--config.measure.timed_rows=99999999999", ("measure.timed_rows: ",)),
        ("--config.measure.steps=99999999999", ("measure.steps: ",)),
        ("--config.measure.traced_rows=1001", ("measure.traced_rows: ",)),
        ("--config.measure.traced_rows=-1", ("measure.traced_rows: ",)),
        ("--config.sampling.top_p=inf", ("sampling.top_p: ", "inf")),
        ("--config.verify.lenience=nan", ("verify.lenience: ", "nan")),
        # Neither a file name nor a report can hold these.
        ("--config.data.text=\udcff", ("data.text: give text in UTF-8",)),
        ("--config.out=a\0b", ("out: give text without NUL",)),
    ),
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_refused_options(argument, parts):
  """Key and section are named, in one line (unslothai/unsloth#10452)."""
  line = refusal(argument)
  for part in parts:
    assert part in line
  assert len(line) < 300


LIMITS = sections.LIMITS | draft_section.LIMITS


@pytest.mark.parametrize("path, limits", LIMITS.items())
def test_limits(path, limits):
  """Both ends are taken, what lies beyond is not."""
  # A bound of its own that follows another option.
  late = path == "decode.min_new_tokens"
  more = ["--config.decode.max_new_tokens=65536"] * late
  at = f"--config.{path}="
  for value in limits:
    assert leaf(read(*more, f"{at}{value}"), path) == value
  low, high = limits
  assert f"{path}: give {low} or more" in refusal(*more, f"{at}{low - 1}")
  assert f"{path}: give {high:,} or less" in refusal(*more, f"{at}{high + 1}")


SIMULATED = ("--config.draft.kind=simulated", "--config.draft.alpha=0.8")
# Another value of every option; that the runs obey is tested in test_run.
VALUES = {
    "target.checkpoint": ("a/b", "a/b"),
    "draft.kind": ("none", "none"),
    "draft.checkpoint": ("a/b", "a/b"),
    "draft.table": ("a/b", "a/b"),
    "draft.heads": ("a/b", "a/b"),
    "draft.alpha": (".5", 0.5),
    "draft.paced": ("true", True),
    "draft.gamma": ("4", 4),
    "draft.argmax": ("true", True),
    "draft.temperature": ("0.5", 0.5),
    "draft.top_k": ("3", 3),
    "draft.top_p": (".5", 0.5),
    "draft.tree": ("[[0], [1]]", "[[0], [1]]"),
    "draft.siblings": ("distinct", "distinct"),
    "draft.confidence": ("0.25", 0.25),
    "draft.dynamic.nodes": ("24", 24),
    "draft.dynamic.top_k": ("4", 4),
    "draft.dynamic.depth": ("3", 3),
    "draft.lookup.min_n": ("2", 2),
    "draft.lookup.max_n": ("5", 5),
    "draft.lookup.latest": ("true", True),
    "draft.lookup.source": ("false", False),
    "draft.suffix.nodes": ("12", 12),
    "draft.suffix.reach": ("32", 32),
    "draft.suffix.factor": ("2", 2.0),
    "draft.suffix.offset": ("-.5", -0.5),
    "draft.suffix.least": (".3", 0.3),
    "draft.suffix.source": ("false", False),
    "draft.suffix.learns": ("false", False),
    "draft.suffix.memory": ("99", 99),
    "draft.suffix.load": ("a b", "a b"),
    "draft.suffix.save": ("a/b", "a/b"),
    "draft.mixed.copies": ("suffix", "suffix"),
    "draft.mixed.model": ("false", False),
    "draft.mixed.model_gamma": ("2", 2),
    "draft.switch.on": ("false", False),
    "draft.switch.c": (".2", 0.2),
    "draft.switch.matching": (".1", 0.1),
    "draft.switch.v": ("1.5", 1.5),
    "draft.switch.credit": ("3", 3.0),
    "draft.switch.share": (".5", 0.5),
    "draft.switch.margin": (".2", 0.2),
    "data.task": ("file", "file"),
    "data.path": ("x=y.jsonl", "x=y.jsonl"),
    "data.split": ("train", "train"),
    "data.rows": ("5", 5),
    "data.text": ("1 = 1: --config.x, 'é'", "1 = 1: --config.x, 'é'"),
    "data.max_source_tokens": ("9", 9),
    "data.chat": ("true", True),
    "sampling.temperature": ("2", 2.0),
    "sampling.top_k": ("7", 7),
    "sampling.top_p": (".9", 0.9),
    "decode.max_new_tokens": ("8", 8),
    "decode.min_new_tokens": ("2", 2),
    "decode.suppressed": ("(3, 4)", (3, 4)),
    "decode.forced_first": ("5", 5),
    "decode.batch": ("2", 2),
    "decode.dtype": ("float32", "float32"),
    "decode.seed": ("1", 1),
    "decode.prefill_chunk": ("7", 7),
    "mesh.data": ("2", 2),
    "mesh.model": ("4", 4),
    "mesh.draft": ("sharded", "sharded"),
    "hosts.count": ("2", 2),
    "hosts.index": ("1", 1),
    "hosts.coordinator": ("here:1234", "here:1234"),
    "verify.rule": ("block", "block"),
    "verify.lenience": (".5", 0.5),
    "verify.residual": ("lenient", "lenient"),
    "verify.epsilon": (".2", 0.2),
    "verify.delta": (".5", 0.5),
    "measure.repeats": ("3", 3),
    "measure.warmup": ("3", 3),
    "measure.timed_rows": ("3", 3),
    "measure.steps": ("3", 3),
    "measure.traced_rows": ("0", 0),
    "out": ("here", "here"),
}


def test_every_option_has_a_value_here():
  assert set(VALUES) == set(config_lib.leaves())


@pytest.mark.parametrize("path", VALUES)
def test_options_arrive(path):
  """Given on the command line, in one word or two, and changed by it."""
  written, value = VALUES[path]
  # What goes with some drafts, or one rule, only.
  more = {
      "draft.alpha": ["--config.draft.kind=simulated"],
      "draft.paced": list(SIMULATED),
      "draft.siblings": ["--config.draft.tree=[[0]]"],
      "verify.epsilon": ["--config.verify.rule=typical"],
      "verify.delta": ["--config.verify.rule=typical"],
      "hosts.count": ["--config.hosts.coordinator=here:1234"],
      "hosts.index": [
          "--config.hosts.count=2", "--config.hosts.coordinator=here:1234"
      ],
  }.get(path, [])
  assert leaf(read(), path) != value
  got = leaf(read(*more, f"--config.{path}={written}"), path)
  assert got == value and type(got) is type(value)
  if value is not True and value is not False:
    assert leaf(read(*more, f"--config.{path}", written), path) == value


def test_last_of_two_counts():
  config = read("--config.draft.gamma=2", "--config.draft.gamma=4")
  assert config.draft.gamma == 4


def test_every_kind_has_a_builder():
  assert set(prepare.DRAFTS) == set(draft_section.KINDS)



@pytest.mark.parametrize(
    "arguments, part",
    (
        (SIMULATED[:1], "draft.alpha: simulated drafts need it; give a number"),
        (SIMULATED[1:], "draft.alpha: only draft.kind=simulated has it"),
        (("--config.draft.paced=true",), "draft.paced: only draft.kind=sim"),
        (
            ("--config.draft.kind=bigram", SIMULATED[1]),
            "draft.alpha: only draft.kind=simulated has it",
        ),
        ((*SIMULATED, "--config.draft.alpha=1.1"), "draft.alpha: simulated"),
        ((*SIMULATED, "--config.draft.alpha=-0.1"), "draft.alpha: simulated"),
        ((*SIMULATED, "--config.draft.alpha=nan"), "draft.alpha: simulated"),
        ((*SIMULATED, "--config.draft.alpha=x"), "draft.alpha: give a number"),
        (
            (*SIMULATED, "--config.sampling.temperature=1"),
            "sampling.temperature: give 0: simulated drafts replay greedy",
        ),
        ((*SIMULATED, "--config.verify.lenience=.5"), "verify.lenience: give"),
        ((*SIMULATED, "--config.draft.argmax=true"), "draft.argmax: simulated"),
        ((*SIMULATED, "--config.draft.temperature=1"), "draft.temperature: "),
        ((*SIMULATED, "--config.draft.top_k=0"), "draft.top_k: simulated"),
        ((*SIMULATED, "--config.draft.top_p=1"), "draft.top_p: simulated"),
        ((*SIMULATED, "--config.draft.gamma=0"), "draft.gamma: give 1 or more"),
    ),
)
def test_what_does_not_go_with_a_simulated_rate(arguments, part):
  """Refused before anything is loaded."""
  assert part in refusal(*arguments)


TREE = ("--config.draft.tree=[[0],[1]]",)


@pytest.mark.parametrize(
    "arguments, part",
    (
        ((*TREE, "draft.siblings=best"), "draft.siblings: give one of top"),
        (("draft.siblings=distinct",), "draft.siblings: only a tree has some"),
        ((*TREE, "draft.argmax=true"), "draft.argmax: a tree of"),
        (
            (*TREE, "draft.dynamic.nodes=9"),
            "draft.tree: draft.dynamic.nodes gives a tree of its own",
        ),
        (
            ("draft.kind=lookup", "draft.dynamic.nodes=9"),
            "draft.dynamic.nodes: drafts of kind lookup are no trees",
        ),
        (
            ("draft.dynamic.nodes=9", "draft.argmax=true"),
            "draft.argmax: a tree of",
        ),
        (
            ("draft.dynamic.nodes=9", "draft.dynamic.depth=0"),
            "draft.dynamic.depth: give a whole number from 1 to 64",
        ),
        (
            ("draft.dynamic.nodes=1025",),
            "draft.dynamic.nodes: give a whole number from 1 to 1024",
        ),
        ((*TREE, "draft.kind=lookup"), "draft.tree: drafts of kind lookup are"),
        ((*TREE, "draft.kind=mixed"), "draft.tree: drafts of kind mixed are"),
        (("draft.tree=[[0, 0]]",), "draft.tree: give the path above it"),
        (("draft.tree=no.json",), "draft.tree: 'no.json' is no file here"),
        ((*TREE, "verify.lenience=.5"), "verify.lenience: is for chains"),
        ((*TREE, "verify.rule=block"), "verify.rule: block verification is"),
        (
            ("verify.rule=block", "draft.argmax=true"),
            "verify.rule: block verification is",
        ),
        (
            ("verify.rule=block", "draft.kind=suffix"),
            "verify.rule: block verification is",
        ),
        (
            ("verify.rule=block", "verify.residual=lenient"),
            "verify.residual: is for chains",
        ),
        (("verify.epsilon=.2",), "verify.epsilon: is for verify.rule=typical"),
        (("verify.rule=greedy",), "verify.rule: give one of token, block"),
        (
            ("verify.rule=typical", "verify.delta=2"),
            "verify.delta: give a number in (0, 1]",
        ),
    ),
)
def test_what_does_not_go_with_a_tree_or_a_rule(arguments, part):
  """Refused before anything is loaded."""
  words = [
      a if a.startswith("--") else f"--config.{a}" for a in arguments
  ]
  assert part in refusal(*words)


def test_rules_by_name():
  name = lambda *words: read(*(f"--config.{w}" for w in words)).rule().name
  assert name() == "token" and name("draft.tree=[[0]]") == "tree"
  assert name("draft.kind=suffix") == "token"
  assert name("draft.kind=suffix", "draft.suffix.nodes=9") == "tree"
  # Other kinds don't look at it.
  assert name("draft.kind=lookup", "draft.suffix.nodes=9") == "token"
  assert name("verify.rule=block") == "block"
  assert name("verify.rule=typical", "draft.tree=[[0]]") == "typical"


COPIED = ("--config.draft.kind=lookup",)
SUFFIX = ("--config.draft.kind=suffix",)
MIXED = ("--config.draft.kind=mixed",)


@pytest.mark.parametrize(
    "arguments, part",
    (
        ((*COPIED, "lookup.min_n=0"), "draft.lookup.min_n: give a whole"),
        ((*COPIED, "lookup.min_n=4"), "draft.lookup.max_n: give a whole"),
        ((*COPIED, "lookup.latest=2"), "draft.lookup.latest: give true or"),
        ((*COPIED, "argmax=true"), "draft.argmax: copied drafts are not drawn"),
        ((*SUFFIX, "top_k=3"), "draft.top_k: copied drafts are not drawn"),
        ((*SUFFIX, "gamma=64"), "draft.suffix.reach: give a whole number from"),
        ((*SUFFIX, "suffix.least=2"), "draft.suffix.least: give a number from"),
        ((*SUFFIX, "suffix.factor=nan"), "draft.suffix.factor: give a number"),
        ((*SUFFIX, "suffix.nodes=-1"), "draft.suffix.nodes: give a whole num"),
        (
            (*SUFFIX, "suffix.nodes=80", "gamma=70", "suffix.reach=99"),
            "draft.suffix.nodes: a tree is at most 64 deep",
        ),
        (
            (*SUFFIX, "suffix.nodes=8", "switch.on=true"),
            "draft.switch.on: it is for chains",
        ),
        (
            (*MIXED, "suffix.nodes=8", "mixed.copies=suffix"),
            "draft.suffix.nodes: only chains are mixed",
        ),
        ((*SUFFIX, "suffix.memory=1"), "draft.suffix.memory: give 0, or 2"),
        (
            (*SUFFIX, "suffix.memory=0", "suffix.load=x"),
            "draft.suffix.load: give draft.suffix.memory",
        ),
        ((*MIXED, "mixed.copies=model"), "draft.mixed.copies: give one of"),
        ((*MIXED, "lookup.max_n=0"), "draft.lookup.max_n: give a whole"),
        ((*MIXED, "mixed.model_gamma=0"), "draft.mixed.model_gamma: give 1"),
        ((*MIXED, "switch.v=-1"), "draft.switch.v: give a number from 0"),
        ((*MIXED, "switch.c=nan"), "draft.switch.c: give a number from 0"),
        ((*MIXED, "switch.matching=-1"), "draft.switch.matching: give a numb"),
        ((*MIXED, "switch.share=-1"), "draft.switch.share: give a number fro"),
        (
            ("--config.draft.kind=model", "switch.on=true"),
            "draft.switch.on: only drafts that are copied",
        ),
        ((*MIXED, "mixed.model=false", "top_p=.5"), "draft.top_p: copied"),
        ((*MIXED, "lookup.max-n=3"), "did you mean draft.lookup.max_n?"),
        ((*COPIED, "lookup=3"), "draft.lookup: is a section"),
    ),
)
def test_what_does_not_go_with_copies(arguments, part):
  """Refused before anything is loaded; key and section are named."""
  kind, *more = arguments
  more = [f"--config.draft.{argument}" for argument in more]
  assert part in refusal(kind, *more)
  # Other kinds don't look at it.
  if part.startswith("draft.lookup.m"):
    refusal(kind, *more)
    assert read("--config.draft.kind=none", *more)


def test_names_of_drafts():
  """As reports have them."""
  name = lambda *arguments: read(*arguments).draft.name
  assert name() == "model:google/flan-t5-small"
  table = "--config.draft.table=a/b"
  assert name("--config.draft.kind=bigram", table) == "bigram:a/b"
  assert name("--config.draft.kind=unigram") == "unigram:mini/bigram"
  assert name(*SIMULATED) == "simulated:alpha=0.8"
  assert name(*COPIED) == "lookup" and name(*SUFFIX) == "suffix"
  assert name(*MIXED) == "mixed:lookup+google/flan-t5-small"
  alone = "--config.draft.mixed.model=false"
  suffix = "--config.draft.mixed.copies=suffix"
  assert name(*MIXED, alone, suffix) == "mixed:suffix"
  assert name("--config.draft.kind=none") == "none"
  # Greedy by another name.
  top_p = ("--config.sampling.temperature=1", "--config.sampling.top_p=0")
  assert read(*SIMULATED, *top_p).draft.alpha == 0.8


def test_greedy_requests_draft_greedily():
  config = read("--config.draft.temperature=.5")
  assert config.draft_settings((1,)).temperature == 0
  config = read(
      "--config.draft.temperature=.5", "--config.sampling.temperature=1"
  )
  assert config.draft_settings((1,)).temperature == 0.5
  assert config.settings((1,)).temperature == 1


@pytest.mark.parametrize(
    "text,part",
    (
        ("x = 1", "has no get_config"),
        ("def get_config(:", "invalid syntax"),
        ("import nowhere_to_be_found", "nowhere_to_be_found"),
        ("get_config = lambda: {}", "must return a ConfigDict"),
        ("get_config = lambda: {}['a']", "mine.py, line 1: KeyError: 'a'"),
        ("\n\nx = nope", "mine.py, line 3: NameError: name 'nope' is not"),
        ("def get_config():\n  return nope", "line 2: NameError: name 'nope'"),
        ("def f():\n  assert False\nget_config = f", "line 2: AssertionError"),
        ("def get_config():\n  1 / 0", "line 2: ZeroDivisionError: division"),
        ("f = lambda: f()\nget_config = f", "line 1: RecursionError: maximum"),
        ("def get_config():\n  exit(0)", "line 2: SystemExit: 0"),
        ("import sys\nsys.exit()", "line 2: SystemExit"),
        ("raise ImportError", "mine.py, line 1: ImportError"),
        ("open('/nowhere/to/be/found')", "line 1: FileNotFoundError: "),
        ("\nx = (", "mine.py, line 2: SyntaxError: '(' was never closed"),
        ("if x:\ny", "mine.py, line 2: IndentationError: expected an"),
        ("x = '\0'", "mine.py"),
        ("get_config = 3", "mine.py: TypeError: 'int' object is not callable"),
        ("def get_config(a): pass", "mine.py: TypeError: get_config() missing"),
        ("raise ValueError('a' * 9999)", "mine.py, line 1: ValueError: aaa"),
        (
            "from specjax import config\n"
            "def get_config():\n"
            "  c = config.default()\n"
            "  c[3] = 4\n"
            "  return c\n",
            "mine.py: TypeError: '<' not supported between",
        ),
        (
            "from ml_collections import config_dict\n"
            "from specjax import config\n"
            "def get_config():\n"
            "  c = config.default()\n"
            "  c.draft.top_k = config_dict.required_placeholder(int)\n"
            "  return c\n",
            "mine.py: RequiredValueError: None value found in required",
        ),
        (
            "from specjax import config\n"
            "def get_config():\n"
            "  c = config.default()\n"
            "  c.draft.gamma = 10**5000\n"
            "  return c\n",
            "options: ",
        ),
        (
            "from specjax import config\n"
            "def get_config():\n"
            "  c = config.default()\n"
            "  c.lock().draft.gama = 4\n"
            "  return c\n",
            'line 4: AttributeError: \'Key "gama" does not exist',
        ),
        (
            "from specjax import config\n"
            "def get_config():\n"
            "  c = config.default()\n"
            "  c.draft.gama = 4\n"
            "  return c\n",
            "draft.gama: there is no such option; did you mean draft.gamma?",
        ),
        (
            "from specjax import config\n"
            "def get_config():\n"
            "  c = config.default()\n"
            "  del c.draft.gamma\n"
            "  return c\n",
            "draft.gamma: the config file took it away",
        ),
        (
            "from specjax import config\n"
            "def get_config():\n"
            "  c = config.default()\n"
            "  c.draft.gamma = 'four'\n"
            "  return c\n",
            "config: ",
        ),
        (
            "from specjax import config\n"
            "def get_config():\n"
            "  c = config.default()\n"
            "  c.draft.gamma = True\n"
            "  return c\n",
            "draft.gamma: give a whole number, got True",
        ),
    ),
)
def test_faulty_config_files(tmp_path, text, part):
  path = tmp_path / "mine.py"
  path.write_text(text)
  line = refusal(path=path)
  assert part in line and len(line) < 400


def test_fault_in_what_a_config_file_imports(tmp_path, monkeypatch):
  """The line that is named is the config file's own."""
  (tmp_path / "helper_with_a_fault.py").write_text("\n\n\nx = (\n")
  path = tmp_path / "mine.py"
  path.write_text("\nimport helper_with_a_fault\n")
  monkeypatch.syspath_prepend(tmp_path)
  line = refusal(path=path)
  assert "mine.py, line 2: SyntaxError: '(' was never closed" in line
  assert "helper_with_a_fault.py, line 4" in line


@pytest.mark.parametrize("name", ("größe é.py", "a:b.py"))
def test_odd_names_of_config_files(tmp_path, name):
  """A colon parts the variant only where no file is named like that."""
  path = tmp_path / name
  path.write_text(pathlib.Path(SMALL).read_text("utf-8"), "utf-8")
  assert read(path=path).draft.checkpoint == "google/flan-t5-small"


def test_no_config_file():
  assert "nowhere.py is no file" in refusal(path="nowhere.py")
  assert "configs is no file" in refusal(path=CONFIGS)
  assert "aaa" in refusal(path=5000 * "a")
  with pytest.raises(errors.UserError, match="--config configs/ende_t5small"):
    command_line.read(["run"])
  with pytest.raises(errors.UserError, match="--config configs/ende_t5small"):
    command_line.read(["run", "--config"])


@pytest.mark.parametrize(
    "argument, part",
    (
        ("--config.stepz=3", "stepz: there is no such option; did you mean st"),
        ("--config.size=3", "did you mean models.one.size or models.two.size?"),
        ("--config.other=3", "the config file's own are models.one.size"),
        ("--config.steps=x", "--config.steps=x"),
        ("--config.models=3", "models: is a section; give its options, such"),
        ("--flagfile=/nowhere", "flagfile: there is no such option"),
        ("--foo", "foo"),
        ("steps=3", "steps=3: is not understood"),
    ),
)
def test_refused_options_of_other_doors(tmp_path, argument, part):
  path = tmp_path / "mine.py"
  path.write_text(
      "from ml_collections import config_dict\n"
      "def get_config():\n"
      "  sizes = dict(one=dict(size=1), two=dict(size=2))\n"
      "  return config_dict.create(steps=8, models=sizes)\n"
  )
  with pytest.raises(errors.UserError) as caught:
    command_line.read_values(["train", f"--config={path}", argument])
  assert part in str(caught.value) and "\n" not in str(caught.value)


def test_usage_lists_every_option():
  text = command_line.usage()
  assert all(f"--config.{path}=" in text for path in config_lib.leaves())
