"""Reads ``quantization_config`` of a config.json: how the weights of a checkpoint are packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cacheir.errors import UnsupportedModelError
from cacheir_importers.fields import Fields

METHODS = ("awq", "gptq", "compressed-tensors", "fp8", "fbgemm_fp8")
_LARGEST_GROUP = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """``group`` is how many inputs share a scale, -1 for all of them. ``block`` are rows and columns of fp8 scales.

    ``zeros`` tells how GPTQ stores zero points: 1 for one less than they are, 0 for as they are.
    """

    method: str
    place: str
    bits: int = 8
    group: int = -1
    symmetric: bool = True
    order: bool = False  # the input channels are in another order than their groups
    zeros: int = 0
    block: tuple[int, int] | None = None
    format: str = ""
    notes: tuple[str, ...] = ()


def read_scheme(value: object, place: str) -> Scheme | None:
    """The scheme that ``quantization_config`` describes, None where there is none or the tensors are dense.

    Raises UnsupportedModelError that names the method, or the field and value, that is not supported;
    MalformedModelError for a field that makes no sense.
    """
    if value is None:
        return None
    where = f"{place}: quantization_config"
    if not isinstance(value, Mapping):
        raise UnsupportedModelError(f"{where} is {str(value)[:40]!r}, which is no object")
    fields = Fields(value, where)
    method = fields.text_or("quant_method", "without a name")
    if method == "gguf":
        # transformers leaves this in a folder saved from a GGUF file, whose tensors it had made dense before.
        return None
    if method not in METHODS:
        raise UnsupportedModelError(
            f"{place}: quantization_config.quant_method {method!r} is not supported; supported: {', '.join(METHODS)}"
        )
    if method == "awq":
        return _awq(fields)
    if method == "gptq":
        return _gptq(fields)
    if method == "compressed-tensors":
        return _compressed(fields)
    return _fp8(fields, method)


def _group(fields: Fields, key: str) -> int:
    group = fields.whole_or(key, -1, least=-1, most=_LARGEST_GROUP)
    if group == 0:
        raise fields.wrong(key, "a number of inputs, or -1 for all")
    return group


def _awq(fields: Fields) -> Scheme:
    bits = fields.whole_or("bits", 4, most=16)
    version = (fields.text_or("version", "gemm") or "gemm").lower()
    if bits != 4 or version != "gemm" or not fields.flag_or("zero_point", True):
        raise UnsupportedModelError(
            f"{fields.place}: AWQ with bits {bits}, version {version!r}, zero_point {fields.get('zero_point')} is not"
            " supported; supported: 4 bits, gemm, with zero points"
        )
    return Scheme(
        method="awq", place=fields.place, bits=4, group=_group(fields, "group_size"), symmetric=False, zeros=0
    )


def _gptq(fields: Fields) -> Scheme:
    bits = fields.whole("bits", most=16)
    if bits not in (2, 4, 8):
        raise UnsupportedModelError(f"{fields.place}: GPTQ with {bits} bits is not supported; supported: 2, 4, 8")
    stored = fields.text_or("checkpoint_format", "gptq") or "gptq"
    if stored not in ("gptq", "gptq_v2"):
        raise UnsupportedModelError(
            f"{fields.place}: checkpoint_format {stored!r} is not supported; supported: gptq, gptq_v2"
        )
    return Scheme(
        method="gptq",
        place=fields.place,
        bits=bits,
        group=_group(fields, "group_size"),
        symmetric=bool(fields.flag_or("sym", False)),
        order=bool(fields.flag_or("desc_act", False)),
        zeros=1 if stored == "gptq" else 0,
    )


def _compressed(fields: Fields) -> Scheme:
    format_ = fields.text_or("format", "")
    groups = fields.section("config_groups")
    sections = [groups.section(name) for name in groups.objects()] if groups is not None else []
    if len(sections) != 1 or sections[0] is None:
        raise UnsupportedModelError(
            f"{fields.place}: config_groups with {len(sections)} groups is not supported: one for all layers is"
        )
    weights = sections[0].section("weights")
    if weights is None:
        raise UnsupportedModelError(f"{fields.place}: a config group without weights is not supported")
    bits, kind = weights.whole("num_bits", most=16), weights.text_or("type", "int")
    strategy = weights.text_or("strategy", "channel")
    packed = format_ == "pack-quantized" and kind == "int" and bits in (4, 8) and strategy in ("channel", "group")
    whole = format_ in ("int-quantized", "naive-quantized") and kind == "int" and bits == 8
    floating = format_ in ("float-quantized", "naive-quantized") and kind == "float" and bits == 8
    if not (packed or whole or floating) or strategy not in ("tensor", "channel", "group", "block"):
        raise UnsupportedModelError(
            f"{fields.place}: compressed-tensors of format {format_!r} with {bits} bits of type {kind!r} by"
            f" {strategy!r} is not supported; supported: pack-quantized int 4 and 8, int-quantized 8, float-quantized 8"
        )
    block = weights.get("block_structure")
    notes: tuple[str, ...] = ()
    if sections[0].get("input_activations"):
        notes = ("quantization_config quantises activations too: here they stay floating point",)
    return Scheme(
        method="compressed-tensors",
        place=fields.place,
        bits=bits,
        group=_group(weights, "group_size") if strategy == "group" else -1,
        symmetric=bool(weights.flag_or("symmetric", True)),
        order=weights.text_or("actorder", None) == "group",
        block=_block(fields, block) if strategy == "block" else None,
        format="packed" if packed else "int8" if whole else "fp8",
        notes=notes,
    )


def _fp8(fields: Fields, method: str) -> Scheme:
    kind = fields.text_or("fmt", "e4m3")
    if kind not in ("e4m3", "float8_e4m3fn"):
        raise UnsupportedModelError(f"{fields.place}: fmt {kind!r} is not supported; supported: e4m3")
    block = fields.get("weight_block_size")
    notes: tuple[str, ...] = ()
    if fields.text_or("activation_scheme", None):
        notes = ("quantization_config quantises activations too: here they stay floating point",)
    return Scheme(
        method=method,
        place=fields.place,
        block=None if block is None else _block(fields, block),
        format="fp8",
        notes=notes,
    )


def _block(fields: Fields, value: Any) -> tuple[int, int]:
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(type(n) is int and n > 0 for n in value):
        raise fields.wrong("weight_block_size", "two numbers, rows and columns")
    return value[0], value[1]
