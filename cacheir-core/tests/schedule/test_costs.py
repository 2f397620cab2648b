"""Costs of ops against counts by hand, and what of them a schedule records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cacheir.errors import PluginError
from cacheir.formats.table import core_formats
from cacheir.ir.graph import Graph, Module, Op, Value
from cacheir.ir.types import KVType, QuantType, TensorType, Type
from cacheir.ops.table import core_ops
from cacheir.plugins.specs import KernelSpec
from cacheir.schedule.add_costs import add_costs, kernel_cost, sizes_of
from cacheir.schedule.op_cost import KEYS, CostModel
from cacheir.schedule.schedule import Candidate, Choice

MODEL = CostModel(ops=core_ops(), formats=core_formats())
KV = KVType(layers=2, heads=3, head_dim=8, dtype="f16")


def op(name: str, types: Mapping[str, Type], **attrs: Any) -> Op:
    """An op whose operands are weights where their name begins with ``w``."""
    operands = tuple(
        Value(key, type_, "state" if isinstance(type_, KVType) else "weight" if key[0] == "w" else "input")
        for key, type_ in types.items()
    )
    definition = core_ops()[name]
    full = definition.with_defaults(attrs)
    results = definition.infer_types([value.type for value in operands], full)
    return Op(name, operands, tuple(Value(f"r{i}", t) for i, t in enumerate(results)), tuple(sorted(full.items())))


def test_a_linear_layer_moves_its_weight_as_it_is_stored() -> None:
    x, w = TensorType.of("f32", "T", 64), QuantType.of("q4_1", "f32", 48, 64)
    cost = MODEL.cost(op("linear", {"x": x, "w": w}), {"T": 5})
    assert cost.bytes == 5 * 64 * 4 + 48 * 64 // 32 * 20 + 5 * 48 * 4
    assert cost.operations == 2 * 5 * 48 * 64
    dense = MODEL.cost(op("linear", {"x": x, "w": w}), {"T": 5}, weight_bytes=4)
    assert dense.bytes - cost.bytes == 48 * 64 * 4 - 48 * 64 // 32 * 20


def test_an_embedding_moves_the_rows_it_looks_up() -> None:
    table = op("embedding", {"tokens": TensorType.of("i32", "T"), "w": QuantType.of("q8_0", "f32", 1000, 32)})
    assert MODEL.cost(table, {"T": 3}).bytes == 3 * 4 + 3 * 34 + 3 * 32 * 4
    assert MODEL.cost(table, {"T": 3}).operations == 0


@pytest.mark.parametrize(("window", "read", "seen"), [(0, 100, 98.5), (10, 13, 10)])
def test_attention_reads_the_keys_that_it_sees(window: int, read: int, seen: float) -> None:
    types = {
        "q": TensorType.of("f32", "T", 6, 8),
        "kv": KV,
        "page_table": TensorType.of("i32", "B", "M"),
        "row_starts": TensorType.of("i32", "B + 1"),
        "positions": TensorType.of("i32", "T"),
        "lengths": TensorType.of("i32", "B"),
    }
    attention = op("paged_attention_prefill", types, layer=0, scale=0.3, window=window)
    cost = MODEL.cost(attention, {"T": 4, "B": 1, "M": 7, KEYS: 100})
    assert cost.bytes == 2 * (4 * 6 * 8 * 4) + 2 * 3 * 8 * 2 * read + 4 * (2 + 4 + 1)
    assert cost.operations == int(4 * 6 * seen * (4 * 8 + 5))


def test_appending_moves_what_is_appended() -> None:
    part = TensorType.of("f32", "T", 3, 8)
    append = op("kv_append", {"kv": KV, "k": part, "v": part, "slots": TensorType.of("i32", "T")}, layer=0)
    assert MODEL.cost(append, {"T": 2, KEYS: 9}).bytes == 2 * (2 * 3 * 8 * 4) + 2 * (2 * 3 * 8 * 2) + 2 * 4


def test_every_op_of_core_has_a_cost() -> None:
    from cacheir.plugins.ref import resolve

    for name, definition in core_ops().items():
        assert definition.examples is not None
        types, attrs = next(iter(resolve(definition.examples)()))
        operands = tuple(Value(f"x{i}", type_, "input") for i, type_ in enumerate(types))
        full = definition.with_defaults(attrs)
        results = definition.infer_types(types, full)
        example = Op(name, operands, tuple(Value(f"r{i}", t) for i, t in enumerate(results)), tuple(full.items()))
        names = {
            n
            for value in (*operands, *example.results)
            if not isinstance(value.type, KVType)
            for size in value.type.shape
            for n in size.names
        }
        cost = MODEL.cost(example, {**dict.fromkeys(names, 3), KEYS: 3})
        assert cost.bytes >= 0 and cost.operations >= 0
        assert cost.bytes > 0 or name == "reshape"


def test_a_schedule_records_costs_of_few_rows_in_decode_and_many_in_prefill() -> None:
    kind = TensorType.of("f32", "T", 8)
    x, y = Value("x", kind, "input"), Value("y", kind)
    graph = Graph("main", (("T", 1, 32),), (x,), (), (Op("add", (x, x), (y,)),), (y,))
    kernels = {"k": KernelSpec(name="k", op="add", target="t", entry="a:b")}
    candidates = (Candidate(kernel="k", target="t", plugin="p"),)
    choices = {
        ("main", "y"): tuple(
            Choice(rows_up_to=rows, kernel="k", reason="", candidates=candidates) for rows in (1, 8, 0)
        )
    }
    decode = add_costs(Module("decode", (graph,)), choices, MODEL, kernels)["main", "y"]
    prefill = add_costs(Module("prefill", (graph,)), choices, MODEL, kernels)["main", "y"]
    assert [choice.at_rows for choice in decode] == [1, 2, 9]
    assert [choice.at_rows for choice in prefill] == [1, 8, 32]
    for choice in (*decode, *prefill):
        assert (choice.bytes, choice.operations) == (2 * choice.at_rows * 32, choice.at_rows * 8)
        assert (choice.candidates[0].bytes, choice.candidates[0].operations) == (choice.bytes, choice.operations)
    assert [replaced.reason for replaced in decode] == [""] * 3


def test_a_kernels_own_cost_counts_and_one_that_raises_is_named() -> None:
    x = TensorType.of("f32", "T", 8)
    silu = op("silu", {"x": x})
    own = KernelSpec(name="k", op="silu", target="t", entry="a:b", cost=lambda op, sizes: (7.0 * sizes["T"], 3.0))
    assert kernel_cost(own, silu, {"T": 2}, MODEL).bytes == 14
    bad = KernelSpec(name="k", op="silu", target="t", entry="a:b", cost=lambda op, sizes: 1 / 0)  # type: ignore[arg-type,return-value]
    with pytest.raises(PluginError, match=r"kernel 'k': cost\(\) raised ZeroDivisionError"):
        kernel_cost(bad, silu, {"T": 2}, MODEL)


def test_sizes_of_a_step() -> None:
    graph = Graph("g", (("B", 1, 4), ("M", 1, 64), ("R", 0, 16), ("T", 1, 16)), (), (), (), ())
    assert sizes_of(graph, 9, 40) == {"B": 1, "M": 64, "R": 1, "T": 9, KEYS: 40}
    assert sizes_of(Graph("g", (("R", 1, 64),), (), (), (), ()), 1, 40) == {"R": 1, KEYS: 40}
