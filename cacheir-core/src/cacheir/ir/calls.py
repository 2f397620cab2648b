"""What a call does to sizes: the callee's names get their sizes from the operands, and its results follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from cacheir.errors import TypeRuleError
from cacheir.ir.dims import Dim
from cacheir.ir.graph import Graph, Value
from cacheir.ir.types import KVType, Type


def call_types(callee: Graph, operands: Sequence[Type]) -> tuple[Type, ...]:
    """The types of the results of a call of ``callee`` with operands of these types.

    Raises TypeRuleError where the operands do not fit the parameters, or a result's size follows from none of them.
    """
    sizes = bind_sizes(callee, operands)
    return tuple(substitute(value.type, sizes) for value in callee.outputs)


def bind_sizes(callee: Graph, operands: Sequence[Type]) -> dict[str, Dim]:
    """Size name of the callee -> its size in the caller, such that the parameters' types become the operands'.

    Both sides usually use the same letters, but ``T`` of a callee is bound to ``B`` where it is given ``f32[B, 64]``.
    Raises TypeRuleError where no such sizes exist, or where they do not follow from the operands.
    """
    return dict(_bound(callee.name, callee.params, tuple(operands)))


@lru_cache(maxsize=256)  # a graph is called for each layer, with operands of the same types
def _bound(name: str, params: tuple[Value, ...], operands: tuple[Type, ...]) -> dict[str, Dim]:
    if len(operands) != len(params):
        raise TypeRuleError(f"@{name} takes {len(params)} operands, not {len(operands)}")
    open_pairs: list[tuple[Dim, Dim, str]] = []
    for param, operand in zip(params, operands):
        refusal = f"@{name} takes {param}: {param.type}, the operand is {operand}"
        if not _alike(param.type, operand):
            raise TypeRuleError(refusal)
        open_pairs += [(inner, outer, refusal) for inner, outer in zip(_shape(param.type), _shape(operand))]
    sizes: dict[str, Dim] = {}
    while open_pairs:
        # A pair with two names not yet bound waits for other pairs to bind one of them.
        waiting = [pair for pair in open_pairs if not _solved(*pair, sizes)]
        if len(waiting) == len(open_pairs):
            inner, outer, _ = waiting[0]
            raise TypeRuleError(f"@{name}: the names in {inner} do not follow from its being {outer}")
        open_pairs = waiting
    return sizes


def substitute(type_: Type, sizes: Mapping[str, Dim]) -> Type:
    """``type_`` with the callee's names replaced. Raises TypeRuleError for a name that ``sizes`` lacks."""
    if isinstance(type_, KVType):
        return type_
    for size in type_.shape:
        for name in size.names:
            if name not in sizes:
                raise TypeRuleError(f"size {name} of the result {type_} is in no parameter")
    shape = tuple(size.substitute(sizes) for size in type_.shape)
    return type_ if shape == type_.shape else replace(type_, shape=shape)  # results of like calls share their types


def _shape(type_: Type) -> tuple[Dim, ...]:
    return () if isinstance(type_, KVType) else type_.shape


def _alike(param: Type, operand: Type) -> bool:
    """Whether the types are equal but for their sizes."""
    if isinstance(param, KVType) or isinstance(operand, KVType):
        return param == operand
    if len(param.shape) != len(operand.shape):
        return False
    return type(param) is type(operand) and replace(param, shape=()) == replace(operand, shape=())


def _solved(inner: Dim, outer: Dim, refusal: str, sizes: dict[str, Dim]) -> bool:
    """Bind the one open name of ``inner``, or check it where all are bound; False where more than one is open."""
    known = Dim(inner.constant)
    unknown: list[tuple[str, int]] = []
    for name, factor in inner.terms:
        if name in sizes:
            known = known + sizes[name] * factor
        else:
            unknown.append((name, factor))
    if len(unknown) > 1:
        return False
    rest = outer - known
    if not unknown:
        if rest != Dim():
            raise TypeRuleError(refusal + (f", where {inner} is {known}" if inner.terms else ""))
        return True
    ((name, factor),) = unknown
    if any(number % factor for number in (rest.constant, *(count for _, count in rest.terms))):
        raise TypeRuleError(refusal)
    sizes[name] = Dim(rest.constant // factor, tuple((other, count // factor) for other, count in rest.terms))
    return True
