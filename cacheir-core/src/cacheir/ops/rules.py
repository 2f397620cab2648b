"""The checks that inference rules share: each returns what it checked, or raises TypeRuleError with a sentence.

Rules are asked only about ops that have the operands and attributes of their definition (``cacheir.ir.verify``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.errors import TypeRuleError
from cacheir.ir.dims import Dim, DimLike, dim
from cacheir.ir.dtypes import DTYPES, FLOATS, INTEGERS
from cacheir.ir.graph import Attr, LayerSymbol
from cacheir.ir.types import KVType, QuantType, TensorType, Type

Shape = tuple[Dim, ...]


def tensor(type_: Type, what: str, *, dtypes: frozenset[str] | None = None, rank: int | None = None) -> TensorType:
    """``type_`` as a dense tensor type of one of ``dtypes`` and of ``rank``."""
    if not isinstance(type_, TensorType):
        raise TypeRuleError(f"{what} must be a dense tensor, not {type_}")
    if dtypes is not None and type_.dtype not in dtypes:
        raise TypeRuleError(f"{what} must be one of {', '.join(sorted(dtypes))}, not {type_}")
    if rank is not None and len(type_.shape) != rank:
        raise TypeRuleError(f"{what} must have {rank} axes, not {len(type_.shape)}: {type_}")
    return type_


def floats(type_: Type, what: str, rank: int | None = None) -> TensorType:
    """A dense tensor of floating point numbers."""
    return tensor(type_, what, dtypes=FLOATS, rank=rank)


def numbers(type_: Type, what: str, rank: int | None = None) -> TensorType:
    """A dense tensor of numbers, floating point or integer."""
    return tensor(type_, what, dtypes=FLOATS | INTEGERS, rank=rank)


def of_dtype(type_: Type, what: str, dtype: str, rank: int | None = None) -> TensorType:
    """A dense tensor of exactly ``dtype``."""
    return tensor(type_, what, dtypes=frozenset({dtype}), rank=rank)


def weight(type_: Type, what: str, rank: int) -> TensorType:
    """A dense or quantised floating point tensor, as the dense type that it unpacks to."""
    return floats(type_.dense if isinstance(type_, QuantType) else type_, what, rank)


def kv_state(type_: Type, what: str) -> KVType:
    """A KV state."""
    if not isinstance(type_, KVType):
        raise TypeRuleError(f"{what} must be a KV state, not {type_}")
    return type_


def shaped(type_: TensorType, what: str, *shape: DimLike) -> TensorType:
    """``type_``, whose shape must be ``shape``."""
    wanted = tuple(dim(size) for size in shape)
    if type_.shape != wanted:
        raise TypeRuleError(f"{what} must have the shape {show(wanted)}, not {show(type_.shape)}")
    return type_


def same_dtype(first: TensorType, second: TensorType, what: str) -> str:
    """The element type that both have."""
    if first.dtype != second.dtype:
        raise TypeRuleError(f"{what} must have one element type, not {first.dtype} and {second.dtype}")
    return first.dtype


def broadcast(first: Shape, second: Shape, what: str) -> Shape:
    """The shape that both stretch to: axes pair from the last on, and must be equal or 1."""
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    padded = (Dim(1),) * (len(longer) - len(shorter)) + shorter
    result = []
    for left, right in zip(longer, padded):
        if left != right and Dim(1) not in (left, right):
            raise TypeRuleError(f"{what} have shapes that do not broadcast: {show(first)} and {show(second)}")
        result.append(right if left == Dim(1) else left)
    return tuple(result)


def axis_of(attrs: Mapping[str, Attr], rank: int, name: str = "axis") -> int:
    """The attribute ``name`` as an axis from 0 on; a negative one counts from the end."""
    return checked_axis(attrs[name], rank, name)


def checked_axis(axis: Attr, rank: int, name: str = "axis") -> int:
    """``axis`` counted from 0 on."""
    number = integer(axis, name)
    if not -rank <= number < rank:
        raise TypeRuleError(f"{name} = {number} is no axis of a tensor with {rank} axes")
    return number % rank


def shape_attr(attrs: Mapping[str, Attr], name: str = "shape") -> Shape:
    """The attribute ``name``, a tuple of sizes as text such as ``("T", "9", "64")``, as sizes."""
    value = attrs[name]
    if not isinstance(value, tuple):
        raise TypeRuleError(f"{name} must be a tuple of sizes, not {value!r}")
    return tuple(size_attr(size, name) for size in value)


def size_attr(value: Attr, name: str) -> Dim:
    """A size written as text or as an integer."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise TypeRuleError(f'{name} must hold sizes such as 64 or "T", not {value!r}')
    try:
        size = dim(value)
    except ValueError as error:
        raise TypeRuleError(f"{name}: {error}") from error
    if size.is_constant and size.constant < 0:
        raise TypeRuleError(f"{name} holds the negative size {size}")
    return size


def dtype_attr(attrs: Mapping[str, Attr], name: str = "dtype") -> str:
    """The attribute ``name`` as an element type."""
    value = attrs[name]
    if value not in DTYPES:
        raise TypeRuleError(f"{name} = {value!r} is no element type")
    return str(value)


def choice_attr(attrs: Mapping[str, Attr], name: str, choices: Sequence[str]) -> str:
    """The attribute ``name``, which must be one of ``choices``."""
    value = attrs[name]
    if value not in choices:
        raise TypeRuleError(f"{name} = {value!r} must be one of {', '.join(choices)}")
    return str(value)


def integer(value: Attr, name: str, least: int | None = None) -> int:
    """``value`` as an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeRuleError(f"{name} must be an integer, not {value!r}")
    if least is not None and value < least:
        raise TypeRuleError(f"{name} = {value} must be at least {least}")
    return value


def number(value: Attr, name: str) -> float:
    """``value`` as a floating point number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeRuleError(f"{name} must be a number, not {value!r}")
    return float(value)


def layer_attr(attrs: Mapping[str, Attr]) -> None:
    """Check that ``layer`` is a layer number or ``$layer``."""
    if not isinstance(attrs["layer"], LayerSymbol):
        integer(attrs["layer"], "layer", 0)


def constant_size(size: Dim, what: str) -> int:
    """``size``, which must not hold a name."""
    if not size.is_constant:
        raise TypeRuleError(f"{what} must be a constant size, not {size}")
    return size.constant


def show(shape: Shape) -> str:
    """A shape for a message."""
    return f"[{', '.join(map(str, shape))}]"
