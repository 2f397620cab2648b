"""Writes graphs and modules as text: deterministic, one op a line, read back by ``cacheir.ir.parser``."""

from __future__ import annotations

from collections.abc import Callable

from cacheir.ir.graph import Graph, Module, Op, Value
from cacheir.ir.spelling import attrs_text, quoted, value_text, word_text
from cacheir.ir.weights import Recipe, Stored

# ``(mark, name) -> text``: how a value is shown, by its own name or by its number.
_Show = Callable[[str, str], str]


def print_graph(graph: Graph, *, canonical: bool = False) -> str:
    """The text of ``graph``, ending in a newline.

    ``canonical`` numbers the values in the order in which they appear and drops the graph's name, scopes and hints: two
    graphs that differ in nothing else have equal canonical texts.
    """
    return "\n".join([*graph_lines(graph, canonical=canonical), ""])


def graph_lines(graph: Graph, *, canonical: bool = False) -> list[str]:
    """The lines of ``print_graph``, without their ends."""
    show = _numbering() if canonical else value_text
    name = "graph" if canonical else word_text(graph.name)
    lines = [f"graph @{name} {{"]
    lines += [f"  dim {word_text(symbol)} in [{low}, {high}]" for symbol, low, high in graph.dims]
    lines += [f"  {value.origin} {_declared(value, show)}" for value in graph.params]
    lines += [f"  weight {_declared(w.value, show)} = {_recipe(w.recipe, show)}" for w in graph.weights]
    lines += [f"  {_op(op, show, scoped=not canonical)}" for op in graph.ops]
    lines += [f"  yield {', '.join(_used(value, show) for value in graph.outputs)}".rstrip()]
    return [*lines, "}"]


def print_module(module: Module) -> str:
    """The text of ``module``: its mode, then its graphs with an empty line before each."""
    return "\n".join([f"module {word_text(module.mode)}\n", *map(str, module.graphs)])


def print_op(op: Op) -> str:
    """The line of one op."""
    return _op(op, value_text, scoped=True)


def print_recipe(recipe: Recipe) -> str:
    """What stands behind ``=`` in a weight's line."""
    return _recipe(recipe, value_text)


def graph_hash(graph: Graph) -> str:
    """16 hexadecimal digits of the SHA-256 of the canonical text.

    A called graph counts by its name alone; hash a module by its text.
    """
    import hashlib  # costs more than the rest of this module, and printing does not need it

    return hashlib.sha256(print_graph(graph, canonical=True).encode()).hexdigest()[:16]


def line_of_param(graph: Graph, index: int) -> int:
    """The line of parameter ``index`` in the graph's text, counted from 1."""
    return 2 + len(graph.dims) + index


def line_of_weight(graph: Graph, index: int) -> int:
    """The line of weight ``index``."""
    return line_of_param(graph, len(graph.params)) + index


def line_of_op(graph: Graph, index: int) -> int:
    """The line of op ``index``; that of the yield where ``index`` is the number of ops."""
    return line_of_weight(graph, len(graph.weights)) + index


def _numbering() -> _Show:
    numbers: dict[str, str] = {}
    return lambda mark, name: mark + numbers.setdefault(name, str(len(numbers)))


def _used(value: Value, show: _Show) -> str:
    return show("@" if value.origin == "weight" else "%", value.name)


def _declared(value: Value, show: _Show) -> str:
    return f"{_used(value, show)}: {value.type}"


def _recipe(recipe: Recipe, show: _Show) -> str:
    if isinstance(recipe, Stored):
        return f"stored {quoted(recipe.key)}"
    operands = ", ".join(show("@", name) for name in recipe.operands)
    return f"{word_text(recipe.op)}({operands}){attrs_text(recipe.attrs)}"


def _op(op: Op, show: _Show, *, scoped: bool) -> str:
    # Operands first: in canonical numbering a result that nothing uses must not shift the numbers of what it reads.
    operands = ", ".join(_used(value, show) for value in op.operands)
    results = ", ".join(_declared(value, show) for value in op.results)
    name, attrs = word_text(op.name), op.attrs
    if op.callee:
        name = f"call @{word_text(op.callee)}"
        attrs = tuple(pair for pair in attrs if pair[0] != "callee")
    hints = f" hint{attrs_text(op.hints)}" if scoped and op.hints else ""
    scope = f" at {word_text(op.scope)}" if scoped and op.scope else ""
    return f"{results} = {name}({operands}){attrs_text(attrs)}{hints}{scope}"
