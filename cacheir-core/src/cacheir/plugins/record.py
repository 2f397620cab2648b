"""The decorator that makes a record: a frozen, keyword-only dataclass with a level, whose fields are checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from cacheir.plugins.ref import is_reference
from cacheir.quick_dataclass import dataclass

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_options: object) -> Callable[[Any], Any]:
        return lambda decorator: decorator


C = TypeVar("C")

_NAME = re.compile(r"[a-z][a-z0-9]*([._-][a-z0-9]+)*")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(*, level: str) -> Callable[[type[C]], type[C]]:
    """Make a class a record. ``level`` (``STABLE`` or ``PROVISIONAL``) becomes ``CLASS.record_level``.

    Keyword-only, so that a field can be added anywhere without breaking a plugin.
    """

    def make(cls: type[C]) -> type[C]:
        cls.record_level = level  # type: ignore[attr-defined]
        return dataclass(frozen=True, kw_only=True)(cls)

    return make


def check_fields(value: Any) -> None:
    """Check each field of a record against its annotation; ValueError names the record, the field and what it holds.

    A dataclass does not check, and the faults people make (a list or a bare string for a tuple, a module path without
    an attribute) would otherwise show far from the plugin that made them.
    """
    label = type(value).__name__
    for item in fields(value):
        held = getattr(value, item.name)
        problem = _problem(str(item.type), held)
        if problem:
            name = getattr(value, "name", "")
            raise ValueError(f"{label} {name!r}: {item.name} {problem}, not {held!r}")
    name = getattr(value, "name", "")
    has_name_field = any(item.name == "name" for item in fields(value))  # a route's name is computed instead
    if has_name_field and not _NAME.fullmatch(name):
        raise ValueError(f"{label} name {name!r} must be lower case words joined by '.', '-' or '_'")


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    """Check that the field ``name`` holds one of ``choices``."""
    held = getattr(value, name)
    if held not in choices:
        raise ValueError(
            f"{type(value).__name__} {value.name!r}: {name} must be one of {', '.join(choices)}, not {held!r}"
        )


def _problem(annotation: str, held: object) -> str:
    """What is wrong with ``held`` in a field of this annotation, "" for nothing."""
    if annotation.endswith(" | None"):
        return "" if held is None else _problem(annotation[: -len(" | None")], held)
    if annotation.startswith("tuple[Lazy["):
        if not isinstance(held, tuple):
            return "must be a tuple"
        return next(filter(None, (_problem("Lazy[Any]", item) for item in held)), "")
    if annotation.startswith("Lazy["):
        if isinstance(held, str):
            return "" if is_reference(held) else "must look like 'package.module:attribute'"
        return "" if callable(held) else "must be a function or a 'package.module:attribute' string"
    check = _CHECKS.get(annotation)
    if check is None:
        return ""
    right, sentence = check
    return "" if right(held) else sentence


def _tuple_of(kind: type) -> Callable[[object], bool]:
    return lambda held: isinstance(held, tuple) and all(isinstance(item, kind) for item in held)


def _rows_of_text(held: object) -> bool:
    return isinstance(held, tuple) and all(_tuple_of(str)(item) for item in held)


_CHECKS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "str": (lambda held: isinstance(held, str), "must be text"),
    "Reference": (
        lambda held: isinstance(held, str) and is_reference(held),
        "must look like 'package.module:attribute'",
    ),
    "int": (lambda held: isinstance(held, int) and not isinstance(held, bool), "must be a whole number"),
    "float": (lambda held: isinstance(held, (int, float)) and not isinstance(held, bool), "must be a number"),
    "bool": (lambda held: isinstance(held, bool), "must be True or False"),
    "tuple[str, ...]": (_tuple_of(str), "must be a tuple of strings"),
    "tuple[int, ...]": (_tuple_of(int), "must be a tuple of whole numbers"),
    "tuple[tuple[str, ...], ...]": (_rows_of_text, "must be a tuple of tuples of strings"),
    "type": (lambda held: isinstance(held, type), "must be a class"),
    "Stage": (lambda held: type(held).__name__ == "Stage", "must be a Stage"),
}
