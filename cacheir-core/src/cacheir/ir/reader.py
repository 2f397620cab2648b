"""A position in the tokens of a text, with the moves that reading a grammar needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

from cacheir.ir.lexer import Token, error_at, number_value, string_value, tokens
from cacheir.ir.spelling import is_identifier

_T = TypeVar("_T")


class Reader:
    """Every method either moves past what it read, or raises ParseError with the place."""

    def __init__(self, text: str, cut: Callable[[str], list[Token]] = tokens) -> None:
        self._text = text
        self._tokens = cut(text)
        self._at = 0

    @property
    def next(self) -> Token:
        """The token to be read next."""
        return self._tokens[self._at]

    def fail(self, message: str, token: Token | None = None) -> NoReturn:
        """Raise ParseError about ``token``, or about the next one."""
        raise error_at(self._text, (token or self.next).offset, message)

    def take(self, kind: str, wanted: str) -> Token:
        """The next token, which must be of ``kind``; ``wanted`` says so in words."""
        token = self.next
        if token.kind != kind:
            self.fail(f"expected {wanted}, found {token}")
        self._at += 1
        return token

    def sees(self, text: str) -> bool:
        """Whether the next token is the keyword or mark ``text``, which no string or number is spelt like."""
        return self.next.text == text

    def took(self, text: str) -> bool:
        """Move past the keyword or mark ``text`` if it is next, and say whether it was."""
        seen = self.sees(text)
        self._at += seen
        return seen

    def expect(self, text: str) -> None:
        """Move past the keyword or mark ``text``."""
        if not self.took(text):
            self.fail(f"expected '{text}', found {self.next}")

    def expect_end(self) -> None:
        """There must be nothing more."""
        if self.next.kind != "end":
            self.fail(f"expected the end of the text, found {self.next}")

    def listed(self, close: str, item: Callable[[], _T]) -> tuple[_T, ...]:
        """Items with commas between them, up to the mark ``close``."""
        items: list[_T] = []
        while not self.took(close):
            if items:
                self.expect(",")
            items.append(item())
        return tuple(items)

    def integer(self) -> int:
        """A whole number."""
        token = self.next
        value = self.number("a whole number")
        if not isinstance(value, int):
            self.fail(f"expected a whole number, found {token}", token)
        return value

    def number(self, wanted: str = "a number") -> int | float:
        """A number: an int where it has neither point nor exponent."""
        return number_value(self._text, self.take("number", wanted))

    def string(self, wanted: str = "a string") -> str:
        """The characters of a JSON string."""
        return string_value(self._text, self.take("string", wanted))

    def word_or_string(self, wanted: str) -> str:
        """A word, or any text as a JSON string."""
        return self.string() if self.next.kind == "string" else self.take("word", wanted).text

    def identifier(self, wanted: str) -> str:
        """A word of letters, digits and '_' alone."""
        token = self.take("word", wanted)
        if not is_identifier(token.text):
            self.fail(f"expected {wanted} of letters, digits and '_', found {token}", token)
        return token.text
