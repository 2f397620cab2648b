"""Splits MLIR text into tokens; works on bytes, so that a token's place is its place in the file."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cacheir.errors import MalformedModelError

MAX_TOKENS = 4_000_000

_TOKEN = re.compile(
    rb"""
    (?P<space>[\s]+|//[^\n]*)
  | (?P<string>"[^"\\\n]*(?:\\.[^"\\\n]*)*")
  | (?P<tensor>tensor<(?:[^<>"\n]|<[^<>"\n]*>)*>)
  | (?P<value>%[A-Za-z0-9_$.\-]+(?:\#[0-9]+)?)
  | (?P<symbol>@(?:[A-Za-z_][A-Za-z0-9_$.]*|"[^"\\\n]*"))
  | (?P<trailer>\{-\#|\#-\})
  | (?P<alias>\#[A-Za-z_][A-Za-z0-9_$.]*|\#[0-9]+)
  | (?P<block>\^[A-Za-z0-9_$.\-]+)
  | (?P<arrow>->)
  | (?P<number>-?0x[0-9A-Fa-f]+|-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)
  | (?P<word>[A-Za-z_][A-Za-z0-9_$.]*|![A-Za-z_][A-Za-z0-9_$.]*)
  | (?P<mark>[(){}\[\]<>,:=?*+\-|/])
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is a group of the pattern, ``end`` for the end of the file. ``start`` and ``stop`` are byte offsets.

    ``text`` of a string is "": constants may be large, so theirs is read from the file where it is needed.
    """

    kind: str
    text: str
    start: int
    stop: int


class Source:
    """The bytes of a file, and where in it a byte stands as line and column, both from one."""

    def __init__(self, data: bytes, place: str) -> None:
        self.data = data
        self.place = place
        self._lines: list[int] = []

    def at(self, offset: int) -> str:
        """``FILE:LINE:COLUMN`` of a byte."""
        if not self._lines:
            self._lines = [0, *(match.end() for match in re.finditer(rb"\n", self.data))]
        line = bisect.bisect_right(self._lines, offset)
        return f"{self.place}:{line}:{offset - self._lines[line - 1] + 1}"

    def string(self, token: Token) -> str:
        """The content of a string token."""
        raw = self.data[token.start + 1 : token.stop - 1]
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedModelError(f"{self.at(token.start)}: a string is not valid UTF-8") from error


def tokens(source: Source) -> Sequence[Token]:
    """The tokens of a file, without space and comments, an ``end`` token last.

    Raises MalformedModelError for a byte that begins no token, and for more than ``MAX_TOKENS``.
    """
    data, position = source.data, 0
    found: list[Token] = []
    match = _TOKEN.match
    while position < len(data):
        hit = match(data, position)
        if hit is None:
            what = (
                "a string without end"
                if data[position : position + 1] == b'"'
                else f"{data[position : position + 1]!r}"
            )
            raise MalformedModelError(f"{source.at(position)}: {what} begins nothing that StableHLO text has")
        kind = hit.lastgroup or ""
        if kind != "space":
            if len(found) >= MAX_TOKENS:
                raise MalformedModelError(f"{source.at(position)}: more than {MAX_TOKENS} tokens are not read")
            text = "" if kind == "string" else hit.group().decode("latin-1")
            found.append(Token(kind, text, position, hit.end()))
        position = hit.end()
    found.append(Token("end", "", len(data), len(data)))
    return found
