"""The block formats that core brings, as records."""

from __future__ import annotations

from cacheir.plugins import QuantFormatSpec

_BLOCK = 32

# name -> (bytes of a block, what is in it)
_CLASSIC = {
    "q4_0": (18, "f16 scale; 4 bits, offset 8"),
    "q4_1": (20, "f16 scale, f16 minimum; 4 bits"),
    "q5_0": (22, "f16 scale; 5 bits, offset 16"),
    "q5_1": (24, "f16 scale, f16 minimum; 5 bits"),
    "q8_0": (34, "f16 scale; 8 bits, signed"),
    "q8_1": (36, "f16 scale, f16 scale * sum; 8 bits, signed"),
}


def core_formats() -> dict[str, QuantFormatSpec]:
    """Name -> format: the classic block formats of GGML files, 32 elements a block; a new dictionary at each call."""
    return {
        name: QuantFormatSpec(
            name=name,
            summary=summary,
            block=_BLOCK,
            block_bytes=block_bytes,
            unpack=f"cacheir.formats.classic:unpack_{name}",
            pack=f"cacheir.formats.classic:pack_{name}",
        )
        for name, (block_bytes, summary) in _CLASSIC.items()
    }
