"""A report as a table: for the terminal and for Markdown."""

from typing import Any

from specjax import draft_section
from specjax.measure import categories

SAMPLED = "sampled: laws are tested by the test suite"
_FACTORS = {
    "sample": "Eq. 1 at the alpha of the timed rows, against that of all",
    "ends": "last rounds give more than a text has left",
    "tokens": "a timed round, against i.i.d. ones on texts as long",
    "verify": "v is not 1",
    "overhead": "of the loops beside their steps",
    "idle_rows": "rows of a batch end at different times",
}
# What a round's gain hangs on, in words.
_LOST = {"tokens": "tokens", "c": "c", "verify_cost": "v"}
_TREE = "a timed round, against i.i.d. ones of a chain: siblings add to it"
LOSSY = "LOSSY: the output law is not the target's"
NONE = "what is drafted depends on where a round begins: no law, no prediction"
READS = "laws depend on hidden states that only the target can give: no alpha"
_SURE = "rounds have as many drafts as their model is sure of; theory has gamma"
Rows = list[tuple[str, str, str]]


def rows(report: dict[str, Any], details: dict[str, Any]) -> Rows:
  """(what, figure, how it came about) of everything worth reading."""
  return _setting(report, details) + _drafts(report, details) + _speed(
      report, details
  ) + _outputs(report, details)


def _setting(report, details) -> Rows:
  config = report["config"]
  versions = ", ".join(f"{k} {v}" for k, v in details["versions"].items())
  return [
      ("config", config["name"], f"commit {report['commit'] or 'unknown'}"),
      ("device", report["device"], versions),
      ("target", config["target"]["checkpoint"], report["dtype"]),
      ("drafts", report["drafter"], shape(report)),
      *[
          ("SYNTHETIC", "", f"{report['synthetic']}: the figures are of speed")
      ][: bool(report["synthetic"])],
      ("verification", report["rule"], "" if report["lossless"] else LOSSY),
      ("texts", texts(config), f"{details['rows']} rows"),
      ("sampling", sampling(report), f"batch {report['batch']}"),
  ]


def texts(config) -> str:
  """The task, or the file that holds a person's own."""
  data = config["data"]
  return data["path"] if data["task"] == "file" else data["task"]


def shape(report) -> str:
  """Of a round's drafts, in words."""
  gamma, nodes = report["gamma"], report["nodes"]
  draft = report["config"]["draft"]
  if is_tree(report):
    kind = f"siblings {draft['siblings']}" if draft["tree"] else "grown"
    return f"trees of {nodes} nodes, depth {gamma}, {kind}"
  return f"gamma {gamma}" if gamma else ""


def is_tree(report) -> bool:
  """Whether the drafts of a round are a tree."""
  draft = report["config"]["draft"]
  grown = draft["dynamic"]["nodes"]
  if draft["kind"] == "suffix":
    grown = draft["suffix"]["nodes"]
  return bool(report["gamma"] and (draft["tree"] or grown))


def sampling(report) -> str:
  """The sampling settings in words."""
  values = report["sampling"]
  if values["temperature"] == 0 or values["top_p"] == 0:
    return "greedy"
  words = [f"temperature {values['temperature']:g}"]
  if values["top_k"]:
    words.append(f"top-k {values['top_k']}")
  if values["top_p"] < 1:
    words.append(f"top-p {values['top_p']:g}")
  return ", ".join(words)


def _drafts(report, details) -> Rows:
  by_position = " ".join(map(number, report["acceptance_by_position"]))
  most = report["gamma"] + 1
  places = f"{details['alpha_positions']} places of the target's own output"
  return [
      (
          "alpha",
          number(report["alpha"]),
          places if predicts(report) else unpredicted(report),
      ),
      *([] if predicts(report) else [_drafted(details)]),
      (
          "accepted by position",
          by_position or "-",
          "one of the siblings judged"
          if is_tree(report)
          else "of the drafts judged",
      ),
      (
          "block efficiency",
          number(report["block_efficiency"]),
          f"tokens a target pass, at most {most}",
      ),
  ]


def predicts(report) -> bool:
  """Whether theory is for these drafts, or there are none."""
  return report["predicted_speedup"]["theorem_3_8"] is not None


def unpredicted(report) -> str:
  """Why theory is not for these drafts."""
  if report["alpha"] is not None:
    return _SURE
  kind = report["config"]["draft"]["kind"]
  return READS if kind in draft_section.HEADS else NONE


def narrows(report) -> bool:
  """Whether a round may have fewer drafts than gamma, and a narrower pass."""
  found = report["predicted_speedup"]["from_tokens"]
  return bool(report["gamma"]) and found is None


def _drafted(details) -> tuple[str, str, str]:
  rounds = details["rounds"]
  return (
      "drafted a round",
      number(details["drafted"] / rounds),
      f"{details['empty_rounds']} of {rounds} rounds were without drafts",
  )


def _speed(report, details) -> Rows:
  took = details["milliseconds"]
  measured = report["measured_speedup"]
  rate = report["tokens_per_second"]
  ms = lambda key: f"{took[key]:.3g} ms"
  return [
      (
          "c",
          number(report["c"], 3),
          f"draft step {ms('draft_step')} over target step"
          f" {ms('target_step')}",
      ),
      (
          "verify cost v",
          number(report["verify_cost"]),
          f"{report['nodes'] + 1}-token step {ms('verify_step')} over it",
      ),
      *(_predicted(report) if predicts(report) else []),
      *_from_tokens(report),
      (
          "measured speed-up",
          f"{number(measured['median'])}x",
          f"decoding; {number(measured['low'])} to"
          f" {number(measured['high'])} in {len(details['speedups'])} repeats"
          f" over {details['timed_rows']} rows",
      ),
      *_break_even(report),
      (
          "end to end",
          f"{number(report['end_to_end_speedup'])}x",
          "encoder and prompt included",
      ),
      (
          "tokens per second",
          f"{rate['speculative']:.4g}",
          f"plain {rate['plain']:.4g}",
      ),
      ("compilation", f"{report['compile_seconds']:.1f} s", "timed apart"),
  ]


def _predicted(report) -> Rows:
  """The predicted speed-up, and the factors between it and the measured one."""
  predicted = report["predicted_speedup"]
  notes = _FACTORS | ({"tokens": _TREE} if is_tree(report) else {})
  return [
      (
          "predicted speed-up",
          f"{number(predicted['theorem_3_8'])}x",
          f"Theorem 3.8; with the measured v:"
          f" {number(predicted['with_verify_cost'])}x",
      ),
  ] + [
      (f"  x {name.replace('_', ' ')}", number(value), notes[name])
      for name, value in report["gap"].items()
  ]


def _from_tokens(report) -> Rows:
  """The speed-up that each kind of drafts should have by its tokens a round.

  Not where the factors behind Theorem 3.8 say as much.
  """
  out = []
  for i, (name, made) in enumerate(_kinds(report)):
    value = made["predicted_speedup"]["from_tokens"]
    if value is not None and (i or not predicts(made)):
      out.append((
          f"predicted{name}",
          f"{number(value)}x",
          "tokens a timed round / (gamma c + v), all of them measured",
      ))
  return out


def _kinds(report) -> list[tuple[str, dict[str, Any]]]:
  """Of each kind of drafts what tells it from others, and its figures."""
  several = report.get("drafters", {"": report})
  label = lambda name: f" {name}" * (len(several) > 1)
  return [(label(name), made) for name, made in several.items()]


def _break_even(report) -> Rows:
  """Of each kind of drafts: what costs most, and what it would have to be."""
  out = []
  for label, made in _kinds(report):
    if not (found := made["break_even"]):
      continue
    first, *others = sorted(
        found["lost"].items(), key=lambda pair: pair[1], reverse=True
    )
    times = lambda key, factor: f"{_LOST[key]} {number(factor)}x"
    out.append((
        f"  most lost to{label}",
        _LOST[first[0]],
        f"{number(first[1])}x; " + ", ".join(times(*pair) for pair in others),
    ))
    wanted = [
        f"{_LOST[key]} {number(found[key])}"
        for key in ("verify_cost", "c", "tokens")
        if found[key] is not None
    ]
    out.append((
        f"  1x at{label}",
        wanted[0] if wanted else "-",
        ", ".join(f"or {words}" for words in wanted[1:])
        or ("alone" if wanted else "no one of v, c and tokens alone does it"),
    ))
  return out


def _outputs(report, details) -> Rows:
  quality = report["quality"]
  count = report["mismatched_rows"]
  found = details["mismatches"]
  near = sum(mismatch["near_tie"] for mismatch in found)
  note = SAMPLED if count is None else f"of {details['rows']}"
  if near:
    note += f"; {near} at near ties (gap under {found[0]['bound']:g})"
  if not report["lossless"]:
    note = LOSSY + ("" if count is None else f"; {note}")
  out = [("rows that differ", "-" if count is None else str(count), note)]
  listed = [("", mismatch) for mismatch in found]
  # Of several kinds of drafts the first one's are those.
  for name, own in [*details.get("drafters", {}).items()][1:]:
    listed += [(f" {name}", mismatch) for mismatch in own["mismatches"]]
  for name, mismatch in sorted(listed, key=lambda pair: pair[1]["near_tie"]):
    kind = "a near tie" if mismatch["near_tie"] else "NOT a near tie"
    out.append((
        f"  row {mismatch['row']}{name}",
        f"token {mismatch['position']}",
        f"gap of plain's two best {mismatch['gap']:.2g}: {kind}; id"
        f" {mismatch['id']}",
    ))
  if quality["metric"]:
    out.append((
        {"bleu": "BLEU", "rougeLsum": "ROUGE-Lsum"}[quality["metric"]],
        f"{quality['speculative']:.2f}",
        f"plain {quality['plain']:.2f}",
    ))
  return out


def number(value: float | None, digits: int = 2) -> str:
  """A figure, or a dash where there is none."""
  return "-" if value is None else f"{value:.{digits}f}"


def text(report: dict[str, Any], details: dict[str, Any]) -> str:
  """For the terminal: three columns; long figures run over theirs."""
  lines = []
  for name, figure, note in rows(report, details):
    lines.append(f"{name:22}{figure:8}  {note}".rstrip())
  table = categories.text(report)
  return "\n".join(lines + ["", table] * bool(table))


def markdown(report: dict[str, Any], details: dict[str, Any]) -> str:
  """The same as a table of Markdown."""
  cell = lambda words: words.strip().replace("|", "\\|")
  lines = [
      f"# {report['config']['name']}",
      "",
      f"`{details['command']}`, {details['date']}",
      "",
      "| | | |",
      "|---|---|---|",
  ]
  for row in rows(report, details):
    lines.append(f"| {' | '.join(map(cell, row))} |")
  table = categories.markdown(report)
  return "\n".join(lines) + "\n" + f"\n{table}" * bool(table)
