"""The block formats that can be read where the optional `gguf` package is installed, as records."""

from __future__ import annotations

from cacheir.plugins import QuantFormatSpec
from cacheir.plugins.distributions import installed
from cacheir.plugins.versions import satisfies
from cacheir_importers.gguf.tensor_types import type_by_name

# The first release that can unpack all of these; `gguf` is the extra of cacheir-importers that asks for it.
_PACKAGE, _VERSIONS = "gguf", ">=0.19"
HINT = "pip install './cacheir-importers[gguf]' in a checkout of CacheIR"

# ggml's name of a type -> what is in a block
_SUMMARIES = {
    "IQ1_S": "grid of signs, 1.5625 bits a weight",
    "IQ1_M": "grid of signs, 1.75 bits a weight",
    "IQ2_XXS": "grid, 2.0625 bits a weight",
    "IQ2_XS": "grid, 2.3125 bits a weight",
    "IQ2_S": "grid, 2.5625 bits a weight",
    "IQ3_XXS": "grid, 3.0625 bits a weight",
    "IQ3_S": "grid, 3.4375 bits a weight",
    "IQ4_NL": "f16 scale; 4 bits through a table",
    "IQ4_XS": "8 groups with scale of 6 bits; 4 bits through a table",
    "TQ1_0": "f16 scale; ternary, five to a byte",
    "TQ2_0": "f16 scale; ternary, four to a byte",
    "MXFP4": "E8M0 scale; E2M1",
    "NVFP4": "4 groups with scale of E4M3; E2M1",
}
NAMES: frozenset[str] = frozenset(name.lower() for name in _SUMMARIES)


def package_formats() -> tuple[QuantFormatSpec, ...]:
    """The formats, none where the package is missing or too old."""
    there = any(each.name == _PACKAGE and satisfies(each.version, _VERSIONS) for each in installed())
    return tuple(map(_format, _SUMMARIES)) if there else ()


def why_not() -> str:
    """What keeps these formats from being read, "" where nothing does."""
    from cacheir.plugins.requirement import Requirement, unmet  # slow to import, and needed for a message alone

    return unmet(Requirement(_PACKAGE, _VERSIONS), installed())


def _format(name: str) -> QuantFormatSpec:
    kind = type_by_name(name)
    return QuantFormatSpec(
        name=kind.format,
        summary=f"{_SUMMARIES[name]}; through the gguf package",
        block=kind.block_elements,
        block_bytes=kind.block_bytes,
        unpack=f"cacheir_importers.gguf.package_unpack:unpack_{kind.format}",
    )
