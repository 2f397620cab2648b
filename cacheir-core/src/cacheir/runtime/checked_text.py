"""Text from outside: that it is text, and that it can be encoded."""

from __future__ import annotations

from cacheir.errors import RequestError
from cacheir.ir.spelling import lone_surrogate


def check_text(what: str, text: object) -> None:
    """``RequestError`` where ``text`` is no string, or holds half of a surrogate pair, which no encoding has."""
    if not isinstance(text, str):
        raise RequestError(f"{what} must be a string, not {text!r:.100}")
    place = lone_surrogate(text)
    if place is not None:
        raise RequestError(f"{what} has half of a surrogate pair at character {place}, which is no text")
