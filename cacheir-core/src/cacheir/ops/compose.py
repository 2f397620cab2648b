"""Writing a decomposition: a graph whose parameters are an op's operands, made by naming other ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cacheir.ir.builder import GraphBuilder
from cacheir.ir.dims import Dim
from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.opdef import OpDef
from cacheir.ir.types import KVType, QuantType, TensorType

# A decomposition holds for every size; whoever inlines it has the bounds of the graph around it.
_ANY_SIZE = (0, 2**31 - 1)


class Composer:
    """Collects the ops of one decomposition.

    ``params`` are the operands, named as the definition names them; ``attrs`` have their defaults.
    """

    def __init__(self, op: Op, ops: Mapping[str, OpDef] | None = None) -> None:
        """``ops`` knows the decomposed op and all ops that it is made of; None for those of core."""
        if ops is None:
            from cacheir.ops.table import core_ops

            ops = core_ops()
        definition = ops[op.name]
        self.attrs: dict[str, Any] = definition.with_defaults(dict(op.attrs))
        self._sizes = {name for value in op.operands for size in _shape(value) for name in size.names}
        dims = [(name, *_ANY_SIZE) for name in sorted(self._sizes)]
        self._graph = GraphBuilder(f"{op.name}.meaning", ops, dims=dims)
        names = [operand.name for operand in definition.operands]
        names += [f"{names[-1]}.{number}" for number in range(1, 1 + len(op.operands) - len(names))]
        self.params = tuple(
            self._graph.state(name, value.type)
            if isinstance(value.type, KVType)
            else self._graph.input(name, value.type)
            for name, value in zip(names, op.operands)
        )

    def emit(self, name: str, *operands: Value, **attrs: Any) -> Any:
        """Add an op; its result, or the tuple of its results where it has several."""
        results = self._graph.op_results(name, *operands, **attrs)
        return results[0] if len(results) == 1 else results

    def graph(self, *outputs: Value) -> Graph:
        """The decomposition that yields ``outputs``."""
        return self._graph.finish(outputs)

    def new_size(self, name: str) -> str:
        """Declare a size whose name no operand uses, made from ``name``."""
        while name in self._sizes:
            name += "_"
        self._sizes.add(name)
        self._graph.dim(name, *_ANY_SIZE)
        return name

    def constant(self, dtype: str, *values: float, shape: Sequence[Dim | int] = ()) -> Value:
        """One value for all elements, or one for each."""
        result: Value = self.emit("constant", dtype=dtype, shape=sizes(shape), values=values)
        return result

    def cast(self, value: Value, dtype: str) -> Value:
        """``value`` in ``dtype``; the value itself where it is so already."""
        assert isinstance(value.type, TensorType)
        result: Value = value if value.type.dtype == dtype else self.emit("cast", value, dtype=dtype)
        return result

    def working(self, value: Value) -> Value:
        """``value`` in the type in which definitions compute: f32, or f64 where it is f64 already; unpacked first."""
        if isinstance(value.type, QuantType):
            value = self.emit("dequantize", value)
        assert isinstance(value.type, TensorType)
        return value if value.type.dtype == "f64" else self.cast(value, "f32")

    def reshape(self, value: Value, *shape: Dim | int) -> Value:
        """``value`` under another shape."""
        result: Value = self.emit("reshape", value, shape=sizes(shape))
        return result

    def transpose(self, value: Value, *axes: int) -> Value:
        """``value`` with its axes in another order."""
        result: Value = self.emit("transpose", value, axes=axes)
        return result

    def slice(self, value: Value, axis: int, start: int, stop: Dim | int) -> Value:
        """A range of one axis."""
        result: Value = self.emit("slice", value, axis=axis, start=start, stop=str(stop))
        return result


def shape_of(value: Value) -> tuple[Dim, ...]:
    """The shape of a tensor value, dense or quantised."""
    assert not isinstance(value.type, KVType)
    return value.type.shape


def dtype_of(value: Value) -> str:
    """The element type of a tensor value; of a quantised one, what it unpacks to."""
    return value.type.dtype


def sizes(shape: Sequence[Dim | int]) -> tuple[str, ...]:
    """A shape as attribute text."""
    return tuple(str(size) for size in shape)


def _shape(value: Value) -> tuple[Dim, ...]:
    return () if isinstance(value.type, KVType) else value.type.shape
