"""The block formats that core brings, as records."""

from __future__ import annotations

from cacheir.plugins import QuantFormatSpec

# name -> (bytes of a block, what is in it)
_CLASSIC = {
    "q4_0": (18, "f16 scale; 4 bits, offset 8"),
    "q4_1": (20, "f16 scale, f16 minimum; 4 bits"),
    "q5_0": (22, "f16 scale; 5 bits, offset 16"),
    "q5_1": (24, "f16 scale, f16 minimum; 5 bits"),
    "q8_0": (34, "f16 scale; 8 bits, signed"),
    "q8_1": (36, "f16 scale, f16 scale * sum; 8 bits, signed"),
}
_K = {
    "q2_k": (84, "16 groups with scale and minimum of 4 bits; 2 bits"),
    "q3_k": (110, "16 groups with scale of 6 bits; 3 bits, offset 4"),
    "q4_k": (144, "8 groups with scale and minimum of 6 bits; 4 bits"),
    "q5_k": (176, "8 groups with scale and minimum of 6 bits; 5 bits"),
    "q6_k": (210, "16 groups with scale of 8 bits; 6 bits, offset 32"),
    "q8_k": (292, "f32 scale; 8 bits, signed; 16 sums"),
}
_SCALARS = {
    "ggml-f64": (8, "a double, read as f32"),
    "ggml-i8": (1, "a signed byte, read as f32"),
    "ggml-i16": (2, "a whole number of 16 bits, read as f32"),
    "ggml-i32": (4, "a whole number of 32 bits, read as f32"),
    "ggml-i64": (8, "a whole number of 64 bits, read as f32"),
}
# name -> (bytes of a block besides its codes, bits of a code, what is in it)
_GROUPS = {
    "int4": (4, 4, "f16 scale, f16 minimum; 4 bits"),
    "int4-sym": (2, 4, "f16 scale; 4 bits, offset 8"),
    "int8": (2, 8, "f16 scale; 8 bits, signed"),
}
GROUP_SIZES = (32, 64, 128)
_ROWS = {
    "int8": "one f32 scale a row; 8 bits, signed",
    "fp8-e4m3": "one f32 scale a row, a power of two; floating point numbers of 8 bits",
}


def core_formats() -> dict[str, QuantFormatSpec]:
    """Name -> format, a new dictionary at each call: what GGML files store, and CacheIR's own.

    The classic block formats (32 elements a block), the K formats (256), and single numbers, which are only read;
    groups of 32, 64 and 128, and rows with one scale.
    """
    stored = (*map(_classic, _CLASSIC), *map(_k_quant, _K), *map(_scalar, _SCALARS))
    return {spec.name: spec for spec in (*stored, *own_formats().values())}


def own_formats() -> dict[str, QuantFormatSpec]:
    """Name -> format, those that CacheIR defines itself."""
    groups = (_group(kind, size) for kind in _GROUPS for size in GROUP_SIZES)
    return {spec.name: spec for spec in (*groups, *map(_row, _ROWS))}


def _classic(name: str) -> QuantFormatSpec:
    block_bytes, summary = _CLASSIC[name]
    return QuantFormatSpec(
        name=name,
        summary=summary,
        block=32,
        block_bytes=block_bytes,
        unpack=f"cacheir.formats.classic:unpack_{name}",
        pack=f"cacheir.formats.classic:pack_{name}",
    )


def _k_quant(name: str) -> QuantFormatSpec:
    block_bytes, summary = _K[name]
    return QuantFormatSpec(
        name=name,
        summary=summary,
        block=256,
        block_bytes=block_bytes,
        unpack=f"cacheir.formats.k_quants:unpack_{name}",
        pack=f"cacheir.formats.k_quants_pack:pack_{name}",
    )


def _scalar(name: str) -> QuantFormatSpec:
    block_bytes, summary = _SCALARS[name]
    return QuantFormatSpec(
        name=name,
        summary=summary,
        block=1,
        block_bytes=block_bytes,
        unpack=f"cacheir.formats.scalars:unpack_{name.removeprefix('ggml-')}",
    )


def _group(kind: str, size: int) -> QuantFormatSpec:
    header, bits, summary = _GROUPS[kind]
    codec = f"cacheir.formats.groups:{kind.replace('-', '_')}_g{size}"
    return QuantFormatSpec(
        name=f"{kind}-g{size}",
        summary=f"groups of {size}: {summary}",
        block=size,
        block_bytes=header + size * bits // 8,
        unpack=f"{codec}.unpack",
        pack=f"{codec}.pack",
        fills_up=True,
    )


def _row(name: str) -> QuantFormatSpec:
    function = name.replace("-", "_")
    return QuantFormatSpec(
        name=name,
        summary=_ROWS[name],
        block=0,
        block_bytes=4,
        unpack=f"cacheir.formats.rows:unpack_{function}",
        pack=f"cacheir.formats.rows:pack_{function}",
    )
