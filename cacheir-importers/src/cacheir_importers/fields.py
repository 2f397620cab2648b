"""A configuration as a mapping that remembers which fields were read, with getters that check what they give."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from cacheir.errors import MalformedModelError

D = TypeVar("D")

_LARGEST = 2**31 - 1


class Fields(Mapping[str, Any]):
    """A parsed config.json, or the metadata of a GGUF file.

    What was read and what was assumed is remembered, so that an importer can report it whichever family read the
    fields. JSON's null counts as absent in the getters. ``place`` stands before a field's name in messages.
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.place = place
        self._values = values
        self._asked: set[str] = set()
        self._assumed: dict[str, object] = {}
        self._sections: dict[str, Fields] = {}
        self._notes: list[str] = []

    def __getitem__(self, key: str) -> Any:
        self._asked.add(key)
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def unread(self) -> tuple[str, ...]:
        """The fields that are there and that nothing read, those of sections as ``section.field``."""
        names = [key for key in self._values if key not in self._asked]
        for key, section in self._sections.items():
            names += [f"{key}.{inner}" for inner in section.unread()]
        return tuple(sorted(names))

    def assumed(self) -> Mapping[str, object]:
        """The fields that are absent, and the value that was taken instead."""
        return dict(sorted(self._assumed.items()))

    def assume(self, key: str, value: D) -> D:
        """Remember that ``value`` is taken for an absent field; None means that nothing is."""
        if value is not None:
            self._assumed[key] = value
        return value

    def ignore(self, *keys: str) -> None:
        """Count fields as read that do not change what a model computes."""
        self._asked.update(key for key in keys if key in self._values)

    def note(self, text: str) -> None:
        """Remember a sentence about what was read, for the import report."""
        if text not in self._notes:
            self._notes.append(text)

    def notes(self) -> tuple[str, ...]:
        """The sentences that were noted."""
        return tuple(self._notes)

    def merged_section(self, key: str, other: str) -> Fields | None:
        """The nested objects ``key`` and ``other`` as one; what both have must be equal. None where both are absent."""
        first, second = self.section(key), self.section(other)
        if first is None or second is None:
            return second if first is None else first
        for name in sorted(set(first) & set(second)):
            if first[name] != second[name]:
                raise MalformedModelError(
                    f"{self.place}: {key}.{name} is {first[name]} and {other}.{name} is {second[name]}; they must"
                    " agree",
                    hint="delete the one that the model was not trained with",
                )
        merged = Fields({**first._values, **second._values}, f"{self.place}: {key}")
        self._sections[key] = merged
        second.ignore(*second)
        return merged

    def section(self, key: str) -> Fields | None:
        """The fields of a nested object, None where it is absent or null."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        if key not in self._sections:
            self._sections[key] = Fields(value, f"{self.place}: {key}")
        return self._sections[key]

    def objects(self) -> tuple[str, ...]:
        """The fields that hold an object."""
        return tuple(sorted(key for key, value in self._values.items() if isinstance(value, Mapping)))

    def whole(self, key: str, *, least: int = 1, most: int = _LARGEST) -> int:
        """A whole number between ``least`` and ``most``, which must be there."""
        value = self.whole_or(key, None, least=least, most=most)
        if value is None:
            raise MalformedModelError(f"{self.place}: field {key!r} is missing")
        return value

    def whole_or(self, key: str, default: D, *, least: int = 1, most: int = _LARGEST) -> int | D:
        """A whole number between ``least`` and ``most``, or ``default``."""
        value = self.get(key)
        if value is None:
            return self.assume(key, default)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, *, least: float = -math.inf, most: float = math.inf) -> float:
        """A finite number between ``least`` and ``most``, which must be there."""
        value = self.number_or(key, None, least=least, most=most)
        if value is None:
            raise MalformedModelError(f"{self.place}: field {key!r} is missing")
        return value

    def number_or(self, key: str, default: D, *, least: float = -math.inf, most: float = math.inf) -> float | D:
        """A finite number between ``least`` and ``most``, or ``default``."""
        value = self.get(key)
        if value is None:
            return self.assume(key, default)
        if type(value) in (int, float) and abs(value) <= sys.float_info.max and least <= value <= most:
            return float(value)
        bounds = f" from {least:g} to {most:g}" if (least, most) != (-math.inf, math.inf) else ""
        raise self.wrong(key, f"a finite number{bounds}")

    def flag_or(self, key: str, default: D) -> bool | D:
        """True or False, or ``default``."""
        value = self.get(key)
        if value is None:
            return self.assume(key, default)
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value

    def text_or(self, key: str, default: D) -> str | D:
        """Text, or ``default``."""
        value = self.get(key)
        if value is None:
            return self.assume(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "text")
        return value

    def numbers_or(self, key: str, default: D, *, least: float = -math.inf) -> tuple[float, ...] | D:
        """A list of finite numbers, none below ``least``, or ``default``."""
        value = self.get(key)
        if value is None:
            return self.assume(key, default)
        fits = isinstance(value, (list, tuple)) and all(
            type(item) in (int, float) and abs(item) <= sys.float_info.max and item >= least for item in value
        )
        if not fits:
            raise self.wrong(key, "a list of finite numbers" + (f" from {least:g} on" if least > -math.inf else ""))
        return tuple(map(float, value))

    def texts_or(self, key: str, default: D) -> tuple[str, ...] | D:
        """A list of texts, or ``default``."""
        value = self.get(key)
        if value is None:
            return self.assume(key, default)
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of texts")
        return tuple(value)

    def wrong(self, key: str, wanted: str) -> MalformedModelError:
        """The error for a field whose value has the wrong type or lies out of range."""
        shown = repr(self._values.get(key))
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return MalformedModelError(f"{self.place}: field {key!r} must be {wanted}, not {shown}")


def as_fields(values: Mapping[str, Any], place: str) -> Fields:
    """``values`` itself where it keeps count already, else a ``Fields`` over it."""
    return values if isinstance(values, Fields) else Fields(values, place)
