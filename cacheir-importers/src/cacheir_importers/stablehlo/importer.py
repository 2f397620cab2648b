"""Opens a StableHLO text file as a plain graph; constants that are written as bytes stay in the file as weights."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cacheir.errors import IRError, MalformedModelError
from cacheir.ir.builder import GraphBuilder
from cacheir.ir.graph import Module, Value
from cacheir.ir.types import TensorType
from cacheir.models.imported import ImportedModel, UnpackRecipe
from cacheir_importers.family_lookup import installation_of
from cacheir_importers.stablehlo import contractions, elementwise, shapes
from cacheir_importers.stablehlo.cursor import Cursor
from cacheir_importers.stablehlo.emitter import Emitter, value_name
from cacheir_importers.stablehlo.lexer import Source
from cacheir_importers.stablehlo.parser import parse_program
from cacheir_importers.stablehlo.syntax import Function, Operation, Program, TensorText

MAX_FILE_BYTES = 1 << 30
MAX_CALLS = 32
_RETURNS = ("return", "func.return", "stablehlo.return")
_CALLS = ("call", "func.call")
RULES = {**elementwise.RULES, **shapes.RULES, **contractions.RULES}


def sniff(path: Path) -> str | None:
    """None for a file that is called .stablehlo, or .mlir and mentions StableHLO; else the reason."""
    if not path.is_file() or path.suffix.lower() not in (".stablehlo", ".mlir"):
        return "takes .stablehlo and .mlir files"
    if path.suffix.lower() == ".stablehlo":
        return None
    with path.open("rb") as file:
        head = file.read(1 << 16)
    return None if b"stablehlo." in head else "a .mlir file without an operation of StableHLO in its first 64 KiB"


def import_stablehlo(path: Path, options: Mapping[str, Any]) -> ImportedModel:
    """The plain graph in the file at ``path``: its function @main, other functions written out where they are called.

    Raises MalformedModelError and UnsupportedModelError with line, column and the operation's name. There is a whole
    graph or none.
    """
    data = _read(path)
    source = Source(data, path.name)
    cursor = Cursor(source, ())
    program = parse_program(source)
    builder = GraphBuilder("main", installation_of(options).ops.by_name())
    emitter = Emitter(builder, cursor, program.resources, path.name)
    main = _main(program, cursor)
    arguments = _inputs(builder, main, cursor)
    outputs = _function(program, main, arguments, emitter, 0)
    try:
        graph = builder.finish(outputs)
    except IRError as error:
        raise MalformedModelError(f"{path.name}: the program makes no valid graph: {error}") from error
    return ImportedModel(
        root=path.parent,
        files=(path.name,),
        importer="stablehlo",
        header_hash=_hash(data, emitter.recipes, emitter),
        sources=emitter.sources,
        recipes=emitter.recipes,
        module=Module("", (graph,)),
    )


def _read(path: Path) -> bytes:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise MalformedModelError(f"{path.name} is not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise MalformedModelError(f"{path.name} has {status.st_size} bytes, and at most {MAX_FILE_BYTES} are read")
    return path.read_bytes()


def _hash(data: bytes, recipes: Mapping[str, UnpackRecipe], emitter: Emitter) -> str:
    """Over all that is no weight: digits of constants that stay in the file count by their place."""
    digest, position = hashlib.sha256(), 0
    for source in sorted(emitter.sources.values(), key=lambda source: source.offset):
        if source.offset >= position:
            digest.update(data[position : source.offset] + f"<{source.offset} {source.nbytes}>".encode())
            position = source.offset + source.nbytes
    digest.update(data[position:])
    return digest.hexdigest()


def _main(program: Program, cursor: Cursor) -> Function:
    functions = program.functions
    if "main" in functions:
        return functions["main"]
    if len(functions) == 1:
        return next(iter(functions.values()))
    cursor.fail(f"there is no function @main among {', '.join(functions) or 'none'}", 0)


def _inputs(builder: GraphBuilder, main: Function, cursor: Cursor) -> list[Value]:
    made: list[Value] = []
    for argument in main.arguments:
        name = value_name(argument.name)
        if any(value.name == name for value in made):
            cursor.fail(f"the parameter {argument.name} stands twice", argument.type.start)
        made.append(builder.input(name, TensorType.of(argument.type.dtype, *argument.type.shape)))
    return made


def _function(
    program: Program, function: Function, arguments: Sequence[Value], emitter: Emitter, depth: int
) -> list[Value]:
    """The values that ``function`` returns for ``arguments``."""
    cursor = emitter.cursor
    if depth > MAX_CALLS:
        cursor.refuse(f"functions call each other more than {MAX_CALLS} deep", function.start)
    if len(function.arguments) != len(arguments):
        cursor.fail(f"@{function.name} takes {len(function.arguments)} operands, not {len(arguments)}", function.start)
    values: dict[str, Sequence[Value]] = {}
    for argument, value in zip(function.arguments, arguments):
        _check_type(emitter, value, argument.type, f"the parameter {argument.name} of @{function.name}")
        values[argument.name] = [value]
    for op in function.operations:
        emitter.begin(op)
        operands = [_value(emitter, values, name) for name in (*op.operands, *op.inits)]
        if op.name in _RETURNS:
            if len(operands) != len(function.result_types):
                emitter.fail(f"@{function.name} returns {len(function.result_types)} values, not {len(operands)}")
            for value, type_ in zip(operands, function.result_types):
                _check_type(emitter, value, type_, f"a result of @{function.name}")
            return operands
        _check_operands(emitter, op, operands)
        if op.name in _CALLS:
            made: Sequence[Value] = _call(program, op, operands, emitter, depth)
        elif op.name in RULES:
            made = RULES[op.name](emitter, op, operands)
        else:
            emitter.refuse(f"the operation {op.name} is not supported")
        _keep(emitter, op, made, values)
    cursor.fail(f"@{function.name} does not return", function.start)


def _call(program: Program, op: Operation, operands: list[Value], emitter: Emitter, depth: int) -> list[Value]:
    callee = program.functions.get(str(op.attrs.get("callee", "")).strip('@"'))
    if callee is None:
        emitter.fail(f"{op.name} names no function of this file")
    return _function(program, callee, operands, emitter, depth + 1)


def _value(emitter: Emitter, values: Mapping[str, Sequence[Value]], name: str) -> Value:
    stem, _, number = name.partition("#")
    found = values.get(stem)
    index = int(number) if number and len(number) < 4 else 0
    if found is None or index >= len(found) or (not number and len(found) != 1):
        emitter.fail(f"the value {name} is not defined before it is used")
    return found[index]


def _keep(emitter: Emitter, op: Operation, made: Sequence[Value], values: dict[str, Sequence[Value]]) -> None:
    if sum(count for _, count in op.results) != len(made):
        emitter.fail(f"{op.name} makes {len(made)} results, and {sum(count for _, count in op.results)} are named")
    declared = op.result_types if op.has_arrow else op.result_types[-1:]
    if len(declared) != len(made):
        emitter.fail(f"{op.name} declares {len(declared)} result types for {len(made)} results")
    for value, type_ in zip(made, declared):
        _check_type(emitter, value, type_, f"the result of {op.name}")
    rest = list(made)
    for name, count in op.results:
        if name in values:
            emitter.fail(f"the value {name} is defined twice")
        values[name], rest = rest[:count], rest[count:]


def _check_operands(emitter: Emitter, op: Operation, operands: Sequence[Value]) -> None:
    if not op.has_arrow:
        return
    if len(op.operand_types) != len(operands):
        emitter.fail(f"{op.name} declares {len(op.operand_types)} operand types for {len(operands)} operands")
    for value, type_ in zip(operands, op.operand_types):
        _check_type(emitter, value, type_, f"an operand of {op.name}")


def _check_type(emitter: Emitter, value: Value, type_: TensorText, what: str) -> None:
    if value.type != TensorType.of(type_.dtype, *type_.shape):
        emitter.fail(f"{what} is declared as {type_}, and is {value.type}")
