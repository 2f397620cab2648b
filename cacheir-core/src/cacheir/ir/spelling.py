"""How names, strings and attribute values are written in graph text, and the limits that reading them has."""

from __future__ import annotations

import json
import re

# A letter or '_' first; parts joined by '.' or '-' may begin with a digit: ``layers.3.attn``, ``int4-g32``.
WORD = r"[A-Za-z_][A-Za-z0-9_]*(?:[.\-][A-Za-z0-9_]+)*"
# A value's name may begin with a digit too: ``%0``, ``%kv.1``.
NAME = r"[A-Za-z0-9_]+(?:[.\-][A-Za-z0-9_]+)*"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORD = re.compile(WORD)
_NAME = re.compile(NAME)

# Text may come from strangers: these bound what reading it can cost. Each is far above what a model needs.
MAX_NESTING = 32  # tuples inside tuples
MAX_NUMBER_LENGTH = 400  # characters of one number
MAX_INTEGER_BITS = 1324  # of one integer: what fits into that many characters with its sign
MAX_SIZE_TERMS = 16  # terms of one size, ``T + 1`` has two
MAX_TEXT_LENGTH = 1 << 28  # characters of one text


def is_word(text: str) -> bool:
    """Whether ``text`` can be an op, format, graph or mode name, or an unquoted scope."""
    return _WORD.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether ``text`` can be the name of a value."""
    return _NAME.fullmatch(text) is not None


def is_identifier(text: str) -> bool:
    """Whether ``text`` can be the name of a size or an attribute."""
    return _IDENTIFIER.fullmatch(text) is not None


def is_encodable(text: str) -> bool:
    """Whether ``text`` is free of lone surrogates, which no file can hold and JSON would pair up."""
    return lone_surrogate(text) is None


def lone_surrogate(text: str) -> int | None:
    """Where the first half of a surrogate pair stands in ``text``, None where there is none."""
    found = _SURROGATE.search(text)
    return None if found is None else found.start()


def quoted(text: str) -> str:
    """``text`` as a JSON string in ASCII, so that no character of it can end a line."""
    return json.dumps(text)


def word_text(text: str) -> str:
    """``text`` bare where it is a word, else as a JSON string."""
    return text if is_word(text) else quoted(text)


def value_text(mark: str, name: str) -> str:
    """``%name`` or ``@name``. A name outside the grammar is quoted: still one line, though nothing reads it back."""
    return mark + (name if is_name(name) else quoted(name))


def attr_text(value: object, depth: int = 0) -> str:
    """An attribute value: ``true``, ``3``, ``1e-05``, ``"half"``, ``[1, [2]]``, ``$layer``.

    A value beyond the limits, which the verifier refuses, is written too, though nothing reads it back.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, tuple):
        inside = "..." if depth > MAX_NESTING else ", ".join(attr_text(item, depth + 1) for item in value)
        return f"[{inside}]"
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        return hex(value)  # Python refuses to write thousands of decimal digits
    return repr(value)


def attrs_text(attrs: tuple[tuple[str, object], ...]) -> str:
    """``{axis = 0, layout = "half"}`` with a space before it, or nothing where there are no attributes."""
    inside = ", ".join(f"{word_text(key)} = {attr_text(value)}" for key, value in attrs)
    return f" {{{inside}}}" if attrs else ""
