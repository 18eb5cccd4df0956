"""GGUF files (llama.cpp): models and tokenizers in one file, often quantised.

    module, params, tokenizer = load("SmolLM2-135M-Instruct.Q4_1.gguf")

Metadata and tensors are given the names, shapes and order of rows that Hugging
Face's directories have; from there on the way is the same. Weights become what
their blocks stand for, exactly: dequantisation is the `gguf` package's.
"""

import dataclasses
import functools
import pathlib
import re
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax import errors
from specjax.checkpoints import config as config_lib
from specjax.checkpoints import fields as fields_lib
from specjax.checkpoints import files
from specjax.checkpoints import gguf_tokenizer
from specjax.checkpoints import hf
from specjax.checkpoints import text_tokenizer
from specjax.errors import UserError
from specjax.models import rope as rope_lib

SUFFIX = ".gguf"
_ROPE = "rope_freqs.weight"
_LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GPT2 = {
    "token_embd": "wte",
    "position_embd": "wpe",
    "output_norm": "ln_f",
    "output": "lm_head",
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}


@dataclasses.dataclass(frozen=True)
class _Architecture:
  """How llama.cpp's names become Hugging Face's.

  Attributes:
    names: of tensors, without their block and their ending.
    block: what a block's names begin with, in front of its number.
    paired: rows of q and k lie so that the two coordinates of each pair are
      neighbours; Hugging Face's are half a head apart.
    turned: endings of matrices that Hugging Face stores [in, out].
  """

  names: dict[str, str]
  block: str
  paired: bool = False
  turned: tuple[str, ...] = ()


_ARCHITECTURES = {
    "llama": _Architecture(_LLAMA, "model.layers.", paired=True),
    "qwen2": _Architecture(_LLAMA, "model.layers."),
    "gpt2": _Architecture(
        _GPT2, "h.", turned=("c_attn.weight", "c_proj.weight", "c_fc.weight")
    ),
}
# Hugging Face's field -> llama.cpp's, behind the name of the architecture.
_LLAMA_FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
}
_GPT2_FIELDS = {
    "n_embd": "embedding_length",
    "n_inner": "feed_forward_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "n_positions": "context_length",
}


def load(
    path,
    dtype=jnp.float32,
    *,
    keep_bfloat16: bool = False,
    put: hf.Put | None = None,
):
  """Reads a file.

  Args:
    path: of a model that is whole in one file.
    dtype: of the parameters and of the module's products.
    keep_bfloat16: matrices that are stored in bfloat16 stay so.
    put: takes each parameter to its devices; see hf.load_model.

  Returns:
    The module, its parameters, and its text_tokenizer.TextTokenizer.

  Raises:
    UserError: the `gguf` package is missing, the file is cut, damaged or of
      another kind, or a field or tensor is wrong; the line names it.
  """
  path = pathlib.Path(path)
  get, tensors = read(path)
  kind = get.one_of("general.architecture", None, tuple(_ARCHITECTURES))
  architecture = _ARCHITECTURES[kind]
  fields = fields_lib.Getter(_fields(get, kind, tensors), path)
  family, config = config_lib.parse(fields)
  _refuse_others(get, kind, config)
  if config.rope is not None and _ROPE in tensors:
    rope = _given(config, tensors.pop(_ROPE), path)
    config = dataclasses.replace(config, rope=rope)
  renamed = (
      _renamed(name, tensor, architecture, config)
      for name, tensor in tensors.items()
  )
  tensors = files.once(renamed, path)
  params = hf.params_from_tensors(
      config, tensors, dtype, path, keep_bfloat16=keep_bfloat16, put=put
  )
  tokenizer = gguf_tokenizer.build(get, config.ends)
  return hf.make_module(family, config, dtype), params, tokenizer


def load_tokenizer(path) -> text_tokenizer.TextTokenizer:
  """The tokenizer in a file; raises as `load`."""
  get, _ = read(path)
  return gguf_tokenizer.build(get, gguf_tokenizer.ends(get))


def read(path) -> tuple[fields_lib.Getter, dict[str, hf.Tensor]]:
  """Metadata, and tensors by llama.cpp's names, unread; raises as `load`."""
  gguf = _package()
  try:
    # Places that are beyond 64 bits would be others.
    with np.errstate(over="raise"):
      file = _reader(gguf)(path)
    metadata = {
        name: field.contents()
        for name, field in file.fields.items()
        if not name.startswith("GGUF.")
    }
    tensors = {
        tensor.name: _tensor(gguf, path, tensor) for tensor in file.tensors
    }
  except OSError as error:
    reason = error.strerror or errors.reason(error)
    raise UserError(f"{path} cannot be read ({reason})") from None
  # Of a file that is cut or damaged, the reader raises whatever it trips over.
  except Exception as error:
    raise UserError(
        f"{path} is no GGUF file, or is damaged ({errors.reason(error)}): fetch"
        " it again"
    ) from None
  if file.byte_order != "I":
    # The package would take the bytes of its weights as they lie.
    raise UserError(
        f"{path} is of the other byte order: convert it, gguf-convert-endian"
        f" {path} {sys.byteorder}"
    )
  return fields_lib.Getter(metadata, path), tensors


def _package():
  try:
    import gguf
  except ImportError:
    raise UserError(
        "reading a .gguf file needs the gguf package: pip install"
        " 'specjax[gguf]'"
    ) from None
  return gguf


@functools.cache
def _reader(gguf):
  """The package's reader, in bounds.

  Its own takes what lies past the end for empty: an array that claims 2^60
  numbers would be read one by one, for ever. And it keeps an object for each,
  hundreds of times what they take in the file: here they stay together.
  """

  class Reader(gguf.GGUFReader):

    def _get(self, offset, dtype, count=1, override_order=None):
      dtype = np.dtype(dtype)
      end = int(offset) + int(count) * dtype.itemsize
      if end > len(self.data):
        raise ValueError(f"it ends before byte {end}")
      order = override_order or self.byte_order
      dtype = dtype.newbyteorder(order)
      return np.frombuffer(self.data, dtype, int(count), int(offset))

    def _get_field_parts(self, orig_offs, raw_type):
      kinds = gguf.GGUFValueType
      if raw_type != kinds.ARRAY:
        return super()._get_field_parts(orig_offs, raw_type)
      kind = kinds(self._get(orig_offs, np.uint32)[0])
      number = self.gguf_scalar_to_np.get(kind)
      if number is None:
        return super()._get_field_parts(orig_offs, raw_type)
      count = self._get(orig_offs + 4, np.uint64)[0]
      values = self._get(orig_offs + 12, number, count)
      return 12 + values.nbytes, [values], [0], [kinds.ARRAY, kind]

  return Reader


def _tensor(gguf, path, tensor) -> hf.Tensor:
  """One tensor of the reader's, unread."""
  kind = tensor.tensor_type

  def read() -> np.ndarray:
    try:
      # Scales may be anything; what is no number is refused later.
      with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(tensor.data, kind)
    except NotImplementedError:
      raise UserError(
          f"{path}: tensor {tensor.name} is of type {kind.name}, which the gguf"
          " package can't turn into numbers; take another quantisation"
      ) from None
    return values.astype(jnp.bfloat16) if kind.name == "BF16" else values

  shape = tuple(int(size) for size in reversed(tensor.shape))
  return hf.Tensor(shape, read, bfloat16=kind.name == "BF16")


def _fields(get: fields_lib.Getter, kind: str, tensors) -> dict[str, Any]:
  """What a config.json would say."""
  names = _GPT2_FIELDS if kind == "gpt2" else _LLAMA_FIELDS
  made = {
      name: get.fields.get(f"{kind}.{key}") for name, key in names.items()
  }
  embedding = tensors.get("token_embd.weight")
  made |= {
      "model_type": kind,
      "vocab_size": next(iter(embedding.shape), None) if embedding else None,
      "tie_word_embeddings": "output.weight" not in tensors,
      "eos_token_id": gguf_tokenizer.ends(get),
  }
  if kind != "gpt2":
    made["rope_scaling"] = _scaling(get, kind)
  return made


def _refuse_others(get: fields_lib.Getter, kind: str, config) -> None:
  """Refuses what the name of an architecture also stands for."""
  if get.integer("split.count", 0) > 1:
    get.refuse("split.count", "must be 1: join the parts by gguf-split --merge")
  if get.integer(f"{kind}.expert_count", 0):
    get.refuse(f"{kind}.expert_count", "must be 0: no mixtures of experts")
  name, head = f"{kind}.rope.dimension_count", config.d_kv
  if config.rope is not None and get.integer(name, head) != head:
    get.refuse(name, f"must be {head}, all of a head")


def _scaling(get: fields_lib.Getter, kind: str) -> dict[str, Any] | None:
  """Of the frequencies, in Hugging Face's words."""
  # The name of older files.
  factor = get.fields.get(f"{kind}.rope.scale_linear")
  known = ("none", "linear")
  if get.one_of(f"{kind}.rope.scaling.type", "none", known) == "linear":
    factor = get.fields.get(f"{kind}.rope.scaling.factor")
  elif factor is None:
    return None
  return {"rope_type": "linear", "factor": factor}


def _given(config, divisors: hf.Tensor, path) -> rope_lib.Rope:
  """The rotation with the divisors that a file lists, as Llama 3's do."""
  values = divisors.read()
  good = values.shape == (config.d_kv // 2,) and np.all(values > 0)
  if not (good and np.all(np.isfinite(values))):
    raise UserError(
        f"{path}: tensor {_ROPE} must hold {config.d_kv // 2} numbers above 0"
    )
  scaling = rope_lib.Given(tuple(values.tolist()))
  return dataclasses.replace(config.rope, scaling=scaling)


def _renamed(name, tensor: hf.Tensor, architecture: _Architecture, config):
  """Hugging Face's name of a tensor, and the tensor as it stores it.

  A tensor that no model of the kind has keeps its name: it is told as surplus.
  """
  match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
  if not match or match[2] not in architecture.names:
    return name, tensor
  block, part, ending = match.groups()
  new = f"{architecture.names[part]}.{ending}"
  if block is not None:
    new = f"{architecture.block}{block}.{new}"
  if architecture.paired and part in ("attn_q", "attn_k"):
    heads = config.num_heads if part == "attn_q" else config.num_kv_heads
    tensor = _changed(tensor, functools.partial(_apart, heads))
  if new.endswith(architecture.turned):
    shape = tensor.shape[::-1]
    tensor = dataclasses.replace(_changed(tensor, np.transpose), shape=shape)
  return new, tensor


def _changed(tensor: hf.Tensor, change) -> hf.Tensor:
  return dataclasses.replace(tensor, read=lambda: change(tensor.read()))


def _apart(heads: int, rows: np.ndarray) -> np.ndarray:
  """Puts the coordinates of each pair half a head apart.

  llama.cpp turns neighbours, so its converter interleaves the halves of every
  head; queries and keys have their own numbers of heads.
  """
  pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
  return pairs.swapaxes(1, 2).reshape(rows.shape)
