"""Ways to damage a file, drawn with a seed.

A Damage says what was done, and whether its reader must refuse it: others may
be of no consequence.
"""

import dataclasses
import json
import math
import os
import pathlib
import pickle
import random
import re
import shutil
import struct
from typing import Any, Callable

import numpy as np

# What has been unpickled makes this file.
TRAP = "unpickled"
# Beside the folder that is read.
OUTSIDE = "outside"
ODD = (
    None, True, False, -1, 0, 1, 7, 2**31, 2**53 + 1, 2**60, -(2**60), 10**30,
    0.5, -0.0, 1e308, math.nan, math.inf, "", "x", "x" * 5000, "a\nb",
    "\x1b[31m", "\ud800", "\0", "../../x", "/etc/passwd", [], [0], [[]], {},
    {"a": 1}, [[[[[[[[]]]]]]]],
)
WORDS = (0, 1, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1)
_TYPES = ("F64", "F16", "BF16", "I8", "I64", "U32", "BOOL", "F8_E4M3", "odd")


@dataclasses.dataclass(frozen=True)
class Damage:
  """What was done.

  Attributes:
    what: in a few words.
    refused: nobody may take it.
  """

  what: str
  refused: bool = False


@dataclasses.dataclass(frozen=True)
class Trap:
  """Unpickling it makes a file."""

  path: str

  def __reduce__(self):
    return pathlib.Path.touch, (pathlib.Path(self.path),)


def damage(rng: random.Random, folder: pathlib.Path) -> Damage:
  """Damages one of the files in a folder."""
  files = sorted(path for path in folder.rglob("*") if path.is_file())
  path = rng.choice(files)
  own = _OWN.get(path.suffix, ())
  # What knows the kind of file finds more than what does not.
  ways = own if own and rng.random() < 0.65 else _ANY
  way = rng.choice(ways)
  done = way(rng, path)
  where = path.relative_to(folder)
  return dataclasses.replace(done, what=f"{where}: {way.__name__} {done.what}")


# --- any file ---------------------------------------------------------------


def _rewrite(path: pathlib.Path, content: bytes, what="", refused=False):
  if content == path.read_bytes():
    return Damage("nothing")
  path.write_bytes(content)
  # These know what they should hold.
  return Damage(what, refused or path.suffix == ".kept")


def cut(rng, path):
  """Some of its end is gone."""
  content = path.read_bytes()
  size = rng.choice([0, 1, len(content) // 2, rng.randrange(len(content) + 1)])
  # The end of a GGUF file may be padding.
  spare = {".safetensors": 0, ".gguf": 64}.get(path.suffix, len(content))
  strict = len(content) - size > spare
  return _rewrite(path, content[:size], f"at {size}", strict)


def flip(rng, path):
  """Some bytes are others; most of them near the front."""
  content = bytearray(path.read_bytes() or b"\0")
  for _ in range(rng.choice([1, 1, 2, 5, 50])):
    end = rng.choice([len(content), min(len(content), 400)])
    content[rng.randrange(end)] = rng.randrange(256)
  return _rewrite(path, bytes(content))


def word(rng, path):
  """A number of 4 or 8 bytes is an odd one, in either order of bytes."""
  content = bytearray(path.read_bytes())
  size = rng.choice([4, 8])
  value = rng.choice(WORDS) % 2 ** (8 * size)
  at = rng.randrange(max(1, len(content) - size))
  order = rng.choice(["little", "big"])
  content[at : at + size] = value.to_bytes(size, order)
  return _rewrite(path, bytes(content), f"{value} at {at}")


def longer(rng, path):
  """Something stands behind it, or in its middle."""
  content = path.read_bytes()
  at = rng.choice([len(content), rng.randrange(len(content) + 1)])
  more = rng.choice([b"\0", b"}", b"\xff\xfe", b"x" * 5000, content[:200]])
  return _rewrite(path, content[:at] + (more or b"\n") + content[at:])


def other(rng, path):
  """It is of another kind."""
  content = rng.choice([
      b"\0" * 500, b"PK\x03\x04" + b"\0" * 100, b"[" * 100_000,
      b'{"a":' * 50_000, b"9" * 5000, b"{}", b"[]", b"null", b'""', b"\xff" * 9,
      b"\x80\x02}q\0.", b"GGUF", b"\x93NUMPY\x01\0", b"\n\n\n",
      "{}".encode("utf-16"), b"\xef\xbb\xbf{}", b"\x1f\x8b\x08\0",
  ])
  return _rewrite(path, content, repr(content[:8]))


def encoded(rng, path):
  """The same text in another encoding."""
  text = path.read_bytes().decode("latin-1")
  code = rng.choice(["utf-16", "utf-16-be", "utf-8-sig", "utf-7"])
  return _rewrite(path, text.encode(code), code)


def trap(rng, path):
  """A pickle, which makes a file when it is read."""
  made = Trap(str(_beside(path) / TRAP))
  return _rewrite(path, pickle.dumps(made, rng.choice([2, 4])))


def folder_instead(rng, path):
  """A folder of its name."""
  del rng
  path.unlink()
  path.mkdir()
  return Damage("")


def link(rng, path):
  """A link: to a copy outside, to nothing, to itself, to a folder."""
  outside = _beside(path) / OUTSIDE
  outside.mkdir(exist_ok=True)
  shutil.copyfile(path, outside / path.name)
  path.unlink()
  to = rng.choice([outside / path.name, outside / "none", path, outside])
  path.symlink_to(to)
  return Damage(f"to {to.name}")


def pipe(rng, path):
  """A pipe that nobody writes to."""
  del rng
  path.unlink()
  os.mkfifo(path)
  return Damage("")


def _beside(path: pathlib.Path) -> pathlib.Path:
  """The folder of all that a case has made."""
  return next(x for x in path.parents if (x / "case").exists())


# --- JSON -------------------------------------------------------------------


def edited(rng: random.Random, value: Any) -> Any:
  """A value with one place of it changed."""
  if isinstance(value, dict) and value and rng.random() < 0.9:
    made, key = dict(value), rng.choice(list(value))
    way = rng.random()
    if way < 0.7:
      made[key] = edited(rng, value[key])
    elif way < 0.85:
      del made[key]
    else:
      made[rng.choice(["", "a\nb", "x" * 3000, "odd", key + "x"])] = made.pop(
          key
      )
    return made
  if isinstance(value, list) and value and rng.random() < 0.8:
    made, at = list(value), rng.randrange(len(value))
    way = rng.random()
    if way < 0.7:
      made[at] = edited(rng, value[at])
    elif way < 0.85:
      del made[at]
    else:
      made.insert(at, made[at])
    return made
  return rng.choice(ODD)


def value(rng, path):
  """A value of it is an odd one, or gone, or elsewhere."""
  made = edited(rng, json.loads(path.read_bytes()))
  return _rewrite(path, json.dumps(made).encode(), "")


def key_twice(rng, path):
  """A key comes twice."""
  text = path.read_text(encoding="utf-8")
  made = json.loads(text)
  if not isinstance(made, dict) or not made:
    return value(rng, path)
  key = json.dumps(rng.choice(list(made)))
  odd = json.dumps(rng.choice(ODD))
  content = text.replace("{", f"{{{key}: {odd}, ", 1).encode()
  # The tokenizers library takes the last.
  return _rewrite(path, content, key, path.name != "tokenizer.json")


def digits(rng, path):
  """A number of very many digits."""
  text = path.read_text(encoding="utf-8")
  found = list(re.finditer(r"\d+", text))
  if not found:
    return value(rng, path)
  one = rng.choice(found)
  text = text[: one.start()] + "9" * 5000 + text[one.end() :]
  return _rewrite(path, text.encode())


def nested(rng, path):
  """A value of it is nested about as deep as Python can read."""
  made = json.loads(path.read_bytes())
  depth = rng.choice([100, 900, 950, 980, 1000, 50_000])
  deep = "[" * depth + "]" * depth
  if not isinstance(made, dict) or not made:
    return _rewrite(path, deep.encode())
  mark, key = "a place for it", rng.choice(list(made))
  text = json.dumps(made | {key: mark}).replace(json.dumps(mark), deep)
  return _rewrite(path, text.encode(), f"{depth} in {key}")


def shard_elsewhere(rng, path):
  """An index puts a tensor in a file of another folder, which is there."""
  made = json.loads(path.read_bytes())
  shards = isinstance(made, dict) and made.get("weight_map")
  if not shards:
    return value(rng, path)
  outside = _beside(path) / OUTSIDE
  outside.mkdir(exist_ok=True)
  shard = rng.choice(sorted(set(shards.values())))
  shutil.copyfile(path.parent / shard, outside / shard)
  to = rng.choice([
      os.path.relpath(outside / shard, path.parent),
      str(outside / shard),
      f"./{shard}",
      f"../{path.parent.name}/{shard}",
  ])
  moved = {k: to if v == shard else v for k, v in shards.items()}
  content = json.dumps(made | {"weight_map": moved}).encode()
  return _rewrite(path, content, to, True)


# --- lines ------------------------------------------------------------------


def in_line(rng, path):
  """One line of JSON is changed."""
  lines = path.read_bytes().splitlines()
  at = rng.randrange(len(lines))
  ways = (
      lambda row: json.dumps(edited(rng, json.loads(row))).encode(),
      lambda row: row[: rng.randrange(len(row) + 1)],
      lambda row: row + b"\n" + row,
      lambda row: re.sub(rb"\{", b'{"id": 3, ', row, count=1),
      lambda row: b"[" * 50_000,
      lambda row: b"9" * 5000,
      lambda row: row.replace(b" ", b"\xff", 1),
      lambda row: row.replace(b"a", b"\\ud800", 1),
  )
  lines[at] = rng.choice(ways)(lines[at])
  return _rewrite(path, b"\n".join(lines) + b"\n", f"line {at + 1}")


# --- safetensors ------------------------------------------------------------


def _parts(path) -> tuple[dict[str, Any], bytes]:
  """Header and data."""
  content = path.read_bytes()
  [size] = struct.unpack("<Q", content[:8])
  return json.loads(content[8 : 8 + size]), content[8 + size :]


def _join(path, header: str | dict, data: bytes, what="", refused=False):
  text = header if isinstance(header, str) else json.dumps(header)
  content = text.encode()
  return _rewrite(
      path, struct.pack("<Q", len(content)) + content + data, what, refused
  )


def _tensor(rng, header) -> str:
  """The name of one."""
  return rng.choice([name for name in header if name != "__metadata__"])


def header_length(rng, path):
  """The header claims to be longer, or shorter."""
  content = path.read_bytes()
  [size] = struct.unpack("<Q", content[:8])
  odd = rng.choice([*WORDS, size - 1, size + 1, size + 8, 10**8 + 1])
  return _rewrite(path, struct.pack("<Q", odd) + content[8:], str(odd), True)


def header_value(rng, path):
  """One value of the header is an odd one."""
  header, data = _parts(path)
  return _join(path, json.dumps(edited(rng, header)), data)


def shape(rng, path):
  """A tensor of another shape."""
  header, data = _parts(path)
  name = _tensor(rng, header)
  old = header[name]["shape"]
  new = rng.choice([
      [10**12], [2**32, 2**32], [-1, *old], [], [0, *old], old[::-1],
      [1, *old], [2**63], [math.prod(old)], [*old, 2],
  ])
  header[name]["shape"] = new
  return _join(path, header, data, f"{name} {new}")


def stored_type(rng, path):
  """A tensor of another type."""
  header, data = _parts(path)
  name = _tensor(rng, header)
  header[name]["dtype"] = rng.choice(_TYPES)
  return _join(path, header, data, f"{name} {header[name]['dtype']}")


def other_numbers(rng, path):
  """A tensor is stored in a type that fits its bytes, but is another one."""
  header, data = _parts(path)
  same = {"F32": ["I32", "U32"], "BF16": ["F16", "I16", "U16"], "I32": ["F32"]}
  name = _tensor(rng, header)
  known = same.get(header[name]["dtype"], ["U8"])
  header[name]["dtype"] = rng.choice(known)
  return _join(path, header, data, f"{name} {header[name]['dtype']}")


def offsets(rng, path):
  """A tensor lies elsewhere."""
  header, data = _parts(path)
  name = _tensor(rng, header)
  begin, end = header[name]["data_offsets"]
  header[name]["data_offsets"] = rng.choice([
      [end, begin], [begin, end + 4], [0, end - begin], [begin, 2**63],
      [-4, end], [begin], [2**60, 2**60 + end - begin], [begin + 4, end + 4],
  ])
  return _join(path, header, data, name)


def tensor_twice(rng, path):
  """A name comes twice in the header."""
  header, data = _parts(path)
  name = _tensor(rng, header)
  odd = header[name] | {"shape": rng.choice([[1], header[name]["shape"]])}
  text = json.dumps(header)
  text = text.replace("{", f"{{{json.dumps(name)}: {json.dumps(odd)}, ", 1)
  return _join(path, text, data, name)


def tensor_name(rng, path):
  """A tensor of another name, or of a name that goes on from another's."""
  header, data = _parts(path)
  name = _tensor(rng, header)
  new = rng.choice([
      "a\nb", "x" * 20_000, "", "\x1b[2J", name + "/x", name + ".x",
      "transformer." + name, name.upper(), "../" + name, "__metadata__x",
  ])
  header[new] = header.pop(name)
  return _join(path, header, data, repr(new[:20]))


def more_tensors(rng, path):
  """Very many empty tensors, or one below another one's name."""
  header, data = _parts(path)
  empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
  count = rng.choice([1, 3000])
  first = _tensor(rng, header) + rng.choice(["/", "."])
  header |= {f"{first}{i}": empty for i in range(count)}
  return _join(path, header, data, str(count))


def no_number(rng, path):
  """A weight is NaN or infinite."""
  header, data = _parts(path)
  kinds = {"F32": np.float32, "F16": np.float16}
  names = [
      name
      for name, entry in header.items()
      if entry.get("dtype") in ("F32", "F16", "BF16")
      and entry["data_offsets"][0] < entry["data_offsets"][1]
  ]
  if not names:
    return header_value(rng, path)
  name = rng.choice(names)
  begin, end = header[name]["data_offsets"]
  kind = kinds.get(header[name]["dtype"])
  odd = rng.choice([math.nan, math.inf, -math.inf])
  # The upper half of a float32 is a bfloat16.
  bits = kind(odd).tobytes() if kind else np.float32(odd).tobytes()[2:]
  at = begin + len(bits) * rng.randrange((end - begin) // len(bits))
  data = data[:at] + bits + data[at + len(bits) :]
  return _join(path, header, data, f"{odd} in {name}", True)


def noted(rng, path):
  """What the file says of itself is changed."""
  header, data = _parts(path)
  notes = header.get("__metadata__")
  if not notes:
    return header_value(rng, path)
  key = rng.choice(list(notes))
  try:
    notes[key] = json.dumps(edited(rng, json.loads(notes[key])))
  except ValueError:
    notes[key] = rng.choice(["", "{", "x" * 5000, "3", "[" * 50_000])
  return _join(path, header, data, key)


# --- GGUF, numpy, pickles ---------------------------------------------------


def other_order(rng, path):
  """The file says that its bytes are in the other order."""
  del rng
  content = path.read_bytes()
  turned = content[:4] + content[4:8][::-1] + content[8:]
  return _rewrite(path, turned, "", True)


def counts(rng, path):
  """It claims to have other numbers of tensors and entries."""
  content = bytearray(path.read_bytes())
  at = rng.choice([8, 16])
  odd = rng.choice(WORDS)
  content[at : at + 8] = struct.pack("<Q", odd)
  return _rewrite(path, bytes(content), f"{odd} at {at}")


def entry(rng, path):
  """An array or a text in front claims to be huge."""
  content = bytearray(path.read_bytes())
  key = rng.choice([b"tokenizer.ggml.tokens", b"tokenizer.ggml.merges",
                    b"tokenizer.ggml.token_type", b"general.architecture",
                    b"tokenizer.chat_template", b"llama.block_count",
                    b"token_embd.weight", b"blk.0.attn_q.weight"])
  found = content.find(key)
  if found < 0:
    return word(rng, path)
  at = found + len(key) + rng.choice([-8, 0, 4, 8, 12, 16])
  size = rng.choice([4, 8])
  value = rng.choice(WORDS) % 2 ** (8 * size)
  content[at : at + size] = value.to_bytes(size, "little")
  return _rewrite(path, bytes(content), f"{key.decode()} {value}")


def array_header(rng, path):
  """The header of an array says something else."""
  content = path.read_bytes()
  old, new = rng.choice([
      (b"'<u2'", b"'|O' "), (b"'<u2'", b"'<f8'"), (b"'<u2'", b"'>u2'"),
      (b"False", b"True "), (b"(", b"(9"), (b"(", b"(("), (b", ", b", 9", ),
      (b"{", b"["), (b"<u2", b"__i"), (b"descr", b"dexcr"),
  ])
  head, data = content[:128], content[128:]
  changed = head.replace(old, new, 1)
  return _rewrite(path, changed + data, repr(new), changed != head)


def pickled_array(rng, path):
  """An array of objects."""
  del rng
  made = Trap(str(_beside(path) / TRAP))
  path.unlink()
  with path.open("wb") as file:
    np.save(file, np.array([made], object), allow_pickle=True)
  return Damage("", True)


_ANY: tuple[Callable[..., Damage], ...] = (
    cut, cut, flip, flip, flip, word, longer, other, encoded, trap,
    folder_instead, link,
)
_LINES = (in_line,)
_JSON = (value, value, value, key_twice, digits, nested, shard_elsewhere)
_TENSORS = (
    header_length, header_value, header_value, shape, stored_type,
    other_numbers, offsets, tensor_twice, tensor_name, more_tensors, no_number,
    noted, noted, pipe,
)
# What a file's name ends in -> ways of its own.
_OWN = {
    ".json": _JSON,
    ".jsonl": _LINES,
    ".safetensors": _TENSORS,
    ".gguf": (other_order, counts, entry, entry, entry, word, pipe),
    ".npy": (array_header, pickled_array),
    ".model": (flip, word, cut, pipe),
}
