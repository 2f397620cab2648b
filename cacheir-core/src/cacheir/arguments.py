"""Arguments of the public functions: a value of the wrong Python type is a UsageError that names the argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from cacheir.errors import UsageError


def checked_place(name: str, value: Any) -> Any:
    """``value``, which must be a path or a name: a string or an ``os.PathLike``."""
    if not isinstance(value, (str, os.PathLike)) or isinstance(os.fspath(value), bytes):
        raise _wrong(name, "a path or a name", value)
    return value


def checked_string(name: str, value: Any) -> str:
    """``value``, which must be a string."""
    if not isinstance(value, str):
        raise _wrong(name, "a string", value)
    return value


def checked_flag(name: str, value: Any) -> bool:
    """``value``, which must be True or False."""
    if not isinstance(value, bool):
        raise _wrong(name, "True or False", value)
    return value


def checked_count(name: str, value: Any) -> int:
    """``value``, which must be an integer of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _wrong(name, "an integer of at least 0", value)
    return value


def checked_strings(name: str, value: Any) -> tuple[str, ...]:
    """``value`` as a tuple; it must be several strings, and one string alone is most likely meant as one of them."""
    if isinstance(value, str):
        raise UsageError(f"{name} must be a list of strings, not {value!r:.100}", hint=f"write [{value!r:.100}]")
    if isinstance(value, (bytes, Mapping)) or not isinstance(value, Iterable):
        raise _wrong(name, "a list of strings", value)
    return tuple(checked_string(f"{name}[{index}]", item) for index, item in enumerate(value))


def checked_pairs(name: str, value: Any) -> dict[str, str]:
    """``value`` as a dictionary; it must map strings to strings."""
    if not isinstance(value, Mapping):
        raise _wrong(name, "a dictionary", value)
    return {checked_string(f"a key of {name}", key): checked_string(f"{name}[{key!r}]", value[key]) for key in value}


def checked_options(name: str, value: Any) -> dict[str, Any]:
    """``value`` as a dictionary from names to anything, an empty one for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(name, "a dictionary", value)
    return {checked_string(f"a key of {name}", key): value[key] for key in value}


def checked_instance(name: str, value: Any, kind: type, *, optional: bool = True) -> Any:
    """``value``, which must be a ``kind``, or None where it is ``optional``."""
    if not isinstance(value, kind) and not (optional and value is None):
        raise _wrong(name, f"a {kind.__name__}", value)
    return value


def _wrong(name: str, wanted: str, value: Any) -> UsageError:
    return UsageError(f"{name} must be {wanted}, not {value!r:.100} ({type(value).__name__})")
