"""Weights as declarations: a recipe says how a weight comes from stored tensors; nothing here reads data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cacheir.ir.spelling import attrs_text, quoted

LAYER_MARK = "$layer"


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of the model by its canonical key, ``layers.$layer.attn.q``; a program's source table has its place."""

    key: str


@dataclass(frozen=True, slots=True)
class Derived:
    """An operation on other weights of the same graph.

    ``op`` is ``concat`` (axis), ``transpose`` (axes), ``reshape`` (shape), ``cast`` (dtype; a block format is
    unpacked), ``offset`` (by: a number added to all elements), ``scale`` (by: a number that all are multiplied with),
    ``quantize`` (format), ``pack`` (layout: the physical order that a kernel asks for by name) or ``unpack`` (method:
    an ``UnpackerSpec`` that makes a dense weight of the tensors stored for it, and that method's attributes).
    ``operands`` are weight names of the graph, ``attrs`` sorted pairs.
    """

    op: str
    operands: tuple[str, ...]
    attrs: tuple[tuple[str, object], ...] = ()


Recipe = Stored | Derived


def at_layer(text: str, layer: int | None) -> str:
    """``text`` with the layer mark filled in; unchanged where ``layer`` is None."""
    return text if layer is None else text.replace(LAYER_MARK, str(layer))


def resolve_recipe(name: str, recipes: dict[str, Recipe], layer: int | None) -> str:
    """The recipe of weight ``name`` written out down to stored keys: equal texts are one weight.

    Example: ``pack(stored "layers.3.attn.q", stored "layers.3.attn.k") {layout = "rows16"}``.
    """
    recipe = recipes[name]
    if isinstance(recipe, Stored):
        return f"stored {quoted(at_layer(recipe.key, layer))}"
    inner = ", ".join(resolve_recipe(operand, recipes, layer) for operand in recipe.operands)
    return f"{recipe.op}({inner}){attrs_text(recipe.attrs)}"


def stored_keys(name: str, recipes: dict[str, Recipe], layer: int | None) -> Iterator[str]:
    """The stored keys that weight ``name`` is made of, in order."""
    recipe = recipes[name]
    if isinstance(recipe, Stored):
        yield at_layer(recipe.key, layer)
    else:
        for operand in recipe.operands:
            yield from stored_keys(operand, recipes, layer)


def bind_layer(recipe: Recipe, layer: int) -> Recipe:
    """The recipe with the layer mark filled in, for a graph that serves one layer alone."""
    return replace(recipe, key=at_layer(recipe.key, layer)) if isinstance(recipe, Stored) else recipe
