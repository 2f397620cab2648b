"""All passes, optional ones too, over random graphs of real ops: the numbers stay, and a second run finds nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.errors import TypeRuleError
from cacheir.ir.builder import GraphBuilder
from cacheir.ir.graph import Graph, Module, Value
from cacheir.ir.types import QuantType, TensorType
from cacheir.models.imported import PLAIN_MODE
from cacheir.ops.table import core_ops
from cacheir.passes.table import core_passes
from cacheir.pipeline.program import PipelineOptions, run_pipeline
from cacheir.testing.random_runs import differences

OPS = core_ops()
PASSES: list[Any] = [SimpleNamespace(spec=spec, plugin=SimpleNamespace(name="core")) for spec in core_passes().values()]
OPTIONAL = tuple(name for name, spec in core_passes().items() if not spec.default and name != "quantize-weights")
WIDTH = 32
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_the_pipeline_keeps_the_numbers_of_random_graphs(data: st.DataObject) -> None:
    before = Module(PLAIN_MODE, (random_graph(data),))
    options = PipelineOptions(target="cpu.numpy", modes=(PLAIN_MODE,), requests=OPTIONAL, check_text=True)
    result = run_pipeline(Module("", before.graphs), PASSES, ops=OPS, options=options)
    after = result.modules[PLAIN_MODE]
    assert differences(before, after, "main", OPS, tolerance=1e-4) == []
    assert len(after.main.ops) <= len(before.main.ops)
    again = run_pipeline(Module("", after.graphs), PASSES, ops=OPS, options=options)
    changed = {record.name for record in again.records if record.outcome == "changed"}
    # What target passes make is met by the logical ones for the first time: they may find more once.
    assert differences(after, again.modules[PLAIN_MODE], "main", OPS, tolerance=1e-4) == [], changed


def random_graph(data: st.DataObject) -> Graph:
    """Up to 14 ops over inputs, weights and constants, with no-ops, twins and chains among them."""
    graph = GraphBuilder("main", OPS, dims=[("T", 1, 6)])
    pool = [graph.input("x", TensorType.of("f32", "T", WIDTH)), graph.input("y", TensorType.of("f32", "T", WIDTH))]
    pool += [
        graph.weight("square", TensorType.of("f32", WIDTH, WIDTH), "square"),
        graph.weight("narrow", TensorType.of("bf16", WIDTH, WIDTH), "narrow"),
        graph.weight("norm", TensorType.of("f32", WIDTH), "norm"),
        graph.weight("packed", QuantType.of("q8_0", "f32", WIDTH, WIDTH), "packed"),
    ]
    writer = Writer(data, graph, pool)
    kinds = (writer.any_op, writer.with_number, writer.twin, writer.changed_norm)
    for kind in data.draw(st.lists(st.sampled_from(kinds), max_size=14)):
        kind()
    unread = [value for value in writer.pool if value.origin == "op" and value not in writer.read]
    return graph.finish(unread or [graph.op("exp", pool[0])])


class Writer:
    """A graph in the making: ``pool`` are the values so far, ``read`` those that an op has read."""

    def __init__(self, data: st.DataObject, graph: GraphBuilder, pool: list[Value]) -> None:
        self.data, self.graph, self.pool = data, graph, pool
        self.read: set[Value] = set()
        self.made: list[tuple[str, list[Value], dict[str, Any]]] = []

    def any_op(self) -> None:
        """An op on values that may fit it; nothing where they do not."""
        name = self.data.draw(st.sampled_from(sorted(CHOICES)))
        first = self.data.draw(st.sampled_from(self.pool))
        others = [value for value in self.pool if value.type == first.type or value.origin == "weight"]
        operands = [first, *(self.data.draw(st.sampled_from(others)) for _ in range(CHOICES[name] - 1))]
        self.add(name, operands, attributes(self.data, name, operands))

    def with_number(self) -> None:
        """A value and a number, either way round: a no-op, a recipe of a weight, or neither."""
        attrs = {"dtype": "f32", "shape": (), "values": (self.data.draw(st.sampled_from(NUMBERS)),)}
        operands = [self.data.draw(st.sampled_from(self.pool)), self.graph.op("constant", **attrs)]
        name = self.data.draw(st.sampled_from(("add", "subtract", "multiply")))
        self.add(name, operands[:: self.data.draw(st.sampled_from((1, -1)))], {})

    def changed_norm(self) -> None:
        """A norm by a weight and a number: what fold-weights makes a recipe of."""
        norm = next(value for value in self.pool if value.name == "norm")
        number = self.graph.op("constant", dtype="f32", shape=(), values=(self.data.draw(st.sampled_from(NUMBERS)),))
        changed = self.graph.op(self.data.draw(st.sampled_from(("add", "multiply"))), norm, number)
        self.add("rms_norm", [self.pool[0], changed], {"eps": 1e-5})

    def twin(self) -> None:
        """An op that is there already, with its operands as they are or the other way round."""
        if self.made:
            name, operands, attrs = self.data.draw(st.sampled_from(self.made))
            self.add(name, operands[:: self.data.draw(st.sampled_from((1, -1)))], attrs)

    def add(self, name: str, operands: list[Value], attrs: dict[str, Any]) -> None:
        try:
            value = self.graph.op(name, *operands, **attrs)
        except TypeRuleError:
            return
        self.pool.append(value)
        self.read.update(operands)
        self.made.append((name, operands, attrs))


def attributes(data: st.DataObject, name: str, operands: list[Value]) -> dict[str, Any]:
    shape = operands[0].type.shape  # type: ignore[union-attr]
    sizes = tuple(map(str, shape))
    if name == "cast":
        return {"dtype": data.draw(st.sampled_from(("f32", "f32", "f64")))}
    if name == "reshape":
        kinds = [sizes, (*sizes, "1"), tuple(size for size in sizes if size != "1"), (*sizes[:-1], "4", "8")]
        return {"shape": data.draw(st.sampled_from(kinds))}
    if name == "transpose":
        return {"axes": tuple(data.draw(st.permutations(range(len(sizes)))))}
    if name == "broadcast":
        return {"shape": sizes}
    if name == "slice":
        return {
            "axis": max(0, len(sizes) - 1),
            "start": data.draw(st.integers(0, 1)),
            "stop": sizes[-1] if sizes else "1",
        }
    if name == "concat":
        return {"axis": 0}
    if name == "rms_norm":
        return {"eps": 1e-5}
    return {}


# Ops that keep numbers of a sane size, and how many operands they are drawn with.
CHOICES = {
    **dict.fromkeys(("cast", "reshape", "transpose", "broadcast", "slice", "concat", "dequantize"), 1),
    **dict.fromkeys(("negate", "tanh", "silu", "sigmoid"), 1),
    **dict.fromkeys(("add", "subtract", "multiply", "maximum", "matmul", "linear", "rms_norm"), 2),
}
