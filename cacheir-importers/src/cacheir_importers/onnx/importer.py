"""Opens an ONNX model as a plain graph: nodes become primitive ops, initialisers weights that stay where they lie."""

from __future__ import annotations

import hashlib
import mmap
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cacheir.errors import IRError, MalformedModelError, UnsupportedModelError
from cacheir.ir.builder import GraphBuilder
from cacheir.ir.dims import Dim
from cacheir.ir.dtypes import numpy_dtype
from cacheir.ir.graph import Module, Value
from cacheir.ir.types import TensorType
from cacheir.models.imported import ImportedModel
from cacheir_importers.family_lookup import installation_of
from cacheir_importers.onnx import contractions, elementwise, shapes
from cacheir_importers.onnx.emitter import Array, Emitter, value_name
from cacheir_importers.onnx.model import Model, Node, ValueInfo, parse_model
from cacheir_importers.onnx.tensors import dtype_of_type
from cacheir_importers.onnx.wire import Wire

# A size that a model leaves open may be up to this; buffers are planned for it.
LARGEST_OPEN_SIZE = 128
OPSETS = range(7, 27)
RULES = {**elementwise.RULES, **shapes.RULES, **contractions.RULES}


def sniff(path: Path) -> str | None:
    """None for a file that is called .onnx; else the reason."""
    return None if path.is_file() and path.suffix.lower() == ".onnx" else "takes .onnx files"


def import_onnx(path: Path, options: Mapping[str, Any]) -> ImportedModel:
    """The plain graph in the file at ``path``.

    Raises UnsupportedModelError that lists every operator that is not supported, or names the node that asks for
    something of one that is; MalformedModelError with the byte, tensor or node that is wrong.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        raise MalformedModelError(f"{path.name} is no file, or an empty one")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        wire = Wire(data, path.name)
        model = parse_model(wire, status.st_size)
        _check_operators(model, path.name)
        builder = GraphBuilder("main", installation_of(options).ops.by_name())
        emitter = Emitter(builder, wire, model.initializers, path.parent, model.opset)
        notes = _inputs(builder, emitter, model)
        for node in model.nodes:
            _emit(emitter, node)
        outputs = _outputs(emitter, model)
        try:
            graph = builder.finish(outputs)
        except IRError as error:
            raise MalformedModelError(f"{path.name}: the model makes no valid graph: {error}") from error
        header = _hash(data, emitter)
    files = dict.fromkeys([path.name, *(source.file for source in emitter.sources.values())])
    return ImportedModel(
        root=path.parent,
        files=tuple(files),
        importer="onnx",
        header_hash=header,
        sources=emitter.sources,
        module=Module("", (graph,)),
        notes=(*notes, *emitter.notes),
    )


def _check_operators(model: Model, place: str) -> None:
    """Refuse what is not supported, all of it at once."""
    if model.opset not in OPSETS:
        raise UnsupportedModelError(f"{place}: opset {model.opset} is not supported; supported: 7 to {OPSETS[-1]}")
    missing: dict[str, int] = {}
    for node in model.nodes:
        name = node.op if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op}"
        if name not in RULES:
            missing[name] = missing.get(name, 0) + 1
    if missing:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
        raise UnsupportedModelError(
            f"{place}: {len(missing)} operators are not supported: {listed}",
            hint=f"supported: {', '.join(sorted(RULES))}",
        )


def _inputs(builder: GraphBuilder, emitter: Emitter, model: Model) -> list[str]:
    """Declare the inputs; notes about sizes that the model leaves open."""
    named: dict[str, str] = {}
    made: set[str] = set()
    for info in model.inputs:
        if info.name in model.initializers:
            continue
        emitter.begin(Node(op="input", name=info.name))
        if info.shape is None:
            emitter.refuse("has no shape")
        sizes = [_size(emitter, info, axis, size, named) for axis, size in enumerate(info.shape)]
        name = value_name(info.name)
        if name in made:
            emitter.fail("has the name of another input once it is spelt for graph text")
        made.add(name)
        dtype = dtype_of_type(info.data_type, f"input {info.name!r}")
        emitter.give(info.name, builder.input(name, TensorType(dtype, tuple(sizes))))
    for name in named.values():
        builder.dim(name, 1, LARGEST_OPEN_SIZE)
    open_sizes = ", ".join(named.values())
    return [f"sizes that the model leaves open may be 1 to {LARGEST_OPEN_SIZE}: {open_sizes}"] if named else []


def _size(emitter: Emitter, info: ValueInfo, axis: int, size: int | str | None, named: dict[str, str]) -> Dim:
    if isinstance(size, int) and size > 0:
        return Dim(size)
    if isinstance(size, int) and size < 0:
        emitter.fail(f"has the size {size}")
    text = size if isinstance(size, str) else f"{info.name}_{axis}"
    if text not in named:
        name = value_name(text)
        while name in named.values():
            name += "_"
        named[text] = name
    return Dim(0, ((named[text], 1),))


def _emit(emitter: Emitter, node: Node) -> None:
    emitter.begin(node)
    try:
        made = RULES[node.op](emitter, node)
    except (ValueError, TypeError, IndexError, OverflowError) as error:  # arithmetic of known values that do not fit
        emitter.fail(f"its inputs or attributes do not fit: {error}")
    wanted = list(node.outputs)
    while wanted and not wanted[-1]:
        wanted.pop()
    if len(made) != len(wanted):
        emitter.fail(f"makes {len(made)} results, and {len(wanted)} are named")
    for name, value in zip(wanted, made):
        if isinstance(value, Value):
            emitter.give(name, value)
        else:
            emitter.know(name, value, _dtype(value))


def _dtype(array: Array) -> str:
    """The element type of what is known: sizes are i64."""
    if array.dtype == object:
        return "i64"
    names = ("i64", "f32", "i32", "bool", "f16", "f64", "u8", "i8", "u16", "i16", "u32", "u64")
    return next(name for name in names if numpy_dtype(name) == array.dtype)


def _outputs(emitter: Emitter, model: Model) -> Sequence[Value]:
    emitter.begin(Node(op="output"))
    if not model.outputs:
        emitter.fail("there is none")
    found = []
    for info in model.outputs:
        value = emitter.value(info.name)
        assert isinstance(value.type, TensorType)
        if info.data_type and value.type.dtype != dtype_of_type(info.data_type, f"output {info.name!r}"):
            emitter.fail(f"{info.name!r} is declared as type {info.data_type}, and is {value.type}")
        found.append(value)
    return found


def _hash(data: mmap.mmap, emitter: Emitter) -> str:
    """Over all of the file that is no weight: weights count by their place."""
    digest, position = hashlib.sha256(), 0
    inside = [source for source in emitter.sources.values() if source.file == emitter.place]
    for source in sorted(inside, key=lambda source: source.offset):
        if source.offset >= position:
            digest.update(data[position : source.offset] + f"<{source.offset} {source.nbytes}>".encode())
            position = source.offset + source.nbytes
    digest.update(data[position:])
    return digest.hexdigest()
