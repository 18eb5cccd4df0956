"""Small changes of the package, and for each the test that must notice it.

What stands under a report is the fault that it tells of, made here.
tests.mutants makes them one at a time; docs/faults.md has the reports, each
first in its row.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Edit:
  """One text in the place of another.

  Attributes:
    file: below specjax/.
    old: what stands there.
    new: what shall stand there.
    count: how often `old` does.
  """

  file: str
  old: str
  new: str
  count: int = 1


@dataclasses.dataclass(frozen=True)
class Change:
  """A fault.

  Attributes:
    what: goes wrong.
    report: of somebody else's fault, or "".
    file, old, new: as an Edit has them.
    test: below tests/, FILE::NAME or FILE::NAME[PARAMETERS].
    also: further edits, without which the first is not that fault.
  """

  what: str
  report: str
  file: str
  old: str
  new: str
  test: str
  also: tuple[Edit, ...] = ()

  @property
  def edits(self) -> tuple[Edit, ...]:
    """All of them."""
    return Edit(self.file, self.old, self.new), *self.also


LAWS = (
    Change(
        "an argmax draft claims the soft law that it was not drawn from",
        "huggingface/transformers#32867",
        "drafters/drawing.py",
        "return law.best, None",
        "return law.best, law",
        "test_drafters.py::test_argmax_is_a_point_mass",
    ),
    Change(
        "a copied token is judged as if a draw had given it half of the time",
        "huggingface/transformers#32867",
        "verify/token.py",
        "q_BN = jnp.ones_like(p_BN)",
        "q_BN = jnp.full_like(p_BN, 0.5)",
        "test_drafters_lookup.py::test_output_law_is_exact",
    ),
    Change(
        "q is reported before top-k and top-p",
        "huggingface/transformers#47932",
        "drafters/drawing.py",
        "    return law.draw(key_B, sampling_lib.Purpose.DRAFT, node), law\n",
        "    whole_BV = jnp.exp(law.logits - law.peak[:, None])\n"
        "    whole = law.replace(\n"
        "        cut=jnp.full_like(law.cut, -jnp.inf),\n"
        "        log_mass=jnp.log(jnp.sum(whole_BV, axis=-1)),\n"
        "    )\n"
        "    return law.draw(key_B, sampling_lib.Purpose.DRAFT, node), whole\n",
        "test_drafters.py::test_law_is_what_was_drawn_from",
    ),
    Change(
        "what is left of p is put through a softmax",
        "huggingface/transformers#28508",
        "verify/rule.py",
        "return jnp.where(use_B1, residual_BV, p_BV)",
        "return jnp.where(use_B1, jnp.exp(residual_BV), p_BV)",
        "test_verify_reports.py::test_residual_is_divided_by_its_sum",
    ),
    Change(
        "a residual without mass is drawn from",
        "huggingface/transformers#28508",
        "verify/rule.py",
        "use_B1 = (judged.rejected_B & has_mass_B)[:, None]",
        "use_B1 = judged.rejected_B[:, None]",
        "test_verify_reports.py"
        "::test_point_that_holds_all_mass_falls_back_to_p",
    ),
    Change(
        "a draw from NaN or from nothing gives id 0",
        "huggingface/transformers#28508",
        "sampling.py",
        "return jnp.where(some_B, tokens_B, fallback_B)",
        "return tokens_B",
        "test_sampling.py::test_nothing_is_drawn_from_nothing",
    ),
    Change(
        "a token with p = 0 is accepted by a coin of 0",
        "sgl-project/sglang#35771",
        "verify/token.py",
        "return coin * self.lenience * q < p",
        "return coin * self.lenience * q <= p",
        "test_verify_reports.py"
        "::test_a_filtered_token_is_rejected_at_coin_zero",
    ),
    Change(
        "so is a node of a tree",
        "sgl-project/sglang#35771",
        "verify/tree.py",
        "coin_BN * left_BN < own_BN",
        "coin_BN * left_BN <= own_BN",
        "test_verify_tree.py::test_no_token_is_never_accepted",
    ),
    Change(
        "a chosen child is judged by p, as if no sibling had been rejected",
        "apple/ml-recurrent-drafter#6",
        "verify/tree.py",
        "left_BN = jnp.maximum(0.0, 1.0 - (jnp.cumsum(own_BN, axis=1)"
        " - own_BN))",
        "left_BN = jnp.ones_like(own_BN)",
        "test_verify_tree.py::test_chosen_children_of_a_published_fault",
    ),
    Change(
        "rejected children can be drawn once more",
        "apple/ml-recurrent-drafter#6",
        "verify/tree.py",
        "left_BV = _without(p_BV, proposal.tokens_BN, child_BN)",
        "left_BV = p_BV",
        "test_verify_tree.py::test_a_child_with_half_of_p",
    ),
    Change(
        "siblings drawn without one another are judged as drawn anew",
        "apple/ml-recurrent-drafter#6",
        "verify/tree.py",
        "if proposal.kind is Kind.DISTINCT:",
        "if proposal.kind is Kind.CHAIN:",
        "test_verify_tree.py::test_trees_keep_the_targets_law[distinct, star]",
    ),
    Change(
        "a rejected point can be drawn once more",
        "apple/ml-recurrent-drafter#6",
        "verify/token.py",
        "return jnp.where(drafted_BV, 0.0, p_BV)",
        "return p_BV",
        "test_verify_reports.py::test_a_rejected_point_leaves_the_rest",
    ),
    Change(
        "logits are rounded to bfloat16 for the draw, and judged as they were",
        "deepseek-ai/DeepSpec#31",
        "sampling.py",
        "kept_BV = cuts.weights(self.logits, self.peak, self.cut)",
        "kept_BV = cuts.weights(\n"
        "          self.logits.astype(jnp.bfloat16), self.peak, self.cut\n"
        "      )",
        "test_verify_reports.py::test_draws_are_from_the_logits_that_judge",
    ),
    Change(
        "temperature is applied in bfloat16",
        "deepseek-ai/DeepSpec#31",
        "sampling.py",
        "    return allowed / temperature[..., None]\n",
        "    scaled = (allowed / temperature[..., None]).astype(jnp.bfloat16)\n"
        "    return scaled.astype(jnp.float32)\n",
        "test_sampling.py::test_bfloat16_logits_are_widened_once",
    ),
    Change(
        "float32 is given bfloat16's bound for near ties",
        "huggingface/transformers#39421",
        "experiment.py",
        "bound = lossless.NEAR_TIE[setup.config.decode.dtype]",
        'bound = lossless.NEAR_TIE["bfloat16"]',
        "test_run.py::test_rows_that_differ[float32]",
    ),
    Change(
        "the gap of two logits is taken in the type that hides it",
        "huggingface/transformers#39421",
        "measure/lossless.py",
        "module = module.clone(dtype=jnp.float32, carried=None)",
        "module = module.clone()",
        "test_measure_acceptance.py::test_two_best_gap",
    ),
    Change(
        "the draft's noise draws the residual",
        "local-inference-lab/vllm#205",
        "verify/rule.py",
        "judged.rejected_B, Purpose.RESIDUAL, Purpose.EXTRA",
        "judged.rejected_B, Purpose.DRAFT, Purpose.EXTRA",
        "test_verify_reports.py::test_draws_are_independent",
    ),
    Change(
        "all nodes of a round are judged by one coin",
        "",
        "verify/rule.py",
        "coin_key_B = sampling.fold(key_B, Purpose.COIN, node)",
        "coin_key_B = sampling.fold(key_B, Purpose.COIN)",
        "test_loop_report.py::test_coins_differ",
    ),
    Change(
        "keys are the same in every round",
        "sgl-project/sglang-jax#940",
        "decoding/loop.py",
        "return jax.vmap(jax.random.fold_in)(state.key_B,"
        " state.tallies.rounds_B)",
        "return state.key_B",
        "test_loop_rows.py::test_neighbours_are_seldom_equal",
    ),
    Change(
        "noise goes with the place in the batch",
        "sgl-project/sglang-jax#940",
        "decoding/requests.py",
        "jax.random.key(seed), id_B\n",
        "jax.random.key(seed), jnp.arange(id_B.size, dtype=jnp.uint32)\n",
        "test_loop_tree.py::test_rows_of_trees_wherever_they_stand",
    ),
    Change(
        "siblings share one key",
        "sgl-project/sglang-jax#940",
        "drafters/tree.py",
        "sampling_lib.fold(key_B, sampling_lib.Purpose.DRAFT, node),",
        "key_B,",
        "test_loop_program.py::test_keys_serve_once_and_nothing_is_nan[tree]",
    ),
    Change(
        "top_k 0 is a cut",
        "google-deepmind/gemma#789",
        "cuts.py",
        "limits_k = (top_k > 0) & (top_k < logits.shape[-1])",
        "limits_k = top_k < logits.shape[-1]",
        "test_sampling.py::test_bounds_of_top_k_and_top_p",
    ),
    Change(
        "the token that crosses top_p is lost",
        "google-deepmind/gemma#789",
        "cuts.py",
        "    return jnp.maximum(cut_k, _bisect(limits_p, peak, need, mass,"
        " least))\n",
        "    at = _bisect(limits_p, peak, need, mass, least)\n"
        "    kept = jnp.where(logits >= at[..., None], logits, jnp.inf)\n"
        "    above = jnp.nextafter(jnp.min(kept, axis=-1), jnp.inf)\n"
        "    return jnp.maximum(cut_k, jnp.where(limits_p, above, at))\n",
        "test_sampling.py::test_bounds_of_top_k_and_top_p",
    ),
    Change(
        "a top_k below 0 is taken",
        "google-deepmind/gemma#789",
        "settings.py",
        "checks.is_whole(self.top_k, most=math.inf),",
        "checks.is_whole(self.top_k, -math.inf, math.inf),",
        "test_settings.py::test_wrong_settings_are_refused",
    ),
    Change(
        "Gumbel noise is of JAX's usual mode",
        "jax-ml/jax#26974",
        "sampling.py",
        'key, (mass.shape[1] + block,), mode="high"',
        'key, (mass.shape[1] + block,), mode="low"',
        "test_sampling.py::test_noise_has_its_tails",
    ),
    Change(
        "q of a copied or argmax token is what the target gives it",
        "huggingface/transformers#32867",
        "verify/token.py",
        "q_BN = jnp.ones_like(p_BN)",
        "q_BN = p_BN",
        "test_verify_reports.py::test_argmax_draft_is_a_point_mass",
    ),
    Change(
        "an argmax draft says that it was drawn",
        "huggingface/transformers#32867",
        "drafters/drawing.py",
        "return proposals.Kind.POINT if self.argmax else proposals.Kind.CHAIN",
        "return proposals.Kind.CHAIN",
        "test_drafters_ngram.py::test_argmax_is_a_point_mass",
    ),
    Change(
        "after any rejection the first point is left out",
        "huggingface/transformers#32867",
        "verify/token.py",
        "node_B = jnp.minimum(judged.accepted_B, proposal.tokens_BN.shape[1] -"
        " 1)",
        "node_B = jnp.zeros_like(judged.accepted_B)",
        "test_loop_law.py::test_settings_side_by_side[argmax of a wider one]",
    ),
    Change(
        "drafts behind a rejected point are accepted",
        "huggingface/transformers#32867",
        "verify/rule.py",
        "jnp.cumprod(accept_BN, axis=1), axis=1, dtype=jnp.int32",
        "accept_BN, axis=1, dtype=jnp.int32",
        "test_drafters_suffix.py::test_output_law_is_exact",
    ),
    Change(
        "n-grams are drawn by the row's settings, not by their own",
        "huggingface/transformers#47932",
        "drafters/ngram.py",
        "    context = self.with_settings(context, width)\n",
        "    del width\n",
        "test_drafters_ngram.py::test_law_is_what_was_drawn_from",
    ),
    Change(
        "a residual of nothing has mass",
        "huggingface/transformers#28508",
        "verify/rule.py",
        "has_mass_B = jnp.any(residual_BV > 0, axis=-1)",
        "has_mass_B = jnp.any(residual_BV >= 0, axis=-1)",
        "test_verify_reports.py"
        "::test_equal_laws_never_reject_nor_draw_from_nothing",
    ),
    Change(
        "a lenient residual is all of p",
        "sgl-project/sglang#35771",
        "verify/token.py",
        "scale = self.lenience if self.residual == \"lenient\" else 1.0",
        "scale = 0.0 if self.residual == \"lenient\" else 1.0",
        "test_loop_report.py::test_lenience_of_one_is_the_exact_rule",
    ),
    Change(
        "the target's logits are rounded as the draft's are",
        "deepseek-ai/DeepSpec#31",
        "sampling.py",
        "logits = logits.astype(jnp.float32)",
        "logits = logits.astype(jnp.bfloat16).astype(jnp.float32)",
        "test_verify_reports.py"
        "::test_bfloat16_logits_feed_draw_ratio_and_residual_alike",
    ),
    Change(
        "a near tie is bfloat16's, whatever the type",
        "huggingface/transformers#39421",
        "measure/lossless.py",
        "return self.gap < self.bound",
        "return self.gap < max(self.bound, NEAR_TIE[\"bfloat16\"])",
        "test_measure_acceptance.py::test_near_ties",
    ),
    Change(
        "draws of all purposes share a node's key",
        "local-inference-lab/vllm#205",
        "sampling.py",
        "one = jnp.asarray(purpose, jnp.int32) + len(Purpose) *"
        " jnp.asarray(node)",
        "one = jnp.zeros_like(purpose) + len(Purpose) * jnp.asarray(node)",
        "test_loop_law.py::test_dropped_noise_never_comes_back[Loop]",
    ),
    Change(
        "all seeds are one",
        "sgl-project/sglang-jax#940",
        "decoding/requests.py",
        "jax.random.key(seed), id_B\n",
        "jax.random.key(0), id_B\n",
        "test_loop_rows.py::test_seeds",
    ),
    Change(
        "rounds are counted on from the place in the batch",
        "sgl-project/sglang-jax#940",
        "decoding/loop.py",
        "return jax.vmap(jax.random.fold_in)(state.key_B,"
        " state.tallies.rounds_B)",
        "place_B = jnp.arange(state.key_B.size)\n"
        "  return jax.vmap(jax.random.fold_in)(\n"
        "      state.key_B, state.tallies.rounds_B + place_B\n"
        "  )",
        "test_loop_rows.py::test_ids_fix_the_text_wherever_the_row_stands",
    ),
    Change(
        "top_p counts what top_k had cut off",
        "google-deepmind/gemma#789",
        "cuts.py",
        "need = top_p * jnp.sum(weight, axis=-1)",
        "need = top_p * jnp.sum(jnp.exp(logits - peak[..., None]), axis=-1)",
        "test_sampling.py::test_law_agrees_with_a_sort",
    ),
    Change(
        "a draft's top_k of V or more is one less",
        "google-deepmind/gemma#789",
        "drafters/drawing.py",
        "value = min(value, width) if name == \"top_k\" else value",
        "value = min(value, width - 1) if name == \"top_k\" else value",
        "test_drafters.py::test_top_k_of_more_than_there_are",
    ),
    Change(
        "a block's mass is that of its likeliest token",
        "jax-ml/jax#26974",
        "sampling.py",
        "mass = jnp.sum(blocks, axis=-1)",
        "mass = jnp.max(blocks, axis=-1)",
        "test_sampling.py::test_tails_are_drawn",
    ),
)

ENDS = (
    Change(
        "only the last emitted token is compared with the EOS set",
        "huggingface/transformers#47912",
        "decoding/loop.py",
        "is_eos_BT &= index_T < count_B[:, None]",
        "is_eos_BT &= index_T == count_B[:, None] - 1",
        "test_loop_edges.py"
        "::test_eos_and_budgets_at_every_place_of_a_block",
    ),
    Change(
        "what stands behind an EOS of a block is emitted, too",
        "huggingface/transformers#47912",
        "decoding/loop.py",
        "  count_B = jnp.where(ended_B, jnp.argmax(is_eos_BT, axis=1) + 1,"
        " count_B)\n",
        "",
        "test_loop_tree.py::test_an_end_inside_a_path",
    ),
    Change(
        "a round of a tree may emit one token more than were asked for",
        "huggingface/transformers#47912",
        "decoding/loop.py",
        "verdict.accepted_B + 1, state.limit_B - state.length_B\n",
        "verdict.accepted_B + 1, state.limit_B - state.length_B + 1\n",
        "test_loop_tree.py"
        "::test_a_draft_that_is_the_target_is_always_accepted",
    ),
    Change(
        "an EOS behind the budget counts",
        "sgl-project/sglang#31599",
        "decoding/loop.py",
        "  is_eos_BT &= index_T < count_B[:, None]\n",
        "",
        "test_loop_edges.py::test_reason_of_the_end",
    ),
    Change(
        "ended rows go on emitting",
        "mistralai/mistral-inference#270",
        "decoding/loop.py",
        "return emitted_BT, jnp.where(state.done_B, 0, count_B), ended_B",
        "return emitted_BT, count_B, ended_B",
        "test_loop_edges.py::test_finished_rows_are_frozen",
    ),
    Change(
        "caches of ended rows are written on",
        "mistralai/mistral-inference#270",
        "decoding/loop.py",
        "active_BT = ~state.done_B[:, None] & (\n"
        "        index_T <= proposal.count_B[:, None]\n"
        "    )",
        "active_BT = index_T <= proposal.count_B[:, None]",
        "test_loop_edges.py::test_finished_rows_are_frozen",
    ),
    Change(
        "rows that only fill the batch are decoded",
        "mistralai/mistral-inference#270",
        "decoding/requests.py",
        "+ [0] * blank",
        "+ [requests[0].max_new_tokens] * blank",
        "test_loop_edges.py::test_blank_rows_do_not_count",
    ),
    Change(
        "what shall leave no trace is written to the cache's last slot",
        "mistralai/mistral-inference#270",
        "models/cache.py",
        "return cache_SK.at[slot_T].set(new_TK.astype(cache_SK.dtype),"
        ' mode="drop")',
        "return cache_SK.at[slot_T].set(new_TK.astype(cache_SK.dtype),"
        ' mode="clip")',
        "test_loop_edges.py::test_finished_rows_are_frozen",
    ),
    Change(
        "left padding stays",
        "ndif-team/nnsight#673",
        "decoding/requests.py",
        "prompts.append(tuple(ids[places].tolist()))",
        "prompts.append(tuple(ids[: places[-1] + 1].tolist()))",
        "test_decoder_loop.py::test_left_padded_prompts",
    ),
    Change(
        "padding is told by its id, whatever the mask says",
        "",
        "decoding/requests.py",
        "for ids, mask in zip(ids_BP, mask_BP != 0):",
        "for ids, mask in zip(ids_BP, ids_BP != 0):",
        "test_decoder_loop.py::test_padding_at_either_end",
    ),
    Change(
        "all rows go on at the position of the longest",
        "ndif-team/nnsight#673",
        "decoding/loop.py",
        "start_B, slots = state.length_B - 1, state.cache.slots",
        "start_B = jnp.full_like(state.length_B, jnp.max(state.length_B) - 1)\n"
        "    slots = state.cache.slots",
        "test_loop_rows.py::test_prompts_side_by_side",
    ),
    Change(
        "padding is copied",
        "ndif-team/nnsight#673",
        "drafters/copies.py",
        "text_BS = jnp.where(known_BS, tokens_BS, NOTHING)",
        "text_BS = tokens_BS",
        "test_drafters_lookup.py"
        "::test_padding_is_neither_matched_nor_proposed",
    ),
    Change(
        "the draft does not read the token before the newest one",
        "mlc-ai/mlc-llm#2285",
        "drafters/model.py",
        "first = step(state.cache, newest_B2, context.length_B - 2, 0)",
        "first = step(state.cache, newest_B2[:, 1:], context.length_B - 1, 0)",
        "test_decoder_loop.py::test_self_draft_is_always_accepted[llama]",
    ),
    Change(
        "the draft model does not read what was copied",
        "mlc-ai/mlc-llm#2285",
        "drafters/mixed.py",
        "state.class_B == switch_lib.DRAWN,",
        "jnp.ones_like(state.class_B, bool),",
        "test_drafters_mixed.py::test_the_draft_model_reads_what_was_copied",
    ),
    Change(
        "what an accepted path wrote stays where the tree had it",
        "mlc-ai/mlc-llm#2285",
        "decoding/loop.py",
        "cache = cache_lib.keep_path(cache, start_B, verdict.path_BG)",
        "del start_B",
        "test_loop_tree.py"
        "::test_caches_equal_a_fresh_reading_after_each_round[llama]",
    ),
    Change(
        "caches have no spare slots, and blocks are moved to fit",
        "jax-ml/jax#9083",
        "decoding/loop.py",
        "slots = prompt_width + budget + self.drafter.nodes + 1",
        "slots = prompt_width + budget",
        "test_loop_edges.py::test_last_slots_of_the_cache",
        (
            Edit(
                "models/cache.py",
                "slot_BT=jnp.where(active_BT, position_BT, slots),",
                "slot_BT=jnp.where(\n"
                "          active_BT,\n"
                "          position_BT\n"
                "          - jnp.maximum(position_BT[:, -1:] + 1 - slots, 0),\n"
                "          slots,\n"
                "      ),",
            ),
        ),
    ),
    Change(
        "a tree may be deeper than there are heads",
        "FasterDecoding/Medusa#63",
        "drafters/medusa.py",
        "self.depth <= self.heads.config.heads,",
        "True,",
        "test_drafters_medusa.py::test_more_places_than_heads_are_refused",
    ),
    Change(
        "the search for a tree does not stay within the heads",
        "FasterDecoding/Medusa#63",
        "tree.py",
        "depth = min(depth, heads.config.heads)",
        "depth = max(depth, heads.config.heads)",
        "test_search.py::test_no_tree_is_deeper_than_there_are_heads",
    ),
    Change(
        "a node sees all nodes before it",
        "PaddlePaddle/FastDeploy#3514",
        "verify/proposal.py",
        "    return sees_BTT\n",
        "    return sees_BTT | (place_T[:, None] >= place_T)\n",
        "test_verify_tree.py::test_places_of_a_tree",
    ),
    Change(
        "the target's pass over a tree shows every node to every other",
        "PaddlePaddle/FastDeploy#3514",
        "models/cache.py",
        "inside_BS[:, None], sees_BTS, index_BS[:, None] < 0\n",
        "inside_BS[:, None],\n"
        "          jnp.ones_like(sees_BTS),\n"
        "          index_BS[:, None] < 0,\n",
        "test_loop_tree.py"
        "::test_node_logits_are_those_of_the_path_as_a_chain[llama]",
    ),
    Change(
        "siblings stand at positions of their own",
        "PaddlePaddle/FastDeploy#3514",
        "models/cache.py",
        "position_BT=start_B[:, None] + depth_BT[:, place_T],",
        "position_BT=start_B[:, None] + jnp.asarray(place_T),",
        "test_loop_tree.py"
        "::test_node_logits_are_those_of_the_path_as_a_chain[llama]",
    ),
    Change(
        "log-probability buffers grow by the square",
        "vllm-project/vllm#4672",
        "decoding/state.py",
        "zeros = lambda: jnp.zeros((rows, columns), jnp.float32)",
        "zeros = lambda: jnp.zeros((rows, columns * columns), jnp.float32)",
        "test_loop_program.py::test_reported_log_probs_and_traces_are_linear",
    ),
    Change(
        "the law's log-probability is 0",
        "ggml-org/llama.cpp#27972",
        "decoding/loop.py",
        "return model_BT, law.log_prob(tokens_BT)",
        "return model_BT, jnp.zeros_like(model_BT)",
        "test_loop_report.py::test_log_probs_of_every_kind_of_token",
    ),
    Change(
        "the model's own log-probability is told behind the temperature",
        "ggml-org/llama.cpp#27972",
        "decoding/loop.py",
        "log_probs = _log_probs(law, logits_BTV, emitted_BT)",
        "log_probs = _log_probs(law, law.logits, emitted_BT)",
        "test_loop_report.py::test_log_probs_follow_the_settings",
    ),
    Change(
        "log-probabilities of a tree are read as if it were a chain",
        "ggml-org/llama.cpp#27972",
        "decoding/loop.py",
        "place_BT = jnp.pad(verdict.path_BG + 1, ((0, 0), (1, 0)))",
        "chain_G = jnp.arange(1, verdict.path_BG.shape[1] + 1)\n"
        "      place_BT = jnp.pad(\n"
        "          jnp.broadcast_to(chain_G, verdict.path_BG.shape),\n"
        "          ((0, 0), (1, 0)),\n"
        "      )",
        "test_loop_tree.py::test_log_probs_along_a_path",
    ),
    Change(
        "what drafts cost grows from call to call",
        "huggingface/transformers#28759",
        "pipeline.py",
        "    self.drafts.params = side.drafter_params\n",
        "    params = side.drafter_params\n"
        "    if hasattr(params, \"costs\"):\n"
        "      verify_W = 2 * params.costs.verify_W\n"
        "      wider = params.costs.replace(verify_W=verify_W)\n"
        "      params = params.replace(costs=wider)\n"
        "    self.drafts.params = params\n",
        "test_pipeline.py::test_a_second_call_begins_as_the_first_did",
    ),
    Change(
        "what drafts cost is forgotten from call to call",
        "huggingface/transformers#28759",
        "pipeline.py",
        "    self.drafts.params = side.drafter_params\n",
        "    params = side.drafter_params\n"
        "    if hasattr(params, \"costs\"):\n"
        "      verify_W = 0 * params.costs.verify_W\n"
        "      wider = params.costs.replace(verify_W=verify_W)\n"
        "      params = params.replace(costs=wider)\n"
        "    self.drafts.params = params\n",
        "test_pipeline.py::test_a_second_call_begins_as_the_first_did",
    ),
    Change(
        "drafts that did not pay are never tried again",
        "huggingface/transformers#28759",
        "drafters/switch.py",
        "_KEEP, _FADE = 0.95, 0.98",
        "_KEEP, _FADE = 0.95, 1.0",
        "test_drafters_switch.py::test_a_row_recovers",
    ),
    Change(
        "one token more than counts is written",
        "huggingface/transformers#47912",
        "decoding/state.py",
        "index_T < count_B[:, None], start_B[:, None] + index_T, columns",
        "index_T <= count_B[:, None], start_B[:, None] + index_T, columns",
        "test_loop_edges.py::test_nothing_lies_behind_the_end",
    ),
    Change(
        "a draft's cache is written on in rows that ended",
        "mistralai/mistral-inference#270",
        "drafters/model.py",
        "query = cache_lib.chain_query(tokens_BT, start_B, cache.slots,"
        " active_BT)",
        "active_BT = jnp.ones_like(active_BT)\n"
        "    query = cache_lib.chain_query(tokens_BT, start_B, cache.slots,"
        " active_BT)",
        "test_drafters.py::test_rows_that_ended_leave_no_trace",
    ),
    Change(
        "prompts are read as if all ended at one place",
        "ndif-team/nnsight#673",
        "models/reading.py",
        "jnp.full_like(prompt_B, start),",
        "start + prompt_B - jnp.max(prompt_B),",
        "test_loop_t5.py::test_decoder_prompts_of_different_lengths",
    ),
    Change(
        "all rows of a pass stand where the longest does",
        "ndif-team/nnsight#673",
        "models/cache.py",
        "position_BT = start_B[:, None] + jnp.arange(width)",
        "position_BT = (\n"
        "      jnp.full_like(start_B, jnp.max(start_B))[:, None] +"
        " jnp.arange(width)\n"
        "  )",
        "test_decoder_parity.py::test_prompts_of_different_lengths_then_steps",
    ),
    Change(
        "responses are read on into the next one",
        "ndif-team/nnsight#673",
        "drafters/suffix_array.py",
        "return np.concatenate([*reversed(parts), []]).astype(np.int32)",
        "made = np.concatenate([*reversed(parts), []]).astype(np.int32)\n"
        "  between = (made == NOTHING) & (np.arange(len(made)) < len(made) -"
        " 1)\n"
        "  return made[~between]",
        "test_drafters_suffix.py::test_padding_is_neither_matched_nor_proposed",
    ),
    Change(
        "what is no token is a node",
        "ndif-team/nnsight#673",
        "drafters/suffix_dynamic.py",
        "    node_GP &= jnp.cumprod(next_GP != NOTHING, axis=0,"
        " dtype=jnp.int32) > 0\n",
        "    next_GP = jnp.maximum(next_GP, 0)\n",
        "test_drafters_suffix_dynamic.py"
        "::test_padding_is_neither_matched_nor_proposed",
    ),
    Change(
        "the draft's cache has a hole before its own first token",
        "mlc-ai/mlc-llm#2285",
        "drafters/model.py",
        "start_B = context.length_B + i - 1\n",
        "start_B = context.length_B + i\n",
        "test_loop_t5.py::test_caches_after_every_pattern_of_accepts",
    ),
    Change(
        "the last draft of a round is never accepted",
        "mlc-ai/mlc-llm#2285",
        "verify/rule.py",
        "accept_BN = accept_BN & (node_N < count_B[:, None])",
        "accept_BN = accept_BN & (node_N < count_B[:, None] - 1)",
        "test_loop_t5.py::test_self_draft_is_always_accepted",
    ),
    Change(
        "siblings turn by their slots",
        "PaddlePaddle/FastDeploy#3514",
        "models/decoder.py",
        "return config.rope.turns(query.position_BT, config.d_kv)",
        "return config.rope.turns(query.slot_BT, config.d_kv)",
        "test_decoder_parity.py::test_siblings_share_a_position_but_not_a_slot",
    ),
    Change(
        "both log-probabilities are the law's",
        "ggml-org/llama.cpp#27972",
        "decoding/loop.py",
        "model_BS=note(state.log_probs.model_BS, model_BT),",
        "model_BS=note(state.log_probs.model_BS, law_BT),",
        "test_loop_t5.py::test_log_probs_are_those_of_a_teacher_forced_pass",
    ),
    Change(
        "a law's mass is left out of its log-probabilities",
        "ggml-org/llama.cpp#27972",
        "sampling.py",
        "logit >= self.cut, logit - self.peak - self.log_mass, -jnp.inf",
        "logit >= self.cut, logit - self.peak, -jnp.inf",
        "test_verify_reports.py"
        "::test_log_probabilities_are_of_the_processed_law",
    ),
)

MODELS = (
    Change(
        "an id beyond the vocabulary is taken for the last",
        "vllm-project/vllm#7252",
        "sampling.py",
        "return jnp.where(inside, logit[..., 0], -jnp.inf)",
        "return logit[..., 0]",
        "test_verify_reports.py"
        "::test_an_id_the_target_lacks_is_rejected_not_clamped",
    ),
    Change(
        "ids that the draft lacks are given a logit of 0",
        "vllm-project/vllm#7252",
        "sampling.py",
        "return jnp.pad(logits, pad, constant_values=-jnp.inf)",
        "return jnp.pad(logits, pad, constant_values=0)",
        "test_verify_reports.py::test_widths_that_differ",
    ),
    Change(
        "any pair of tokenizers passes",
        "vllm-project/vllm#7252",
        "checkpoints/tokenizer.py",
        "if target.fingerprint() == draft.fingerprint():",
        "if target.fingerprint():",
        "test_checkpoints_tokenizer.py::test_pairs",
    ),
    Change(
        "relative bias from the first query",
        "huggingface/candle#899",
        "models/bias.py",
        "key_position_BS[:, None, :] - query_position_BT[:, :, None],",
        "key_position_BS[:, None, :]\n"
        "        - (query_position_BT - query_position_BT[:, :1])[:, :, None],",
        "test_t5_parity.py::test_tokens_after_a_cache",
    ),
    Change(
        "cross-attention sees the padding of the source",
        "huggingface/candle#899",
        "models/t5.py",
        "self.cross(query_BHTK, *source, None, mask_BL[:, None, :])",
        "self.cross(\n"
        "        query_BHTK,\n"
        "        *source,\n"
        "        None,\n"
        "        jnp.ones_like(mask_BL)[:, None, :],\n"
        "    )",
        "test_t5_parity.py::test_padding_of_the_source_is_not_seen",
    ),
    Change(
        "sentinels count up",
        "huggingface/transformers#14282",
        "checkpoints/tokenizer.py",
        'f"<extra_id_{i}>" for i in reversed(range(_EXTRA_IDS))',
        'f"<extra_id_{i}>" for i in range(_EXTRA_IDS)',
        "test_checkpoints_tokenizer.py::test_sentinels_of_t5",
    ),
    Change(
        "a prompt that begins with an EOS is an ended row",
        "huggingface/transformers#8161",
        "decoding/state.py",
        "done_B=batch.budget_B <= 0,",
        "done_B=(batch.budget_B <= 0)\n"
        "      | jnp.any(\n"
        "          batch.prompt_BP[:, :1] == batch.sampling.eos_BE, axis=1\n"
        "      ),",
        "test_loop_edges.py"
        "::test_eos_and_budgets_at_every_place_of_a_block",
    ),
    Change(
        "labels are fed as they are, without the start token",
        "huggingface/transformers#8161",
        "training/objective.py",
        "inputs_BT = jnp.concatenate([start_B1, target_BT[:, :-1]], axis=1)",
        "inputs_BT = target_BT",
        "test_training.py::test_loss_ignores_padding",
    ),
    Change(
        "T5's version is the tie flag",
        "huggingface/transformers#43681",
        "checkpoints/families/t5.py",
        "  return scaled\n",
        "  return tied\n",
        "test_checkpoints_config.py::test_version",
    ),
    Change(
        "v1.0 is not scaled",
        "huggingface/transformers#43681",
        "models/t5.py",
        "return self.d_model**-0.5 if self.tied else 1.0",
        "return 1.0",
        "test_t5_parity.py::test_full_pass",
    ),
    Change(
        "a missing embedding is the head",
        "huggingface/transformers#48154",
        "checkpoints/families/t5.py",
        "  # transformers 5 leaves out a v1.1 head that it tied all the"
        " same.\n",
        "  if HEAD in tensors:\n"
        "    tensors.setdefault(SHARED, tensors[HEAD])\n",
        "test_checkpoints_hf.py::test_missing_embedding_is_never_the_head",
    ),
    Change(
        "a copy of the embedding may hold other numbers",
        "huggingface/transformers#48154",
        "checkpoints/hf.py",
        "if copy.shape != kept.shape or not np.array_equal(copy.read(),"
        " kept.read()):",
        "if copy.shape != kept.shape:",
        "test_checkpoints_hf.py::test_copies_that_differ",
    ),
    Change(
        "every slot is seen",
        "huggingface/transformers#26663",
        "models/cache.py",
        "mask_BTS=position_S <= position_BT[:, :, None],",
        "mask_BTS=jnp.ones((batch, width, slots), bool),",
        "test_t5_parity.py::test_unfilled_slots_are_not_seen",
    ),
    Change(
        "buckets of the wrong side",
        "ml-explore/mlx-examples#113",
        "models/bias.py",
        "offset = jnp.where(distance > 0, buckets, 0)",
        "offset = jnp.where(distance < 0, buckets, 0)",
        "test_t5_parity.py::test_encoder_buckets",
    ),
    Change(
        "cross-attention has a bias, too",
        "ml-explore/mlx-examples#113",
        "models/t5.py",
        "self.cross(query_BHTK, *source, None, mask_BL[:, None, :])",
        "self.cross(\n"
        "        query_BHTK,\n"
        "        *source,\n"
        "        0.1 * jnp.arange(mask_BL.shape[1]),\n"
        "        mask_BL[:, None, :],\n"
        "    )",
        "test_t5_parity.py::test_full_pass",
    ),
    Change(
        "text is decoded token by token",
        "google/sentencepiece#1043",
        "checkpoints/tokenizer.py",
        "return self._backend.decode([i for i in ids if i not in"
        " self._special])",
        'return "".join(\n'
        "          self._backend.decode([i]) for i in ids"
        " if i not in self._special\n"
        "      )",
        "test_checkpoints_tokenizer.py::test_ids_are_decoded_together",
    ),
    Change(
        "what is drafted beyond the vocabulary is taken for its last id",
        "vllm-project/vllm#7252",
        "decoding/loop.py",
        "    # A round emits one token more than it accepts; a tree's nodes"
        " need have no\n",
        "    last = state.sampling.suppressed_V.shape[0] - 1\n"
        "    proposal = proposal.replace(\n"
        "        tokens_BN=jnp.minimum(proposal.tokens_BN, last)\n"
        "    )\n",
        "test_loop_rows.py::test_ids_outside_the_target_are_rejected",
    ),
    Change(
        "a narrower draft lacks the first ids",
        "vllm-project/vllm#7252",
        "sampling.py",
        "pad = [(0, 0)] * (logits.ndim - 1) + [(0, surplus)]",
        "pad = [(0, 0)] * (logits.ndim - 1) + [(surplus, 0)]",
        "test_drafters.py::test_narrower_vocabulary",
    ),
    Change(
        "of a wider draft the last ids are taken",
        "vllm-project/vllm#7252",
        "sampling.py",
        "    return logits[..., :width]\n",
        "    return logits[..., -width:]\n",
        "test_drafters.py::test_wider_vocabulary",
    ),
    Change(
        "nobody asks what tokenizer the draft has",
        "vllm-project/vllm#7252",
        "drafts.py",
        "tokenizer_lib.check_same(target.tokenizer, draft.tokenizer)",
        "tokenizer_lib.check_same(target.tokenizer, target.tokenizer)",
        "test_pipeline.py::test_a_draft_with_another_tokenizer_is_refused",
    ),
    Change(
        "any number is a sentinel's",
        "huggingface/transformers#14282",
        "checkpoints/tokenizer.py",
        "      if name in self._sentinels:\n"
        "        merged += [self._sentinels[name], text]\n",
        "      if name:\n"
        "        merged += [self._sentinels.get(name, self.size - 1), text]\n",
        "test_checkpoints_tokenizer.py::test_what_only_looks_like_a_sentinel",
    ),
    Change(
        "v1.1 is scaled, too",
        "huggingface/transformers#43681",
        "models/t5.py",
        "return self.d_model**-0.5 if self.tied else 1.0",
        "return self.d_model**-0.5",
        "test_t5_parity.py::test_logit_scale_by_version",
    ),
)

HEADS = (
    Change(
        "at prompts a state goes with its own token",
        "sgl-project/SpecForge#448",
        "decoding/loop.py",
        "state.tokens_BS[:, 1:prompt_width],",
        "state.tokens_BS[:, : prompt_width - 1],",
        "test_drafters_eagle.py"
        "::test_one_shift_between_tokens_and_hidden_states",
    ),
    Change(
        "a state is to give the token that was read with it",
        "sgl-project/SpecForge#448",
        "training/eagle.py",
        "_later(ids_BT, m + 1)[:, :places],",
        "_later(ids_BT, m)[:, :places],",
        "test_training_eagle.py::test_what_counts",
    ),
    Change(
        "on held-out texts every position reads the target's own state",
        "sgl-project/SpecForge#472",
        "training/eagle.py",
        "      hidden_BTD, cache = model.read(pair, query, hidden_BTD, cache,"
        " memory)\n",
        "      true_BTD = jnp.roll(states_BTD, 1 - m, axis=1)[:, :-1]\n"
        "      hidden_BTD, cache = model.read(pair, query, true_BTD, cache,"
        " memory)\n",
        "test_training_eagle.py::test_positions_are_drafted_as_when_decoding",
    ),
    Change(
        "what a head made up of accepted tokens stays in its cache",
        "sgl-project/SpecForge#472",
        "drafters/eagle.py",
        "          index_T < count_B[:, None],\n",
        "          (index_T < count_B[:, None])\n"
        "          & ((index_T < 1) | (context.length_B <= 1)[:, None]),\n",
        "test_drafters_eagle.py"
        "::test_greedy_texts_are_plain_ones_and_caches_are_fresh[llama-chain]",
    ),
    Change(
        "a head's bias is written and not read",
        "NVIDIA-NeMo/Automodel#2447",
        "checkpoints/eagle.py",
        '  if not get.boolean("bias", True):\n'
        "    zeros = np.zeros((config.d_model,), np.float32)\n"
        "    tensors.setdefault(BIAS, hf.Tensor(zeros.shape, lambda: zeros))\n",
        "  zeros = np.zeros((config.d_model,), np.float32)\n"
        "  tensors[BIAS] = hf.Tensor(zeros.shape, lambda: zeros)\n",
        "test_checkpoints_eagle.py::test_there_and_back[llama]",
    ),
    Change(
        "another target's head is taken",
        "NVIDIA-NeMo/Automodel#2447",
        "checkpoints/eagle.py",
        "if kind(config) != kind(target):",
        "if not kind(target):",
        "test_checkpoints_eagle.py::test_another_target",
    ),
    Change(
        "each step of a head reads its first draft",
        "sgl-project/SpecForge#472",
        "drafters/eagle.py",
        "return (cache, hidden_B1D, token_B), (token_B, law)",
        "return (cache, hidden_B1D, first_B), (token_B, law)",
        "test_drafters_eagle.py"
        "::test_a_head_that_knows_all_is_always_accepted[argmax]",
    ),
    Change(
        "a public head's embedding and state change places",
        "NVIDIA-NeMo/Automodel#2447",
        "models/eagle.py",
        "return self.fc(jnp.concatenate([embedded_BTD, hidden_BTD], axis=-1))",
        "return self.fc(jnp.concatenate([hidden_BTD, embedded_BTD], axis=-1))",
        "test_checkpoints_eagle.py::test_public_ones",
    ),
    Change(
        "the ids that a head chooses from are not stored",
        "NVIDIA-NeMo/Automodel#2447",
        "checkpoints/heads.py",
        "  if heads.listed is not None:\n"
        "    tensors[_LISTED] = np.asarray(heads.listed, np.int32)\n",
        "",
        "test_checkpoints_eagle.py::test_files_of_this_package[llama]",
    ),
    Change(
        "the ids that a head chooses from are stored from the end",
        "NVIDIA-NeMo/Automodel#2447",
        "checkpoints/heads.py",
        "tensors[_LISTED] = np.asarray(heads.listed, np.int32)",
        "tensors[_LISTED] = np.asarray(heads.listed, np.int32)[::-1].copy()",
        "test_checkpoints_eagle.py::test_files_of_this_package[t5]",
    ),
    Change(
        "the ids that a head chooses from may stand in any order",
        "NVIDIA-NeMo/Automodel#2447",
        "models/listed.py",
        "return bool(np.all(inside) and np.all(np.diff(ids_W) > 0))",
        "return bool(np.all(inside))",
        "test_checkpoints_eagle.py::test_damaged_offsets",
    ),
    Change(
        "offsets of ids are taken for ids",
        "NVIDIA-NeMo/Automodel#2447",
        "checkpoints/eagle.py",
        "ids_W = np.arange(shape[0]) + offset_W",
        "ids_W = np.unique(offset_W)",
        "test_checkpoints_eagle.py::test_offsets_of_ids",
    ),
    Change(
        "a head's own output is not looked at",
        "NVIDIA-NeMo/Automodel#2447",
        "checkpoints/eagle.py",
        "output = tensors.get(_OUTPUT)",
        "output = None",
        "test_checkpoints_eagle.py::test_offsets_of_ids[some]",
    ),
)

_TALLY = (
    "  old = state.tallies\n"
    "  index_G = jnp.arange(verdict.path_BG.shape[1])\n"
    "  judged_BG = "
)

MEASURED = (
    Change(
        "the token in a rejected one's place counts as accepted",
        "sgl-project/sglang#11572",
        "decoding/loop.py",
        "accepted_BG = judged_BG & (index_G < verdict.accepted_B[:, None])",
        "accepted_BG = judged_BG & (index_G <= verdict.accepted_B[:, None])",
        "test_loop_tree.py::test_tallies_of_random_paths",
    ),
    Change(
        "drafts behind a rejected one count as judged",
        "sgl-project/sglang#11572",
        "decoding/loop.py",
        _TALLY + "verdict.evaluated_BG & (index_G < count_B[:, None])",
        _TALLY + "index_G < proposal.count_B[:, None]",
        "test_loop_report.py::test_tallies_of_a_known_run",
    ),
    Change(
        "drafts behind a text's end count",
        "sgl-project/sglang#11572",
        "decoding/loop.py",
        _TALLY + "verdict.evaluated_BG & (index_G < count_B[:, None])",
        _TALLY + "verdict.evaluated_BG",
        "test_loop_edges.py::test_tallies_count_what_was_emitted",
    ),
    Change(
        "rounds without drafts are not counted",
        "sgl-project/sglang#11572",
        "decoding/loop.py",
        "rounds_B=old.rounds_B + ~state.done_B,",
        "rounds_B=old.rounds_B + (~state.done_B & (proposal.count_B > 0)),",
        "test_drafters_lookup.py::test_rounds_without_drafts_are_counted",
    ),
    Change(
        "an option that is not there is dropped",
        "unslothai/unsloth#10452",
        "command_line.py",
        "  _check_names(argv, list(config_lib.leaves()))\n",
        "  known, match = config_lib.leaves(), _OVERRIDE.match\n"
        "  argv = [x for x in argv if not match(x) or match(x)[1] in known]\n",
        "test_config.py::test_refused_options",
    ),
    Change(
        "options of prompt lookup are read and never used",
        "unslothai/unsloth#10452",
        "prepare.py",
        "return drafts_lib.draft_lookup(draft.gamma, **options)",
        "return drafts_lib.draft_lookup(draft.gamma)",
        "test_run.py::test_options_of_copies",
    ),
    Change(
        "texts in another case are other texts",
        "z-lab/dflash#43",
        "data/metrics.py",
        'unicodedata.normalize("NFKC", text).casefold().split()',
        'unicodedata.normalize("NFKC", text).split()',
        "test_data_metrics.py::test_leaked_evaluation_texts_are_reported",
    ),
    Change(
        "n-grams are counted from held-out answers, too",
        "z-lab/dflash#43",
        "data/ngrams.py",
        "metrics.refuse_overlap(texts, known, allow_overlap)",
        "metrics.overlap(texts, known)",
        "test_ngrams.py::test_held_out_references_are_refused",
    ),
    Change(
        "stored responses may hold the answers",
        "z-lab/dflash#43",
        "prepare.py",
        "  if found:\n",
        "  if not answers:\n",
        "test_run.py::test_responses_that_hold_the_answers",
    ),
    Change(
        "a cold suffix tree is a warm one",
        "z-lab/dflash#43",
        "bench.py",
        "words[at : at + 1] = _EMPTY",
        "del words[at]",
        "test_bench.py::test_kinds_of_drafts",
    ),
    Change(
        "no warm-up",
        "Lightning-AI/lightning-thunder#2638",
        "measure/timing.py",
        "for i in range(warmup):",
        "for i in range(0):",
        "test_measure_timing.py::test_steady_time_is_reported",
    ),
    Change(
        "the first batch alone is warmed up",
        "Lightning-AI/lightning-thunder#2638",
        "measure/timing.py",
        "for batch in batches:\n      for name in sides:",
        "for batch in batches[:1]:\n      for name in sides:",
        "test_measure_timing.py::test_every_timed_shape_is_warmed_up",
    ),
    Change(
        "a compilation in the timed window is not noticed",
        "Lightning-AI/lightning-thunder#2638",
        "measure/timing.py",
        "  with no_compilation():\n",
        "  with contextlib.nullcontext():\n",
        "test_measure_timing.py::test_interleave_notices_compilation",
    ),
    Change(
        "the clock does not wait for the device",
        "Lightning-AI/lightning-thunder#2638",
        "measure/timing.py",
        "state = jax.block_until_ready(now[name].run(state))",
        "state = now[name].run(state)",
        "test_measure_timing.py::test_the_device_is_waited_for",
    ),
    Change(
        "a full suffix store keeps the oldest",
        "snowflakedb/ArcticInference#164",
        "drafters/suffix_array.py",
        "for ids in reversed(responses):",
        "for ids in responses:",
        "test_drafters_suffix.py::test_the_oldest_responses_are_forgotten",
        (
            Edit(
                "drafters/suffix_array.py",
                "parts += [[NOTHING], ids]",
                "parts = [[NOTHING], ids, *parts]",
            ),
        ),
    ),
    Change(
        "drafts go on past a row's budget",
        "snowflakedb/ArcticInference#164",
        "decoding/loop.py",
        "count_B = jnp.minimum(proposal.count_B, context.remaining_B - 1)",
        "count_B = proposal.count_B",
        "test_loop_edges.py::test_tallies_count_what_was_emitted",
    ),
    Change(
        "the loss counts padding",
        "sgl-project/SpecForge#885",
        "training/objective.py",
        "mask_BT = jnp.arange(target_BT.shape[1]) < length_B[:, None]",
        "mask_BT = jnp.ones(target_BT.shape, bool)",
        "test_training.py::test_places_that_count_have_a_gradient",
    ),
    Change(
        "the loss mask is shifted with the labels",
        "sgl-project/SpecForge#885",
        "training/objective.py",
        "mask_BT = jnp.arange(target_BT.shape[1]) < length_B[:, None]",
        "mask_BT = jnp.arange(target_BT.shape[1]) < length_B[:, None] - 1",
        "test_training.py::test_places_that_count_have_a_gradient",
    ),
    Change(
        "a head's loss mask stays where the labels were shifted",
        "sgl-project/SpecForge#885",
        "training/eagle.py",
        "_later(jnp.asarray(batch.answer_BT), m + 1)[:, :places],",
        "_later(jnp.asarray(batch.answer_BT), m)[:, :places],",
        "test_training_eagle.py::test_what_counts",
    ),
    Change(
        "accepted drafts alone count as drafted",
        "sgl-project/sglang#11572",
        "decoding/loop.py",
        "drafted_B=old.drafted_B + jnp.where(state.done_B, 0,"
        " proposal.count_B),",
        "drafted_B=old.drafted_B\n"
        "      + jnp.where(state.done_B, 0, verdict.accepted_B),",
        "test_loop_report.py::test_tallies_of_random_rows",
    ),
    Change(
        "tokens a round are accepted ones",
        "sgl-project/sglang#11572",
        "measure/acceptance.py",
        "return sum(tokens) / sum(rounds)",
        "return sum(tokens) / sum(rounds) - 1",
        "test_measure_acceptance.py::test_by_position",
    ),
    Change(
        "a draft's own temperature, top_k and top_p are read and never used",
        "unslothai/unsloth#10452",
        "prepare.py",
        "return {key: getattr(draft, key) for key in keys}",
        "return {key: getattr(draft, key) for key in keys if key =="
        " \"argmax\"}",
        "test_run.py::test_draft_options",
    ),
    Change(
        "gamma is read and never used",
        "unslothai/unsloth#10452",
        "prepare.py",
        "config.draft.gamma if gamma is None else gamma,",
        "3 if gamma is None else gamma,",
        "test_run.py::test_gamma",
    ),
    Change(
        "drafts that shall not learn do",
        "z-lab/dflash#43",
        "decoding/side.py",
        "    if not drafter.learns:\n"
        "      return self\n",
        "",
        "test_drafters_suffix.py::test_responses_are_adopted_between_requests",
    ),
    Change(
        "a suffix's path is as long as it may be",
        "snowflakedb/ArcticInference#164",
        "drafters/suffix.py",
        "    good_GM &= node_G1 < self.budget_M\n",
        "",
        "test_drafters_suffix.py::test_as_the_reference",
    ),
)

# By the tables of reports in docs/faults.md.
TABLES = {
    "Laws and draws": LAWS,
    "Ends, rows and caches": ENDS,
    "Vocabularies, tokenizers and checkpoints": MODELS,
    "Heads that read the target's hidden states": HEADS,
    "Options, data, training and measurement": MEASURED,
}
CHANGES = sum(TABLES.values(), ())
