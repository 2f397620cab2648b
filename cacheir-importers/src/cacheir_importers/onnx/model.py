"""The parts of an ONNX model that an importer needs, from the wire format; field numbers are those of onnx.proto."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cacheir.errors import MalformedModelError
from cacheir_importers.onnx.wire import FIXED32, LENGTH, VARINT, Range, Wire, float_of, signed

MAX_NODES = 20_000
MAX_LIST = 1 << 16
_MAX_RANK = 32


@dataclass
class Tensor:
    """An initialiser or the tensor of an attribute. ``data`` is where elements lie, by the field that holds them."""

    name: str = ""
    dims: list[int] = field(default_factory=list)
    data_type: int = 0
    raw: Range | None = None
    typed: dict[int, list[Any]] = field(default_factory=dict)  # field number -> ranges of packed data, or numbers
    external: dict[str, str] = field(default_factory=dict)
    is_external: bool = False


@dataclass
class Node:
    """One operation; an absent optional input is ""."""

    op: str = ""
    domain: str = ""
    name: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"node {self.name or (self.outputs or ['?'])[0]!r} ({self.op})"


@dataclass
class ValueInfo:
    """A graph's input or output; a size is a number, a name, or None where nothing is said. No shape: None."""

    name: str = ""
    data_type: int = 0
    shape: list[int | str | None] | None = None


@dataclass
class Model:
    """The main graph and the version of the standard operators."""

    opset: int = 0
    nodes: list[Node] = field(default_factory=list)
    initializers: dict[str, Tensor] = field(default_factory=dict)
    inputs: list[ValueInfo] = field(default_factory=list)
    outputs: list[ValueInfo] = field(default_factory=list)
    functions: int = 0


class Unread:
    """An attribute of a kind that no supported operation has: a graph, a sparse tensor."""


def parse_model(wire: Wire, size: int) -> Model:
    """The model in the first ``size`` bytes. Raises MalformedModelError with the byte that is wrong."""
    model = Model()
    graphs = 0
    for number, kind, value in wire.fields(Range(0, size)):
        if number == 8 and isinstance(value, Range):
            domain, version = _opset(wire, value)
            if domain in ("", "ai.onnx"):
                model.opset = version
        elif number == 7 and isinstance(value, Range):
            graphs += 1
            _graph(wire, value, model)
        elif number == 25:
            model.functions += 1
        elif number == 1 and kind != VARINT:
            raise MalformedModelError(f"{wire.place} is no ONNX model: its version is no number")
    if graphs != 1 or not model.opset:
        raise MalformedModelError(f"{wire.place} is no ONNX model: it has {graphs} graphs and opset {model.opset}")
    return model


def _opset(wire: Wire, message: Range) -> tuple[str, int]:
    domain, version = "", 0
    for number, _, value in wire.fields(message):
        if number == 1:
            domain = wire.text(value)
        elif number == 2 and isinstance(value, int):
            version = value
    return domain, version


def _graph(wire: Wire, message: Range, model: Model) -> None:
    for number, _, value in wire.fields(message):
        if not isinstance(value, Range):
            continue
        if number == 1:
            if len(model.nodes) >= MAX_NODES:
                raise MalformedModelError(f"{wire.place}: more than {MAX_NODES} nodes are not read")
            model.nodes.append(_node(wire, value))
        elif number == 5:
            tensor = parse_tensor(wire, value)
            if tensor.name in model.initializers:
                raise MalformedModelError(f"{wire.place}: the initialiser {tensor.name!r} stands twice")
            model.initializers[tensor.name] = tensor
        elif number == 11:
            model.inputs.append(_value_info(wire, value))
        elif number == 12:
            model.outputs.append(_value_info(wire, value))
        elif number == 15:
            raise MalformedModelError(f"{wire.place}: sparse initialisers are not supported")


def _node(wire: Wire, message: Range) -> Node:
    node = Node()
    for number, _, value in wire.fields(message):
        if number == 1:
            node.inputs.append(wire.text(value))
        elif number == 2:
            node.outputs.append(wire.text(value))
        elif number == 3:
            node.name = wire.text(value)
        elif number == 4:
            node.op = wire.text(value)
        elif number == 7:
            node.domain = wire.text(value)
        elif number == 5 and isinstance(value, Range):
            name, attribute = _attribute(wire, value)
            if name in node.attrs:
                raise MalformedModelError(f"{wire.place}: {node.label} has the attribute {name!r} twice")
            node.attrs[name] = attribute
    return node


def _attribute(wire: Wire, message: Range) -> tuple[str, Any]:
    """Name and value: a number, bytes, a list of numbers, a tensor, or ``Unread``."""
    name, kind = "", 0
    single: dict[int, Any] = {}
    lists: dict[int, list[Any]] = {7: [], 8: []}
    for number, wire_type, value in wire.fields(message):
        if number == 1:
            name = wire.text(value)
        elif number == 20 and isinstance(value, int):
            kind = value
        elif number == 2 and isinstance(value, int):
            single[2] = float_of(value)
        elif number == 3 and isinstance(value, int):
            single[3] = signed(value)
        elif number == 4 and isinstance(value, Range):
            single[4] = wire.text(value)
        elif number == 5 and isinstance(value, Range):
            single[5] = parse_tensor(wire, value)
        elif number in lists:
            lists[number] += _list_numbers(wire, number, wire_type, value)
            if len(lists[number]) > MAX_LIST:
                raise MalformedModelError(f"{wire.place}: attribute {name!r} has more than {MAX_LIST} numbers")
    place = {1: 2, 2: 3, 3: 4, 4: 5}.get(kind)
    if place is not None:
        defaults: dict[int, Any] = {2: 0.0, 3: 0, 4: ""}
        return name, single.get(place, defaults.get(place, Unread()))
    return name, lists[7] if kind == 6 else lists[8] if kind == 7 else Unread()


def _list_numbers(wire: Wire, number: int, wire_type: int, value: int | Range) -> Iterator[Any]:
    if number == 8:
        numbers = wire.varints(value, MAX_LIST) if isinstance(value, Range) else [value]
        yield from map(signed, numbers)
    elif wire_type == FIXED32 and isinstance(value, int):
        yield float_of(value)
    elif isinstance(value, Range):
        raw = wire.bytes(Range(value.start, min(value.stop, value.start + 4 * MAX_LIST + 4)))
        yield from (float_of(int.from_bytes(raw[at : at + 4], "little")) for at in range(0, len(raw) - 3, 4))


def parse_tensor(wire: Wire, message: Range) -> Tensor:
    """A tensor; its elements are not read."""
    tensor = Tensor()
    for number, wire_type, value in wire.fields(message):
        if number == 1:
            numbers = wire.varints(value, _MAX_RANK) if isinstance(value, Range) else [value]
            tensor.dims += map(signed, numbers)
            if len(tensor.dims) > _MAX_RANK:
                raise MalformedModelError(f"{wire.place}: a tensor has more than {_MAX_RANK} axes")
        elif number == 2 and isinstance(value, int):
            tensor.data_type = value
        elif number == 8:
            tensor.name = wire.text(value)
        elif number == 9 and isinstance(value, Range):
            tensor.raw = value
        elif number in (4, 5, 7, 10, 11):
            held = tensor.typed.setdefault(number, [])
            if len(held) > MAX_LIST:
                raise MalformedModelError(f"{wire.place}: tensor {tensor.name!r} has its elements in too many fields")
            held.append((wire_type, value))
        elif number == 13 and isinstance(value, Range):
            entry = {n: wire.text(v) for n, _, v in wire.fields(value) if n in (1, 2)}
            tensor.external[entry.get(1, "")] = entry.get(2, "")
        elif number == 14:
            tensor.is_external = value == 1
    if any(size < 0 or size >= 1 << 48 for size in tensor.dims):
        raise MalformedModelError(f"{wire.place}: tensor {tensor.name!r} has the shape {tensor.dims}")
    return tensor


def _value_info(wire: Wire, message: Range) -> ValueInfo:
    info = ValueInfo()
    for number, _, value in wire.fields(message):
        if number == 1:
            info.name = wire.text(value)
        elif number == 2 and isinstance(value, Range):
            for kind, _, inner in wire.fields(value):
                if kind == 1 and isinstance(inner, Range):
                    _tensor_type(wire, inner, info)
    return info


def _tensor_type(wire: Wire, message: Range, info: ValueInfo) -> None:
    for number, _, value in wire.fields(message):
        if number == 1 and isinstance(value, int):
            info.data_type = value
        elif number == 2 and isinstance(value, Range):
            info.shape = []
            for kind, wire_type, dim in wire.fields(value):
                if kind == 1 and wire_type == LENGTH and isinstance(dim, Range):
                    info.shape.append(_dimension(wire, dim))
            if len(info.shape) > _MAX_RANK:
                raise MalformedModelError(f"{wire.place}: {info.name!r} has more than {_MAX_RANK} axes")


def _dimension(wire: Wire, message: Range) -> int | str | None:
    found: int | str | None = None
    for number, _, value in wire.fields(message):
        if number == 1 and isinstance(value, int):
            found = signed(value)
        elif number == 2:
            found = wire.text(value) or None
    return found
