"""How valid files are changed for the fuzzers: bytes, numbers at known places, JSON values, protobuf fields, words."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any

NUMBERS = (
    *(0, 1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 257, 1000, 65535, 65536),
    *(2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**48, 2**60, 2**61, 2**62, 2**63 - 1, 2**63),
    *(2**64 - 64, 2**64 - 32, 2**64 - 8, 2**64 - 1),
)
_STRANGE: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**53, 2**63, 2**64, 2**70, -(2**63)),
    *(0.0, -0.0, 0.5, 1.5, 1e-30, 1e30, 1e308, float("inf"), float("nan")),
    *("", "x", "a" * 300, "\ud800", "\0", "../x", "F32", "F16", "BF16", "F8_E4M3", "I64", "U8", "BOOL"),
    *([], {}, [0, 4], [4, 0], [-4, 4], [2**63, 2**64], [[]], [None], {"a": {}}, {"type": "BPE"}),
)
_WORD = re.compile(rb'\s+|"[^"\n]*"|[%@#^!]?[\w.$+-]+|[^\w\s]')


def changed_bytes(random: Random, data: bytes, places: Sequence[tuple[int, int]] = ()) -> bytes:
    """``data`` after one to four changes; ``places`` are (offset, width) of numbers that are worth changing."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        if places and random.random() < 0.6:
            offset, width = random.choice(places)
            data = _number(random, data, offset, width)
        else:
            data = random.choice(_CHANGES)(random, data)
    return data


def _number(random: Random, data: bytes, offset: int, width: int) -> bytes:
    """A number of ``width`` bytes at ``offset`` is replaced, or moved a little."""
    held = int.from_bytes(data[offset : offset + width], "little")
    value = random.choice(NUMBERS) if random.random() < 0.7 else held + random.choice((-64, -32, -8, -1, 1, 8, 32, 64))
    return data[:offset] + (value % (1 << 8 * width)).to_bytes(width, "little") + data[offset + width :]


def _flip(random: Random, data: bytes) -> bytes:
    if not data:
        return b"\0"
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << random.randrange(8))]) + data[place + 1 :]


def _overwrite(random: Random, data: bytes) -> bytes:
    place = random.randrange(len(data) + 1)
    return _number(random, data, place, random.choice((1, 2, 4, 8)))[: max(len(data), place)]


def _cut(random: Random, data: bytes) -> bytes:
    return data[: random.choice((random.randrange(len(data) + 1), max(0, len(data) - random.randrange(1, 40))))]


def _extend(random: Random, data: bytes) -> bytes:
    return data + random.choice((bytes(random.randrange(1, 5000)), data[: random.randrange(len(data) + 1)], b"x"))


def _remove(random: Random, data: bytes) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + data[place + random.choice((1, 2, 4, 8, 64, 1000)) :]


def _repeat(random: Random, data: bytes) -> bytes:
    place, length = random.randrange(len(data) + 1), random.choice((1, 4, 8, 40, 400))
    to = random.randrange(len(data) + 1)
    return data[:to] + data[place : place + length] + data[to:]


def _clear(random: Random, data: bytes) -> bytes:
    place, length = random.randrange(len(data) + 1), random.choice((4, 8, 32, 200))
    filler = random.choice((b"\0", b"\xff"))
    return data[:place] + filler * min(length, len(data) - place) + data[place + length :]


_CHANGES = (_flip, _flip, _overwrite, _cut, _extend, _remove, _repeat, _clear)


def changed_json(random: Random, value: Any) -> Any:
    """A JSON value with one value inside replaced, removed, doubled or moved deeper."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        name = random.choice(list(value))
        kind = random.random()
        if kind < 0.08:
            return {key: item for key, item in value.items() if key != name}
        if kind < 0.14:
            return {**value, random.choice(("", "x", "__metadata__", "type", "rope_scaling", name * 2)): value[name]}
        return {**value, name: changed_json(random, value[name])}
    if isinstance(value, list) and value and random.random() < 0.8:
        place = random.randrange(len(value))
        kind = random.random()
        if kind < 0.15:
            return value[:place] + value[place + 1 :]
        if kind < 0.3:
            return [*value, value[place]]
        return [*value[:place], changed_json(random, value[place]), *value[place + 1 :]]
    if random.random() < 0.03:
        deep: Any = value
        for _ in range(random.choice((3, 70, 500))):
            deep = [deep] if random.random() < 0.5 else {"a": deep}
        return deep
    if type(value) is int and random.random() < 0.4:
        return value + random.choice((-1, 1, 8, -8, value))
    return random.choice(_STRANGE)


def json_bytes(value: Any) -> bytes:
    """As a writer without scruples would write it: NaN, infinities and lone surrogates go through."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


def changed_message(random: Random, data: bytes, depth: int = 0) -> bytes:
    """A protobuf message with one field changed, removed, doubled, swapped or renumbered, at any depth."""
    fields = parse_message(data)
    if not fields:
        return changed_bytes(random, data)
    place = random.randrange(len(fields))
    number, kind, value = fields[place]
    choice = random.random()
    if kind == 2 and depth < 8 and choice < 0.7:
        inner = parse_message(value)
        fields[place] = (number, kind, changed_message(random, value, depth + 1) if inner else _leaf(random, value))
    elif choice < 0.78:
        del fields[place]
    elif choice < 0.84:
        fields.insert(random.randrange(len(fields) + 1), fields[place])
    elif choice < 0.88:
        other = random.randrange(len(fields))
        fields[place], fields[other] = fields[other], fields[place]
    elif choice < 0.92:
        fields[place] = (random.randrange(1, 30), kind, value)
    elif kind == 0:
        fields[place] = (number, kind, random.choice(NUMBERS))
    else:
        fields[place] = (number, kind, _leaf(random, value))
    return serialise(fields)


def _leaf(random: Random, value: bytes) -> bytes:
    texts = (
        b"",
        b"x",
        b"Add",
        b"Reshape",
        b"Concat",
        b"Gather",
        b"Shape",
        b"Range",
        b"Expand",
        b"Tile",
        b"\xff",
        b"../w",
    )
    return random.choice(texts) if random.random() < 0.3 else changed_bytes(random, value)


def parse_message(data: bytes) -> list[tuple[int, int, Any]]:
    """(number, wire type, value) of each field; [] where the bytes are no message."""
    found: list[tuple[int, int, Any]] = []
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if position < 0 or not 0 < number < 1 << 20:
            return []
        if kind == 0:
            value, position = _varint(data, position)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, position = data[position : position + size], position + size
        elif kind == 2:
            size, position = _varint(data, position)
            value, position = data[position : position + size], position + size
        else:
            return []
        if position < 0 or position > len(data):
            return []
        found.append((number, kind, value))
    return found


def serialise(fields: Sequence[tuple[int, int, Any]]) -> bytes:
    """The bytes of a message."""
    parts = []
    for number, kind, value in fields:
        parts.append(_as_varint(number << 3 | kind))
        if kind == 0:
            parts.append(_as_varint(value))
        else:
            parts += [_as_varint(len(value)), value] if kind == 2 else [value]
    return b"".join(parts)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while 0 <= position < len(data) and shift < 70:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    return 0, -1


def _as_varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


_SPLICED = (
    *(b"%0", b"%arg0", b"@main", b"#loc", b"tensor<2x3xf32>", b"tensor<f32>", b"tensor<0xf32>", b"tensor<?xf32>"),
    *(b"tensor<99999999999x99999999999xf32>", b"tensor<4xi1>", b"tensor<2xbf16>", b"dense<", b"dense_resource<w>"),
    *(b"[", b"]", b"{", b"}", b"(", b")", b"<", b">", b"=", b":", b",", b"->", b'"0x00"', b'"0x', b"0x7F800000"),
    *(
        b"-1",
        b"9223372036854775807",
        b"1e400",
        b"call",
        b"return",
        b"stablehlo.reduce(",
        b"stablehlo.constant",
        b"loc(",
    ),
    *(b"{-#", b"#-}", b"^bb0", b"dims", b"array<i64: 0, 1>", b"//", b"\xff", b"\0"),
)


def changed_words(random: Random, text: bytes) -> bytes:
    """A program text with some words removed, doubled, swapped, nested or replaced."""
    words = _WORD.findall(text)
    for _ in range(random.choice((1, 1, 2, 2, 3, 5))):
        if not words:
            break
        place, choice = random.randrange(len(words)), random.random()
        if choice < 0.2:
            del words[place : place + random.choice((1, 1, 2, 10))]
        elif choice < 0.35:
            words[place:place] = words[place : place + random.choice((1, 2, 12, 60))]
        elif choice < 0.5:
            other = random.randrange(len(words))
            words[place], words[other] = words[other], words[place]
        elif choice < 0.55:
            words[place] *= random.choice((2, 70, 3000))
        elif choice < 0.7 and any(word.isdigit() for word in words):
            number = random.choice([index for index, word in enumerate(words) if word.isdigit()])
            words[number] = str(random.choice(NUMBERS)).encode()
        elif choice < 0.95:
            words[place] = random.choice(_SPLICED)
        else:
            words.insert(place, random.choice(_SPLICED))
    return b"".join(words)
