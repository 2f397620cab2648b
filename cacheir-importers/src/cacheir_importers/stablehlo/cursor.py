"""Walks over tokens: looks, takes, refuses with line and column; reads tensor types and attributes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NoReturn

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir_importers.stablehlo.lexer import Source, Token
from cacheir_importers.stablehlo.syntax import Dense, Resource, Struct, TensorText, Word

DTYPES = {
    "f64": "f64", "f32": "f32", "f16": "f16", "bf16": "bf16", "i1": "bool",
    "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8", "ui64": "u64", "ui32": "u32", "ui16": "u16", "ui8": "u8",
}  # fmt: skip
MAX_DEPTH = 64
MAX_ELEMENTS = 1 << 40
MAX_RANK = 32
_SHAPE = re.compile(r"((?:(?:[0-9]+|\?)x)*)([A-Za-z][A-Za-z0-9]*)")
_SCALAR = frozenset({*DTYPES, "index"})


class Cursor:
    """A place in the tokens of a file."""

    def __init__(self, source: Source, found: Sequence[Token]) -> None:
        self.source = source
        self._tokens = found
        self._next = 0
        self._depth = 0

    @property
    def token(self) -> Token:
        """The token that comes next."""
        return self._tokens[self._next]

    def peek(self, ahead: int = 1) -> Token:
        """The token ``ahead`` of the next one."""
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def take(self) -> Token:
        """The next token; the one at the end stays."""
        token = self.token
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def at(self, text: str) -> bool:
        """Whether a mark, word or arrow of this text comes next."""
        return self.token.text == text and self.token.kind != "string"

    def accept(self, text: str) -> bool:
        """Take ``text`` where it comes next."""
        found = self.at(text)
        if found:
            self.take()
        return found

    def expect(self, text: str, why: str = "") -> Token:
        """Take ``text``, which must come next."""
        if not self.at(text):
            self.fail(f"{text!r} should stand here{f', {why}' if why else ''}")
        return self.take()

    def expect_kind(self, kind: str, what: str) -> Token:
        """Take a token of ``kind``, which must come next."""
        if self.token.kind != kind:
            self.fail(f"{what} should stand here")
        return self.take()

    def fail(self, problem: str, start: int | None = None) -> NoReturn:
        """Raise MalformedModelError at the next token, or at ``start``."""
        if start is None:
            found = "the end of the file" if self.token.kind == "end" else repr(self._shown())
            start, problem = self.token.start, f"{problem}, not {found}"
        raise MalformedModelError(f"{self.source.at(start)}: {problem}")

    def refuse(self, problem: str, start: int) -> NoReturn:
        """Raise UnsupportedModelError at ``start``."""
        raise UnsupportedModelError(f"{self.source.at(start)}: {problem}")

    def enter(self) -> None:
        """Go one level deeper; too deep is refused."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise MalformedModelError(f"{self.source.at(self.token.start)}: nested deeper than {MAX_DEPTH} levels")

    def leave(self) -> None:
        """Come back from a level."""
        self._depth -= 1

    def tensor(self) -> TensorText:
        """A ranked tensor type of constant sizes."""
        token = self.expect_kind("tensor", "a tensor type")
        inner = token.text[len("tensor<") : -1].strip()
        match = _SHAPE.fullmatch(inner)
        if match is None:
            self.refuse(f"the type {token.text[:80]} is not supported: plain ranked tensors are", token.start)
        sizes, kind = match.group(1), match.group(2)
        if "?" in sizes:
            self.refuse(
                f"the type {token.text[:80]} has a dynamic size: export the program with fixed sizes", token.start
            )
        if kind not in DTYPES:
            self.refuse(f"the element type {kind!r} is not supported; supported: {', '.join(DTYPES)}", token.start)
        digits = sizes.split("x")[:-1]
        if len(digits) > MAX_RANK or any(len(size) > 18 for size in digits):
            self.fail(f"the type {token.text[:80]} is too large", token.start)
        shape = tuple(int(size) for size in digits)
        if prod(size for size in shape if size) > MAX_ELEMENTS:
            self.fail(f"the type {token.text[:80]} has more than {MAX_ELEMENTS} elements", token.start)
        return TensorText(DTYPES[kind], shape, token.start)

    def skip_balanced(self) -> None:
        """Pass over one bracket with all that is in it."""
        pairs = {"(": ")", "[": "]", "{": "}", "<": ">"}
        open_brackets = [pairs[self.take().text]]
        while open_brackets:
            token = self.take()
            if token.kind == "end":
                self.fail("a bracket is not closed", token.start)
            if token.kind == "mark" and token.text in pairs:
                open_brackets.append(pairs[token.text])
            elif token.kind == "mark" and token.text == open_brackets[-1]:
                open_brackets.pop()

    def skip_location(self) -> None:
        """Pass over ``loc(...)`` where it stands."""
        if self.at("loc") and self.peek().text == "(":
            self.take()
            self.skip_balanced()

    def attributes(self) -> dict[str, Any]:
        """``{key = value, key}``, whose opening brace comes next."""
        self.expect("{")
        found: dict[str, Any] = {}
        while not self.accept("}"):
            token = self.take()
            if token.kind not in ("word", "string"):
                self.fail("an attribute needs a name", token.start)
            name = self.source.string(token) if token.kind == "string" else token.text
            if name in found:
                self.fail(f"the attribute {name!r} stands twice", token.start)
            found[name] = self.attribute() if self.accept("=") else True
            if not self.accept(","):
                self.expect("}")
                break
        return found

    def attribute(self) -> Any:
        """One attribute: a number, text, list, mapping, dense constant, structure or word."""
        self.enter()
        value = self._attribute()
        self.leave()
        return value

    def _attribute(self) -> Any:
        token = self.token
        if token.kind == "string":
            return self.source.string(self.take())
        if token.kind == "number":
            value = self.number(self.take())
            if self.at(":") and self.peek().text in _SCALAR:
                self.take()
                self.take()
            return value
        if token.kind == "tensor":
            return self.take().text
        if token.kind == "alias":
            return self._struct()
        if token.kind == "symbol":
            return self.take().text
        if self.at("["):
            return self._list()
        if self.at("{"):
            return self.attributes()
        if token.kind == "word":
            return self._word()
        self.fail("an attribute's value should stand here")

    def _word(self) -> Any:
        token = self.take()
        if token.text == "dense" and self.at("<"):
            value = self.dense(token.start)
            self.expect(":", "and the constant's type")
            self.tensor()
            return value
        if token.text == "dense_resource" and self.at("<"):
            return self.resource(token.start)
        if token.text == "array" and self.at("<"):
            return self._array()
        if token.text in ("true", "false"):
            return token.text == "true"
        if self.at("<") or self.at("("):
            self.skip_balanced()
        return Word(token.text)

    def _list(self) -> list[Any]:
        self.expect("[")
        values: list[Any] = []
        while not self.accept("]"):
            values.append(self.attribute())
            if not self.accept(","):
                self.expect("]")
                break
        return values

    def _array(self) -> list[Any]:
        self.expect("<")
        self.expect_kind("word", "an element type")
        values: list[Any] = []
        if self.accept(":"):
            while True:
                values.append(self.attribute())
                if not self.accept(","):
                    break
        self.expect(">")
        return values

    def _struct(self) -> Struct:
        name = self.take().text
        fields: dict[str, Any] = {}
        words: list[str] = []
        if self.at("<"):
            self.take()
            while not self.accept(">"):
                token = self.expect_kind("word", "a field")
                if self.accept("="):
                    if token.text in fields:
                        self.fail(f"the field {token.text!r} stands twice", token.start)
                    fields[token.text] = self.attribute()
                else:
                    words.append(token.text)
                self.accept(",")
        return Struct(name, fields, tuple(words))

    def dense(self, start: int) -> Dense:
        """``<...>`` after ``dense``."""
        self.expect("<")
        if self.accept(">"):
            return Dense(None, start)
        payload = self._elements()
        self.expect(">")
        return Dense(payload, start)

    def resource(self, start: int) -> Resource:
        """``<name>`` after ``dense_resource``."""
        self.expect("<")
        token = self.take()
        if token.kind not in ("word", "string"):
            self.fail("a resource's name should stand here", token.start)
        self.expect(">")
        return Resource(self.source.string(token) if token.kind == "string" else token.text, start)

    def _elements(self) -> Any:
        if not self.at("["):
            token = self.take()
            if token.kind in ("number", "string") or token.text in ("true", "false"):
                return token
            self.fail("an element of a constant should stand here", token.start)
        self.enter()
        self.take()
        values: list[Any] = []
        while not self.accept("]"):
            values.append(self._elements())
            if not self.accept(","):
                self.expect("]")
                break
        self.leave()
        return values

    def number(self, token: Token) -> int | float:
        """The value of a number token that is no element of a constant."""
        text = token.text
        if len(text) > 64:
            self.fail("the number is too long", token.start)
        if "x" in text:
            return int(text, 16)
        return float(text) if any(mark in text for mark in ".eE") else int(text)

    def whole(self, what: str) -> int:
        """A whole number."""
        token = self.expect_kind("number", what)
        value = self.number(token)
        if not isinstance(value, int):
            self.fail(f"{what} must be a whole number", token.start)
        return value

    def _shown(self) -> str:
        token = self.token
        return token.text[:40] or self.source.data[token.start : min(token.stop, token.start + 40)].decode("latin-1")


def known_fields(value: object) -> Mapping[str, Any]:
    """The fields of a structure, none for anything else."""
    return value.fields if isinstance(value, Struct) else {}
