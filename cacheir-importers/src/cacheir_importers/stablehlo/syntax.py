"""The parts of a StableHLO program as they are written: functions, operations, attributes, types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cacheir_importers.stablehlo.lexer import Token


@dataclass(frozen=True)
class TensorText:
    """A tensor type: an element type of CacheIR and a shape, and the place where it is written."""

    dtype: str
    shape: tuple[int, ...]
    start: int

    def __str__(self) -> str:
        return f"tensor<{''.join(f'{size}x' for size in self.shape)}{self.dtype}>"


@dataclass(frozen=True)
class Dense:
    """``dense<...>``: a nested list or a single one of tokens, or the string with the bytes; None for ``dense<>``."""

    payload: Any
    start: int


@dataclass(frozen=True)
class Resource:
    """``dense_resource<name>``: the bytes lie in the file's trailer."""

    name: str
    start: int


@dataclass(frozen=True)
class Struct:
    """``#stablehlo.gather<key = value, ...>`` and ``#stablehlo<kind WORD>``."""

    name: str
    fields: Mapping[str, Any]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Word:
    """A bare word, such as ``GT`` or ``DEFAULT``."""

    text: str


@dataclass(frozen=True)
class Argument:
    """A parameter of a function or a block."""

    name: str
    type: TensorText


@dataclass(frozen=True)
class Region:
    """One block: its parameters and operations."""

    arguments: tuple[Argument, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Operation:
    """``name`` has its dialect; ``results`` are (name, how many). ``words`` are bare words of the custom form.

    ``inits`` are the start values of a reduce in its custom form; the generic form has them among the operands.
    """

    name: str
    start: int
    results: tuple[tuple[str, int], ...] = ()
    operands: tuple[str, ...] = ()
    inits: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    ranges: tuple[tuple[int, ...], ...] | None = None
    regions: tuple[Region, ...] = ()
    operand_types: tuple[TensorText, ...] = ()
    result_types: tuple[TensorText, ...] = ()
    has_arrow: bool = False


@dataclass(frozen=True)
class Function:
    """A function with its body."""

    name: str
    start: int
    arguments: tuple[Argument, ...]
    result_types: tuple[TensorText, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Program:
    """All functions of a file, and the strings of its ``dialect_resources``."""

    functions: Mapping[str, Function]
    resources: Mapping[str, Token]
