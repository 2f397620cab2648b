"""Writes a module in MLIR's generic form: ops of the dialect ``cacheir``, graphs of the dialect ``cacheir_module``."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import TextIO

from cacheir.exporters.mlir_types import FLOAT_BITS, mlir_string, mlir_type
from cacheir.ir.graph import Attr, Graph, LayerSymbol, Module, Op, Value, Weight
from cacheir.ir.spelling import is_name, is_word
from cacheir.ir.weights import Derived, Recipe

# Words that only name an op: an op of a plugin may be called ``weight`` or ``yield``, so these have their own dialect.
GRAPH, WEIGHT, YIELD = "cacheir_module.graph", "cacheir_module.weight", "cacheir_module.yield"
OP_PREFIX = "cacheir."
LAYER_ATTR = "#cacheir.layer"


def export_mlir(module: Module, out: TextIO) -> None:
    """Write ``module`` to ``out`` as ``cacheir.exporters.mlir_reader.parse_mlir`` and MLIR's own parser read it.

    The form is that of https://mlir.llvm.org/docs/LangRef (generic operations); a parser that does not know the two
    dialects must allow unregistered ones. Each op, type and attribute is one of the graph's text (docs/exports.md).
    The module must keep the rules of the verifier; what a broken one is written as, nothing promises.
    """
    out.writelines(f"{line}\n" for line in module_lines(module))


def print_mlir(module: Module) -> str:
    """The text that ``export_mlir`` writes."""
    return "".join(f"{line}\n" for line in module_lines(module))


def module_lines(module: Module) -> Iterator[str]:
    """The lines of ``print_mlir``, without their ends."""
    yield '"builtin.module"() ({'
    for graph in module.graphs:
        yield from _graph_lines(graph)
    yield f"}}) {{cacheir.mode = {mlir_string(module.mode)}}} : () -> ()"


def _graph_lines(graph: Graph) -> Iterator[str]:
    yield f'  "{GRAPH}"() ({{'
    arguments = ", ".join(f"{ssa_name(value)}: {mlir_type(value.type)}" for value in graph.params)
    yield f"  ^bb0({arguments}):" if arguments else "  ^bb0:"
    for weight in graph.weights:
        yield f"    {_weight(weight)}"
    for op in graph.ops:
        yield f"    {_op(op)}"
    yield f'    "{YIELD}"({_names(graph.outputs)}) : ({_types(graph.outputs)}) -> ()'
    dims = ", ".join(f"[{mlir_string(name)}, {_integer(low)}, {_integer(high)}]" for name, low, high in graph.dims)
    params = ", ".join(mlir_string(value.name) for value in graph.params)
    yield f"  }}) {{dims = [{dims}], params = [{params}], sym_name = {mlir_string(graph.name)}}} : () -> ()"


def ssa_name(value: Value) -> str:
    """``value`` as MLIR names it: MLIR wants a letter first, so that a name which begins with a digit gets a ``$``."""
    if not is_name(value.name):
        return f"%$x{value.name.encode('utf-8', 'replace').hex()}"  # the verifier refuses it; nothing reads it back
    return f"%${value.name}" if value.name[0].isdigit() else f"%{value.name}"


def _weight(weight: Weight) -> str:
    fields = {"name": mlir_string(weight.name), **_recipe(weight.recipe)}
    return f'{ssa_name(weight.value)} = "{WEIGHT}"() {_dictionary(fields)} : () -> {mlir_type(weight.value.type)}'


def _recipe(recipe: Recipe) -> dict[str, str]:
    if isinstance(recipe, Derived):
        attrs = {name: mlir_attr(value) for name, value in recipe.attrs}
        operands = ", ".join(map(mlir_string, recipe.operands))
        return {"made_by": mlir_string(recipe.op), "of": f"[{operands}]", "with": _dictionary(attrs)}
    return {"stored": mlir_string(recipe.key)}


def _op(op: Op) -> str:
    attrs = {
        name: _symbol(str(value)) if op.callee and name == "callee" else mlir_attr(value) for name, value in op.attrs
    }
    given = f" {_dictionary(attrs)}" if attrs else ""
    results = _types(op.results) if len(op.results) == 1 else f"({_types(op.results)})"
    place = f" loc({mlir_string(op.scope)})" if op.scope else ""
    name = mlir_string(OP_PREFIX + op.name)
    return f"{_names(op.results)} = {name}({_names(op.operands)}){given} : ({_types(op.operands)}) -> {results}{place}"


def _names(values: tuple[Value, ...]) -> str:
    return ", ".join(map(ssa_name, values))


def _types(values: tuple[Value, ...]) -> str:
    return ", ".join(mlir_type(value.type) for value in values)


def _dictionary(fields: dict[str, str]) -> str:
    return "{" + ", ".join(f"{name} = {text}" for name, text in fields.items()) + "}"


def _symbol(name: str) -> str:
    # A value's name may have a '-' in MLIR, a symbol's may not unless it is quoted.
    return f"@{name}" if is_word(name) and "-" not in name else f"@{mlir_string(name)}"


def mlir_attr(value: object) -> str:
    """An attribute's value: ``true``, ``3 : i64``, ``1.0e-05 : f64``, ``"half"``, ``[1 : i64]``, ``#cacheir.layer``."""
    if isinstance(value, LayerSymbol):
        return LAYER_ATTR
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return mlir_string(value)
    if isinstance(value, tuple):
        items: tuple[Attr, ...] = value
        return f"[{', '.join(map(mlir_attr, items))}]"
    if isinstance(value, float):
        return f"{_float(value)} : f64"
    return _integer(int(value))  # type: ignore[call-overload]  # an attribute is nothing else


def _integer(value: int) -> str:
    # A signless integer of MLIR has a width; 64 bits hold every number that is not meant to be large.
    return f"{value} : i{max(64, value.bit_length() + 1)}"


def _float(value: float) -> str:
    # MLIR wants a point in every literal, and refuses decimals that are subnormal or no number.
    if value and not sys.float_info.min <= abs(value) <= sys.float_info.max:
        return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:0{FLOAT_BITS // 4}X}"
    mantissa, mark, exponent = repr(value).partition("e")
    return (mantissa if "." in mantissa else f"{mantissa}.0") + mark + exponent
