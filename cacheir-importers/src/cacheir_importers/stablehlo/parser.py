"""Parses the text of a StableHLO program: a module of functions, in the custom form or the generic one.

Grammar: the MLIR language reference and the StableHLO specification; locations, aliases of locations and the
``dialect_resources`` trailer, which the specification does not mention, are read too.
"""

from __future__ import annotations

from typing import Any

from cacheir_importers.stablehlo.cursor import Cursor
from cacheir_importers.stablehlo.lexer import Source, Token, tokens
from cacheir_importers.stablehlo.syntax import Argument, Function, Operation, Program, Region, TensorText

_RETURNS = ("return", "func.return", "stablehlo.return")


def parse_program(source: Source) -> Program:
    """The program in a file.

    Raises MalformedModelError for text that is none, UnsupportedModelError for a type that CacheIR does not have, both
    with line and column.
    """
    cursor = Cursor(source, tokens(source))
    functions: dict[str, Function] = {}
    resources: dict[str, Token] = {}
    while cursor.token.kind != "end":
        if cursor.token.kind == "alias":
            cursor.take()
            cursor.expect("=", "after the name of an alias")
            _skip_alias(cursor)
        elif cursor.at("module") or cursor.at("builtin.module"):
            _module(cursor, functions)
        elif cursor.at("{-#"):
            _trailer(cursor, resources)
        else:
            _function(cursor, functions)
    return Program(functions, resources)


def _skip_alias(cursor: Cursor) -> None:
    if cursor.at("loc"):
        cursor.skip_location()
    else:
        cursor.attribute()


def _module(cursor: Cursor, functions: dict[str, Function]) -> None:
    cursor.take()
    if cursor.token.kind == "symbol":
        cursor.take()
    if cursor.accept("attributes"):
        cursor.attributes()
    cursor.expect("{")
    while not cursor.accept("}"):
        _function(cursor, functions)
    cursor.skip_location()


def _function(cursor: Cursor, functions: dict[str, Function]) -> None:
    start = cursor.token.start
    if not (cursor.accept("func.func") or cursor.accept("func")):
        cursor.fail("a function (func.func) should stand here")
    for visibility in ("public", "private", "nested"):
        cursor.accept(visibility)
    name = cursor.expect_kind("symbol", "the function's name").text[1:].strip('"')
    if name in functions:
        cursor.fail(f"the function @{name} stands twice", start)
    cursor.expect("(")
    arguments: list[Argument] = []
    while not cursor.accept(")"):
        arguments.append(_argument(cursor))
        if not cursor.accept(","):
            cursor.expect(")")
            break
    results: tuple[TensorText, ...] = _results(cursor) if cursor.accept("->") else ()
    if cursor.accept("attributes"):
        cursor.attributes()
    if not cursor.at("{"):
        cursor.fail(f"the function @{name} has no body")
    cursor.take()
    operations = _operations(cursor)
    cursor.skip_location()
    functions[name] = Function(name, start, tuple(arguments), results, operations)


def _argument(cursor: Cursor) -> Argument:
    name = cursor.expect_kind("value", "a parameter").text
    cursor.expect(":")
    type_ = cursor.tensor()
    if cursor.at("{"):
        cursor.attributes()
    cursor.skip_location()
    return Argument(name, type_)


def _results(cursor: Cursor) -> tuple[TensorText, ...]:
    if not cursor.accept("("):
        return (cursor.tensor(),)
    types: list[TensorText] = []
    while not cursor.accept(")"):
        types.append(cursor.tensor())
        if cursor.at("{"):
            cursor.attributes()
        if not cursor.accept(","):
            cursor.expect(")")
            break
    return tuple(types)


def _operations(cursor: Cursor) -> tuple[Operation, ...]:
    """The operations up to the closing brace, which is taken."""
    cursor.enter()
    found = []
    while not cursor.accept("}"):
        found.append(_operation(cursor))
    cursor.leave()
    return tuple(found)


def _operation(cursor: Cursor) -> Operation:
    results: list[tuple[str, int]] = []
    start = cursor.token.start
    while cursor.token.kind == "value":
        name, count = cursor.take().text, 1
        if cursor.accept(":"):
            count = cursor.whole("the number of results")
            if not 1 <= count <= 64:
                cursor.fail("an operation has 1 to 64 results", start)
        results.append((name, count))
        if not cursor.accept(","):
            break
    if results:
        cursor.expect("=", "after the names of results")
    token = cursor.take()
    if token.kind == "string":
        return _generic(cursor, cursor.source.string(token), token.start, tuple(results))
    if token.kind != "word":
        cursor.fail("an operation should stand here", token.start)
    return _custom(cursor, token.text, token.start, tuple(results))


def _generic(cursor: Cursor, name: str, start: int, results: tuple[tuple[str, int], ...]) -> Operation:
    cursor.expect("(")
    operands = _values(cursor)
    cursor.expect(")")
    attrs: dict[str, Any] = {}
    regions: list[Region] = []
    if cursor.accept("<"):
        attrs.update(cursor.attributes())
        cursor.expect(">")
    if cursor.accept("("):
        while True:
            regions.append(_region(cursor))
            if not cursor.accept(","):
                break
        cursor.expect(")")
    if cursor.at("{"):
        attrs.update(cursor.attributes())
    cursor.expect(":", "and the operation's type")
    operand_types, result_types, arrow = _signature(cursor)
    cursor.skip_location()
    return Operation(
        name, start, results, operands, (), attrs, (), None, tuple(regions), operand_types, result_types, arrow
    )


def _values(cursor: Cursor) -> tuple[str, ...]:
    found = []
    while cursor.token.kind == "value":
        found.append(cursor.take().text)
        if not cursor.accept(","):
            break
    return tuple(found)


def _region(cursor: Cursor) -> Region:
    cursor.expect("{")
    arguments: list[Argument] = []
    if cursor.token.kind == "block":
        cursor.take()
        if cursor.accept("("):
            while not cursor.accept(")"):
                arguments.append(_argument(cursor))
                if not cursor.accept(","):
                    cursor.expect(")")
                    break
        cursor.expect(":")
    return Region(tuple(arguments), _operations(cursor))


class _Parts:
    """What the custom form of an operation is made of, in any order: its own rules sort it out."""

    def __init__(self) -> None:
        self.operands: list[str] = []
        self.inits: list[str] = []
        self.attrs: dict[str, Any] = {}
        self.words: list[str] = []
        self.ranges: tuple[tuple[int, ...], ...] | None = None


def _custom(cursor: Cursor, name: str, start: int, results: tuple[tuple[str, int], ...]) -> Operation:
    parts = _Parts()
    while not cursor.at(":"):
        if name in _RETURNS and not parts.operands and cursor.token.kind not in ("value",):
            cursor.skip_location()
            return Operation(name, start, results)
        _part(cursor, name, parts)
    cursor.expect(":")
    operand_types, result_types, arrow = _signature(cursor)
    regions: list[Region] = []
    if cursor.accept("reducer"):
        regions.append(_reducer(cursor))
    cursor.skip_location()
    return Operation(
        name,
        start,
        results,
        tuple(parts.operands),
        tuple(parts.inits),
        parts.attrs,
        tuple(parts.words),
        parts.ranges,
        tuple(regions),
        operand_types,
        result_types,
        arrow,
    )


def _part(cursor: Cursor, name: str, parts: _Parts) -> None:
    token = cursor.token
    if token.kind == "value":
        parts.operands.append(cursor.take().text)
    elif token.kind == "symbol":
        _keep(cursor, parts, "callee", cursor.take().text[1:].strip('"'), token)
    elif cursor.at("("):
        _bracket(cursor, parts)
    elif cursor.at("["):
        if parts.ranges is not None:
            cursor.fail(f"{name} has its ranges twice", token.start)
        parts.ranges = _ranges(cursor)
    elif cursor.at("{"):
        for key, value in cursor.attributes().items():
            _keep(cursor, parts, key, value, token)
    elif token.kind == "word":
        _word(cursor, parts)
    elif not cursor.accept(","):
        cursor.fail(f"{name} cannot go on like this")


def _word(cursor: Cursor, parts: _Parts) -> None:
    token = cursor.take()
    if token.text == "dense" and cursor.at("<"):
        _keep(cursor, parts, "value", cursor.dense(token.start), token)
    elif token.text == "dense_resource" and cursor.at("<"):
        _keep(cursor, parts, "value", cursor.resource(token.start), token)
    elif cursor.accept("="):
        value = cursor.attribute()
        if cursor.accept("x"):  # batching_dims = [0] x [0]
            value = (value, cursor.attribute())
        _keep(cursor, parts, token.text, value, token)
    else:
        parts.words.append(token.text)


def _keep(cursor: Cursor, parts: _Parts, key: str, value: Any, token: Token) -> None:
    if key in parts.attrs:
        cursor.fail(f"{key!r} stands twice", token.start)
    parts.attrs[key] = value


def _bracket(cursor: Cursor, parts: _Parts) -> None:
    """``(%a, %b)``, or ``(%a init: %b)`` of a reduce."""
    cursor.expect("(")
    while not cursor.accept(")"):
        parts.operands.append(cursor.expect_kind("value", "an operand").text)
        if cursor.accept("init"):
            cursor.expect(":")
            parts.inits.append(cursor.expect_kind("value", "a start value").text)
        if not cursor.accept(","):
            cursor.expect(")")
            break


def _ranges(cursor: Cursor) -> tuple[tuple[int, ...], ...]:
    """``[0:2, 1:8:2]``."""
    cursor.expect("[")
    found = []
    while not cursor.accept("]"):
        numbers = [cursor.whole("the start of a range")]
        while cursor.accept(":"):
            numbers.append(cursor.whole("a bound of a range"))
        found.append(tuple(numbers))
        if not cursor.accept(","):
            cursor.expect("]")
            break
    return tuple(found)


def _reducer(cursor: Cursor) -> Region:
    """``(%a: T, %b: T) {...}``; several inputs have a bracket for each."""
    arguments: list[Argument] = []
    while cursor.at("("):
        cursor.take()
        while not cursor.accept(")"):
            arguments.append(_argument(cursor))
            if not cursor.accept(","):
                cursor.expect(")")
                break
        cursor.accept(",")
    cursor.expect("{")
    return Region(tuple(arguments), _operations(cursor))


def _signature(cursor: Cursor) -> tuple[tuple[TensorText, ...], tuple[TensorText, ...], bool]:
    """``(T, T) -> T``, or types alone: those of the results, or of all that is named."""
    if cursor.accept("("):
        operands: list[TensorText] = []
        while not cursor.accept(")"):
            operands.append(cursor.tensor())
            if not cursor.accept(","):
                cursor.expect(")")
                break
        cursor.expect("->")
        return tuple(operands), _results(cursor), True
    types = [cursor.tensor()]
    while cursor.accept(","):
        types.append(cursor.tensor())
    return tuple(types), tuple(types), False


def _trailer(cursor: Cursor, resources: dict[str, Token]) -> None:
    """``{-# dialect_resources: { builtin: { name: "0x..." } } #-}``; other sections are passed over."""
    cursor.expect("{-#")
    while not cursor.accept("#-}"):
        section = cursor.expect_kind("word", "a section of the trailer").text
        cursor.expect(":")
        if section != "dialect_resources":
            if not cursor.at("{"):
                cursor.fail("a section in braces should stand here")
            cursor.skip_balanced()
        else:
            cursor.expect("{")
            while not cursor.accept("}"):
                cursor.expect_kind("word", "a dialect")
                cursor.expect(":")
                _blobs(cursor, resources)
                cursor.accept(",")
        cursor.accept(",")


def _blobs(cursor: Cursor, resources: dict[str, Token]) -> None:
    cursor.expect("{")
    while not cursor.accept("}"):
        token = cursor.take()
        if token.kind not in ("word", "string"):
            cursor.fail("a resource's name should stand here", token.start)
        name = cursor.source.string(token) if token.kind == "string" else token.text
        if name in resources:
            cursor.fail(f"the resource {name!r} stands twice", token.start)
        cursor.expect(":")
        resources[name] = cursor.expect_kind("string", "a resource's bytes")
        cursor.accept(",")
