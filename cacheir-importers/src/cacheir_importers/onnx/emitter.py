"""Writes the nodes of an ONNX graph into a graph of CacheIR; values that are known while importing are kept as numbers.

Shapes, axes and their arithmetic are worked out here, with named sizes where a shape has them; a known value becomes a
constant of the graph only where an operation needs it as a tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cacheir.errors import IRError, MalformedModelError, UnsupportedModelError
from cacheir.ir.builder import GraphBuilder
from cacheir.ir.dims import Dim
from cacheir.ir.dtypes import numpy_dtype
from cacheir.ir.graph import Attr, Value
from cacheir.ir.types import TensorType
from cacheir.models.imported import WeightSource
from cacheir_importers.literals import literal_op
from cacheir_importers.onnx.model import MAX_LIST, Node, Tensor, Unread
from cacheir_importers.onnx.tensors import dtype_of_type, elements_of, is_small, place_of
from cacheir_importers.onnx.wire import Wire

MAX_KNOWN = 4096  # elements of a value that is worked out while importing

Array = NDArray[Any]
Rule = Callable[["Emitter", Node], Sequence["Value | Array"]]
Shape = tuple[Dim, ...]


class Emitter:
    """The graph in the making: values by ONNX name, or what is known of them as arrays of numbers and sizes."""

    def __init__(
        self, builder: GraphBuilder, wire: Wire, tensors: Mapping[str, Tensor], root: Path, opset: int
    ) -> None:
        self.builder = builder
        self.place = wire.place
        self.opset = opset
        self.sources: dict[str, WeightSource] = {}
        self.notes: dict[str, None] = {}
        self._wire = wire
        self._tensors = tensors
        self._root = root
        self._values: dict[str, Value] = {}
        self._known: dict[str, tuple[Array, str]] = {}
        self._names: dict[str, int] = {}
        self._node = Node()

    def begin(self, node: Node) -> None:
        """What is emitted from now on stands for ``node``."""
        self._node = node

    def give(self, name: str, value: Value) -> None:
        """``name`` is ``value``."""
        self._claim(name)
        self._values[name] = value

    def know(self, name: str, array: Array, dtype: str) -> None:
        """``name`` has these elements: numbers, or sizes in an array of objects."""
        if array.size > MAX_KNOWN:
            self.refuse(f"makes {array.size} elements while importing; at most {MAX_KNOWN} are worked out")
        self._claim(name)
        self._known[name] = array, dtype

    def _claim(self, name: str) -> None:
        if name in self._values or name in self._known or name in self._tensors:
            self.fail(f"the value {name!r} is defined twice")

    def known(self, name: str) -> tuple[Array, str] | None:
        """The elements of ``name`` and their type, None where they are not known while importing."""
        if name not in self._known and name in self._tensors and is_small(self._tensors[name]):
            tensor = self._tensors[name]
            dtype = dtype_of_type(tensor.data_type, f"{self._wire.place}: tensor {name!r}")
            self._known[name] = elements_of(self._wire, tensor, self._root), dtype
        return self._known.get(name)

    def value(self, name: str) -> Value:
        """``name`` as a value of the graph; what is known becomes a constant, what is stored a weight."""
        if name in self._values:
            return self._values[name]
        found = self.known(name)
        if found is not None:
            made = self.literal(*found)
        elif name in self._tensors:
            made = self._weight(name)
        else:
            self.fail(f"the value {name!r} is not defined before it is used")
        self._values[name] = made
        return made

    def literal(self, array: Array, dtype: str) -> Value:
        """A constant with these elements."""
        if array.dtype == object:
            numbers = [size.constant if isinstance(size, Dim) else size for size in array.reshape(-1)]
            if any(isinstance(size, Dim) and not size.is_constant for size in array.reshape(-1)):
                self.refuse("needs a shape as a tensor, and the shape has named sizes")
            array = np.array(numbers, numpy_dtype(dtype)).reshape(array.shape)
        name, attrs = literal_op(array, dtype, tuple(map(str, array.shape)))
        return self.op(name, **attrs)

    def elements(self, tensor: Tensor) -> tuple[Array, str]:
        """The elements of an attribute's tensor and their type."""
        dtype = dtype_of_type(tensor.data_type, f"{self._wire.place}: {self._node.label}")
        if not is_small(tensor) and math.prod(tensor.dims) > MAX_LIST:
            self.refuse(f"has a constant of {math.prod(tensor.dims)} elements; larger ones must be initialisers")
        return elements_of(self._wire, tensor, self._root), dtype

    def tensor(self, tensor: Tensor) -> Value | Array:
        """The constant that an attribute holds: known where it is small, else a value."""
        array, dtype = self.elements(tensor)
        return array if is_small(tensor) and dtype != "bf16" else self.literal(array, dtype)

    def note(self, text: str) -> None:
        """Something that the import report should say."""
        self.notes[f"{self._node.op}: {text}"] = None

    def _weight(self, name: str) -> Value:
        place = place_of(self._wire, self._tensors[name], self._root)
        if not isinstance(place, WeightSource):
            return self.literal(place, dtype_of_type(self._tensors[name].data_type, name))
        key = f"initializers.{len(self.sources)}"
        self.sources[key] = place
        return self.builder.weight(f"w{len(self.sources) - 1}", TensorType.of(place.format, *place.shape), key)

    def op(self, name: str, *operands: Value, **attrs: Attr) -> Value:
        """One op of one result; what does not fit is refused with the node that it stands for."""
        hint = value_name((self._node.outputs or ["v"])[0])
        number = self._names[hint] = self._names.get(hint, -1) + 1
        try:
            return self.builder.op(name, *operands, result=f"{hint}.{number}" if number else hint, **attrs)
        except IRError as error:
            self.fail(str(error))

    def scalar(self, number: float, dtype: str) -> Value:
        """One number."""
        return self.op("constant", dtype=dtype, shape=(), values=(number,))

    def fail(self, problem: str) -> NoReturn:
        """The model is wrong at the node that is being read."""
        raise MalformedModelError(f"{self._wire.place}: {self._node.label}: {problem}")

    def refuse(self, problem: str) -> NoReturn:
        """CacheIR has nothing for the node that is being read."""
        raise UnsupportedModelError(f"{self._wire.place}: {self._node.label} {problem}")


class Inputs:
    """Inputs and attributes of one node; an attribute that nobody asked for is refused."""

    def __init__(self, emitter: Emitter, node: Node, least: int, most: int | None = None) -> None:
        self._emitter, self._node = emitter, node
        self._asked: set[str] = set()
        given = len(node.inputs)
        if not least <= given <= (least if most is None else most):
            emitter.fail(f"takes {least}{f' to {most}' if most else ''} inputs, not {given}")

    def has(self, index: int) -> bool:
        """Whether an optional input is there."""
        return index < len(self._node.inputs) and bool(self._node.inputs[index])

    def value(self, index: int) -> Value:
        """An input as a value."""
        return self._emitter.value(self._node.inputs[index])

    def known(self, index: int) -> tuple[Array, str] | None:
        """The elements of an input and their type, where they are known."""
        return self._emitter.known(self._node.inputs[index]) if self.has(index) else None

    def all_known(self) -> list[Array] | None:
        """The elements of all inputs, None where one of them is not known."""
        found = [self.known(index) for index in range(len(self._node.inputs))]
        arrays = [each[0] for each in found if each is not None]
        return arrays if len(arrays) == len(found) else None

    def sizes(self, index: int, what: str) -> list[Dim]:
        """A known list of sizes."""
        found = self.known(index)
        if found is None:
            self._emitter.refuse(f"needs {what} that is known when the model is imported")
        if found[1] not in ("i64", "i32") or found[0].ndim > 1:
            self._emitter.fail(f"{what} must be a list of whole numbers")
        return [size if isinstance(size, Dim) else Dim(int(size)) for size in found[0].reshape(-1)]

    def numbers(self, index: int, what: str) -> list[int]:
        """A known list of whole numbers."""
        sizes = self.sizes(index, what)
        if not all(size.is_constant for size in sizes):
            self._emitter.refuse(f"needs {what} without named sizes")
        return [size.constant for size in sizes]

    def attr(self, name: str, default: Any, kind: type = int) -> Any:
        """An attribute of a kind, or ``default``."""
        self._asked.add(name)
        value = self._node.attrs.get(name, default)
        if value is not default and not (isinstance(value, kind) and not isinstance(value, Unread)):
            self._emitter.fail(f"attribute {name!r} must be of type {kind.__name__}")
        return value

    def finish(self) -> None:
        """Refuse the attributes that nobody asked for."""
        unread = sorted(set(self._node.attrs) - self._asked)
        if unread:
            self._emitter.refuse(f"has the attribute {unread[0]!r}, which is not supported")


def value_name(text: str) -> str:
    """A name for graph text of an ONNX name."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)[:64]
    return name if name and not name[0].isdigit() else f"v{name}"


def shape_of(value: Value) -> Shape:
    """The shape of a value."""
    assert isinstance(value.type, TensorType)
    return value.type.shape


def dtype_of(value: Value) -> str:
    """The element type of a value."""
    assert isinstance(value.type, TensorType)
    return value.type.dtype


def text(shape: Sequence[Dim]) -> tuple[str, ...]:
    """A shape as ops take it."""
    return tuple(map(str, shape))
