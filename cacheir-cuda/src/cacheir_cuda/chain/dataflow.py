"""What a decode step computes, whatever fusions ran: its launches as an expression of simple ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cacheir.schedule.flatten import Launch, Place


@dataclass(frozen=True, eq=False)
class Node:
    """A value: the op that makes it, what it is made of, the op's attributes. ``index`` tells an op's results apart.

    ``weight`` and ``input`` nodes have no inputs; their ``place`` says which.
    """

    op: str
    inputs: tuple[Node, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    index: int = 0
    place: Place | None = None


def results(launches: Sequence[Launch], given: Mapping[str, Node] | None = None) -> dict[str, Node]:
    """The outputs of a graph by their position, as nodes; ``given`` are inputs that another graph made.

    Fused ops are taken apart, ``reshape`` and ``gather_rows`` are their input: a decode step has one row.
    """
    values: dict[tuple[str, str, int], Node] = {}
    made: dict[str, Node] = {}

    def read(place: Place) -> Node:
        key = (place.kind, "" if place.kind == "arena" else place.name, place.offset)
        if place.kind == "input" and given and place.name in given:
            return given[place.name]
        if key not in values:
            values[key] = Node(place.kind, place=place)
        return values[key]

    for launch in launches:
        apart = _APART.get(launch.op.name, _as_is)
        nodes = apart(launch.op.name, [read(place) for place in launch.reads], launch.attrs)
        for place, node in zip(launch.writes, nodes(len(launch.writes))):
            values[place.kind, "" if place.kind == "arena" else place.name, place.offset] = node
            if place.kind == "output":
                made[place.name] = node
    return made


Made = Callable[[int], Sequence[Node]]


def _as_is(op: str, inputs: list[Node], attrs: Mapping[str, Any]) -> Made:
    return lambda count: [Node(op, tuple(inputs), attrs, index) for index in range(count)]


def _same(op: str, inputs: list[Node], attrs: Mapping[str, Any]) -> Made:
    return lambda count: inputs[:1]


def _rms_norm_pair(op: str, inputs: list[Node], attrs: Mapping[str, Any]) -> Made:
    a, b, first, second = inputs
    return lambda count: [Node("rms_norm", (a, first), attrs), Node("rms_norm", (b, second), attrs)]


def _rope_pair(op: str, inputs: list[Node], attrs: Mapping[str, Any]) -> Made:
    a, b, cos, sin = inputs
    return lambda count: [Node("rope", (a, cos, sin), attrs), Node("rope", (b, cos, sin), attrs)]


def _add_rms_norm(op: str, inputs: list[Node], attrs: Mapping[str, Any]) -> Made:
    total = Node("add", (inputs[0], inputs[1]))
    return lambda count: [total, Node("rms_norm", (total, inputs[2]), attrs)]


def _products(x: Node, rest: Sequence[Node], count: int) -> list[Node]:
    """x times each of ``count`` weights, which come first in ``rest``, then all biases or none."""
    biases = rest[count:]
    return [Node("linear", (x, rest[i], *biases[i : i + 1])) for i in range(count)]


def _fused_qkv(op: str, inputs: list[Node], attrs: Mapping[str, Any]) -> Made:
    return lambda count: _products(inputs[0], inputs[1:], 3)


def _fused_rmsnorm_qkv_rope(op: str, inputs: list[Node], attrs: Mapping[str, Any]) -> Made:
    x = Node("rms_norm", (inputs[0], inputs[1]), {"eps": attrs["eps"]})
    q, k, v = _products(x, [*inputs[2:5], *inputs[7:]], 3)
    turn = {"layout": attrs["layout"]}
    return lambda count: [Node("rope", (q, *inputs[5:7]), turn), Node("rope", (k, *inputs[5:7]), turn), v]


def _gated(x: Node, rest: Sequence[Node]) -> Node:
    gate, up = _products(x, rest, 2)
    return Node("swiglu", (gate, up))


def _fused_swiglu(op: str, inputs: list[Node], attrs: Mapping[str, Any]) -> Made:
    return lambda count: [_gated(inputs[0], inputs[1:])]


def _fused_rmsnorm_swiglu(op: str, inputs: list[Node], attrs: Mapping[str, Any]) -> Made:
    return lambda count: [_gated(Node("rms_norm", (inputs[0], inputs[1]), attrs), inputs[2:])]


def _multiply(op: str, inputs: list[Node], attrs: Mapping[str, Any]) -> Made:
    gate, up = inputs
    if gate.op == "silu":
        return lambda count: [Node("swiglu", (gate.inputs[0], up))]
    return _as_is(op, inputs, attrs)


_APART: Mapping[str, Callable[[str, list[Node], Mapping[str, Any]], Made]] = {
    "reshape": _same,
    "gather_rows": _same,
    "rms_norm_pair": _rms_norm_pair,
    "rope_pair": _rope_pair,
    "add_rms_norm": _add_rms_norm,
    "fused_qkv": _fused_qkv,
    "fused_rmsnorm_qkv_rope": _fused_rmsnorm_qkv_rope,
    "fused_swiglu": _fused_swiglu,
    "fused_rmsnorm_swiglu": _fused_rmsnorm_swiglu,
    "multiply": _multiply,
}
