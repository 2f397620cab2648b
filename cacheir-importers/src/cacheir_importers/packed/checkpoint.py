"""Finds the packed weights of a checkpoint and what each is made of; shapes are checked, no data is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.ir.graph import Attr
from cacheir_importers.huggingface.checkpoint import Checkpoint
from cacheir_importers.made_tensors import MadeTensor
from cacheir_importers.packed.scheme import Scheme
from cacheir_importers.weight_table import StoredTensor

# What a packed weight unpacks to: its formula is worked out in float32, and a backend casts from there.
DTYPE = "f32"
_FORMATS = {
    "F32": "f32", "F16": "f16", "BF16": "bf16", "I32": "i32", "I64": "i64", "I8": "i8", "U8": "u8", "F8_E4M3": "u8",
}  # fmt: skip
_FLOATS = ("F32", "F16", "BF16")
_Rule = Callable[[Scheme, str, "_Module"], "MadeTensor | None"]


def with_packed(checkpoint: Checkpoint, scheme: Scheme | None) -> Checkpoint:
    """``checkpoint`` with a dense ``NAME.weight`` for each weight that ``scheme`` says is packed.

    Raises MalformedModelError that names the tensor whose type or shape is not what the configuration says, or that
    is missing beside its partners.
    """
    if scheme is None:
        return checkpoint
    rule, main = _rule(scheme)
    made: dict[str, MadeTensor] = {}
    for name in checkpoint.tensors:
        module, _, suffix = name.rpartition(".")
        if suffix == main:
            found = rule(scheme, module, _Module(module, checkpoint.tensors))
            if found is not None:
                made[f"{module}.weight"] = found
    if not made:
        raise MalformedModelError(
            f"{scheme.place} says {scheme.method}, and the checkpoint has no packed weight ({main})",
            hint="delete quantization_config if the weights were dequantised",
        )
    tensors = {**checkpoint.tensors, **{name: tensor.stand_in() for name, tensor in made.items()}}
    notes = (*checkpoint.notes, *scheme.notes)
    return replace(checkpoint, tensors=tensors, made={**checkpoint.made, **made}, notes=notes)


def _rule(scheme: Scheme) -> tuple[_Rule, str]:
    """What finds a packed weight's tensors, and the one of them that tells that it is packed."""
    if scheme.method in ("awq", "gptq"):
        return _awq if scheme.method == "awq" else _gptq, "qweight"
    return (_packed, "weight_packed") if scheme.format == "packed" else (_scaled, "weight")


class _Module:
    """The tensors of one linear layer."""

    def __init__(self, name: str, tensors: Mapping[str, StoredTensor]) -> None:
        self.name = name
        self._tensors = tensors

    def type_name(self, suffix: str) -> str:
        """The type of the tensor ``NAME.suffix`` as the file spells it, "" where it is not there."""
        tensor = self._tensors.get(f"{self.name}.{suffix}")
        return tensor.type_name if tensor is not None else ""

    def find(self, suffix: str) -> StoredTensor | None:
        """The tensor ``NAME.suffix`` with the format that its type is read in, None where it is not there."""
        tensor = self._tensors.get(f"{self.name}.{suffix}")
        if tensor is None:
            return None
        if tensor.type_name not in _FORMATS:
            raise UnsupportedModelError(f"{tensor.file}: tensor {tensor.name!r} is stored as {tensor.type_name}")
        return replace(tensor, format=_FORMATS[tensor.type_name])

    def need(self, suffix: str, types: tuple[str, ...], shape: tuple[int, ...] | None = None) -> StoredTensor:
        """The tensor ``NAME.suffix``, which must be of one of ``types`` and of ``shape``."""
        tensor = self.find(suffix)
        if tensor is None:
            raise MalformedModelError(f"the packed weight {self.name} lacks {suffix!r}")
        if tensor.type_name not in types:
            raise MalformedModelError(
                f"{tensor.file}: tensor {tensor.name!r} is {tensor.type_name}, and must be {' or '.join(types)}"
            )
        if shape is not None and tensor.shape != shape:
            raise MalformedModelError(
                f"{tensor.file}: tensor {tensor.name!r} has the shape {list(tensor.shape)}, and quantization_config"
                f" says {list(shape)}"
            )
        if len(tensor.shape) != 2 and shape is None:
            raise MalformedModelError(f"{tensor.file}: tensor {tensor.name!r} is no matrix: {list(tensor.shape)}")
        return tensor


def _groups(scheme: Scheme, inputs: int) -> tuple[int, int]:
    """How many inputs share a scale, and how many groups that makes: the last may be smaller."""
    group = inputs if scheme.group == -1 else scheme.group
    return group, -(-inputs // max(1, group))


def _awq(scheme: Scheme, name: str, module: _Module) -> MadeTensor:
    words = module.need("qweight", ("I32",))
    inputs, outputs = words.shape[0], words.shape[1] * 8
    group, groups = _groups(scheme, inputs)
    return _made(
        name,
        "awq",
        {
            "qweight": words,
            "qzeros": module.need("qzeros", ("I32",), (groups, words.shape[1])),
            "scales": module.need("scales", _FLOATS, (groups, outputs)),
        },
        (outputs, inputs),
        {"group": group},
    )


def _gptq(scheme: Scheme, name: str, module: _Module) -> MadeTensor:
    words = module.need("qweight", ("I32",))
    in_word = 32 // scheme.bits
    inputs, outputs = words.shape[0] * in_word, words.shape[1]
    if outputs % in_word:
        raise MalformedModelError(f"{words.file}: tensor {words.name!r}: {outputs} outputs do not fill whole words")
    group, groups = _groups(scheme, inputs)
    parts = {
        "qweight": words,
        "qzeros": module.need("qzeros", ("I32",), (groups, outputs // in_word)),
        "scales": module.need("scales", _FLOATS, (groups, outputs)),
    }
    if module.find("g_idx") is not None:
        parts["g_idx"] = module.need("g_idx", ("I32",), (inputs,))
    elif scheme.order:
        raise MalformedModelError(
            f"the packed weight {name} lacks 'g_idx', and quantization_config says desc_act: nothing tells which group"
            " an input belongs to"
        )
    attrs: dict[str, Attr] = {
        "bits": scheme.bits,
        "group": group,
        "less": scheme.zeros,
        "symmetric": scheme.symmetric,
    }
    return _made(name, "gptq", parts, (outputs, inputs), attrs)


def _packed(scheme: Scheme, name: str, module: _Module) -> MadeTensor:
    words = module.need("weight_packed", ("I32",))
    scales = module.need("weight_scale", _FLOATS)
    in_word = 32 // scheme.bits
    outputs = words.shape[0]
    # The true number of inputs stands in weight_shape alone, which is data; the scales and words leave a range.
    inputs = words.shape[1] * in_word
    group, groups = _groups(scheme, inputs)
    if scales.shape != (outputs, groups):
        raise MalformedModelError(
            f"{scales.file}: tensor {scales.name!r} has the shape {list(scales.shape)}, and quantization_config"
            f" says {[outputs, groups]}"
        )
    parts = {"words": words, "scales": scales}
    if not scheme.symmetric:
        zeros = module.need("weight_zero_point", ("I32",), (-(-outputs // in_word), groups))
        parts["zeros"] = zeros
    if scheme.order:
        parts["g_idx"] = module.need("weight_g_idx", ("I32",), (inputs,))
    return _made(name, "compressed-int", parts, (outputs, inputs), {"bits": scheme.bits, "group": group})


def _scaled(scheme: Scheme, name: str, module: _Module) -> MadeTensor | None:
    """int8 or fp8 elements with a scale for all, for each row, or for each block; None for a dense weight."""
    wanted = "I8" if scheme.format == "int8" else "F8_E4M3"
    if module.type_name("weight") != wanted:
        return None
    values = module.need("weight", (wanted,))
    rows, columns = values.shape
    suffix = "weight_scale_inv" if module.find("weight_scale_inv") is not None else "weight_scale"
    scales = module.find(suffix)
    if scales is None or scales.type_name not in _FLOATS:
        raise MalformedModelError(f"the packed weight {name} lacks 'weight_scale' of floating point numbers")
    if scheme.block is not None:
        block = scheme.block
    elif scheme.group != -1:
        block = (1, scheme.group)
    else:
        block = (1 if scales.shape[:1] == (rows,) else rows, columns)
    blocks = (-(-rows // block[0]), -(-columns // block[1]))
    single = all(size == 1 for size in scales.shape)
    if not (scales.shape == blocks or (single and blocks == (1, 1)) or (blocks[1] == 1 and scales.shape == blocks[:1])):
        raise MalformedModelError(
            f"{scales.file}: tensor {scales.name!r} has the shape {list(scales.shape)}, and the configuration says"
            f" {list(blocks)}"
        )
    parts = {"values": values, "scales": scales}
    if not scheme.symmetric:
        raise UnsupportedModelError(f"{scheme.place}: zero points of 8-bit weights are not supported")
    attrs: dict[str, Attr] = {"block_rows": block[0], "block_columns": block[1]}
    return _made(name, "fp8" if wanted == "F8_E4M3" else "int8", parts, (rows, columns), attrs)


def _made(
    module: str, method: str, parts: Mapping[str, StoredTensor], shape: tuple[int, int], attrs: Mapping[str, Attr]
) -> MadeTensor:
    return MadeTensor(name=f"{module}.weight", method=method, parts=parts, dtype=DTYPE, shape=shape, attrs=attrs)
