"""prefill-decode-specialization: what it threads through, what it refuses, and that pages change no number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cacheir.errors import PassFailed
from cacheir.ir.graph import LAYER, Module, Op
from cacheir.ir.parser import parse_module
from cacheir.ir.types import KVType, TensorType
from cacheir.ir.verify import verify_module
from cacheir.ops.table import core_ops
from cacheir.pipeline.kv_groups import kv_groups
from cacheir.pipeline.specialize import MODES, specialize
from cacheir.reference.interpreter import interpret
from cacheir.reference.kv_pool import KVPool
from cacheir.testing.random_runs import RandomWeights
from cacheir.testing.tiny_decoders import LIMITS, tiny_decoders

OPS = core_ops()
NAMES = sorted(tiny_decoders())


def logical(name: str) -> Module:
    return tiny_decoders()[name].logical(OPS)


def special(name: str, mode: str) -> Module:
    module = logical(name)
    return specialize(module, mode, LIMITS, kv_groups(module))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", MODES)
def test_the_modules_verify_and_survive_their_text(name: str, mode: str) -> None:
    module = special(name, mode)
    verify_module(module, OPS, stage="mode")
    assert parse_module(str(module)) == module
    assert module.mode == mode


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", MODES)
def test_the_tables_that_a_main_is_given_are_those_it_would_make(name: str, mode: str) -> None:
    main = special(name, mode).main
    made = replace(main)  # the same graph, which knows nothing yet
    assert {"use_counts", "positions", "names"} <= vars(main).keys() - vars(made).keys()
    assert dict(main.use_counts) == dict(made.use_counts)
    assert {op: list(places) for op, places in main.positions.items()} == {
        op: list(places) for op, places in made.positions.items()
    }
    assert main.names == made.names


def test_groups_follow_window_heads_and_order_of_layers() -> None:
    groups = kv_groups(logical("two-classes-window"), "f16")
    assert groups.types == (KVType(2, 2, 8, "f16"), KVType(1, 2, 8, "f16", 3), KVType(1, 1, 8, "f16"))
    assert groups.layers == ((0, 3), (1,), (2,))
    assert groups.by_graph == {"decoder_layer": 0, "decoder_layer.1": 1, "decoder_layer.2": 2}


def test_classes_that_differ_in_weights_alone_share_a_group() -> None:
    groups = kv_groups(logical("quantised"))
    assert groups.types == (KVType(2, 2, 8, "f32"),) and groups.layers == ((0, 1),)


def test_prefill_main_has_the_signature_of_the_architecture_page() -> None:
    main = special("two-classes-window", "prefill").main
    assert [f"{value.origin} {value}: {value.type}" for value in main.params] == [
        "input %tokens: i32[T]",
        "input %positions: i32[T]",
        "input %row_starts: i32[B + 1]",
        "input %slots: i32[T]",
        "input %page_table: i32[B, M]",
        "input %lengths: i32[B]",
        "state %kv: kv<layers=2, heads=2, head_dim=8, f32>",
        "input %slots.1: i32[T]",
        "input %page_table.1: i32[B, M]",
        "input %lengths.1: i32[B]",
        "state %kv.1: kv<layers=1, heads=2, head_dim=8, f32, window=3>",
        "input %slots.2: i32[T]",
        "input %page_table.2: i32[B, M]",
        "input %lengths.2: i32[B]",
        "state %kv.2: kv<layers=1, heads=1, head_dim=8, f32>",
        "input %head_rows: i32[R]",
    ]
    assert str(main.outputs[0]) == "%rows" and str(main.outputs[0].type) == "f32[R, 32]"
    assert [value.type for value in main.outputs[1:]] == list(main.kv_types)
    assert main.dims == (("T", 1, 24), ("B", 1, 4), ("M", 1, 32), ("R", 0, 24))


def test_decode_main_has_one_token_a_row_and_no_row_starts() -> None:
    main = special("grouped", "decode").main
    assert [f"{value}: {value.type}" for value in main.params] == [
        "%tokens: i32[T]",
        "%positions: i32[T]",
        "%slots: i32[T]",
        "%page_table: i32[T, M]",
        "%lengths: i32[T]",
        "%kv: kv<layers=2, heads=2, head_dim=8, f32>",
        "%head_rows: i32[R]",
    ]
    assert main.dims == (("T", 1, 4), ("M", 1, 32), ("R", 0, 4))


def test_a_layer_appends_and_attends_for_its_own_number() -> None:
    layer = special("two-classes-window", "decode").graph("decoder_layer.1")
    append, attend = (op for op in layer.ops if op.name.startswith(("kv_", "paged_")))
    assert (append.name, attend.name) == ("kv_append", "paged_attention_decode")
    assert append.attr("layer") is LAYER and attend.attr("layer") is LAYER
    assert attend.attr("window") == 3 and attend.attr("scale") == 8**-0.5
    assert layer.outputs[-1] == append.result and [str(value) for value in layer.params[:2]] == ["%h", "%kv"]


@pytest.mark.parametrize("name", NAMES)
def test_heads_are_made_of_the_logits_head(name: str) -> None:
    module = special(name, "decode")
    assert [graph.name for graph in module.heads] == ["head.greedy", "head.sampled", "head.logits", "head.hidden"]
    greedy, sampled, logits, hidden = module.heads
    assert [op.name for op in greedy.ops] == ["linear", "greedy_token"]
    assert [op.name for op in sampled.ops] == ["linear", "sample"]
    assert [value.name for value in sampled.inputs] == [
        "rows",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "position",
        "draw",
        "mask",
    ]
    assert hidden.ops == () and hidden.outputs == hidden.params and hidden.weights == ()
    tied = tiny_decoders()[name].spec.tied_head
    assert dict(logits.recipes)["head"].key == ("embed" if tied else "head")  # type: ignore[union-attr]


class Paged:
    """A prompt worked off in chunks over shuffled pages, two rows side by side, the second of other tokens."""

    def __init__(self, name: str, page_tokens: int, seed: int) -> None:
        self.logical = logical(name)
        self.groups = kv_groups(self.logical)
        self.modules = {mode: specialize(self.logical, mode, LIMITS, self.groups) for mode in MODES}
        self.weights = RandomWeights(self.logical, seed)
        rng = np.random.default_rng(seed)
        self.tokens = rng.integers(0, 97, (2, 11), dtype=np.int32)
        self.page_tokens = page_tokens
        pages = -(-11 // page_tokens)
        self.tables = [rng.permutation(2 * pages + 1)[: 2 * pages].reshape(2, pages) for _ in self.groups.types]
        self.pools = [
            KVPool(kind, layers, 2 * pages + 1, page_tokens)
            for kind, layers in zip(self.groups.types, self.groups.layers)
        ]
        self.done = [0, 0]

    def step(self, mode: str, counts: list[int]) -> np.ndarray[Any, Any]:
        """Feed the next ``counts`` tokens of each row; logits of every token fed."""
        main = self.modules[mode].main
        positions = [range(done, done + count) for done, count in zip(self.done, counts)]
        self.done = [done + count for done, count in zip(self.done, counts)]
        inputs: dict[str, Any] = {
            "tokens": np.concatenate([self.tokens[row][list(at)] for row, at in enumerate(positions)]),
            "positions": np.concatenate([np.array(at, np.int32) for at in positions]),
            "head_rows": np.arange(sum(counts), dtype=np.int32),
        }
        if mode == "prefill":
            inputs["row_starts"] = np.cumsum([0, *counts], dtype=np.int32)
        for group, table in enumerate(self.tables):
            suffix = f".{group}" if group else ""
            inputs[f"slots{suffix}"] = np.array(
                [
                    table[row][position // self.page_tokens] * self.page_tokens + position % self.page_tokens
                    for row, at in enumerate(positions)
                    for position in at
                ],
                np.int32,
            )
            inputs[f"page_table{suffix}"] = table.astype(np.int32)
            inputs[f"lengths{suffix}"] = np.array(self.done, np.int32)
        rows, *self.pools = interpret(self.modules[mode], OPS, self.weights, inputs, self.pools)
        assert [value.name for value in main.inputs] and len(rows) == sum(counts)
        return interpret(self.modules[mode], OPS, self.weights, [rows], graph="head.logits")[0]

    def whole(self) -> np.ndarray[Any, Any]:
        """Logits of the logical module over both rows at once, f32 [2, 11, V]."""
        inputs = {
            "tokens": self.tokens.reshape(-1),
            "positions": np.tile(np.arange(11, dtype=np.int32), 2),
            "row_starts": np.array([0, 11, 22], np.int32),
        }
        (hidden,) = interpret(self.logical, OPS, self.weights, inputs)
        (logits,) = interpret(self.logical, OPS, self.weights, [hidden], graph="head.logits")
        return logits.reshape(2, 11, -1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("page_tokens", "first", "second"), [(4, [5, 3], [2, 4]), (1, [7, 1], [0, 6]), (16, [1, 1], [6, 6])]
)
def test_chunks_and_pages_give_the_logits_of_the_whole_prompt(
    name: str, page_tokens: int, first: list[int], second: list[int]
) -> None:
    paged = Paged(name, page_tokens, seed=page_tokens)
    expected = paged.whole()
    for mode, counts in [("prefill", first), ("prefill", second), *[("decode", [1, 1])] * 4]:
        starts = list(paged.done)
        logits = paged.step(mode, counts)
        wanted = np.concatenate([expected[row, at : at + count] for row, (at, count) in enumerate(zip(starts, counts))])
        np.testing.assert_allclose(logits, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


def with_layer(change: Any) -> Module:
    module = logical("grouped")
    return module.replacing(change(module.graph("decoder_layer")))


def test_two_attentions_in_one_layer_are_refused() -> None:
    def double(graph: Any) -> Any:
        attention = next(op for op in graph.ops if op.name == "grouped_query_attention")
        again = replace(attention, results=(replace(attention.result, name="again"),))
        return graph.with_ops([*graph.ops, again])

    with pytest.raises(PassFailed, match="@decoder_layer has 2 attention ops"):
        kv_groups(with_layer(double))


def test_row_starts_outside_attention_are_refused_in_decode_alone() -> None:
    def peek(graph: Any) -> Any:
        starts = next(value for value in graph.params if value.name == "row_starts")
        first = replace(graph.ops[0].result, name="first", type=starts.type)
        return graph.with_ops([*graph.ops, Op("negate", (starts,), (first,))])

    module = with_layer(peek)
    groups = kv_groups(module)
    specialize(module, "prefill", LIMITS, groups)
    with pytest.raises(PassFailed, match="negate in @decoder_layer reads %row_starts"):
        specialize(module, "decode", LIMITS, groups)


def test_two_graphs_for_one_layer_are_refused() -> None:
    module = logical("two-classes-window")
    calls = [replace(op, attrs=(("callee", op.callee), ("layer", 0))) if op.callee else op for op in module.main.ops]
    with pytest.raises(PassFailed, match="two graphs for layer 0"):
        kv_groups(module.replacing(module.main.with_ops(calls)))


def test_attention_in_main_is_refused() -> None:
    module = logical("grouped")
    attention = next(op for op in module.layers[0].ops if op.name == "grouped_query_attention")
    with pytest.raises(PassFailed, match="@main attends itself"):
        kv_groups(module.replacing(module.main.with_ops([*module.main.ops, attention])))


def test_a_logits_head_of_another_kind_is_refused() -> None:
    module = logical("grouped")
    head = module.graph("head.logits")
    flat = replace(head.outputs[0], type=TensorType("f32", head.outputs[0].type.shape[:1]))  # type: ignore[union-attr]
    module = module.replacing(replace(head, outputs=(flat,)))
    with pytest.raises(PassFailed, match=r"@head.logits yields f32\[R\], not logits \[R, V\]"):
        specialize(module, "decode", LIMITS, kv_groups(module))


def test_a_module_without_a_logits_head_keeps_the_heads_it_has() -> None:
    module = logical("grouped")
    plain = Module("", module.graphs[:-1])
    assert specialize(plain, "decode", LIMITS, kv_groups(plain)).heads == ()
