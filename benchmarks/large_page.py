"""A page of a thousand ops for benchmarks/view.py: decoder layers written out one by one, and passes over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from cacheir.exporters.page_data import PageInput
from cacheir.ir import Graph, Module, Op, Stored, TensorType, Value, Weight
from cacheir.ops.table import core_ops
from cacheir.pipeline.diff import op_counts, text_diff
from cacheir.plugins.specs import PassRecord, Stage
from cacheir.schedule.build_schedule import build_schedule
from cacheir.schedule.plan_memory import BufferUse, plan_memory
from cacheir.schedule.select_kernels import SelectionRules, select_kernels

LAYERS = 50
OPS_OF_A_LAYER = 20
_ROWS = TensorType.of("f32", "T", 64)
_Rule = Callable[[int, list[Op]], list[Op]]


def large_page() -> PageInput:
    """A graph of 1000 ops in one mode; three passes change all layers, one layer, and nothing."""
    start = Module("decode", (_graph(),))
    assert len(start.main.ops) == LAYERS * OPS_OF_A_LAYER == 1000
    module, records = start, []
    for name, rule in (
        ("fuse-qkv", _fuse_qkv),
        ("fuse-swiglu", _fuse_swiglu),
        ("one-site", _one_site),
        ("nothing", _keep),
    ):
        after = replace(module.main, ops=tuple(_changed(module.main, rule)))
        records.append(_record(name, module.main, after))
        module = module.replacing(after)
    ops = core_ops()
    choices = select_kernels(module, ops, {}, SelectionRules(target="none", targets=()))
    schedule = build_schedule(module, choices, target="none", row_classes=(0,), providers={})
    return PageInput(
        title="A thousand ops",
        facts=[f"{LAYERS} layers written out"],
        modules={"decode": module},
        schedules={"decode": schedule},
        plans={"decode": plan_memory(module, schedule, lambda _: BufferUse(writes_out=True))},
        records=records,
        dialects={name: op.dialect for name, op in ops.items()},
    )


def _graph() -> Graph:
    weights: list[Weight] = []
    ops: list[Op] = []
    hidden = Value("x", _ROWS, "input")
    cos, positions = Value("cos", _ROWS, "input"), Value("positions", TensorType.of("i32", "T"), "input")
    for layer in range(LAYERS):
        hidden = _layer(layer, hidden, cos, positions, weights, ops)
    return Graph(
        "main", (("T", 1, 8),), (Value("x", _ROWS, "input"), cos, positions), tuple(weights), tuple(ops), (hidden,)
    )


def _layer(layer: int, x: Value, cos: Value, positions: Value, weights: list[Weight], ops: list[Op]) -> Value:
    """The twenty ops of one layer; gives its result."""

    def weight(name: str) -> Value:
        value = Value(f"l{layer}.{name}", TensorType.of("f32", 64, 64), "weight")
        weights.append(Weight(value, Stored(f"layers.{layer}.{name}")))
        return value

    def add(name: str, op: str, *operands: Value) -> Value:
        value = Value(f"{name}.{layer}", _ROWS)
        ops.append(Op(op, operands, (value,), (), f"layers.{layer}"))
        return value

    norm = add("normed", "rms_norm", x, weight("attn_norm"))
    q, k, v = (add(name, "linear", norm, weight(f"attn.{name}")) for name in "qkv")
    q, k = (add(f"{name}_heads", "reshape", value) for name, value in (("q", q), ("k", k)))
    q, k = (add(f"{name}_turned", "rope", value, cos) for name, value in (("q", q), ("k", k)))
    v = add("v_heads", "reshape", v)
    mixed = add("mixed", "grouped_query_attention", q, k, v, positions)
    out = add("o", "linear", add("joined", "reshape", mixed), weight("attn.o"))
    middle = add("middle", "add", x, out)
    inner = add("inner", "rms_norm", middle, weight("ffn_norm"))
    gate, up = (add(name, "linear", inner, weight(f"ffn.{name}")) for name in ("gate", "up"))
    product = add("product", "multiply", add("active", "silu", gate), up)
    return add("out", "add", middle, add("down", "linear", product, weight("ffn.down")))


def _changed(graph: Graph, rule: _Rule) -> Iterator[Op]:
    layers: dict[str, list[Op]] = {}
    for op in graph.ops:
        layers.setdefault(op.scope, []).append(op)
    for number, ops in enumerate(layers.values()):
        yield from rule(number, ops)


def _fused(ops: list[Op], gone: set[str], name: str, results: tuple[str, ...]) -> list[Op]:
    """One op in place of those whose first result begins with a name in ``gone``, at the place of the last of them."""
    old = [op for op in ops if op.results[0].name.split(".")[0] in gone]
    made = {value.name for op in old for value in op.results}
    operands = dict.fromkeys(value for op in old for value in op.operands if value.name not in made)
    values = tuple(value for op in old for value in op.results if value.name.split(".")[0] in results)
    fused = Op(name, tuple(operands), values, (), old[0].scope)
    return [fused if op is old[-1] else op for op in ops if op is old[-1] or op not in old]


def _fuse_qkv(_: int, ops: list[Op]) -> list[Op]:
    return _fused(ops, {"q", "k", "v"}, "fused_qkv", ("q", "k", "v"))


def _fuse_swiglu(_: int, ops: list[Op]) -> list[Op]:
    return _fused(ops, {"gate", "up", "active", "product"}, "fused_swiglu", ("product",))


def _one_site(layer: int, ops: list[Op]) -> list[Op]:
    return _fused(ops, {"middle", "inner"}, "add_rms_norm", ("middle", "inner")) if layer == LAYERS // 2 else ops


def _keep(_: int, ops: list[Op]) -> list[Op]:
    return ops


def _record(name: str, before: Graph, after: Graph) -> PassRecord:
    changed = before != after
    return PassRecord(
        name=name,
        plugin="core",
        stage=Stage.MODE,
        mode="decode",
        graph="main",
        outcome="changed" if changed else "unchanged",
        before=before.hash,
        after=after.hash,
        seconds=0.0,
        diff=text_diff(str(before), str(after), old=f"before {name}", new=f"after {name}") if changed else "",
        counts=op_counts((before,), (after,)),
    )
