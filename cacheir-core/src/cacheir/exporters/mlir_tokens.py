"""A position in the tokens of MLIR text, with the moves that reading its generic form needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from cacheir.errors import ParseError
from cacheir.exporters.mlir_types import TYPE, string_of
from cacheir.ir.lexer import Token, error_at
from cacheir.ir.reader import Reader
from cacheir.ir.spelling import MAX_NUMBER_LENGTH, MAX_TEXT_LENGTH, is_name

_T = TypeVar("_T")
_MAX_RESULTS = 4096  # of one op: a count in the text must not cost more than the text

_TOKEN = re.compile(
    rf"""
      (?P<skip>   [ \t\r\n]+ | //[^\n]* )
    | (?P<string> "(?:[^"\\\n]|\\.)*" )
    | (?P<type>   {TYPE.pattern.replace(" ", "[ ]").replace("#", "[#]")} )
    | (?P<number> 0x[0-9A-Fa-f]+ | -?[0-9]+(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?)? )
    | (?P<value>  %[A-Za-z0-9_$.\-]+ )
    | (?P<index>  \#[0-9]+ )
    | (?P<alias>  \#[A-Za-z_][A-Za-z0-9_.]* )
    | (?P<block>  \^[A-Za-z0-9_]+ )
    | (?P<symbol> @(?:"(?:[^"\\\n]|\\.)*" | [A-Za-z_][A-Za-z0-9_$.\-]*) )
    | (?P<word>   [A-Za-z_][A-Za-z0-9_$.]* )
    | (?P<mark>   -> | [\[\](){{}}<>,:=] )
    """,
    re.VERBOSE,
)


class TokenReader(Reader):
    """Reads MLIR's spelling of values, strings and places; the other moves are those over graph text."""

    def __init__(self, text: str) -> None:
        super().__init__(text, _tokens)

    def about(self, token: Token, read: Callable[[str], _T]) -> _T:
        """What ``read`` makes of the token's text; its ParseError with the token's place."""
        try:
            return read(token.text)
        except ParseError as error:
            self.fail(str(error).split("\n")[0], token)

    def string(self, wanted: str = "a string") -> str:
        """The characters of a string."""
        return self.about(self.take("string", wanted), string_of)

    def value_key(self) -> str:
        """A value where it is defined: ``%h.1`` as ``h.1``, ``%$1e5`` as ``1e5``."""
        token = self.take("value", "a value")
        key = token.text[1:].removeprefix("$")
        if not is_name(key):
            self.fail(f"{token} is no name of a value that CacheIR has", token)
        return key

    def value_use(self) -> str:
        """A value where it is used: ``%1#2`` is the third result of the op that made ``%1:3``."""
        key = self.value_key()
        return f"{key}.{int(self._digits('index', '#'))}" if self.next.kind == "index" else key

    def result_count(self) -> int:
        """How many values a name in front of ``=`` stands for: ``%1:3``."""
        if not self.took(":"):
            return 1
        token = self.next
        count = int(self._digits("number", ""))
        if not 1 <= count <= _MAX_RESULTS:
            self.fail(f"an op has from 1 to {_MAX_RESULTS} results", token)
        return count

    def _digits(self, kind: str, mark: str) -> str:
        token = self.take(kind, "a number")
        digits = token.text.removeprefix(mark)
        if not digits.isdecimal() or len(digits) > 6:
            self.fail(f"expected a small whole number, found {token}", token)
        return digits

    def location(self) -> str:
        """The name in ``loc("name")``, "" where there is no location or an unknown one."""
        if not self.took("loc"):
            return ""
        self.expect("(")
        name = "" if self.took("unknown") else self.string("a location's name")
        self.expect(")")
        return name

    def skip_location(self) -> None:
        """Move past a location if there is one."""
        self.location()


def _tokens(text: str) -> list[Token]:
    if len(text) > MAX_TEXT_LENGTH:
        raise ParseError(f"the text has {len(text)} characters, more than {MAX_TEXT_LENGTH}")
    found: list[Token] = []
    offset = 0
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            raise error_at(text, offset, f"cannot read {text[offset]!r}")
        kind = next(name for name, piece in match.groupdict().items() if piece is not None)
        if kind == "number" and match.end() - offset > MAX_NUMBER_LENGTH:
            raise error_at(text, offset, "a number is too long to read")
        if kind != "skip":
            found.append(Token(kind, match.group(), offset))
        offset = match.end()
    return [*found, Token("end", "", len(text))]
