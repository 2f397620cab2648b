"""Which test holds which case of the bug reports: every number has some, and every test that is named is there.

The numbers are those of the collected reports that this version answers for: all files (A), all of a model's meaning
(B), the numeric and quantised ones (C, F), all of the engine and the server (D), and those of plugins, of optional
packages and of a compiled extension (E). A case of this folder is found by the name of its tests, ``test_a07_...``;
what tests elsewhere hold besides is listed here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CASES = """
A01 A02 A04 A05 A07 A09 A11 A12 A13 A15 A16 A17 A19 A20 A21 A22 A24 A25 A28 A29
B01 B03 B04 B05 B07 B09 B10 B11 B12 B13 B15 B17 B18 B20 B21 B23 B25 B27 B28 B30 B31 B32
C01 C02 C03 C04 C06 C08 C11 C12 C13
D01 D04 D06 D07 D09 D10 D11 D12 D14 D15 D17 D18 D19 D20 D21 D22 D24 D25 D27 D29
E01 E03 E05 E06 E07 E09 E10 E11 E13
F01 F02 F04 F06 F07 F09 F10 F11 F13 F14 F15
""".split()

_IMPORTERS, _CORE = "cacheir-importers/tests", "cacheir-core/tests"
_ENGINE = f"{_CORE}/runtime/test_engine_cases.py"
_COMPLETIONS = "cacheir-server/tests/test_completions.py"
_REFUSALS, _METRICS = "cacheir-server/tests/test_refusals.py", "cacheir-server/tests/test_metrics.py"
_EXACT = "cacheir-server/tests/test_exact_cases.py"
_FAULTY, _OPTIONAL = "tests/plugins/test_faulty_distributions.py", "tests/plugins/test_optional_dependencies.py"
_STARTUP = "tests/startup/test_startup.py"
_TRITON, _REPLAYS = "cacheir-cuda/tests/test_triton_cannot_compile.py", "cacheir-cuda/tests/test_stale_replays.py"

# case -> tests of other folders, FILE::TEST
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "A01": (f"{_IMPORTERS}/test_gguf_reader.py::test_a01_dimensions_whose_product_wraps",),
    "A02": (f"{_IMPORTERS}/test_gguf_reader.py::test_a02_zero_sizes_and_empty_names",),
    "A04": (
        f"{_IMPORTERS}/test_gguf_reader.py::test_a04_counts_that_promise_terabytes",
        f"{_IMPORTERS}/test_gguf_reader.py::test_a04_arrays_nested_without_end",
    ),
    "A05": (f"{_IMPORTERS}/test_gguf_reader.py::test_a05_alignment",),
    "A07": (
        f"{_IMPORTERS}/test_gguf_reader.py::test_a07_whole_files_of_another_kind",
        "tests/importers/test_gguf_package.py::test_a07_a_big_endian_file_is_refused_as_such",
    ),
    "A09": (
        f"{_IMPORTERS}/test_gguf_reader.py::test_a09_a_key_twice",
        f"{_IMPORTERS}/test_gguf_reader.py::test_a09_a_tensor_twice",
    ),
    "A11": (
        f"{_IMPORTERS}/test_gguf_importer.py::test_a11_a_type_that_nobody_reads_matters_only_where_it_is_needed",
        f"{_IMPORTERS}/test_show_header.py::test_a11_every_tensor_is_listed",
    ),
    "A12": (f"{_IMPORTERS}/test_gguf_reader.py::test_a12_every_cut_is_refused",),
    "A13": (
        f"{_IMPORTERS}/test_gguf_parts.py::test_a_missing_part_is_named",
        f"{_IMPORTERS}/test_gguf_parts.py::test_a_tensor_in_two_parts",
        "tests/importers/test_gguf_types.py::test_a13_a_split_model_is_the_unsplit_one",
    ),
    "A15": (f"{_IMPORTERS}/test_huggingface_importer.py::test_a15_architecture_and_model_type_apart",),
    "A16": (f"{_IMPORTERS}/test_safetensors_header.py::test_a16_headers_that_are_none",),
    "A17": (
        f"{_IMPORTERS}/test_safetensors_header.py::test_a17_offsets_and_shapes",
        f"{_IMPORTERS}/test_safetensors_header.py::test_the_library_agrees",
    ),
    "A19": (f"{_IMPORTERS}/test_packed.py::test_e4m3_is_what_its_formula_says",),
    "A20": (f"{_IMPORTERS}/test_checkpoint.py::test_a20_names_that_lead_out_are_refused_unseen",),
    "A21": (f"{_IMPORTERS}/test_checkpoint.py::test_a21_the_hubs_cache_is_made_of_links",),
    "A22": (f"{_IMPORTERS}/test_checkpoint.py::test_a22_of_two_shards_with_one_tensor_the_index_decides",),
    "A24": (f"{_IMPORTERS}/test_checkpoint.py::test_a24_pickles_are_never_opened",),
    "A25": (f"{_IMPORTERS}/test_npz.py::test_a25_a_needed_object_array_is_refused_by_name",),
    "A28": (
        f"{_IMPORTERS}/test_stablehlo.py::test_a28_constants_as_printers_write_them",
        f"{_IMPORTERS}/test_stablehlo.py::test_what_is_not_supported_is_refused_with_its_place",
    ),
    "A29": (
        f"{_CORE}/runtime/test_chat_template.py::test_case_a29_nothing_inside_python_is_reached",
        f"{_CORE}/runtime/test_chat_template.py::test_case_a29_a_template_takes_neither_all_time_nor_all_memory",
        f"{_CORE}/runtime/test_chat_template.py::test_a_template_that_is_wrong_is_reported_when_it_is_loaded",
    ),
    "B01": ("tests/families/test_gguf.py::test_the_twin_has_the_logits_of_the_folder",),
    "B03": (f"{_IMPORTERS}/test_huggingface_importer.py::test_b03_the_base_in_every_spelling",),
    "B04": (
        "tests/families/test_rope.py::test_b04_multipliers_of_llama3",
        "tests/families/test_rope.py::test_tables_are_those_of_transformers",
    ),
    "B05": (
        "tests/families/test_rope.py::test_b05_magnitudes_of_yarn",
        "tests/families/test_rope.py::test_b05_a_key_that_nothing_knows_is_reported",
    ),
    "B09": (
        "tests/families/test_layers.py::test_b09_partial_rotation_of_phi_3",
        f"{_IMPORTERS}/test_huggingface_importer.py::test_b09_partial_rotation_is_named",
    ),
    "B10": (
        "tests/importers/test_transformers.py::test_b10_heads",
        f"{_IMPORTERS}/test_huggingface_importer.py::test_b10_heads_tied_and_untied",
    ),
    "B11": ("tests/families/test_layers.py::test_b11_heads_that_are_no_part_of_hidden",),
    "B12": ("tests/families/test_layers.py::test_b12_large_biases_of_qwen2",),
    "B13": (
        "tests/families/test_layers.py::test_b13_norms_of_q_and_k_in_every_path",
        "tests/families/test_layers.py::test_b13_norms_that_are_missing",
    ),
    "B15": (
        "tests/families/test_layers.py::test_b15_windows_of_each_layer",
        "tests/families/test_layers.py::test_b15_windows_stand_in_the_graphs_and_in_the_logits",
        "tests/families/test_layers.py::test_b15_layer_types_of_another_length",
    ),
    "B17": ("tests/families/test_layers.py::test_b17_granite_with_the_multipliers_of_the_report",),
    "B18": (
        f"{_IMPORTERS}/test_huggingface_importer.py::test_b18_ends_of_a_text_are_a_union",
        f"{_CORE}/runtime/test_answer.py::test_case_b18_any_of_the_ending_ids_stops",
    ),
    "B20": (f"{_CORE}/runtime/test_encode.py::test_case_b20_one_beginning_token",),
    "B21": ("tests/end_to_end/test_padded_vocabulary.py::test_greedy_tokens_are_the_largest_known_logits",),
    "B23": (
        f"{_CORE}/runtime/test_encode.py::test_case_b23_a_user_cannot_forge_a_turn",
        "tests/importers/test_transformers.py::test_b23_control_tokens_as_transformers_splits_them",
    ),
    "B25": (
        f"{_IMPORTERS}/test_gguf_tokenizer.py::test_b25_pieces",
        f"{_IMPORTERS}/test_gguf_tokenizer.py::test_b25_an_unknown_split_is_refused_by_name",
        f"{_IMPORTERS}/test_gguf_tokenizer.py::test_b25_a_missing_split_is_refused",
    ),
    "B27": (
        f"{_IMPORTERS}/test_huggingface_tokenizer.py::test_b27_sentencepiece",
        f"{_IMPORTERS}/test_huggingface_tokenizer.py::test_b27_bytes_are_bytes_and_never_their_names",
        f"{_IMPORTERS}/test_gguf_pieces.py::test_b27_decoding_token_by_token_is_decoding_at_once",
        "tests/importers/test_sentencepiece.py::test_b27_the_librarys_ids",
    ),
    "B28": (f"{_CORE}/runtime/test_answer.py::test_streaming_equals_the_whole",),
    "B31": (
        f"{_CORE}/runtime/test_encode.py::test_case_b31_text_parts_are_one_string",
        f"{_CORE}/runtime/test_encode.py::test_messages_of_a_wrong_shape_are_named",
    ),
    "B32": (f"{_CORE}/runtime/test_session.py::test_ids_out_of_range_are_named",),
    "C01": (
        "tests/end_to_end/test_not_finite.py::test_c01_greedy",
        "cacheir-native/tests/test_executor_results.py::test_logits_that_are_not_finite_fail_their_row_alone",
    ),
    "C02": ("cacheir-native/tests/test_executor_invariance.py::test_neighbours",),
    "C04": (
        f"{_ENGINE}::test_c04_with_a_constant_hash_every_answer_is_right",
        f"{_ENGINE}::test_c04_hash_minus_one_is_hash_minus_two",
    ),
    "C06": (f"{_ENGINE}::test_c06_a_prompt_that_is_cached_whole_answers_as_before",),
    "C08": (f"{_ENGINE}::test_c08_chunks_end_anywhere",),
    "C11": (f"{_ENGINE}::test_c11_pages_come_back_however_a_request_ends",),
    "C12": (f"{_ENGINE}::test_c12_one_ends_in_the_step_in_which_another_must_leave",),
    "D01": (
        "cacheir-server/tests/test_disconnects.py::test_case_d01_running_waiting_and_prefilling_requests_end_with_their_clients",
        "cacheir-server/tests/test_disconnects.py::test_case_d01_a_client_that_does_not_read_costs_no_more_than_its_answer",
        "cacheir-server/tests/test_disconnects.py::test_a_client_that_closes_its_sending_side_leaves_nothing_running",
    ),
    "D04": (f"{_COMPLETIONS}::test_case_d04_a_stop_string_that_spans_tokens_is_never_seen",),
    "D06": (f"{_COMPLETIONS}::test_case_d06_the_envelope_of_a_stream",),
    "D07": (
        f"{_COMPLETIONS}::test_case_d07_the_reason_is_each_choices_own",
        f"{_CORE}/runtime/test_answer.py::test_case_d07_an_ending_token_within_the_limit_is_a_stop",
    ),
    "D09": (
        f"{_COMPLETIONS}::test_case_d09_logprobs_are_finite_and_bytes_join_to_the_text",
        f"{_EXACT}::test_case_d09_logprobs_of_a_chat_are_strict_json_and_the_models_own",
        f"{_EXACT}::test_case_d09_a_vocabulary_smaller_than_what_is_asked_for",
    ),
    "D10": (
        f"{_COMPLETIONS}::test_case_d10_echo_with_no_tokens_scores_the_prompt_hot_and_cold_alike",
        f"{_EXACT}::test_case_d10_the_scores_of_an_echoed_prompt_are_right",
    ),
    "D11": (f"{_COMPLETIONS}::test_case_d11_the_limits_of_tokens",),
    "D12": (
        f"{_REFUSALS}::test_case_d12_bad_values_are_named",
        f"{_REFUSALS}::test_null_means_the_default_and_legal_negatives_are_taken",
        f"{_CORE}/runtime/test_sampling.py::test_case_d12_bad_values_are_named",
    ),
    "D14": (
        f"{_REFUSALS}::test_case_d14_half_a_surrogate_pair_is_refused_and_a_whole_one_is_text",
        f"{_CORE}/runtime/test_encode.py::test_case_d14_half_a_surrogate_pair_is_no_text",
        f"{_IMPORTERS}/test_gguf_tokenizer.py::test_d14_half_a_surrogate_pair_is_the_requests_fault",
    ),
    "D15": (
        f"{_COMPLETIONS}::test_case_d15_a_seed_gives_the_same_tokens_and_its_choices_differ",
        f"{_CORE}/runtime/test_sampling.py::test_case_d15_a_seed_does_not_depend_on_neighbours",
    ),
    "D17": (
        "cacheir-server/tests/test_several_choices.py::test_case_d17_each_choice_has_its_index_its_reason_and_its_tokens",
        "cacheir-server/tests/test_several_choices.py::test_case_d17_a_choice_that_stops_early_is_counted_as_it_is",
        "cacheir-server/tests/test_several_choices.py::test_case_d17_greedy_choices_are_alike_and_too_many_are_refused",
    ),
    "D18": (f"{_COMPLETIONS}::test_case_d18_a_prompt_that_is_too_long_says_both_numbers",),
    "D19": (f"{_REFUSALS}::test_case_d19_what_cannot_fit_the_pages_is_refused_and_the_rest_ends",),
    "D20": (f"{_ENGINE}::test_d20_neither_long_nor_short_prompts_starve",),
    "D21": (
        f"{_REFUSALS}::test_case_d21_a_full_queue_refuses_at_once_and_frees_its_places",
        f"{_EXACT}::test_case_d21_of_fifty_five_are_taken_and_the_rest_told_in_json",
    ),
    "D22": (f"{_REFUSALS}::test_case_d22_every_route_needs_the_key",),
    "D24": (f"{_REFUSALS}::test_case_d24_a_model_is_a_name",),
    "D25": (f"{_REFUSALS}::test_case_d25_a_body_above_the_limit_is_not_read",),
    "D27": (
        f"{_METRICS}::test_case_d27_metrics_add_up_and_stand_still_while_idle",
        f"{_METRICS}::test_case_d27_the_names_types_and_labels_are_these",
        "cacheir-server/tests/test_disconnects.py::test_case_d27_of_twenty_one_requests_each_is_counted_once",
    ),
    "D29": (
        f"{_REFUSALS}::test_case_d29_what_is_no_request",
        f"{_REFUSALS}::test_case_d29_wrong_paths_methods_and_types",
        "tests/server/test_schemathesis.py::test_no_answer_is_the_servers_fault",
    ),
    "E01": (
        f"{_FAULTY}::test_it_costs_itself_alone",
        f"{_FAULTY}::test_strict_mode_makes_it_an_error",
        f"{_FAULTY}::test_a_plugin_that_takes_three_seconds",
    ),
    "E03": ("tests/plugins/test_spawned_workers.py::test_e03_entry_points_are_known_in_every_child",),
    "E05": (
        f"{_STARTUP}::test_help_and_version",
        f"{_STARTUP}::test_looking_at_plugins_imports_nothing_heavy",
        f"{_STARTUP}::test_importing_the_library",
    ),
    "E06": (
        "cacheir-native/tests/test_numpy_kernels.py::test_kernels_that_are_not_built_refuse_and_forced_ones_are_an_error",
    ),
    "E07": (
        "cacheir-native/tests/test_cpp.py::test_cpp_tests_pass",
        "cacheir-native/tests/test_building_blocks.py::test_instruction_set_can_be_forced_and_a_wrong_name_is_an_error",
    ),
    "E09": (f"{_CORE}/bench/test_environment.py::test_case_e09_quotas_of_control_groups",),
    "E10": (
        f"{_TRITON}::test_e10_torch_answers_and_a_forced_kernel_is_an_error_at_once",
        f"{_TRITON}::test_e10_where_no_gpu_is_nothing_is_compiled",
    ),
    "E11": (
        f"{_REPLAYS}::test_e11_every_border_of_pages_and_width_of_the_table",
        f"{_REPLAYS}::test_e11_rows_in_turn_and_pages_opened_anew",
        f"{_REPLAYS}::test_e11_of_two_executors_one_is_closed",
        f"{_REPLAYS}::test_e11_no_memory_to_record",
    ),
    "E13": (
        f"{_OPTIONAL}::test_absent",
        f"{_OPTIONAL}::test_too_old_or_too_new",
        f"{_OPTIONAL}::test_fitting",
        f"{_OPTIONAL}::test_a_plugin_module_that_needs_it_at_import",
    ),
    "F01": (
        f"{_CORE}/formats/test_classic.py::test_f01_f02_nibble_order_sign_of_the_minimum_and_fifth_bits",
        "cacheir-native/tests/test_building_blocks.py::test_packing_keeps_every_bit_of_a_format",
    ),
    "F02": (f"{_CORE}/formats/test_classic.py::test_f01_f02_nibble_order_sign_of_the_minimum_and_fifth_bits",),
    "F04": (
        f"{_CORE}/formats/test_k_quants.py::test_f04_the_upper_bits_of_scales_and_minima",
        "tests/formats/test_gguf_bits.py::test_unpacking_any_bytes",
    ),
    "F06": (
        f"{_IMPORTERS}/test_packed.py::test_f06_groups_that_do_not_divide_the_inputs",
        f"{_IMPORTERS}/test_packed.py::test_f06_inputs_that_do_not_fill_words_are_refused",
    ),
    "F07": (
        f"{_IMPORTERS}/test_packed.py::test_f07_both_ways_to_store_zero_points",
        f"{_IMPORTERS}/test_packed.py::test_f07_a_wrong_label_of_a_symmetric_model_is_seen",
        f"{_IMPORTERS}/test_packed.py::test_f07_zero_points_that_are_not_packed",
        f"{_IMPORTERS}/test_huggingface_importer.py::test_f07_quantised_checkpoints_are_named",
    ),
    "F09": (
        f"{_IMPORTERS}/test_packed.py::test_f09_the_group_of_each_input",
        f"{_IMPORTERS}/test_packed.py::test_f09_act_order_without_groups_is_refused",
    ),
    "F10": (f"{_IMPORTERS}/test_packed.py::test_f10_the_word_of_the_case",),
}


def names_of_tests(path: Path) -> Iterator[str]:
    """The names of the test functions of a file, those of classes included."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name


def here() -> dict[str, list[str]]:
    """Case -> the tests of this folder that are named after it."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for name in names_of_tests(path):
            case = re.match(r"test_([abcf]\d\d)_", name)
            if case:
                found.setdefault(case.group(1).upper(), []).append(name)
    return found


def test_every_case_has_a_test() -> None:
    named = here()
    assert [case for case in CASES if not named.get(case) and not ELSEWHERE.get(case)] == []
    assert set(ELSEWHERE) <= set(CASES)


def test_every_test_that_is_named_is_there() -> None:
    held: dict[str, set[str]] = {}
    for names in ELSEWHERE.values():
        for file, _, test in (name.partition("::") for name in names):
            held.setdefault(file, set(names_of_tests(ROOT / file)))
            assert test in held[file], f"{file} has no {test}"
