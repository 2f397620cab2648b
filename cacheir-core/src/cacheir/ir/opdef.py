"""What an op is: its operands, attributes, inference rule, and its meaning (a decomposition or a reference kernel)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from cacheir.ir.graph import Attr
from cacheir.ir.types import Type
from cacheir.plugins.ref import Lazy, resolve
from cacheir.quick_dataclass import dataclass

if TYPE_CHECKING:
    from cacheir.ir.graph import Graph, Op

_NAME = re.compile(r"[a-z][a-z0-9_]*")
DIALECTS = ("std", "nn", "kv", "quant", "fused")


class Effects(str, Enum):
    """What an op does besides making results."""

    NONE = "none"
    STATE = "state"  # consumes a KV state and yields the next version of it


@dataclass(frozen=True)
class Operand:
    """A declared operand. ``optional`` operands come last; ``variadic`` is the last one, any number of times."""

    name: str
    doc: str
    optional: bool = False
    variadic: bool = False


@dataclass(frozen=True)
class AttrDef:
    """A declared attribute; ``kind`` is int, float, bool, str or tuple.

    Without a default it must be given, unless it is ``optional``: then it may be absent, and where it is, graph text
    and kernels do not see it.
    """

    name: str
    kind: type
    default: Attr | None = None
    doc: str = ""
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class OpDef:
    """An op's definition.

    ``infer(operand types, attrs) -> result types`` raises ``TypeRuleError`` with a sentence. Exactly one of
    ``reference`` (NumPy: ``fn(*arrays, out_types=..., **attrs) -> array or tuple of arrays``, see
    ``cacheir.reference``) and ``decompose`` (``fn(op) -> Graph`` whose params are the op's operands in order and
    whose outputs are its results) is set: it *is* the op's meaning, computed in float32 with one rounding per result.
    ``examples()`` yields ``(operand types, attrs)`` pairs on which the conformance kit tries the op and its kernels.
    """

    name: str
    dialect: str
    operands: tuple[Operand, ...]
    results: tuple[str, ...]
    infer: Lazy[Callable[[Sequence[Type], Mapping[str, Attr]], Sequence[Type]]]
    doc: str
    attrs: tuple[AttrDef, ...] = ()
    effects: Effects = Effects.NONE
    reference: Lazy[Callable[..., Any]] | None = None
    decompose: Lazy[Callable[[Op], Graph]] | None = None
    examples: Lazy[Callable[[], Sequence[tuple[Sequence[Type], Mapping[str, Attr]]]]] | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"op name {self.name!r} must be lower case words joined by '_'")
        if (self.reference is None) == (self.decompose is None):
            raise ValueError(f"op {self.name!r} needs a reference kernel or a decomposition, and not both")

    def with_defaults(self, attrs: Mapping[str, Attr]) -> dict[str, Attr]:
        """``attrs`` with the declared defaults filled in."""
        filled = {attr.name: attr.default for attr in self.attrs if attr.default is not None}
        return {**filled, **attrs}

    def infer_types(self, types: Sequence[Type], attrs: Mapping[str, Attr]) -> tuple[Type, ...]:
        """The result types for operands of ``types``, with defaults filled in; TypeRuleError where they do not fit."""
        return tuple(resolve(self.infer)(tuple(types), self.with_defaults(attrs)))
