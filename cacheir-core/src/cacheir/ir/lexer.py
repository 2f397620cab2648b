"""Cuts graph text into tokens, each with its place, and writes the errors that name a place."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from cacheir.errors import ParseError
from cacheir.ir.spelling import MAX_INTEGER_BITS, MAX_NUMBER_LENGTH, MAX_TEXT_LENGTH, NAME, WORD, is_encodable

_TOKEN = re.compile(
    rf"""
      (?P<skip>   [ \t\r\n]+ | //[^\n]* )
    | (?P<string> "(?:[^"\\\n]|\\.)*" )
    | (?P<number> -?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)? )
    | (?P<value>  [%@]{NAME} )
    | (?P<symbol> \$layer\b )
    | (?P<word>   {WORD} )
    | (?P<mark>   [\[\](){{}}<>,:=+*] )
    """,
    re.VERBOSE,
)
_SHOWN = 100  # characters of a source line that an error shows


class Token(NamedTuple):
    """A piece of text. ``kind`` is string, number, value, symbol, word, mark or end; ``offset`` counts characters."""

    kind: str
    text: str
    offset: int

    def __str__(self) -> str:
        shown = self.text if len(self.text) <= 40 else self.text[:37] + "..."
        return "the end of the text" if self.kind == "end" else shown


def tokens(text: str) -> list[Token]:
    """The tokens of ``text``, the last one of kind ``end``. Raises ParseError at the first character that fits none."""
    if len(text) > MAX_TEXT_LENGTH:
        raise ParseError(f"the text has {len(text)} characters, more than {MAX_TEXT_LENGTH}")
    found: list[Token] = []
    end = 0
    for match in _TOKEN.finditer(text):
        if match.start() > end:
            break
        end = match.end()
        if match.lastgroup != "skip":
            found.append(Token(str(match.lastgroup), match.group(), match.start()))
    if end < len(text):
        raise error_at(text, end, _why_unreadable(text[end]))
    return [*found, Token("end", "", end)]


def error_at(text: str, offset: int, message: str, *, hint: str | None = None) -> ParseError:
    """The error ``message`` about the character at ``offset``: with line, column, source line and a caret."""
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    source = text[start : end if end >= 0 else len(text)]
    line, column = text.count("\n", 0, start) + 1, offset - start + 1
    # A long line is shown from a little before the fault; what a terminal would act on is shown as '?'.
    first = max(0, column - 1 - _SHOWN // 2) if len(source) > _SHOWN else 0
    shown = "".join(c if c.isprintable() else " " if c == "\t" else "?" for c in source[first : first + _SHOWN])
    caret = " " * (column - 1 - first) + "^"
    place = f"line {line}, column {column}"
    return ParseError(f"{place}: {message}\n  {shown}\n  {caret}", line=line, column=column, hint=hint)


def string_value(text: str, token: Token) -> str:
    """The characters that a string token stands for."""
    try:
        value = json.loads(token.text)
    except ValueError:
        raise error_at(text, token.offset, f"{token} is not a JSON string") from None
    if not isinstance(value, str) or not is_encodable(value):
        raise error_at(text, token.offset, f"{token} has half of a surrogate pair")
    return value


def number_value(text: str, token: Token) -> int | float:
    """The number that a number token stands for: an int where it has neither point nor exponent."""
    if len(token.text) > MAX_NUMBER_LENGTH:
        raise error_at(text, token.offset, f"a number of {len(token.text)} characters is too long to read")
    if not re.search(r"[.eE]", token.text):
        whole = int(token.text)
        if whole.bit_length() > MAX_INTEGER_BITS:
            raise error_at(text, token.offset, f"{token} is too large: integers have at most {MAX_INTEGER_BITS} bits")
        return whole
    value = float(token.text)
    if value in (float("inf"), float("-inf")):
        raise error_at(text, token.offset, f"{token} is too large for a float")
    return value


def _why_unreadable(character: str) -> str:
    if character == '"':
        return "this string does not end on its line"
    if character in "%@":
        return f"a name of letters, digits, '_', '.' and '-' must follow {character!r}"
    return f"cannot read {character!r}"
