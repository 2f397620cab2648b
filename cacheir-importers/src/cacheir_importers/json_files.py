"""JSON files of a model, read within limits of size and depth; a name that stands twice is refused."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from cacheir.errors import MalformedModelError

_MIB = 1 << 20
MAX_DEPTH = 64
_NESTING = frozenset((dict, list))


def read_file(path: Path, *, place: str, limit: int) -> bytes:
    """All bytes of a regular file of at most ``limit`` bytes; ``place`` is how messages call it."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would block, a device would not end
            raise MalformedModelError(f"{place} is not a regular file")
        if status.st_size > limit:
            raise MalformedModelError(f"{place} has {status.st_size} bytes, and at most {limit} are read")
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise MalformedModelError(f"{place} cannot be read: {error.strerror or error}") from error
    if len(content) > limit:
        raise MalformedModelError(f"{place} grew past {limit} bytes while it was read")
    return content


def read_object(path: Path, *, place: str, limit: int = 4 * _MIB) -> tuple[dict[str, Any], bytes]:
    """The JSON object in a file, and the file's bytes for the header hash."""
    content = read_file(path, place=place, limit=limit)
    return parse_object(content, place=place), content


def parse_object(content: bytes, *, place: str) -> dict[str, Any]:
    """The JSON object that ``content`` holds; MalformedModelError names ``place`` and what is wrong."""
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=refuse_twice)
    except RecursionError as error:
        raise MalformedModelError(f"{place} is nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:  # broken JSON, broken UTF-8, a number too long to convert
        raise MalformedModelError(f"{place} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise MalformedModelError(f"{place} must hold a JSON object, not {_kind(value)}")
    check_depth(value, place=place, limit=MAX_DEPTH)
    return value


def check_depth(value: object, *, place: str, limit: int) -> None:
    """Refuse a JSON value with objects and lists nested deeper than ``limit`` levels."""
    level: list[object] = [value]
    for _ in range(limit):
        inner: list[object] = []
        for item in level:
            children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
            # A vocabulary has 150,000 leaves, and as many merges of two: most of them are never looked at one by one.
            if not _NESTING.isdisjoint(map(type, children)):
                inner += [child for child in children if type(child) in _NESTING]
        if not inner:
            return
        level = inner
    raise MalformedModelError(f"{place} is nested deeper than {limit} levels")


def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs (for ``object_pairs_hook``); ValueError for a name that stands twice."""
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {name!r} stands twice in one object")
            seen.add(name)
    return result


def _kind(value: object) -> str:
    if value is None:
        return "null"
    return {list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}[type(value)]
