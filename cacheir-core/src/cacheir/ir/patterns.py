"""Patterns of op trees: what a rewrite rule looks for, written down instead of coded.

Example: the feed-forward gate, ``multiply(silu(linear(x, gate)), linear(x, up))``, whose two linears read one value::

    GATE = op(
        "multiply",
        op("silu", op("linear", value("x"), weight("gate"), single_use=True), single_use=True),
        op("linear", value("x"), weight("up"), single_use=True),
        commutative=True,
    )
    found = match(GATE, offered_op, rewriter)
    if found: found["x"], found["gate"], found["up"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Protocol

from cacheir.ir.graph import Attr, Graph, Op, Value
from cacheir.ir.types import Type
from cacheir.quick_dataclass import dataclass


class Source(Protocol):
    """Where values come from: a ``Rewriter`` in the middle of its walk, or a ``GraphIndex``."""

    def producer(self, value: Value) -> Op | None:
        """The op that makes ``value``; None for parameters and weights."""

    def use_count(self, value: Value) -> int:
        """How often ops and the yield read ``value``."""


@dataclass(frozen=True, kw_only=True)
class ValuePattern:
    """Matches any value, or those of the given ``origins`` whose type ``fits``; ``bind`` names what it matched."""

    bind: str = ""
    origins: tuple[str, ...] = ()
    fits: Callable[[Type], bool] | None = None


@dataclass(frozen=True, kw_only=True)
class OpPattern:
    """Matches an op by name, attributes and operands; as an operand, it matches that op's result ``result_index``.

    ``attrs`` must be there with equal values; ``single_use``: nothing else reads the result. ``commutative`` tries two
    operands both ways round. ``bind`` names the op, and the value where the pattern is an operand.
    """

    names: tuple[str, ...]
    operands: tuple[Pattern, ...] | None  # None: any
    attrs: tuple[tuple[str, Attr], ...] = ()
    bind: str = ""
    single_use: bool = False
    commutative: bool = False
    result_index: int = 0


Pattern = ValuePattern | OpPattern


@dataclass(frozen=True)
class Match:
    """What a pattern matched: ``match["x"]`` is a value, ``match.ops["proj"]`` an op, ``all_ops`` the whole tree."""

    values: Mapping[str, Value] = field(default_factory=dict)
    ops: Mapping[str, Op] = field(default_factory=dict)
    all_ops: tuple[Op, ...] = ()

    def __getitem__(self, name: str) -> Value:
        return self.values[name]


def value(bind: str = "", *, fits: Callable[[Type], bool] | None = None) -> ValuePattern:
    """Any value. A name that occurs twice in a pattern must match the same value."""
    return ValuePattern(bind=bind, fits=fits)


def weight(bind: str = "", *, fits: Callable[[Type], bool] | None = None) -> ValuePattern:
    """Any weight."""
    return ValuePattern(bind=bind, origins=("weight",), fits=fits)


def op(
    name: str | tuple[str, ...],
    *operands: Pattern,
    attrs: Mapping[str, Attr] | None = None,
    bind: str = "",
    single_use: bool = False,
    commutative: bool = False,
    result_index: int = 0,
    any_operands: bool = False,
) -> OpPattern:
    """An op called ``name``, or one of several names, with operands that match in order and in number."""
    if commutative and len(operands) != 2:
        raise ValueError("only an op of two operands can be commutative")
    return OpPattern(
        names=(name,) if isinstance(name, str) else name,
        operands=None if any_operands else operands,
        attrs=tuple(sorted((attrs or {}).items())),
        bind=bind,
        single_use=single_use,
        commutative=commutative,
        result_index=result_index,
    )


def match(pattern: OpPattern, root: Op, source: Source) -> Match | None:
    """How ``pattern`` matches the tree that ends in ``root``; None where it does not. The root's uses do not matter."""
    return next(_ops(pattern, root, source, Match()), None)


class GraphIndex:
    """The producers and uses of a graph that stays as it is."""

    def __init__(self, graph: Graph) -> None:
        self._producers = graph.producers()
        self._uses = Counter(value.name for op in graph.ops for value in op.operands)
        self._uses.update(value.name for value in graph.outputs)

    def producer(self, value: Value) -> Op | None:
        """The op that makes ``value``."""
        return self._producers.get(value.name)

    def use_count(self, value: Value) -> int:
        """How often ``value`` is read."""
        return self._uses[value.name]


def _ops(pattern: OpPattern, root: Op, source: Source, so_far: Match) -> Iterator[Match]:
    if root.name not in pattern.names or any(not _same(root.attr(name), v) for name, v in pattern.attrs):
        return
    ops = {**so_far.ops, pattern.bind: root} if pattern.bind else so_far.ops
    found = Match(so_far.values, ops, (*so_far.all_ops, root))
    if pattern.operands is None:
        yield found
        return
    if len(pattern.operands) != len(root.operands):
        return
    yield from _all(list(zip(pattern.operands, root.operands)), source, found)
    if pattern.commutative:
        yield from _all(list(zip(pattern.operands, reversed(root.operands))), source, found)


def _all(pairs: list[tuple[Pattern, Value]], source: Source, so_far: Match) -> Iterator[Match]:
    if not pairs:
        yield so_far
        return
    (pattern, operand), *rest = pairs
    for found in _value(pattern, operand, source, so_far):
        yield from _all(rest, source, found)


def _value(pattern: Pattern, operand: Value, source: Source, so_far: Match) -> Iterator[Match]:
    bound = so_far.values.get(pattern.bind, operand) if pattern.bind else operand
    if bound != operand:
        return
    values = {**so_far.values, pattern.bind: operand} if pattern.bind else so_far.values
    found = Match(values, so_far.ops, so_far.all_ops)
    if isinstance(pattern, ValuePattern):
        fits = pattern.fits is None or pattern.fits(operand.type)
        if fits and (not pattern.origins or operand.origin in pattern.origins):
            yield found
        return
    maker = source.producer(operand)
    if maker is None or maker.results[pattern.result_index : pattern.result_index + 1] != (operand,):
        return
    if not pattern.single_use or source.use_count(operand) == 1:
        yield from _ops(pattern, maker, source, found)


def _same(given: Attr | None, wanted: Attr) -> bool:
    # True == 1 == 1.0 in Python, but they are different attributes.
    return type(given) is type(wanted) and given == wanted
