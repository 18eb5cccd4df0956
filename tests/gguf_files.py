"""Tiny GGUF files, written as llama.cpp's converter writes them."""

import json
import pathlib

import gguf
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from specjax.checkpoints import families
from specjax.models import decoder
from specjax.models import rope as rope_lib

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = [
    "The quick brown fox jumps over the lazy dog, twice a day.",
    "def draft(target):\n  return [token for token in target if token > 0]\n",
    "In 2024 there were 1234567 ways; in 1999 only 42.",
    "It's what we'd call a test: they're sure you'll see, aren't they?",
    "Größe, naïve façade, Ελληνικά, русский текст, 日本語のテキスト。",
]
# Every matrix's rows are whole blocks of the quantisations but the K ones.
CONFIG = decoder.DecoderConfig(
    vocab_size=400,
    d_model=64,
    d_kv=16,
    d_ff=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    tied=True,
    gated=True,
    rms=True,
    rope=rope_lib.Rope(5000.0),
    max_positions=128,
    norm_epsilon=2**-16,
    ends=(2,),
)
_LLAMA = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GPT2 = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "lm_head": "output",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def byte_level(split=None, size=CONFIG.vocab_size) -> tokenizers.Tokenizer:
  """A tokenizer of `size` tokens; `split` is its pre-tokenizer."""
  model = tokenizers.Tokenizer(models.BPE())
  model.pre_tokenizer = split or pre_tokenizers.ByteLevel(
      add_prefix_space=False
  )
  model.decoder = decoders.ByteLevel()
  model.train_from_iterator(
      TEXTS * 3,
      trainers.BpeTrainer(
          vocab_size=size,
          special_tokens=CONTROL,
          initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
          show_progress=False,
      ),
  )
  return model


def random_tensors(config, seed=0) -> dict[str, np.ndarray]:
  """Stored tensors by Hugging Face's names."""
  rng = np.random.default_rng(seed)
  tensors = {}
  for name, place in families.of(config).table(config).items():
    value = rng.normal(size=place.shape)
    if place.path[-1] == "scale":
      value = 1 + 0.2 * value
    elif place.path[-1] == "kernel":
      value *= config.d_model**-0.5
    tensors[name] = value.astype(np.float32)
  return tensors


def renamed(name: str, kind: str) -> str:
  """llama.cpp's name of a tensor."""
  stem, _, ending = name.rpartition(".")
  names = _GPT2 if kind == "gpt2" else _LLAMA
  if stem in names:
    return f"{names[stem]}.{ending}"
  block, _, part = stem.removeprefix("model.layers.").removeprefix(
      "h."
  ).partition(".")
  return f"blk.{block}.{names[part]}.{ending}"


def permuted(value, heads):
  """Halves of every head interleaved, as convert_hf_to_gguf.py does it."""
  halves = value.reshape(heads, 2, -1, *value.shape[1:])
  return halves.swapaxes(1, 2).reshape(value.shape)


def write(
    path: pathlib.Path,
    config=CONFIG,
    kind="llama",
    *,
    quantisation=gguf.GGMLQuantizationType.F32,
    tokenizer=None,
    tensors=None,
    change=lambda writer: None,
    pre="gpt-2",
    chat=TEMPLATE,
    eos=2,
) -> dict[str, np.ndarray]:
  """Writes a model; returns its stored tensors, by Hugging Face's names."""
  tensors = tensors or random_tensors(config)
  writer = gguf.GGUFWriter(path, kind)
  add_shape(writer, config, kind)
  add_byte_level(writer, tokenizer or byte_level(), pre)
  writer.add_eos_token_id(eos)
  if chat:
    writer.add_chat_template(chat)
  change(writer)
  for name, value in tensors.items():
    part = renamed(name, kind)
    if kind == "llama" and "q_proj" in name:
      value = permuted(value, config.num_heads)
    if kind == "llama" and "k_proj" in name:
      value = permuted(value, config.num_kv_heads)
    if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
      value = np.ascontiguousarray(value.T)
    if value.ndim == 1:
      writer.add_tensor(part, value)
      continue
    data = gguf.quants.quantize(value, quantisation)
    writer.add_tensor(part, data, raw_dtype=quantisation)
  close(writer)
  return tensors


def add_shape(writer, config, kind) -> None:
  """Metadata of the network."""
  writer.add_block_count(config.num_layers)
  writer.add_context_length(config.max_positions)
  writer.add_embedding_length(config.d_model)
  writer.add_feed_forward_length(config.d_ff)
  writer.add_head_count(config.num_heads)
  if kind == "gpt2":
    writer.add_layer_norm_eps(config.norm_epsilon)
    return
  writer.add_head_count_kv(config.num_kv_heads)
  writer.add_layer_norm_rms_eps(config.norm_epsilon)
  writer.add_rope_freq_base(config.rope.theta)
  writer.add_rope_dimension_count(config.d_kv)


def add_byte_level(writer, tokenizer, pre) -> None:
  """Metadata of a tokenizer, of its model's JSON."""
  model = json.loads(tokenizer.to_str())["model"]
  pieces = sorted(model["vocab"], key=model["vocab"].get)
  writer.add_tokenizer_model("gpt2")
  writer.add_tokenizer_pre(pre)
  writer.add_token_list(pieces)
  writer.add_token_types([3 if piece in CONTROL else 1 for piece in pieces])
  writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
  writer.add_bos_token_id(0)


def close(writer) -> None:
  """Writes all of it."""
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
