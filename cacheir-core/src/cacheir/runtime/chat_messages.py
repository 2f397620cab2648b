"""Messages of a chat as they come from outside: checked, brought into one shape, and guarded against forged turns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cacheir.errors import RequestError
from cacheir.runtime.checked_text import check_text

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 10_000

# Characters that Unicode will never assign, so no text has a use for them.
_NONCHARACTERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages with each content as one string (text parts joined in order), or a ``RequestError`` that says where.

    An assistant message that calls tools may have no content; every other one has some, which may be "".
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise RequestError(f"messages must be a list, not {type(messages).__name__}")
    if not messages:
        raise RequestError("messages is empty; a chat needs at least one")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(f"messages holds {len(messages)} messages, more than {MAX_MESSAGES}")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def guarded(value: Any, control_texts: Sequence[str]) -> tuple[Any, str]:
    """``value`` with a guard character inside everything that is spelt like a control token, and that character.

    The character is one that occurs nowhere in ``value``; it is "" where nothing needs a guard. Roles stay as they
    are: they are one of ``ROLES``.
    """
    texts = list(_texts(value))
    if not control_texts or not any(control in text for text in texts for control in control_texts):
        return value, ""
    guard = next((mark for mark in _NONCHARACTERS if not any(mark in text for text in texts)), None)
    if guard is None:
        raise RequestError("the messages use every noncharacter of Unicode, so control tokens in them cannot be marked")
    pattern = re.compile("|".join(map(re.escape, sorted(control_texts, key=len, reverse=True))))

    def mark(text: str) -> str:
        return pattern.sub(lambda match: match.group()[0] + guard + match.group()[1:], text)

    return _mapped(value, mark), guard


def _message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object, not {type(message).__name__}")
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"{where}.role must be one of {', '.join(ROLES)}, not {role!r}")
    content = message.get("content")
    if content is None and role == "assistant" and message.get("tool_calls"):
        checked: Any = None
    else:
        checked = _content(f"{where}.content", content)
    others = {name: value for name, value in message.items() if name not in ("role", "content")}
    for text in _texts(others):
        check_text(where, text)
    return {"role": role, "content": checked, **others}


def _content(where: str, content: Any) -> str:
    if isinstance(content, str):
        check_text(where, content)
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise RequestError(f"{where} must be a string or a list of text parts, not {content!r}")
    return "".join(_part(f"{where}[{index}]", part) for index, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    if not isinstance(part, Mapping):
        raise RequestError(f"{where} must be an object with a type, not {part!r}")
    if part.get("type") != "text":
        raise RequestError(f"{where} has the type {part.get('type')!r}; this model takes text alone")
    check_text(f"{where}.text", part.get("text"))
    return str(part["text"])


def _texts(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(name)
            yield from _texts(item)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in value:
            yield from _texts(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            _mapped(name, change): item if name == "role" else _mapped(item, change) for name, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_mapped(item, change) for item in value]
    return value
