"""Reads graph text back: one small method for each piece of the grammar in docs/ir.md."""

from __future__ import annotations

from cacheir.ir.graph import LAYER, Attr, Graph, Module, Op, Value, Weight
from cacheir.ir.lexer import Token
from cacheir.ir.reader import Reader
from cacheir.ir.spelling import MAX_NESTING, is_word
from cacheir.ir.type_parser import read_type
from cacheir.ir.weights import Derived, Recipe, Stored


def parse_graph(text: str) -> Graph:
    """The graph that ``text`` holds. Raises ParseError with the place, whatever the text is.

    Reading checks the grammar, and that a value is defined once and before its use; all other rules are the
    verifier's.
    """
    reader = Reader(text)
    graph = _GraphParser(reader).graph()
    reader.expect_end()
    return graph


def parse_module(text: str) -> Module:
    """The module that ``text`` holds: ``module MODE`` and its graphs. Raises ParseError with the place."""
    reader = Reader(text)
    reader.expect("module")
    mode = reader.word_or_string("a mode")
    graphs: list[Graph] = []
    while not graphs or reader.next.kind != "end":
        graphs.append(_GraphParser(reader).graph())
    return Module(mode, tuple(graphs))


class _GraphParser:
    """Reads one graph; knows the values defined so far."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._defined: dict[str, Value] = {}

    def graph(self) -> Graph:
        reader = self._reader
        reader.expect("graph")
        name = self._graph_name()
        reader.expect("{")
        dims: list[tuple[str, int, int]] = []
        params: list[Value] = []
        weights: list[Weight] = []
        ops: list[Op] = []
        while not reader.took("yield"):
            if reader.next.kind == "value":
                ops.append(self._op())
            elif reader.took("dim"):
                dims.append(self._dim())
            elif reader.sees("input") or reader.sees("state"):
                origin = reader.take("word", "a declaration").text
                params.append(self._define(*self._typed(origin)))
            elif reader.took("weight"):
                weights.append(self._weight())
            else:
                reader.fail(f"expected dim, input, state, weight, an op or yield, found {reader.next}")
        outputs = reader.listed("}", self._use)
        return Graph(name, tuple(dims), tuple(params), tuple(weights), tuple(ops), outputs)

    def _graph_name(self) -> str:
        token = self._reader.take("value", "a graph's @name")
        if token.text[0] != "@" or not is_word(token.text[1:]):
            self._reader.fail(f"expected a graph's @name that begins with a letter, found {token}", token)
        return token.text[1:]

    def _dim(self) -> tuple[str, int, int]:
        reader = self._reader
        name = reader.identifier("the name of a size")
        reader.expect("in")
        reader.expect("[")
        low = reader.integer()
        reader.expect(",")
        high = reader.integer()
        reader.expect("]")
        return name, low, high

    # --- values

    def _typed(self, origin: str) -> tuple[Token, Value]:
        mark = "@" if origin == "weight" else "%"
        token = self._reader.take("value", f"a name such as {mark}x")
        if token.text[0] != mark:
            self._reader.fail(f"expected a name that begins with '{mark}', found {token}", token)
        self._reader.expect(":")
        return token, Value(token.text[1:], read_type(self._reader), origin)

    def _define(self, token: Token, value: Value) -> Value:
        if value.name in self._defined:
            self._reader.fail(f"{token} is defined twice; values and weights share their names", token)
        self._defined[value.name] = value
        return value

    def _use(self) -> Value:
        token = self._reader.take("value", "a value")
        value = self._defined.get(token.text[1:])
        if value is None:
            self._reader.fail(f"{token} is used before it is defined", token)
        if str(value) != token.text:
            self._reader.fail(f"{token} is written {value} where it is defined", token)
        return value

    # --- weights and ops

    def _weight(self) -> Weight:
        value = self._define(*self._typed("weight"))
        self._reader.expect("=")
        return Weight(value, self._recipe())

    def _recipe(self) -> Recipe:
        word = self._reader.take("word", "a recipe")
        if word.text == "stored" and self._reader.next.kind == "string":
            return Stored(self._reader.string())
        self._reader.expect("(")
        operands = self._reader.listed(")", self._recipe_operand)
        return Derived(word.text, operands, tuple(sorted(self._attrs().items())))

    def _recipe_operand(self) -> str:
        # A recipe may name a weight that is declared further down; the verifier looks for it.
        token = self._reader.take("value", "a weight")
        if token.text[0] != "@":
            self._reader.fail(f"a recipe takes weights alone, found {token}", token)
        return token.text[1:]

    def _op(self) -> Op:
        reader = self._reader
        results = [self._typed("op")]
        while reader.took(","):
            results.append(self._typed("op"))
        reader.expect("=")
        name = reader.take("word", "an op").text
        callee = self._graph_name() if name == "call" else ""
        reader.expect("(")
        operands = reader.listed(")", self._use)
        brace, attrs = reader.next, self._attrs()
        if callee:
            if "callee" in attrs:
                reader.fail("a call names its graph after 'call', not in an attribute", brace)
            attrs["callee"] = callee
        hints = tuple(sorted(self._attrs().items())) if reader.took("hint") else ()
        scope = reader.word_or_string("a scope") if reader.took("at") else ""
        # Results come into being after the operands are read: an op cannot use what it makes.
        values = tuple(self._define(token, value) for token, value in results)
        return Op(name, operands, values, tuple(sorted(attrs.items())), scope, hints)

    # --- attributes

    def _attrs(self) -> dict[str, Attr]:
        attrs: dict[str, Attr] = {}
        if self._reader.took("{"):
            self._reader.listed("}", lambda: self._named_attr(attrs))
        return attrs

    def _named_attr(self, attrs: dict[str, Attr]) -> None:
        token = self._reader.next
        name = self._reader.identifier("an attribute's name")
        if name in attrs:
            self._reader.fail(f"attribute {name} is given twice", token)
        self._reader.expect("=")
        attrs[name] = self._attr(0)

    def _attr(self, depth: int) -> Attr:
        reader = self._reader
        if depth > MAX_NESTING:
            reader.fail(f"lists are nested deeper than {MAX_NESTING}")
        if reader.took("["):
            return reader.listed("]", lambda: self._attr(depth + 1))
        if reader.took("$layer"):
            return LAYER
        if reader.sees("true") or reader.sees("false"):
            return reader.take("word", "a value").text == "true"
        if reader.next.kind == "string":
            return reader.string()
        return reader.number("an attribute's value")
