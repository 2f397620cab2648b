"""Running weight recipes, on arrays and quantised arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.errors import ModelError, PluginError
from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.ir.dtypes import numpy_dtype
from cacheir.ir.graph import Graph
from cacheir.ir.types import KVType, TensorType
from cacheir.ir.weights import Derived, Stored, at_layer, stored_keys
from cacheir.plugins import QuantFormatSpec, UnpackerSpec, resolve
from cacheir.reference.bf16 import from_bf16, to_bf16
from cacheir.reference.elementwise import cast as cast_elements

Data = NDArray[Any] | QuantArray
# A physical order that a kernel asks for: fn(*weights) -> what that kernel takes.
Layout = Callable[..., Any]


def apply_recipe(
    op: str,
    attrs: Mapping[str, Any],
    operands: Sequence[Data],
    dtypes: Sequence[str],
    *,
    formats: Mapping[str, QuantFormatSpec] | None = None,
    layouts: Mapping[str, Layout] | None = None,
    unpackers: Mapping[str, UnpackerSpec] | None = None,
    made: TensorType | None = None,
) -> Any:
    """One step of a recipe. ``dtypes`` are the operands' element types, which tell bf16 from u16.

    ``formats`` are what ``quantize`` may name, None for core's; ``layouts`` what ``pack`` may name, ``unpackers`` what
    ``unpack`` may name, and ``made`` the type that it makes.

    Raises ModelError where a format or a layout is unknown, or quantised operands have unlike formats.
    """
    if op == "concat":
        return _concat(operands, attrs["axis"])
    if op == "pack":
        layout = (layouts or {}).get(attrs["layout"])
        if layout is None:
            raise ModelError(f"nothing installed packs weights in the layout {attrs['layout']!r}")
        return layout(*operands)
    if op == "unpack":
        return _unpack(attrs, operands, unpackers or {}, made)
    (operand,) = operands
    if op == "cast" and isinstance(operand, QuantArray):
        return _cast(operand.dense(), "f32", attrs["dtype"])
    if isinstance(operand, QuantArray):
        raise ModelError(f"a {operand.format.name} weight cannot go through {op}: it takes dense ones")
    if op == "transpose":
        return np.ascontiguousarray(operand.transpose(attrs["axes"]))
    if op == "cast":
        return _cast(operand, dtypes[0], attrs["dtype"])
    if op == "reshape":
        return operand.reshape(attrs["shape"])
    if op in ("offset", "scale"):
        wide = from_bf16(operand) if dtypes[0] == "bf16" else operand
        by = wide.dtype.type(attrs["by"])
        return _cast(wide + by if op == "offset" else wide * by, "f32" if dtypes[0] == "bf16" else dtypes[0], dtypes[0])
    if op == "quantize":
        known = core_formats() if formats is None else formats
        if attrs["format"] not in known:
            raise ModelError(f"no installed format is called {attrs['format']!r}", hint=f"known: {sorted(known)}")
        return QuantArray.quantize(_cast(operand, dtypes[0], "f32"), known[attrs["format"]])
    raise ModelError(f"{op!r} is no weight recipe")


def weight_data(
    graph: Graph,
    name: str,
    layer: int | None,
    stored: Callable[[str], Data],
    *,
    formats: Mapping[str, QuantFormatSpec] | None = None,
    layouts: Mapping[str, Layout] | None = None,
    unpackers: Mapping[str, UnpackerSpec] | None = None,
) -> Any:
    """Weight ``name`` of ``graph`` in a call for ``layer``, made from what ``stored`` gives for canonical keys."""
    recipe = graph.recipes[name]
    if isinstance(recipe, Stored):
        return stored(at_layer(recipe.key, layer))
    assert isinstance(recipe, Derived)
    types = {weight.name: weight.value.type for weight in graph.weights}
    made = types[name]

    def operand_data(operand: str) -> Any:
        return weight_data(graph, operand, layer, stored, formats=formats, layouts=layouts, unpackers=unpackers)

    operands = [operand_data(operand) for operand in recipe.operands]
    try:
        return apply_recipe(
            recipe.op,
            dict(recipe.attrs),
            operands,
            ["" if isinstance(types[operand], KVType) else types[operand].dtype for operand in recipe.operands],
            formats=formats,
            layouts=layouts,
            unpackers=unpackers,
            made=made if isinstance(made, TensorType) else None,
        )
    except ModelError as error:
        if recipe.op != "quantize":
            raise
        keys = ", ".join(stored_keys(name, dict(graph.recipes), layer))
        raise ModelError(f"{keys}: {error}", hint="a rule of a recipe file can keep this weight as it is") from error


def _unpack(
    attrs: Mapping[str, Any],
    operands: Sequence[Data],
    unpackers: Mapping[str, UnpackerSpec],
    made: TensorType | None,
) -> NDArray[Any]:
    method = attrs["method"]
    if method not in unpackers or made is None:
        known = ", ".join(sorted(unpackers)) or "none"
        raise ModelError(f"no installed plugin unpacks weights by {method!r} (there are: {known})")
    shape = made.sizes({})
    others = {name: value for name, value in attrs.items() if name != "method"}
    array = resolve(unpackers[method].run)(*operands, dtype=made.dtype, shape=shape, **others)
    if not isinstance(array, np.ndarray) or array.dtype != numpy_dtype(made.dtype) or array.shape != shape:
        raise PluginError(f"unpacker {method!r} was to give {made}, and gave {getattr(array, 'dtype', type(array))}")
    return array


def _concat(operands: Sequence[Data], axis: int) -> Data:
    first = operands[0]
    if not isinstance(first, QuantArray):
        return np.concatenate([np.asarray(operand) for operand in operands], axis=axis)
    blocks = []
    for operand in operands:
        if not isinstance(operand, QuantArray) or operand.format.name != first.format.name:
            raise ModelError(f"weights of unlike formats cannot be joined: {list(operands)}")
        blocks.append(operand.blocks.reshape(*operand.shape[:-1], -1))
    joined = np.concatenate(blocks, axis=axis)
    return QuantArray(joined, first.format, (*joined.shape[:-1], first.shape[-1]))


def _cast(operand: NDArray[Any], source: str, target: str) -> NDArray[Any]:
    if source == target:
        return operand
    wide = from_bf16(operand) if source == "bf16" else operand
    with np.errstate(all="ignore"):
        if target == "bf16":
            return to_bf16(wide)
        return cast_elements(wide, ((numpy_dtype(target), wide.shape),), target)
