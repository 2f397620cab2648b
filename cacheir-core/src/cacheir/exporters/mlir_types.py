"""Types and strings as MLIR spells them, and back."""

from __future__ import annotations

import re

from cacheir.errors import ParseError
from cacheir.ir.dtypes import is_dtype
from cacheir.ir.spelling import is_encodable
from cacheir.ir.type_parser import parse_type
from cacheir.ir.types import QuantType, TensorType, Type

FLOAT_BITS = 64

# CacheIR's element type -> MLIR's. Signed integers are MLIR's signless ones, as in its arith dialect.
_ELEMENTS = {
    **{name: name for name in ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8")},
    **{f"u{bits}": f"ui{bits}" for bits in (64, 32, 16, 8)},
    "bool": "i1",
}
_DTYPES = {element: dtype for dtype, element in _ELEMENTS.items()}

# ``tensor<?x576xf32, "T, 576">``: named sizes are ``?``, and the encoding has the whole shape in CacheIR's words.
_TENSOR = re.compile(r'tensor<((?:(?:\?|[0-9]+)x)*)([a-z0-9]+)(?:\s*,\s*("(?:[^"\\\n]|\\.)*"))?>')
_OPAQUE = re.compile(r'!cacheir\.(?:quant|kv|tensor)<("(?:[^"\\\n]|\\.)*")>')
TYPE = re.compile(rf"{_TENSOR.pattern}|{_OPAQUE.pattern}")

_PLAIN = frozenset(map(chr, range(0x20, 0x7F))) - {'"', "\\"}
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2}|.)")
_SHORT = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
_MAX_AXIS_DIGITS = 18  # what fits into MLIR's signed 64 bits


def mlir_type(type_: Type) -> str:
    """``f32[T, 576]`` as ``tensor<?x576xf32, "T, 576">``; a block format or a state as an opaque type with its text."""
    if isinstance(type_, TensorType):
        return _tensor(type_)
    kind = "quant" if isinstance(type_, QuantType) else "kv"
    return f"!cacheir.{kind}<{mlir_string(str(type_))}>"


def _tensor(type_: TensorType) -> str:
    constants = [size.constant for size in type_.shape if size.is_constant]
    if not is_dtype(type_.dtype) or any(not 0 <= number < 10**_MAX_AXIS_DIGITS for number in constants):
        return f"!cacheir.tensor<{mlir_string(str(type_))}>"
    axes = "".join(f"{size.constant}x" if size.is_constant else "?x" for size in type_.shape)
    names = "" if len(constants) == len(type_.shape) else f", {mlir_string(', '.join(map(str, type_.shape)))}"
    return f"tensor<{axes}{_ELEMENTS[type_.dtype]}{names}>"


def type_of(text: str) -> Type:
    """The type that ``text``, which ``TYPE`` matches, means. ParseError where it contradicts itself or means none."""
    opaque = _OPAQUE.fullmatch(text)
    if opaque is not None:
        return parse_type(string_of(opaque[1]))
    found = _TENSOR.fullmatch(text)
    if found is None or found[2] not in _DTYPES:
        raise ParseError(f"{text[:80]} is no type that CacheIR has")
    axes, dtype = found[1].split("x")[:-1], _DTYPES[found[2]]
    if found[3] is None and "?" in axes:
        raise ParseError(f"{text[:80]} has a size without a name")
    if any(len(axis) > _MAX_AXIS_DIGITS for axis in axes):
        raise ParseError(f"{text[:80]} has a size that is too large")
    shape = ", ".join(axes) if found[3] is None else string_of(found[3])
    type_ = parse_type(f"{dtype}[{shape}]")
    if not isinstance(type_, TensorType) or [str(size) if size.is_constant else "?" for size in type_.shape] != axes:
        raise ParseError(f"{text[:80]} says one shape in its sizes and another in its names")
    return type_


def mlir_string(text: str) -> str:
    """``text`` as an MLIR string: what is no plain ASCII stands as the hexadecimal digits of its UTF-8 bytes."""
    # A lone surrogate has no bytes of its own; the verifier refuses it, and "?" stands in its place.
    escaped = (c if c in _PLAIN else "".join(f"\\{byte:02X}" for byte in c.encode("utf-8", "replace")) for c in text)
    return f'"{"".join(escaped)}"'


def string_of(token: str) -> str:
    """The characters of an MLIR string; ``token`` has its quotes. ParseError for an escape or bytes it cannot have."""

    def byte(found: re.Match[str]) -> str:
        what = found[1]
        if len(what) == 1 and what not in _SHORT:
            raise ParseError(f"{token[:80]} has an escape that MLIR does not know")
        return _SHORT[what] if len(what) == 1 else chr(int(what, 16))

    # Every character stands for its UTF-8 bytes while escapes are undone, since an escape may be part of a character.
    raw = _ESCAPE.sub(byte, token[1:-1].encode("utf-8", "surrogatepass").decode("latin-1"))
    try:
        text = raw.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        raise ParseError(f"{token[:80]} is no UTF-8") from None
    if not is_encodable(text):
        raise ParseError(f"{token[:80]} has half of a surrogate pair")
    return text
