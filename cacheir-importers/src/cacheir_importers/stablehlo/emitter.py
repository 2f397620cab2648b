"""Writes the ops of a StableHLO program into a graph: names, operands, attributes and types of each are checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from numpy.typing import NDArray

from cacheir.errors import IRError
from cacheir.ir.builder import GraphBuilder
from cacheir.ir.graph import Attr, Value
from cacheir.ir.types import TensorType
from cacheir.models.imported import UnpackRecipe, WeightSource
from cacheir.reference.bf16 import from_bf16
from cacheir_importers.literals import literal_op
from cacheir_importers.stablehlo.constants import StoredText, Written, read_constant
from cacheir_importers.stablehlo.cursor import Cursor
from cacheir_importers.stablehlo.lexer import Token
from cacheir_importers.stablehlo.syntax import Dense, Operation, TensorText, Word

MAX_OPS = 20_000
# Attributes that change no result, or say how a compiler for other machines should work.
_IGNORED = re.compile(r"(mhlo|jax|sdy|xla|tf)\..*|indices_are_sorted|precision(_config)?|result_info|backend_config")

Rule = Callable[["Emitter", Operation, list[Value]], Sequence[Value]]


class Emitter:
    """The graph in the making, and what is known of its values."""

    def __init__(self, builder: GraphBuilder, cursor: Cursor, resources: Mapping[str, Token], file: str) -> None:
        self.builder = builder
        self.cursor = cursor
        self.sources: dict[str, WeightSource] = {}
        self.recipes: dict[str, UnpackRecipe] = {}
        self._resources = dict(resources)
        self._file = file
        self._literals: dict[str, NDArray[Any]] = {}
        self._count = 0
        self._start = 0
        self._hint = "v"
        self._names: dict[str, int] = {}

    def begin(self, op: Operation) -> None:
        """What is emitted from now on stands for ``op``. Counted, so that calls of calls come to an end."""
        self._start = op.start
        self._hint = value_name(op.results[0][0]) if op.results else "v"
        self._count += 1
        if self._count > MAX_OPS:
            self.cursor.refuse(f"the program has more than {MAX_OPS} operations", self._start)

    def op(self, name: str, *operands: Value, **attrs: Attr) -> Value:
        """One op of one result. What does not fit is refused with the place of the operation that it stands for."""
        number = self._names[self._hint] = self._names.get(self._hint, -1) + 1
        hint = f"{self._hint}.{number}" if number else self._hint  # the builder would look for a free one each time
        try:
            return self.builder.op(name, *operands, result=hint, **attrs)
        except IRError as error:
            self.fail(str(error))

    def fail(self, problem: str) -> NoReturn:
        """The program is wrong at the operation that is being read."""
        self.cursor.fail(problem, self._start)

    def refuse(self, problem: str) -> NoReturn:
        """CacheIR has nothing for the operation that is being read."""
        self.cursor.refuse(problem, self._start)

    def constant(self, value: object, type_: TensorText) -> Value:
        """The value of ``stablehlo.constant``."""
        found = read_constant(self.cursor, value, type_, self._resources, self._start)
        if isinstance(found, Written):
            return self.literal(found.values, type_.dtype, type_.shape)
        return self._weight(found, type_)

    def literal(self, values: NDArray[Any], dtype: str, shape: tuple[int, ...]) -> Value:
        """Elements that are written in the graph, one for all or all of them; bf16 as uint16."""
        name, attrs = literal_op(values, dtype, tuple(map(str, shape)))
        made = self.op(name, **attrs)
        if values.size == 1:
            self._literals[made.name] = values.reshape(-1) if dtype != "bf16" else from_bf16(values.reshape(-1))
        return made

    def scalar(self, number: float, dtype: str) -> Value:
        """One number of ``dtype``."""
        return self.op("constant", dtype=dtype, shape=(), values=(number,))

    def splat_of(self, value: Value) -> Any:
        """The one element that a constant holds everywhere, None for another value."""
        found = self._literals.get(value.name)
        return None if found is None else found[0]

    def _weight(self, text: StoredText, type_: TensorText) -> Value:
        key = f"constants.{len(self.recipes)}"
        self.sources[f"{key}.text"] = WeightSource(
            file=self._file,
            tensor=self.cursor.source.at(self._start),
            offset=text.offset,
            nbytes=text.nbytes,
            format="u8",
            shape=(text.nbytes,),
        )
        self.recipes[key] = UnpackRecipe(
            method="hex", parts=("text",), dtype=type_.dtype, shape=type_.shape, attrs=(("skip", text.skip),)
        )
        return self.builder.weight(f"constant.{len(self.recipes) - 1}", TensorType.of(type_.dtype, *type_.shape), key)


class Attributes:
    """The attributes of one operation; what nobody asked for is refused, so that nothing is ignored in silence."""

    def __init__(self, emitter: Emitter, op: Operation) -> None:
        self._emitter = emitter
        self._op = op
        self._asked: set[str] = set()

    def get(self, *names: str) -> Any:
        """The attribute under the first of ``names`` that is there, None where none is."""
        self._asked.update(names)
        for name in names:
            if name in self._op.attrs:
                return self._op.attrs[name]
        return None

    def numbers(self, *names: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """A list of whole numbers."""
        value = self.get(*names)
        if value is None:
            if default is None:
                self._emitter.fail(f"{self._op.name} needs the attribute {names[0]!r}")
            return tuple(default)
        return whole_numbers(self._emitter, value, names[0])

    def number(self, *names: str) -> int:
        """A whole number."""
        value = self.get(*names)
        if type(value) is not int:
            self._emitter.fail(f"{self._op.name} needs {names[0]!r}, a whole number")
        return value

    def finish(self) -> None:
        """Refuse what was not asked for."""
        for name in self._op.attrs:
            if name not in self._asked and not _IGNORED.fullmatch(name):
                self._emitter.refuse(f"the attribute {name!r} of {self._op.name} is not supported")


def whole_numbers(emitter: Emitter, value: object, what: str) -> tuple[int, ...]:
    """A list of whole numbers: ``[0, 1]``, ``array<i64: 0, 1>`` or ``dense<[0, 1]>``."""
    if isinstance(value, Dense):
        tokens = value.payload if isinstance(value.payload, list) else [] if value.payload is None else [value.payload]
        if not all(isinstance(token, Token) and token.kind == "number" for token in tokens):
            emitter.fail(f"{what} must be a list of whole numbers")
        value = [emitter.cursor.number(token) for token in tokens]
    if not isinstance(value, list) or not all(type(item) is int and abs(item) < 1 << 62 for item in value):
        emitter.fail(f"{what} must be a list of whole numbers")
    return tuple(value)


def word_of(value: object) -> str:
    """The word of an attribute: ``GT``, ``#stablehlo<comparison_direction GT>``."""
    if isinstance(value, Word):
        return value.text
    words: Iterable[str] = getattr(value, "words", ())
    return next(reversed(tuple(words)), "")


def value_name(text: str) -> str:
    """A name for graph text of an MLIR name: ``%arg0`` is ``arg0``, ``%0`` is ``v0``."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text.lstrip("%@"))
    return name if name and not name[0].isdigit() else f"v{name}"


def sizes_of(value: Value) -> tuple[int, ...]:
    """The shape of a value, whose sizes are all constant here."""
    assert isinstance(value.type, TensorType)
    return value.type.sizes({})


def dtype_of(value: Value) -> str:
    """The element type of a value."""
    assert isinstance(value.type, TensorType)
    return value.type.dtype
