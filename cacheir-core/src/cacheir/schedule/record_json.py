"""Frozen records to JSON values and back; reading checks every field, since a file may come from anyone."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from types import UnionType
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from cacheir.errors import ArtifactDamagedError

R = TypeVar("R")

_WIDTH = 120
_ONE_LINE_KEYS = frozenset({"call_bases"})
_SCALARS = frozenset({str, int, float, bool, type(None)})
_LONG = 1000  # a longer list of scalars is a vocabulary, which nobody reads line by line


def to_json(value: Any) -> Any:
    """The JSON value of a record made of records, tuples, mappings with text keys, numbers, text and None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        if _SCALARS.issuperset(map(type, value)):
            return list(value)
        return [to_json(item) for item in value]
    return value


def json_bytes(value: Any) -> bytes:
    """The one spelling of a JSON value in an artifact: keys sorted, two spaces, UTF-8, a line end at the end.

    What fits into a line stands in one. So do a call in a schedule and the bases of all calls in a plan, however long:
    with that a model of more layers has one line more a layer, and a diff of two plans shows what differs. So does a
    list of more than a thousand scalars.
    """
    text = _spelt(value, "")
    # A lone surrogate has no UTF-8; its escape, which this spells, is JSON.
    return (text + "\n").encode("utf-8", "backslashreplace")


def _spelt(value: Any, indent: str, key: str = "") -> str:
    if not isinstance(value, (dict, list, tuple)) or not value:
        return _on_one_line(value)
    if key in _ONE_LINE_KEYS or (isinstance(value, dict) and value.get("op_name") == "call"):
        return _on_one_line(value)
    if len(value) > _LONG and not isinstance(value, dict) and _SCALARS.issuperset(map(type, value)):
        return _on_one_line(value)
    inner = indent + "  "
    if isinstance(value, dict):
        opening, closing = "{", "}"
        parts = [f"{_on_one_line(name)}: {_spelt(value[name], inner, name)}" for name in sorted(value)]
    else:
        opening, closing = "[", "]"
        parts = [_spelt(item, inner) for item in value]
    # No value holds a line end inside a string: JSON escapes them.
    if sum(map(len, parts)) + 2 * len(parts) + len(indent) <= _WIDTH and not any("\n" in part for part in parts):
        return f"{opening}{', '.join(parts)}{closing}"
    lines = f",\n{inner}".join(parts)
    return f"{opening}\n{inner}{lines}\n{indent}{closing}"


# Made once: ``json.dumps`` makes an encoder at each call that wants something unusual, which doubles the time.
_on_one_line = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False).encode


def parse_json(data: bytes, where: str) -> Any:
    """The JSON value in ``data``; ArtifactDamagedError that names ``where`` for anything else."""
    try:
        return json.loads(data.decode("utf-8"), parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise ArtifactDamagedError(f"{where} is not JSON: {error}") from error


def from_json(kind: type[R], value: Any, where: str) -> R:
    """A record of class ``kind`` from a JSON value.

    Fields missing without a default, unknown fields and values of another type raise ArtifactDamagedError with the
    path to the field (``schedules/decode.json: graphs[0].entries[3].op``).
    """
    try:
        return _record(kind, value, where)  # type: ignore[no-any-return]
    except RecursionError as error:
        raise ArtifactDamagedError(f"{where} is nested too deeply") from error


# Where a value stands: the file, or the place of what holds it and its name or number there. Only an error spells it.
_Place: TypeAlias = "str | tuple[_Place, str | int]"


def _record(kind: Any, value: Any, where: _Place) -> Any:
    if not isinstance(value, dict):
        raise ArtifactDamagedError(f"{_named(where)} must be an object with the fields of {kind.__name__}")
    hints, needed = _hints(kind)
    if not value.keys() <= hints.keys():
        raise ArtifactDamagedError(f"{_named(where)} has the unknown field {min(value.keys() - hints.keys())!r}")
    given = {name: _value(hints[name], item, (where, name)) for name, item in value.items()}
    for name in needed:
        if name not in given:
            raise ArtifactDamagedError(f"{_named(where)} lacks the field {name!r}")
    return kind(**given)


def _value(hint: Any, value: Any, where: _Place) -> Any:
    if hint in _WORDS:
        return _scalar(hint, value, where)
    origin, arguments = _parts(hint)
    if hint is Any or hint is object:
        return value
    if origin in (Union, UnionType):
        if value is None and type(None) in arguments:
            return None
        others = [argument for argument in arguments if argument is not type(None)]
        if len(others) == 1:
            return _value(others[0], value, where)
        raise TypeError(f"{_named(where)}: no reader for {hint}")
    if origin is tuple:
        return _tuple(arguments, value, where)
    if origin in (Mapping, dict):
        if not isinstance(value, dict):
            raise ArtifactDamagedError(f"{_named(where)} must be an object")
        return {key: _value(arguments[1], item, (where, key)) for key, item in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _record(hint, value, where)
    raise TypeError(f"{_named(where)}: no reader for {hint}")


def _tuple(arguments: tuple[Any, ...], value: Any, where: _Place) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ArtifactDamagedError(f"{_named(where)} must be a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_value(arguments[0], item, (where, number)) for number, item in enumerate(value))
    if len(value) != len(arguments):
        raise ArtifactDamagedError(f"{_named(where)} must have {len(arguments)} items, not {len(value)}")
    return tuple(_value(hint, item, (where, number)) for number, (hint, item) in enumerate(zip(arguments, value)))


def _scalar(hint: Any, value: Any, where: _Place) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # bool is a subclass of int: True must not pass for a size.
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ArtifactDamagedError(f"{_named(where)} must be {_WORDS[hint]}, not {_shown(value)}")
    return value


_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _named(place: _Place) -> str:
    if isinstance(place, str):
        return place
    where, step = _named(place[0]), place[1]
    if isinstance(step, int):
        return f"{where}[{step}]"
    return f"{where}.{step}" if where.endswith("]") or ":" in where else f"{where}: {step}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no number that JSON can hold")
    return value


@lru_cache(maxsize=64)
def _hints(kind: Any) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The annotations of a record's fields, and the names of those without a default."""
    hints = get_type_hints(kind)
    needed = tuple(
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    )
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}, needed


@lru_cache(maxsize=256)
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)
