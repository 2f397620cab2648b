"""How the families write calls: a mark that opens them, JSON objects, and perhaps a mark that closes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cacheir_server.tools.json_calls import CallDelta, JsonCalls


class ToolParser(Protocol):
    """Splits a text into content and calls as it comes. ``finish`` gives what was held back."""

    def push(self, text: str) -> tuple[str, list[CallDelta]]: ...

    def finish(self) -> tuple[str, list[CallDelta]]: ...


@dataclass(frozen=True, kw_only=True)
class CallFormat:
    """``begin`` opens calls and ``end`` closes them, "" for "at the start of the text" and "until the text ends".

    ``arguments`` is the key of the arguments, and ``many`` says that the objects stand in one list.
    """

    begin: str
    end: str
    arguments: str = "arguments"
    many: bool = False


HERMES = CallFormat(begin="<tool_call>", end="</tool_call>")
LLAMA3 = CallFormat(begin="", end="", arguments="parameters")
MISTRAL = CallFormat(begin="[TOOL_CALLS]", end="", many=True)
GRANITE = CallFormat(begin="<|tool_call|>", end="", many=True)
PHI = CallFormat(begin="<|tool_call|>", end="<|/tool_call|>", many=True)

# What tells a model's format by its chat template, the surest first.
BY_TEMPLATE: tuple[tuple[str, str], ...] = (
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|/tool_call|>", "phi"),
    ("<|tool_call|>", "granite"),
    ("<|python_tag|>", "llama3"),
)
FORMATS = {"hermes": HERMES, "llama3": LLAMA3, "mistral": MISTRAL, "granite": GRANITE, "phi": PHI}


def hermes() -> ToolParser:
    """Qwen, SmolLM3, Hermes: each call between ``<tool_call>`` and ``</tool_call>``."""
    return MarkedParser(HERMES)


def mistral() -> ToolParser:
    """Mistral: a list behind ``[TOOL_CALLS]``."""
    return MarkedParser(MISTRAL)


def granite() -> ToolParser:
    """Granite: a list behind ``<|tool_call|>``."""
    return MarkedParser(GRANITE)


def phi() -> ToolParser:
    """Phi: a list between ``<|tool_call|>`` and ``<|/tool_call|>``."""
    return MarkedParser(PHI)


def llama3() -> ToolParser:
    """Llama 3: the text is an object, or several with ``;`` between, perhaps behind ``<|python_tag|>``."""
    return BareParser("<|python_tag|>")


class MarkedParser:
    """Content, until the mark; calls, until the other mark or the end."""

    def __init__(self, form: CallFormat) -> None:
        self._form = form
        self._held = ""
        self._inside = False
        self._calls = JsonCalls()
        self._began = ""  # what was read since the mark, while no call has come of it
        self._called = False

    def push(self, text: str) -> tuple[str, list[CallDelta]]:
        content, deltas = "", list[CallDelta]()
        for character in text:
            self._held += character
            mark = self._form.end if self._inside else self._form.begin
            quiet = not self._inside or self._calls.idle
            if mark and quiet and self._held == mark:
                self._held = ""
                content += self._cross()
            elif not (mark and quiet and mark.startswith(self._held)):
                content += self._release(deltas)
        return content, deltas

    def finish(self) -> tuple[str, list[CallDelta]]:
        deltas = list[CallDelta]()
        content = ""
        while self._held:
            first, self._held = self._held[0], self._held[1:]
            content += self._one(first, deltas)
        if self._inside and not self._called and self._began.strip():
            # Nothing was called after all: the client sees what the model wrote.
            content += self._form.begin + self._began
        self._began = ""
        return content, deltas

    def _cross(self) -> str:
        """Over a mark. What stood between two marks and was no call is content."""
        content = ""
        if self._inside and not self._called and self._began.strip():
            content = self._form.begin + self._began + self._form.end
        self._inside = not self._inside
        self._began, self._called = "", False
        self._calls = JsonCalls(self._calls.calls)
        return content

    def _release(self, deltas: list[CallDelta]) -> str:
        """Lets go of what is held, up to where a mark may begin."""
        content = ""
        while self._held:
            mark = self._form.end if self._inside else self._form.begin
            if mark and (not self._inside or self._calls.idle) and mark.startswith(self._held):
                break
            first, self._held = self._held[0], self._held[1:]
            content += self._one(first, deltas)
        return content

    def _one(self, character: str, deltas: list[CallDelta]) -> str:
        if not self._inside:
            return character
        found = self._calls.push(character)
        self._called = self._called or bool(found)
        if not self._called:
            self._began += character
        deltas += found
        return ""


class BareParser:
    """A text that begins with an object is calls; any other text is content."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._held = ""
        self._kind = ""  # "", "content" or "calls"
        self._calls = JsonCalls()
        self._called = False

    def push(self, text: str) -> tuple[str, list[CallDelta]]:
        deltas = list[CallDelta]()
        if self._kind == "content":
            return text, deltas
        if self._kind == "":
            self._held += text
            start = self._held.lstrip()
            if start.startswith(self._tag):
                start = start[len(self._tag) :].lstrip()
            if not start or self._tag.startswith(start):
                return "", deltas
            self._kind = "calls" if start.startswith("{") else "content"
            if self._kind == "content":
                content, self._held = self._held, ""
                return content, deltas
            text = start
        else:
            self._held += text
        for character in text:
            deltas += self._calls.push(character)
        self._called = self._called or bool(deltas)
        if self._called:
            self._held = ""
        return "", deltas

    def finish(self) -> tuple[str, list[CallDelta]]:
        content, self._held = self._held, ""
        return ("" if self._called else content), []
