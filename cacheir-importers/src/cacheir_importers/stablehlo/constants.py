"""Constants of a StableHLO program: splats, lists, numbers in hexadecimal, byte strings, resources of the trailer.

A byte string is little-endian; a resource's begins with four bytes that say its alignment. A number in hexadecimal is
the bits of a floating point element, and the value of an integer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.ir.dtypes import FLOATS, dtype_bytes, numpy_dtype
from cacheir.reference.bf16 import to_bf16
from cacheir_importers.stablehlo.cursor import Cursor
from cacheir_importers.stablehlo.lexer import Token
from cacheir_importers.stablehlo.syntax import Dense, Resource, TensorText

MAX_WRITTEN = 1 << 16  # elements of a list of numbers; printers write longer ones as bytes
SMALL_BYTES = 256  # what stands in the graph itself; a longer byte string is a weight
RESOURCE_HEAD = 4  # bytes


@dataclass(frozen=True)
class Written:
    """A constant that goes into the graph: its elements, or one for all; bf16 as uint16."""

    values: NDArray[Any]


@dataclass(frozen=True)
class StoredText:
    """A constant that stays in the file: ``nbytes`` digits at ``offset``; their first ``skip`` bytes do not count."""

    offset: int
    nbytes: int
    skip: int


def read_constant(
    cursor: Cursor, value: object, type_: TensorText, resources: dict[str, Token], start: int
) -> Written | StoredText:
    """The constant ``value`` of ``type_``, checked against its type. Raises as ``Cursor`` does, with the place."""
    if isinstance(value, Resource):
        if value.name not in resources:
            cursor.fail(f"the resource {value.name!r} is not in the file's dialect_resources", value.start)
        return _bytes(cursor, resources[value.name], type_, RESOURCE_HEAD)
    if not isinstance(value, Dense):
        cursor.fail("a constant needs a value: dense<...> or dense_resource<...>", start)
    payload, elements = value.payload, prod(type_.shape)
    if payload is None:
        if elements:
            cursor.fail(f"dense<> has no elements, and {type_} has {elements}", value.start)
        return Written(np.zeros(0, numpy_dtype(type_.dtype)))
    if isinstance(payload, Token) and payload.kind == "string":
        return _bytes(cursor, payload, type_, 0)
    if isinstance(payload, Token):
        return Written(_array(cursor, [payload], type_.dtype))
    if elements > MAX_WRITTEN:
        cursor.refuse(
            f"a list of {elements} numbers is not read: at most {MAX_WRITTEN} are. Print the constant as bytes", start
        )
    tokens: list[Token] = []
    _flatten(cursor, payload, type_, 0, tokens)
    return Written(_array(cursor, tokens, type_.dtype))


def _flatten(cursor: Cursor, payload: Any, type_: TensorText, axis: int, into: list[Token]) -> None:
    if not isinstance(payload, list):
        if axis != len(type_.shape):
            cursor.fail(f"a list of {type_.shape[axis]} elements should stand here for {type_}", payload.start)
        if payload.kind == "string":
            cursor.fail("a string is no element of a list", payload.start)
        into.append(payload)
        return
    if axis >= len(type_.shape) or len(payload) != type_.shape[axis]:
        cursor.fail(f"a constant has lists of other lengths than its type {type_}", type_.start)
    for item in payload:
        _flatten(cursor, item, type_, axis + 1, into)


def _array(cursor: Cursor, tokens: list[Token], dtype: str) -> NDArray[Any]:
    if dtype == "bool":
        return np.array([_truth(cursor, token) for token in tokens], bool)
    if dtype not in FLOATS:
        bits = 8 * dtype_bytes(dtype)
        unsigned = [_integer(cursor, token, bits) for token in tokens]
        return np.array(unsigned, f"u{dtype_bytes(dtype)}").view(numpy_dtype(dtype))
    width = dtype_bytes(dtype)
    if any("x" in token.text for token in tokens):
        return np.array([_float_bits(cursor, token, dtype) for token in tokens], f"u{width}").view(numpy_dtype(dtype))
    return _floats([_float(cursor, token) for token in tokens], dtype)


def _floats(values: list[float], dtype: str) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        return to_bf16(np.array(values, np.float32)) if dtype == "bf16" else np.array(values, numpy_dtype(dtype))


def _float(cursor: Cursor, token: Token) -> float:
    if token.kind != "number" or len(token.text) > 400:
        cursor.fail("a number should stand here", token.start)
    return float(token.text)


def _float_bits(cursor: Cursor, token: Token, dtype: str) -> int:
    width = dtype_bytes(dtype)
    if "x" not in token.text:
        return int(_floats([_float(cursor, token)], dtype).view(f"u{width}")[0])
    bits = int(token.text, 16) if len(token.text) <= 20 else -1
    if not 0 <= bits < 1 << 8 * width:
        cursor.fail(f"{token.text[:40]} does not have the {8 * width} bits of {dtype}", token.start)
    return bits


def _integer(cursor: Cursor, token: Token, bits: int) -> int:
    if token.kind != "number" or (any(mark in token.text for mark in ".eE") and "x" not in token.text):
        cursor.fail("a whole number should stand here", token.start)
    value = int(token.text, 0 if "x" in token.text else 10) if len(token.text) <= 24 else 1 << 80
    if not -(1 << bits - 1) <= value < 1 << bits:
        cursor.fail(f"{token.text[:40]} does not fit into {bits} bits", token.start)
    return value % (1 << bits)


def _truth(cursor: Cursor, token: Token) -> bool:
    if token.text not in ("true", "false", "0", "1", "-1"):
        cursor.fail("true or false should stand here", token.start)
    return token.text not in ("false", "0")


def _bytes(cursor: Cursor, token: Token, type_: TensorText, skip: int) -> Written | StoredText:
    first = token.start + 1
    digits = token.stop - 1 - first
    data = cursor.source.data
    if data[first : first + 2] != b"0x" or digits % 2:
        cursor.fail('the bytes of a constant must be written as "0x" and pairs of digits', token.start)
    first, nbytes = first + 2, (digits - 2) // 2 - skip
    elements, width = prod(type_.shape), dtype_bytes(type_.dtype)
    allowed = {elements * width, width} if not skip else {elements * width}
    if type_.dtype == "bool":
        allowed.add(-(-elements // 8))
    if nbytes not in allowed:
        cursor.fail(f"{type_} takes {elements * width} bytes, and the constant has {nbytes}", token.start)
    if nbytes > SMALL_BYTES:
        return StoredText(first, digits - 2, skip)
    try:
        raw = bytes.fromhex(data[first : token.stop - 1].decode("latin-1"))[skip:]
    except ValueError:
        cursor.fail("the bytes of a constant hold what is no hexadecimal digit", token.start)
    if len(raw) != nbytes:
        cursor.fail("the bytes of a constant hold what is no hexadecimal digit", token.start)
    return Written(elements_of(raw, type_.dtype, elements))


def elements_of(raw: bytes, dtype: str, elements: int) -> NDArray[Any]:
    """The elements that little-endian bytes hold; truth values are one a byte, or eight a byte, lowest bit first."""
    kind: np.dtype[Any] = numpy_dtype(dtype)
    if dtype != "bool":
        found: NDArray[Any] = np.frombuffer(raw, kind.newbyteorder("<")).astype(kind)
        return found
    held = np.frombuffer(raw, np.uint8)
    if len(held) in (elements, 1) and not (len(held) == 1 and 1 < elements <= 8 and held[0] not in (0, 255)):
        nonzero: NDArray[Any] = held != 0
        return nonzero
    truths: NDArray[Any] = np.unpackbits(held, bitorder="little")[:elements].astype(bool)
    return truths
