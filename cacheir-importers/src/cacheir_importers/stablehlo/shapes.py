"""StableHLO operations that make tensors or move elements: constant, iota, reshape, broadcast, slice, pad, gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.ir.graph import Value
from cacheir_importers.stablehlo.cursor import known_fields
from cacheir_importers.stablehlo.elementwise import take
from cacheir_importers.stablehlo.emitter import Attributes, Emitter, Rule, dtype_of, sizes_of, whole_numbers
from cacheir_importers.stablehlo.syntax import Operation, TensorText

_SHORT = frozenset({"i8", "i16", "i32", "u8", "u16"})


def text(sizes: Sequence[int]) -> tuple[str, ...]:
    """A shape as ops take it."""
    return tuple(map(str, sizes))


def _result(emitter: Emitter, op: Operation) -> TensorText:
    if len(op.result_types) < 1:
        emitter.fail(f"{op.name} needs a result type")
    return op.result_types[-1]


def _constant(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    take(emitter, op, operands, 0)
    attributes = Attributes(emitter, op)
    value = attributes.get("value")
    attributes.finish()
    return [emitter.constant(value, _result(emitter, op))]


def _iota(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    take(emitter, op, operands, 0)
    attributes = Attributes(emitter, op)
    axis = attributes.number("iota_dimension", "dim")
    attributes.finish()
    type_ = _result(emitter, op)
    return [emitter.op("iota", shape=text(type_.shape), axis=axis, dtype=type_.dtype)]


def _reshape(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    (x,) = take(emitter, op, operands, 1)
    return [emitter.op("reshape", x, shape=text(_result(emitter, op).shape))]


def _transpose(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    (x,) = take(emitter, op, operands, 1)
    attributes = Attributes(emitter, op)
    axes = attributes.numbers("permutation", "dims")
    attributes.finish()
    return [emitter.op("transpose", x, axes=axes)]


def _broadcast_in_dim(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    (x,) = take(emitter, op, operands, 1)
    attributes = Attributes(emitter, op)
    dims = attributes.numbers("broadcast_dimensions", "dims")
    attributes.finish()
    shape, sizes = _result(emitter, op).shape, sizes_of(x)
    if len(dims) != len(sizes) or len(set(dims)) != len(dims) or not all(0 <= dim < len(shape) for dim in dims):
        emitter.fail(f"broadcast_in_dim cannot send the axes of {x.type} to {list(dims)} of {list(shape)}")
    for dim, size in zip(dims, sizes):
        if size not in (1, shape[dim]):
            emitter.fail(f"broadcast_in_dim cannot stretch {size} to {shape[dim]}")
    order = sorted(range(len(dims)), key=lambda axis: dims[axis])
    if order != list(range(len(dims))):
        x = emitter.op("transpose", x, axes=tuple(order))
    spread = [1] * len(shape)
    for dim, size in zip(dims, sizes):
        spread[dim] = size
    if tuple(spread) != sizes_of(x):
        x = emitter.op("reshape", x, shape=text(spread))
    return [x if tuple(spread) == shape else emitter.op("broadcast", x, shape=text(shape))]


def _concatenate(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    attributes = Attributes(emitter, op)
    axis = attributes.number("dimension", "dim")
    attributes.finish()
    if not operands or not 0 <= axis < len(sizes_of(operands[0])):
        emitter.fail(f"concatenate cannot join {len(operands)} operands along axis {axis}")
    return [emitter.op("concat", *operands, axis=axis)]


def _slice(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    (x,) = take(emitter, op, operands, 1)
    attributes = Attributes(emitter, op)
    if op.ranges is not None:
        ranges = [(*numbers, 1)[:3] if len(numbers) == 2 else numbers for numbers in op.ranges]
        if any(len(numbers) != 3 for numbers in ranges):
            emitter.fail("a range of slice is start:limit or start:limit:stride")
    else:
        starts, limits = attributes.numbers("start_indices"), attributes.numbers("limit_indices")
        strides = attributes.numbers("strides", default=[1] * len(starts))
        if not len(starts) == len(limits) == len(strides):
            emitter.fail("slice needs as many starts as limits and strides")
        ranges = list(zip(starts, limits, strides))
    attributes.finish()
    sizes = sizes_of(x)
    if len(ranges) != len(sizes):
        emitter.fail(f"slice has {len(ranges)} ranges for {x.type}")
    for axis, (start, limit, stride) in enumerate(ranges):
        if not 0 <= start <= limit <= sizes[axis] or stride < 1:
            emitter.fail(f"slice {start}:{limit}:{stride} does not lie in an axis of {sizes[axis]}")
        if stride > 1 and limit > start:
            x = _every(emitter, x, axis, start, -(-(limit - start) // stride), stride)
        elif (start, limit) != (0, sizes[axis]):
            x = emitter.op("slice", x, axis=axis, start=start, stop=str(limit))
    return [x]


def _every(emitter: Emitter, x: Value, axis: int, start: int, count: int, step: int) -> Value:
    """``count`` entries of an axis from ``start`` on, ``step`` apart."""
    if start + (count - 1) * abs(step) >= 1 << 31:
        emitter.refuse(f"an axis of {sizes_of(x)[axis]} cannot be counted in 32 bits")
    indices = emitter.op("iota", shape=(str(count),), axis=0, dtype="i32")
    indices = emitter.op("multiply", indices, emitter.scalar(step, "i32"))
    return emitter.op("gather", x, emitter.op("add", indices, emitter.scalar(start, "i32")), axis=axis)


def _reverse(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    (x,) = take(emitter, op, operands, 1)
    attributes = Attributes(emitter, op)
    axes = attributes.numbers("dimensions", "dims")
    attributes.finish()
    for axis in axes:
        if not 0 <= axis < len(sizes_of(x)):
            emitter.fail(f"reverse has no axis {axis} in {x.type}")
        if sizes_of(x)[axis] > 1:
            x = _every(emitter, x, axis, sizes_of(x)[axis] - 1, sizes_of(x)[axis], -1)
    return [x]


def _pad(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    x, value = take(emitter, op, operands, 2)
    attributes = Attributes(emitter, op)
    low, high = attributes.numbers("edge_padding_low", "low"), attributes.numbers("edge_padding_high", "high")
    interior = attributes.numbers("interior_padding", "interior", default=[0] * len(low))
    attributes.finish()
    if (
        not len(low) == len(high) == len(interior) == len(sizes_of(x))
        or sizes_of(value)
        or dtype_of(value) != dtype_of(x)
    ):
        emitter.fail(f"pad cannot put {value.type} around {x.type} with {list(low)}, {list(high)}, {list(interior)}")
    if any(interior):
        emitter.refuse("pad between elements (interior) is not supported")
    for axis, (before, after) in enumerate(zip(low, high)):
        size = sizes_of(x)[axis]
        start, stop = max(0, -before), size - max(0, -after)
        if start > stop:
            emitter.fail(f"pad takes more from an axis of {size} than it has")
        if (start, stop) != (0, size):
            x = emitter.op("slice", x, axis=axis, start=start, stop=str(stop))
        parts = [x]
        for amount, place in ((before, 0), (after, len(parts))):
            if amount > 0:
                edge = [*sizes_of(x)]
                edge[axis] = amount
                parts.insert(place if place == 0 else len(parts), emitter.op("broadcast", value, shape=text(edge)))
        if len(parts) > 1:
            x = emitter.op("concat", *parts, axis=axis)
    return [x]


def _gather(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    """The take forms: whole slices along one axis, chosen by one index each."""
    x, indices = take(emitter, op, operands, 2)
    attributes = Attributes(emitter, op)
    fields = known_fields(attributes.get("dimension_numbers"))
    slices = attributes.numbers("slice_sizes")
    attributes.finish()
    offset, collapsed, start_map, batching, index_batching = (
        whole_numbers(emitter, fields.get(name, []), name)
        for name in (
            "offset_dims",
            "collapsed_slice_dims",
            "start_index_map",
            "operand_batching_dims",
            "start_indices_batching_dims",
        )
    )
    vector = fields.get("index_vector_dim", 0)
    sizes, places = sizes_of(x), sizes_of(indices)
    trailing = type(vector) is int and vector == len(places) - 1 and places[-1] == 1
    if len(start_map) != 1 or batching or index_batching or not (trailing or vector == len(places)):
        emitter.refuse("this form of gather is not supported: one index along one axis is")
    axis = start_map[0]
    whole = list(sizes)
    if not 0 <= axis < len(sizes):
        emitter.fail(f"gather has no axis {axis} in {x.type}")
    whole[axis] = 1
    if list(slices) != whole or collapsed not in ((), (axis,)):
        emitter.refuse("this form of gather is not supported: whole slices along one axis are")
    if sizes[axis] == 0:
        emitter.fail("gather takes entries of an axis that has none")
    batch = places[:-1] if trailing else places
    indices = _within(emitter, indices, sizes[axis])
    if trailing:
        indices = emitter.op("reshape", indices, shape=text(batch))
    taken = emitter.op("gather", x, indices, axis=axis)
    kept = [number for number in range(len(sizes)) if number != axis]
    if not collapsed:  # the axis stays, with size 1
        taken = emitter.op("reshape", taken, shape=text((*sizes[:axis], *batch, 1, *sizes[axis + 1 :])))
        kept = list(range(len(sizes)))
    return [emitter.op("transpose", taken, axes=_order(emitter, axis, len(batch), len(kept), offset))]


def _order(emitter: Emitter, axis: int, batch: int, kept: int, offset: Sequence[int]) -> tuple[int, ...]:
    """Axes of [before, batch, after] in the order of the result, whose axes ``offset`` are those of x."""
    if len(offset) != kept or sorted(set(offset)) != list(offset) or not all(0 <= d < batch + kept for d in offset):
        emitter.fail(f"gather cannot have the offset_dims {list(offset)}")
    from_x = iter([*range(axis), *range(axis + batch, batch + kept)])
    from_indices = iter(range(axis, axis + batch))
    return tuple(next(from_x) if place in offset else next(from_indices) for place in range(batch + kept))


def _within(emitter: Emitter, indices: Value, size: int) -> Value:
    """Indices held inside an axis, as the specification says, in 32 bits."""
    kind = dtype_of(indices)
    if size > 1 << 31:
        emitter.refuse(f"an axis of {size} cannot be indexed in 32 bits")
    if kind in _SHORT and kind != "i32":
        indices, kind = emitter.op("cast", indices, dtype="i32"), "i32"
    if not kind.startswith("u"):
        indices = emitter.op("maximum", indices, emitter.scalar(0, kind))
    indices = emitter.op("minimum", indices, emitter.scalar(size - 1, kind))
    return indices if kind == "i32" else emitter.op("cast", indices, dtype="i32")


RULES: Mapping[str, Rule] = {
    "stablehlo.constant": _constant,
    "stablehlo.iota": _iota,
    "stablehlo.reshape": _reshape,
    "stablehlo.transpose": _transpose,
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.slice": _slice,
    "stablehlo.reverse": _reverse,
    "stablehlo.pad": _pad,
    "stablehlo.gather": _gather,
}
