"""Reads the attributes of MLIR's generic form: numbers, strings, lists, dictionaries, symbols and CacheIR's own."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from cacheir.exporters.mlir import LAYER_ATTR
from cacheir.exporters.mlir_tokens import TokenReader
from cacheir.exporters.mlir_types import string_of
from cacheir.ir.graph import LAYER
from cacheir.ir.spelling import MAX_INTEGER_BITS, MAX_NESTING

Fields = dict[str, object]


@dataclass(frozen=True)
class Symbol:
    """``@name``: the name of a graph."""

    name: str


def read_dictionary(reader: TokenReader) -> Fields:
    """``{name = value, ...}``, or ``<{...}>`` and then perhaps another, as MLIR writes what it calls properties."""
    fields: Fields = {}
    if reader.took("<"):
        _entries(reader, fields, 0)
        reader.expect(">")
        if not reader.sees("{"):
            return fields
    _entries(reader, fields, 0)
    return fields


def _entries(reader: TokenReader, fields: Fields, depth: int) -> None:
    reader.expect("{")
    reader.listed("}", lambda: _entry(reader, fields, depth))


def _entry(reader: TokenReader, fields: Fields, depth: int) -> None:
    token = reader.next
    name = reader.string("a name") if token.kind == "string" else reader.take("word", "an attribute's name").text
    if name in fields:
        reader.fail(f"attribute {token} is given twice", token)
    reader.expect("=")
    fields[name] = _value(reader, depth)


def _value(reader: TokenReader, depth: int) -> object:
    """A bool, int, float, str, tuple, dict, ``Symbol`` or ``LAYER``."""
    if depth > MAX_NESTING:
        reader.fail(f"lists are nested deeper than {MAX_NESTING}")
    token = reader.next
    if reader.took("["):
        return reader.listed("]", lambda: _value(reader, depth + 1))
    if reader.sees("{"):
        inner: Fields = {}
        _entries(reader, inner, depth + 1)
        return inner
    if reader.took(LAYER_ATTR):
        return LAYER
    if reader.sees("true") or reader.sees("false"):
        return reader.take("word", "a value").text == "true"
    if token.kind == "string":
        return reader.string("a string")
    if token.kind == "symbol":
        text = reader.take("symbol", "a symbol").text[1:]
        return Symbol(reader.about(token, lambda _: string_of(text)) if text.startswith('"') else text)
    return _number(reader)


def _number(reader: TokenReader) -> int | float:
    """``3 : i64``, ``1.0e-05 : f64``, ``0x0000000000000001 : f64``; within lists MLIR leaves these types out."""
    token = reader.take("number", "an attribute's value")
    type_ = reader.take("word", "a number's type").text if reader.took(":") else ""
    if token.text.startswith("0x"):
        if type_ != "f64" or len(token.text) != 18:
            reader.fail("a number in hexadecimal digits must be an f64 of 16 digits", token)
        value = float(struct.unpack(">d", bytes.fromhex(token.text[2:]))[0])
    elif "." in token.text:
        if type_ not in ("", "f64"):
            reader.fail(f"CacheIR's numbers with a point are f64, not {type_[:20]}", token)
        value = float(token.text)
    else:
        whole = int(token.text)
        if type_ and not (type_[0] == "i" and type_[1:].isdecimal()):
            reader.fail(f"CacheIR's whole numbers have a type such as i64, not {type_[:20]}", token)
        if whole.bit_length() > MAX_INTEGER_BITS:
            reader.fail(f"a whole number has more than {MAX_INTEGER_BITS} bits", token)
        return whole
    if not math.isfinite(value):
        reader.fail("a number is not finite", token)
    return value
