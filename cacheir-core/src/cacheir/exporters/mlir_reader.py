"""Reads MLIR's generic form back into a module: what ``mlir.py`` writes, also after MLIR's own printer rewrote it."""

from __future__ import annotations

from cacheir.exporters.mlir import GRAPH, OP_PREFIX, WEIGHT, YIELD
from cacheir.exporters.mlir_attrs import Fields, Symbol, read_dictionary
from cacheir.exporters.mlir_tokens import TokenReader
from cacheir.exporters.mlir_types import type_of
from cacheir.ir.graph import Attr, Graph, Module, Op, Value, Weight
from cacheir.ir.spelling import is_identifier, is_name, is_word
from cacheir.ir.types import KVType, Type
from cacheir.ir.weights import Derived, Recipe, Stored


def parse_mlir(text: str) -> Module:
    """The module that ``text`` holds. Raises ParseError with the place, whatever the text is.

    What is read back keeps names of values where they stand in the text. MLIR's own printer numbers them, so that a
    module which went through it is equal in its graphs' hashes, inputs and weights, and its other values are called
    ``0``, ``1.0``, ``1.1`` and so on. As with the graph's own text, all rules beyond the grammar are the verifier's.
    """
    reader = TokenReader(text)
    wrapped = reader.sees('"builtin.module"')
    if wrapped:
        for piece in ('"builtin.module"', "(", ")", "(", "{"):
            reader.expect(piece)
    else:  # MLIR's printer may write the wrapper in its short form
        reader.expect("module")
        mode = _mode(reader, read_dictionary(reader)) if reader.took("attributes") else ""
        reader.expect("{")
    graphs: list[Graph] = []
    while not reader.took("}"):
        graphs.append(_GraphReader(reader).graph())
    if wrapped:
        reader.expect(")")
        mode = _mode(reader, read_dictionary(reader))
        _read_empty_type(reader)
    reader.expect_end()
    if not graphs:
        reader.fail("a module needs at least one graph")
    return Module(mode, tuple(graphs))


def _mode(reader: TokenReader, fields: Fields) -> str:
    return _text(reader, fields, "cacheir.mode")


def _text(reader: TokenReader, fields: Fields, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        reader.fail(f"the attribute {name} must be a string")
    return value


def _texts(reader: TokenReader, fields: Fields, name: str) -> tuple[str, ...]:
    values = fields.get(name)
    if not isinstance(values, tuple) or not all(isinstance(value, str) for value in values):
        reader.fail(f"the attribute {name} must be a list of strings")
    return tuple(str(value) for value in values)


def _read_empty_type(reader: TokenReader) -> None:
    for piece in (":", "(", ")", "->", "(", ")"):
        reader.expect(piece)
    reader.skip_location()


class _GraphReader:
    """Reads one graph; knows the values defined so far by the names that MLIR gives them."""

    def __init__(self, reader: TokenReader) -> None:
        self._reader = reader
        self._defined: dict[str, Value] = {}
        self._names: set[str] = set()

    def graph(self) -> Graph:
        reader = self._reader
        for piece in (f'"{GRAPH}"', "(", ")", "(", "{"):
            reader.expect(piece)
        arguments = self._arguments()
        weights: list[Weight] = []
        ops: list[Op] = []
        outputs: tuple[str, ...] | None = None
        while outputs is None:
            if reader.next.kind == "value":
                self._made(weights, ops)
            else:
                outputs = self._yield()
        for piece in ("}", ")"):
            reader.expect(piece)
        fields = read_dictionary(reader)
        _read_empty_type(reader)
        params = self._rename_params(fields, arguments)
        names = {old: new for (old, _), new in zip(arguments, params)}
        return self._built(fields, params, weights, ops, outputs, names)

    def _built(
        self,
        fields: Fields,
        params: tuple[Value, ...],
        weights: list[Weight],
        ops: list[Op],
        outputs: tuple[str, ...],
        names: dict[str, Value],
    ) -> Graph:
        """The graph in its own names: parameters and weights by their attributes, results by MLIR's."""
        known = {**names, **{key: value for key, value in self._defined.items() if key not in names}}
        taken = {value.name for value in (*params, *(weight.value for weight in weights))}
        for op in ops:
            for result in op.results:
                name, number = result.name, 0
                while name in taken:  # a number that MLIR's printer gave may be a parameter's name
                    number += 1
                    name = f"{result.name}.{number}"
                taken.add(name)
                known[result.name] = Value(name, result.type)
        renamed = [
            Op(
                op.name,
                tuple(known[value.name] for value in op.operands),
                tuple(known[value.name] for value in op.results),
                op.attrs,
                op.scope,
            )
            for op in ops
        ]
        name = self._word(_text(self._reader, fields, "sym_name"), "a graph's name")
        dims = self._dims(fields)
        return Graph(name, dims, params, tuple(weights), tuple(renamed), tuple(known[key] for key in outputs))

    # --- parameters

    def _arguments(self) -> list[tuple[str, Type]]:
        reader = self._reader
        arguments: list[tuple[str, Type]] = []
        if reader.next.kind == "block":
            reader.take("block", "a block")
            if reader.took("("):
                reader.listed(")", lambda: arguments.append(self._argument()))
            reader.expect(":")
        for key, type_ in arguments:
            self._define(key, Value(key, type_, "input"))
        return arguments

    def _argument(self) -> tuple[str, Type]:
        key = self._reader.value_key()
        self._reader.expect(":")
        return key, self._type()

    def _rename_params(self, fields: Fields, arguments: list[tuple[str, Type]]) -> tuple[Value, ...]:
        names = _texts(self._reader, fields, "params")
        if len(names) != len(arguments) or len(set(names)) != len(names):
            self._reader.fail("the attribute params must name each argument of the graph once")
        made = []
        for name, (_, type_) in zip(names, arguments):
            if not is_name(name):
                self._reader.fail(f"the attribute params has {name[:40]!r}, which is no name of a value")
            made.append(Value(name, type_, "state" if isinstance(type_, KVType) else "input"))
        return tuple(made)

    def _dims(self, fields: Fields) -> tuple[tuple[str, int, int], ...]:
        dims = fields.get("dims")
        if not isinstance(dims, tuple):
            self._reader.fail("the attribute dims must be a list")
        for item in dims:
            whole = isinstance(item, tuple) and len(item) == 3 and all(type(bound) is int for bound in item[1:])
            if not whole or not isinstance(item[0], str) or not is_identifier(item[0]):
                self._reader.fail("each of the attribute dims must be a name and two whole numbers")
        return tuple((name, low, high) for name, low, high in dims)

    # --- weights and ops

    def _made(self, weights: list[Weight], ops: list[Op]) -> None:
        reader = self._reader
        keys = self._result_keys()
        reader.expect("=")
        start = reader.next
        name = reader.string("an op's name")
        operands = tuple(self._use(key) for key in self._operand_keys())
        fields = read_dictionary(reader) if reader.sees("<") or reader.sees("{") else {}
        results = self._signature(operands, len(keys))
        scope = reader.location()
        if name == WEIGHT:
            if len(keys) != 1 or operands:
                reader.fail("a weight takes nothing and makes one value", start)
            value = Value(_text(reader, fields, "name"), results[0], "weight")
            if not is_name(value.name) or value.name in {weight.name for weight in weights}:
                reader.fail(f"the weight's name {value.name[:40]!r} is no name, or another's", start)
            self._define(keys[0], value)
            weights.append(Weight(value, self._recipe(fields)))
            return
        if not name.startswith(OP_PREFIX):
            reader.fail(f"the op {name[:40]!r} is not of the dialect cacheir", start)
        op_name = self._word(name[len(OP_PREFIX) :], "an op's name")
        attrs = self._attrs(fields, op_name)
        values = tuple(Value(key, type_) for key, type_ in zip(keys, results))
        for value in values:
            self._define(value.name, value)
        ops.append(Op(op_name, operands, values, attrs, scope))

    def _recipe(self, fields: Fields) -> Recipe:
        reader = self._reader
        if "stored" in fields:
            return Stored(_text(reader, fields, "stored"))
        given = fields.get("with")
        if not isinstance(given, dict):
            reader.fail("a weight needs the attribute stored, or made_by, of and with")
        names = _texts(reader, fields, "of")
        if not all(map(is_name, names)):
            reader.fail("the attribute of must name weights")
        return Derived(self._word(_text(reader, fields, "made_by"), "a recipe"), names, self._attrs(given, "recipe"))

    def _attrs(self, fields: Fields, op_name: str) -> tuple[tuple[str, Attr], ...]:
        attrs: dict[str, Attr] = {}
        for name, value in fields.items():
            if not is_identifier(name):
                self._reader.fail(f"{name[:40]!r} is no name of an attribute")
            if isinstance(value, Symbol) and op_name == "call" and name == "callee":
                attrs[name] = self._word(value.name, "a graph's name")
            elif isinstance(value, (Symbol, dict)) or not _is_attr(value):
                self._reader.fail(f"the attribute {name} has a value that an op of CacheIR cannot have")
            else:
                attrs[name] = value  # type: ignore[assignment]  # _is_attr has looked
        if op_name == "call" and not isinstance(attrs.get("callee"), str):
            self._reader.fail("a call names its graph in the attribute callee")
        return tuple(sorted(attrs.items()))

    def _signature(self, operands: tuple[Value, ...], results: int) -> list[Type]:
        """``: (types) -> types``, which must be those of the operands; gives the results'."""
        reader = self._reader
        reader.expect(":")
        reader.expect("(")
        start = reader.next
        given = list(reader.listed(")", self._type))
        if given != [value.type for value in operands]:
            reader.fail("the types of the operands are not those they are defined with", start)
        reader.expect("->")
        made = list(reader.listed(")", self._type)) if reader.took("(") else [self._type()]
        if len(made) != results:
            reader.fail(f"{results} results have {len(made)} types")
        return made

    def _yield(self) -> tuple[str, ...]:
        reader = self._reader
        reader.expect(f'"{YIELD}"')
        keys = self._operand_keys()
        operands = tuple(self._use(key) for key in keys)
        if reader.sees("<") or reader.sees("{"):
            read_dictionary(reader)
        reader.expect(":")
        reader.expect("(")
        if list(reader.listed(")", self._type)) != [value.type for value in operands]:
            reader.fail("the types of what is yielded are not those they are defined with")
        for piece in ("->", "(", ")"):
            reader.expect(piece)
        reader.skip_location()
        return keys

    # --- values

    def _result_keys(self) -> list[str]:
        keys: list[str] = []
        while True:
            key = self._reader.value_key()
            count = self._reader.result_count()
            keys += [key] if count == 1 else [f"{key}.{number}" for number in range(count)]
            if not self._reader.took(","):
                return keys

    def _operand_keys(self) -> tuple[str, ...]:
        self._reader.expect("(")
        return self._reader.listed(")", self._reader.value_use)

    def _define(self, key: str, value: Value) -> None:
        if key in self._defined:
            self._reader.fail(f"%{key[:40]} is defined twice")
        self._defined[key] = value

    def _use(self, key: str) -> Value:
        value = self._defined.get(key)
        if value is None:
            self._reader.fail(f"%{key[:40]} is used before it is defined")
        # Until all names are known a value goes by the name that MLIR has for it.
        return Value(key, value.type, value.origin)

    def _type(self) -> Type:
        token = self._reader.take("type", "a type")
        return self._reader.about(token, type_of)

    def _word(self, text: str, wanted: str) -> str:
        if not is_word(text):
            self._reader.fail(f"{text[:40]!r} is not {wanted}")
        return text


def _is_attr(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_attr, value))
    return not isinstance(value, (Symbol, dict))
