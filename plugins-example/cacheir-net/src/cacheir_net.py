"""A CacheIR plugin: the importer net, which reads small networks as plain graphs.

A file is eight bytes with the length of a header, the header in JSON, `{"sizes": [8, 16, 4]}`, and then for each layer
its matrix f32 [outputs, inputs]. A layer multiplies by its matrix; between layers stands silu.
"""

from cacheir.plugins import ImporterSpec, hookimpl

SUFFIX = ".net"
MOST_HEADER_BYTES = 1 << 20  # a file from elsewhere must not make us allocate what it likes


def read(path, options):
    """The network in `path`: its graph, and where its matrices lie. None of them is read."""
    import hashlib

    from cacheir.errors import MalformedModelError
    from cacheir.ir import GraphBuilder, Module
    from cacheir.models.imported import ImportedModel, WeightSource
    from cacheir.plugins.installation import default

    with path.open("rb", buffering=0) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= MOST_HEADER_BYTES:
            raise MalformedModelError(f"{path.name}: a header of {length} bytes is none")
        header = file.read(length)
    sizes = _sizes(header, path.name)
    installation = options.get("installation") or default()
    builder = GraphBuilder("main", installation.ops.by_name(), dims=[("B", 1, 64)])
    x = builder.input("x", f"f32[B, {sizes[0]}]")
    sources, offset = {}, 8 + length
    for number, shape in enumerate(zip(sizes[1:], sizes)):
        key, nbytes = f"layer{number}", 4 * shape[0] * shape[1]
        sources[key] = WeightSource(file=path.name, tensor=key, offset=offset, nbytes=nbytes, format="f32", shape=shape)
        offset += nbytes
        if number:
            x = builder.op("silu", x)
        x = builder.op("linear", x, builder.weight(key, f"f32[{shape[0]}, {shape[1]}]", key))
    if path.stat().st_size != offset:
        raise MalformedModelError(f"{path.name}: has {path.stat().st_size} bytes, its header says {offset}")
    return ImportedModel(
        root=path.parent,
        files=(path.name,),
        importer="net",
        header_hash=hashlib.sha256(header).hexdigest(),
        sources=sources,
        module=Module("", (builder.finish(x),)),
    )


def _sizes(header, place):
    """The layers' sizes, checked: all of a header is somebody else's."""
    import json

    from cacheir.errors import MalformedModelError

    try:
        sizes = json.loads(header)["sizes"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MalformedModelError(f"{place}: the header is no JSON with sizes") from error
    if not isinstance(sizes, list) or not 2 <= len(sizes) <= 100:
        raise MalformedModelError(f"{place}: sizes must be a list of 2 to 100 numbers")
    for size in sizes:
        if type(size) is not int or not 1 <= size <= 1 << 16:
            raise MalformedModelError(f"{place}: {size!r} is no size of a layer")
    return sizes


def write(path, matrices):
    """Write matrices f32 [outputs, inputs] as a network."""
    import json

    header = json.dumps({"sizes": [matrices[0].shape[1], *(len(matrix) for matrix in matrices)]}).encode()
    data = b"".join(matrix.astype("<f4").tobytes() for matrix in matrices)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


@hookimpl
def cacheir_register_importers():
    yield ImporterSpec(
        name="net",
        summary="Small networks as plain graphs.",
        run="cacheir_net:read",
        suffixes=(SUFFIX,),
    )
