"""ONNX operators that make tensors or move elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cacheir.ir.dims import Dim
from cacheir.ir.graph import Value
from cacheir_importers.literals import literal_op
from cacheir_importers.onnx.elementwise import as_size, cast
from cacheir_importers.onnx.emitter import MAX_KNOWN, Array, Emitter, Inputs, Rule, dtype_of, shape_of, text
from cacheir_importers.onnx.model import Node, Tensor
from cacheir_importers.onnx.sizes import left_over, stretched

_END = 1 << 31  # exporters write the largest number they have for "to the end"


def axis_in(emitter: Emitter, axis: int, rank: int) -> int:
    """An axis counted from 0 on."""
    if not -rank <= axis < rank:
        emitter.fail(f"axis {axis} is none of {rank}")
    return axis % rank


def _constant(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 0)
    for name, kind, dtype in (("value_int", int, np.int64), ("value_float", float, np.float32)):
        if name in node.attrs:
            value = np.array(inputs.attr(name, None, kind), dtype)
            inputs.finish()
            return [value]
    for name, dtype in (("value_ints", np.int64), ("value_floats", np.float32)):
        if name in node.attrs:
            value = np.array(inputs.attr(name, None, list), dtype)
            inputs.finish()
            return [value]
    tensor = inputs.attr("value", None, Tensor)
    inputs.finish()
    if tensor is None:
        emitter.refuse("has no value of a kind that is supported: value, value_int(s), value_float(s)")
    return [emitter.tensor(tensor)]


def _constant_of_shape(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1)
    shape = inputs.sizes(0, "a shape")
    tensor = inputs.attr("value", None, Tensor)
    inputs.finish()
    if tensor is None:
        values: Array = np.zeros(1, np.float32)
        dtype = "f32"
    else:
        values, dtype = emitter.elements(tensor)
        if values.size != 1:
            emitter.fail(f"needs a value of one element, not {values.size}")
    if dtype == "i64" and all(size.is_constant and 0 <= size.constant <= 64 for size in shape) and len(shape) <= 1:
        return [np.full([size.constant for size in shape], int(values.reshape(-1)[0]), object)]
    name, attrs = literal_op(values, dtype, text(shape))
    return [emitter.op(name, **attrs)]


def _shape(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1)
    start, end = inputs.attr("start", 0), inputs.attr("end", None)
    inputs.finish()
    known = inputs.known(0)
    sizes = [Dim(size) for size in known[0].shape] if known is not None else list(shape_of(inputs.value(0)))
    return [sizes_array(sizes[start:end])]


def sizes_array(sizes: Sequence[Dim]) -> Array:
    """Sizes as a known value: plain numbers where they have no names."""
    array = np.empty(len(sizes), object)
    for number, size in enumerate(sizes):
        array[number] = size.constant if size.is_constant else size
    return array


def _reshape(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 2)
    wanted, keep_zero = inputs.sizes(1, "a shape"), inputs.attr("allowzero", 0)
    inputs.finish()
    known = inputs.known(0)
    if known is not None and known[0].dtype.kind in "iO" and all(size.is_constant for size in wanted):
        if (not keep_zero and Dim(0) in wanted) or [size.constant for size in wanted].count(-1) > 1:
            emitter.refuse("of a known value by 0 is not supported")
        try:
            return [known[0].reshape([size.constant for size in wanted])]
        except ValueError as error:
            emitter.fail(str(error))
    x = inputs.value(0)
    shape = list(wanted)
    for axis, size in enumerate(shape):
        if size == Dim(0) and not keep_zero:
            if axis >= len(shape_of(x)):
                emitter.fail(f"copies the size of axis {axis}, which the input does not have")
            shape[axis] = shape_of(x)[axis]
    if Dim(-1) in shape:
        at = shape.index(Dim(-1))
        rest = left_over(shape_of(x), [*shape[:at], *shape[at + 1 :]])
        if rest is None:
            emitter.refuse("leaves out a size (-1) that does not follow from the others")
        shape[at] = rest
    return [emitter.op("reshape", x, shape=text(shape))]


def _transpose(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1)
    x = inputs.value(0)
    axes = inputs.attr("perm", None, list)
    inputs.finish()
    return [emitter.op("transpose", x, axes=tuple(axes if axes is not None else reversed(range(len(shape_of(x))))))]


def _concat(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1, 4096)
    axis = inputs.attr("axis", None)
    inputs.finish()
    if axis is None:
        emitter.fail("needs the attribute 'axis'")
    known = inputs.all_known()
    if known is not None and all(array.ndim == 1 and array.dtype.kind in "iO" for array in known):
        return [np.concatenate([array.astype(object) for array in known])]
    values = [inputs.value(index) for index in range(len(node.inputs))]
    return [emitter.op("concat", *values, axis=axis_in(emitter, axis, len(shape_of(values[0]))))]


def _slice(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 3, 5)
    inputs.finish()
    starts, ends = inputs.sizes(1, "starts"), inputs.sizes(2, "ends")
    known = inputs.known(0)
    rank = known[0].ndim if known is not None else len(shape_of(inputs.value(0)))
    axes = inputs.numbers(3, "axes") if inputs.has(3) else list(range(len(starts)))
    steps = inputs.numbers(4, "steps") if inputs.has(4) else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        emitter.fail("needs as many starts as ends, axes and steps, none of them 0")
    if known is not None and known[0].dtype.kind in "iO" and rank == 1 and len(starts) == 1:
        if starts[0].is_constant and ends[0].is_constant:
            return [known[0][slice(starts[0].constant, ends[0].constant, steps[0])]]
    x = inputs.value(0)
    for start, end, axis, step in zip(starts, ends, axes, steps):
        x = _range(emitter, x, axis_in(emitter, axis, rank), start, end, step)
    return [x]


def _range(emitter: Emitter, x: Value, axis: int, start: Dim, end: Dim, step: int) -> Value:
    size = shape_of(x)[axis]
    if size.is_constant and start.is_constant and end.is_constant:
        first, last, step = slice(start.constant, end.constant, step).indices(size.constant)
        count = len(range(first, last, step))
        if step == 1:
            if (first, first + count) == (0, size.constant):
                return x
            return emitter.op("slice", x, axis=axis, start=first, stop=str(first + count))
        indices = emitter.op("iota", shape=(str(count),), axis=0, dtype="i32")
        indices = emitter.op("multiply", indices, emitter.scalar(step, "i32"))
        return emitter.op("gather", x, emitter.op("add", indices, emitter.scalar(first, "i32")), axis=axis)
    if step != 1 or not start.is_constant or start.constant < 0:
        emitter.refuse("takes a range of a named size that does not follow from its bounds")
    if end.is_constant and end.constant >= _END - 1:
        stop = size
    elif end.is_constant and end.constant < 0:
        stop = size + end
    else:
        stop = end
        if end != size and not (end - size).is_constant and not end.is_constant:
            emitter.refuse("takes a range of a named size that does not follow from its bounds")
    return emitter.op("slice", x, axis=axis, start=start.constant, stop=str(stop))


def _gather(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 2)
    axis = inputs.attr("axis", 0)
    inputs.finish()
    known, places = inputs.known(0), inputs.known(1)
    if known is not None and places is not None and known[0].ndim == 1 and known[0].dtype.kind in "iO":
        if places[0].dtype.kind == "i" or all(type(place) is int for place in places[0].flat):
            indices = places[0].astype(np.int64)
            if indices.size and not -len(known[0]) <= indices.min() <= indices.max() < len(known[0]):
                emitter.fail(f"takes an entry of an axis of {len(known[0])} that is not there")
            return [np.asarray(known[0].astype(object)[indices], object)]
    x, index = inputs.value(0), inputs.value(1)
    axis = axis_in(emitter, axis, len(shape_of(x)))
    size = shape_of(x)[axis]
    if dtype_of(index) not in ("i32", "i64"):
        emitter.fail(f"takes indices of i32 or i64, not {dtype_of(index)}")
    if places is None and size.is_constant:
        if size.constant > 1 << 31:
            emitter.refuse("takes entries of an axis that 32 bits cannot count")
        below = emitter.op("compare", index, emitter.scalar(0, dtype_of(index)), direction="lt")
        from_end = emitter.op("add", index, emitter.scalar(size.constant, dtype_of(index)))
        index = emitter.op("select", below, from_end, index)
    elif places is not None and any(int(place) < 0 for place in places[0].flat):
        if not size.is_constant:
            emitter.refuse("counts from the end of an axis of named size")
        whole = places[0].astype(np.int64)
        index = emitter.literal(np.where(whole < 0, whole + size.constant, whole).astype(np.int32), "i32")
    elif places is None:
        emitter.note("indices into an axis of named size are taken as they are: none may be negative")
    return [emitter.op("gather", x, cast(emitter, index, "i32"), axis=axis)]


def _expand(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 2)
    shape = tuple(inputs.sizes(1, "a shape"))
    inputs.finish()
    x = inputs.value(0)
    wanted = stretched(shape_of(x), shape)
    if wanted is None:
        emitter.fail(f"cannot stretch {x.type} to {', '.join(text(shape))}")
    return [emitter.op("broadcast", x, shape=text(wanted))]


def _axes(emitter: Emitter, node: Node, inputs: Inputs) -> list[int] | None:
    """Axes, an attribute up to opset 12 and an input from 13 on; None where there are none."""
    listed = inputs.attr("axes", None, list)
    return inputs.numbers(1, "axes") if inputs.has(1) else listed


def _unsqueeze(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1, 2)
    axes = _axes(emitter, node, inputs)
    inputs.finish()
    known = inputs.known(0)
    sizes: list[Any] = list(known[0].shape) if known is not None else list(shape_of(inputs.value(0)))
    rank = len(sizes) + len(axes or ())
    places = [axis_in(emitter, axis, rank) for axis in axes or ()]
    if axes is None or len(set(places)) != len(places):
        emitter.fail("needs axes, each once")
    for place in sorted(places):
        sizes.insert(place, 1)
    if known is not None and known[0].dtype.kind in "iO" and known[0].size <= MAX_KNOWN:
        return [known[0].reshape(sizes)]
    return [emitter.op("reshape", inputs.value(0), shape=text([as_size(size) for size in sizes]))]


def _squeeze(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1, 2)
    axes = _axes(emitter, node, inputs)
    inputs.finish()
    known = inputs.known(0)
    sizes = [Dim(size) for size in known[0].shape] if known is not None else list(shape_of(inputs.value(0)))
    places = {axis_in(emitter, axis, len(sizes)) for axis in axes} if axes is not None else None
    if places is None:
        places = {axis for axis, size in enumerate(sizes) if size == Dim(1)}
    if any(sizes[place] != Dim(1) for place in places):
        emitter.fail(f"takes away axes {sorted(places)} of {text(sizes)}, which are not all 1")
    kept = [size for axis, size in enumerate(sizes) if axis not in places]
    if known is not None and known[0].dtype.kind in "iO" and known[0].size <= MAX_KNOWN:
        return [known[0].reshape([size.constant for size in kept])]
    return [emitter.op("reshape", inputs.value(0), shape=text(kept))]


def _split(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1, 2)
    axis, listed = inputs.attr("axis", 0), inputs.attr("split", None, list)
    inputs.attr("num_outputs", 0)
    inputs.finish()
    x = inputs.value(0)
    axis = axis_in(emitter, axis, len(shape_of(x)))
    size, count = shape_of(x)[axis], len(node.outputs)
    if not size.is_constant:
        emitter.refuse("of a named size is not supported")
    parts = inputs.numbers(1, "the sizes of parts") if inputs.has(1) else listed
    if parts is None:
        each = -(-size.constant // count)
        parts = [each] * (count - 1) + [size.constant - each * (count - 1)]
    if len(parts) != count or sum(parts) != size.constant or min(parts) < 0:
        emitter.fail(f"cannot cut {size} into {parts}")
    made, start = [], 0
    for part in parts:
        made.append(emitter.op("slice", x, axis=axis, start=start, stop=str(start + part)))
        start += part
    return made


def _trilu(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1, 2)
    upper = inputs.attr("upper", 1)
    inputs.finish()
    (offset,) = inputs.numbers(1, "k") if inputs.has(1) else [0]
    x = inputs.value(0)
    if len(shape_of(x)) < 2 or abs(offset) >= _END:
        emitter.fail("needs a matrix and a diagonal of 32 bits")
    shape = text(shape_of(x)[-2:])
    rows, columns = (emitter.op("iota", shape=shape, axis=axis, dtype="i32") for axis in (0, 1))
    diagonal = emitter.op("add", rows, emitter.scalar(offset, "i32"))
    kept = emitter.op("compare", columns, diagonal, direction="ge" if upper else "le")
    return [emitter.op("select", kept, x, emitter.scalar(0, dtype_of(x)))]


def _range_of(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 3)
    inputs.finish()
    (start,), (limit,), (step,) = (inputs.sizes(index, what) for index, what in enumerate(("start", "limit", "delta")))
    if start != Dim(0) or step != Dim(1):
        if not (start.is_constant and limit.is_constant and step.is_constant and step.constant):
            emitter.refuse("counts up to a named size from another number than 0, or by other steps than 1")
        numbers = range(start.constant, limit.constant, step.constant)
        if len(numbers) > MAX_KNOWN:
            emitter.refuse(f"has {len(numbers)} numbers; at most {MAX_KNOWN} are supported")
        return [np.array(numbers, np.int64)]
    known = inputs.known(0)
    assert known is not None
    return [emitter.op("iota", shape=(str(limit),), axis=0, dtype=known[1])]


RULES: Mapping[str, Rule] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Shape": _shape,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "Expand": _expand,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Split": _split,
    "Trilu": _trilu,
    "Range": _range_of,
}
