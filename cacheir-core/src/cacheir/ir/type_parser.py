"""Reads the text of types and sizes."""

from __future__ import annotations

from cacheir.ir.dims import Dim
from cacheir.ir.reader import Reader
from cacheir.ir.spelling import MAX_SIZE_TERMS
from cacheir.ir.types import KVType, QuantType, TensorType, Type


def parse_type(text: str) -> Type:
    """The type that ``text`` holds, such as ``f32[T, 576]``. Raises ParseError with the place."""
    reader = Reader(text)
    type_ = read_type(reader)
    reader.expect_end()
    return type_


def read_type(reader: Reader) -> Type:
    """The type that comes next. Whether its names of element types and formats exist is the verifier's to say."""
    name = reader.take("word", "a type").text
    if reader.took("["):
        return TensorType(name, reader.listed("]", lambda: _size(reader)))
    if not reader.took("<"):
        reader.fail(f"expected '[' or '<' after the type {name}, found {reader.next}")
    if name == "kv":
        return _kv_type(reader)
    dtype = reader.take("word", "an element type").text
    reader.expect(">")
    reader.expect("[")
    return QuantType(name, dtype, reader.listed("]", lambda: _size(reader)))


def _kv_type(reader: Reader) -> KVType:
    layers, heads, head_dim = (_field(reader, name, ",") for name in ("layers", "heads", "head_dim"))
    storage = reader.take("word", "a storage format").text
    window = _number(reader, "window") if reader.took(",") else 0
    sinks = _number(reader, "sinks") if window and reader.took(",") else 0
    reader.expect(">")
    return KVType(layers, heads, head_dim, storage, window, sinks)


def _field(reader: Reader, name: str, then: str) -> int:
    value = _number(reader, name)
    reader.expect(then)
    return value


def _number(reader: Reader, name: str) -> int:
    reader.expect(name)
    reader.expect("=")
    return reader.integer()


def _size(reader: Reader) -> Dim:
    first, total, terms = reader.next, _term(reader), 1
    while reader.took("+"):
        total, terms = total + _term(reader), terms + 1
        if terms > MAX_SIZE_TERMS:
            reader.fail(f"a size has more than {MAX_SIZE_TERMS} terms", first)
    return total


def _term(reader: Reader) -> Dim:
    if reader.next.kind == "word":
        return Dim(0, ((reader.identifier("a size"), 1),))
    if reader.next.kind != "number":
        reader.fail(f"expected a size, found {reader.next}")
    number = reader.integer()
    return Dim(0, ((reader.identifier("a size"), 1),)) * number if reader.took("*") else Dim(number)
