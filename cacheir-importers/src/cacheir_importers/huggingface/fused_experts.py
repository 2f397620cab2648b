"""Experts that a folder stores as two tensors a layer, read as one matrix an expert: views, nothing is copied.

transformers 5 holds the experts of Mixtral, Qwen2-MoE and Qwen3-MoE so, and writes them so where ``save_pretrained``
is told ``save_original_format=False``: ``mlp.experts.gate_up_proj`` [count, 2 * width, hidden], whose rows of an expert
are first gate's and then up's, and ``mlp.experts.down_proj`` [count, hidden, width]. The router is ``mlp.gate`` there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cacheir.errors import MalformedModelError
from cacheir.models.decoder_spec import DecoderSpec
from cacheir_importers.weight_table import StoredTensor

_PARTS = {"gate": ("gate_up_proj", 0, 2), "up": ("gate_up_proj", 1, 2), "down": ("down_proj", 0, 1)}


def with_single_experts(
    spec: DecoderSpec, names: Mapping[str, str], tensors: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """``tensors`` and, under the names that single matrices have, the parts of those that hold all experts of a layer.

    Raises MalformedModelError for such a tensor of another number of experts, or of rows that are not two matrices'.
    """
    found = dict(tensors)
    for number, layer in enumerate(spec.layers):
        prefix = f"model.layers.{number}.mlp"
        if layer.experts is None or f"{prefix}.experts.gate_up_proj" not in tensors:
            continue
        keys = {f"layers.{number}.ffn.router": tensors.get(f"{prefix}.gate.weight")}
        for matrix, (fused, place, of) in _PARTS.items():
            tensor = tensors.get(f"{prefix}.experts.{fused}")
            if tensor is not None and tensor.file:  # what is made of packed parts lies nowhere
                for expert, view in enumerate(_views(tensor, layer.experts.count, place, of)):
                    keys[f"layers.{number}.ffn.experts.{expert}.{matrix}"] = view
        for key, part in keys.items():
            if part is not None and key in names:
                found.setdefault(names[key], part)
    return found


def _views(tensor: StoredTensor, count: int, place: int, of: int) -> Iterator[StoredTensor]:
    """The ``place``-th of ``of`` equal parts of the rows of each expert."""
    if len(tensor.shape) != 3 or tensor.shape[0] != count or tensor.shape[1] % of:
        raise MalformedModelError(
            f"{tensor.file}: tensor {tensor.name!r} has the shape {list(tensor.shape)}, and the configuration says"
            f" {count} experts of {of} matrices each"
        )
    nbytes, shape = tensor.nbytes // (count * of), (tensor.shape[1] // of, tensor.shape[2])
    for expert in range(count):
        yield replace(tensor, offset=tensor.offset + (expert * of + place) * nbytes, nbytes=nbytes, shape=shape)
