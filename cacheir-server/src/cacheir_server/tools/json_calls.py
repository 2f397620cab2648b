"""Calls written as JSON objects, read character by character: names once they are known, arguments as they come."""

from __future__ import annotations

import json
from dataclasses import dataclass

_ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True, kw_only=True)
class CallDelta:
    """A piece of call ``index``: its ``name`` with the first piece, then pieces of its ``arguments``' JSON text."""

    index: int
    name: str | None = None
    arguments: str = ""


class JsonCalls:
    """Reads objects ``{"name": ..., "arguments": {...}}`` one after another, bare or in a list.

    ``push`` gives what is certain. Arguments that come before their name, or as a string that holds JSON, wait until
    the object is whole.
    """

    def __init__(self, first: int = 0) -> None:
        self.calls = first
        self._depth = 0
        self._quoted = self._escaped = False
        self._key: str | None = None  # of the object itself, once its colon has come
        self._text = ""  # the string under way, or the last one, quotes included
        self._name: str | None = None
        self._value = ""  # of the arguments, so far
        self._in_value = self._streams = False
        self._arguments_known = False

    @property
    def idle(self) -> bool:
        """Whether no object is under way."""
        return self._depth == 0

    def push(self, character: str) -> list[CallDelta]:
        """The deltas that one more character makes certain."""
        if self._depth == 0 and not self._quoted:
            if character == "{":
                self._begin()
            return []
        found: list[CallDelta] = []
        if self._in_value and not self._ends_value(character) and (self._value or not character.isspace()):
            self._value += character
            if self._streams:
                found.append(CallDelta(index=self.calls, arguments=character))
        self._read(character)
        if self._depth == 0 and not self._quoted:
            found += self._end()
        elif self._in_value and not self._streams and self._value.startswith(("{", "[")) and self._name is not None:
            found.append(CallDelta(index=self.calls, name=self._name, arguments=self._value))
            self._streams = True
        return found

    def _begin(self) -> None:
        self._depth = 1
        self._key = self._name = None
        self._value, self._text = "", ""
        self._in_value = self._streams = self._arguments_known = False

    def _ends_value(self, character: str) -> bool:
        """Whether the value of the object's own key ends before this character."""
        return not self._quoted and self._depth == 1 and character in ",}"

    def _read(self, character: str) -> None:
        if self._quoted:
            self._text += character
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._quoted = False
            return
        if character == '"':
            self._quoted, self._text = True, '"'
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            if self._depth == 1:
                self._take_value()
            self._depth -= 1
        elif self._depth == 1 and character == ":" and self._key is None:
            self._key = _string(self._text)
            self._in_value = self._key in _ARGUMENTS and not self._arguments_known
            self._text = ""
        elif self._depth == 1 and character == ",":
            self._take_value()

    def _take_value(self) -> None:
        if self._key == "name":
            self._name = _string(self._text) or None
        if self._in_value:
            self._in_value, self._arguments_known = False, True
        self._key, self._text = None, ""

    def _end(self) -> list[CallDelta]:
        """The object is whole. One without a name is no call."""
        raw_name, value, streamed = self._name, self._value.strip(), self._streams
        if raw_name is None:
            return []
        index = self.calls
        self.calls += 1
        if streamed:
            return []
        if value.startswith('"'):
            value = _string(value)
        return [CallDelta(index=index, name=raw_name, arguments=value or "{}")]


def _string(text: str) -> str:
    """The value of a JSON string, "" where ``text`` is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
