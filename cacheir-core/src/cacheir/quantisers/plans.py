"""The quantisers that core brings: matrices of layers in one format, the embedding and the head in another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cacheir.formats.table import own_formats
from cacheir.ir.types import KVType, Type
from cacheir.models.decoder_spec import DecoderSpec
from cacheir.plugins import QuantSpec
from cacheir.quick_dataclass import dataclass

# A table of tokens is read by rows and multiplied by, and its rows are the least alike: it gets eight bits.
TABLES = ("embed", "head")
_TABLE_FORMAT = "int8"
# Which experts a token gets must not change by rounding, and the matrix is small.
_LEFT_OUT = "ffn.router"


@dataclass(frozen=True)
class UniformPlan:
    """``layers`` is the format of the matrices in layers, ``tables`` that of the embedding and the head."""

    layers: str
    tables: str

    def __call__(self, spec: DecoderSpec, types: Mapping[str, Type], options: Any = None) -> dict[str, str]:
        """Canonical key -> format: every matrix [out, in] of the decoder; vectors, biases and routers stay."""
        plan = {}
        for key, type_ in types.items():
            if isinstance(type_, KVType) or len(type_.shape) < 2 or key.endswith(_LEFT_OUT):
                continue
            if key in TABLES:
                plan[key] = self.tables
            elif key.startswith("layers."):
                plan[key] = self.layers
        return plan


def core_quantizers() -> dict[str, QuantSpec]:
    """Name -> quantiser: one for each of our formats, ``int4`` for the usual one, and ``int4-awq``."""
    specs = [
        _uniform(name, format.summary, name, name if name == "fp8-e4m3" else _TABLE_FORMAT)
        for name, format in own_formats().items()
    ]
    specs.append(_uniform("int4", "int4-g32: 4 bits, groups of 32 with scale and minimum", "int4-g32", _TABLE_FORMAT))
    specs.append(
        QuantSpec(
            name="int4-awq",
            summary="int4-g32 after input channels were scaled by what a text shows of them (AWQ)",
            formats=("int4-g32", _TABLE_FORMAT),
            plan=UniformPlan("int4-g32", _TABLE_FORMAT),
            calibrate="cacheir.quantisers.awq:scale_by_activations",
        )
    )
    return {spec.name: spec for spec in specs}


def _uniform(name: str, summary: str, layers: str, tables: str) -> QuantSpec:
    formats = tuple(dict.fromkeys((layers, tables)))
    return QuantSpec(name=name, summary=summary, formats=formats, plan=UniformPlan(layers, tables))
