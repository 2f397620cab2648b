"""Activation-aware scaling: input channels that carry much grow before they are rounded, and what feeds them shrinks.

Lin et al., "AWQ: Activation-aware Weight Quantization" (arXiv 2306.00978). A matrix W fed with x computes the same as
W diag(s) fed with x / s; the division goes into what makes x, so that nothing is computed at run time. Where x is
normed, that is the norm's weight; where it is the attention's mixture of values, the rows of the value projection; in a
gated feed-forward, the rows of the up projection. s is the mean size of each channel to a power, the power the best of
a few by the error of the product over rows that a text brings. Then each group's range shrinks where that makes the
error of its own part of the product smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacheir.formats.quant_array import QuantArray
from cacheir.plugins import QuantFormatSpec
from cacheir.quantisers.calibration import CalibratedLayer

F32 = NDArray[np.float32]
Formats = Mapping[str, QuantFormatSpec]
Weights = dict[str, F32]

_POWERS = tuple(step / 10 for step in range(10))
_SHRINKS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
# Queries and keys meet in a product of their own, where an error counts for more than its size says.
_NOT_SHRUNK = frozenset({"attn.q", "attn.k"})
_LEAST_SIZE = np.float32(1e-4)


def scale_by_activations(layer: CalibratedLayer, formats: Formats) -> dict[str, F32]:
    """Other weights by part, f32: the matrices in ``formats``, and the norms and biases that change with them.

    Together they compute what the layer's own compute, up to rounding; the matrices round better. A matrix that nothing
    is known about, as those of experts, stays as it is.
    """
    weights = dict(layer.weights)
    for group in _GROUPS:
        parts = [part for part in group.matrices if part in weights]
        known = parts and all(part in layer.inputs for part in parts)
        if not known or not all(part in formats for part in (*parts, *group.folded)):
            continue
        seen = layer.inputs[parts[0]]
        sizes = group.shared(layer, seen.mean_size)
        scale = _best_scale([weights[part] for part in parts], seen.rows, sizes, [formats[part] for part in parts])
        group.fold(layer, weights, scale)
        for part in parts:
            weights[part] = weights[part] * scale
            if part not in _NOT_SHRUNK:
                weights[part] = _shrunk(weights[part], seen.rows / scale, formats[part])
    return {part: array for part, array in weights.items() if array is not layer.weights[part]}


@dataclass(frozen=True)
class _Group:
    """Matrices fed with one thing. ``fold`` divides what makes it, ``folded`` are the matrices that it changes for
    that; ``shared`` makes sizes equal that must have one scale.
    """

    matrices: tuple[str, ...]
    folded: tuple[str, ...]
    fold: Callable[[CalibratedLayer, Weights, F32], None]
    shared: Callable[[CalibratedLayer, F32], F32] = lambda layer, sizes: sizes


def _norm(part: str) -> Callable[[CalibratedLayer, Weights, F32], None]:
    def fold(layer: CalibratedLayer, weights: Weights, scale: F32) -> None:
        offset = np.float32(layer.norm_offset)
        weights[part] = (weights[part] + offset) / scale - offset

    return fold


def _rows_of(part: str, layer: CalibratedLayer, weights: Weights, scale: F32) -> None:
    weights[part] = weights[part] / scale[:, None]
    if f"{part}_bias" in weights:
        weights[f"{part}_bias"] = weights[f"{part}_bias"] / scale


def _fold_values(layer: CalibratedLayer, weights: Weights, scale: F32) -> None:
    _rows_of("attn.v", layer, weights, _by_kv_head(layer, scale)[:, 0].reshape(-1))


def _fold_up(layer: CalibratedLayer, weights: Weights, scale: F32) -> None:
    _rows_of("ffn.up", layer, weights, scale)


def _by_kv_head(layer: CalibratedLayer, channels: F32) -> F32:
    """Channels of all query heads as [kv_heads, query heads of one, head_dim]."""
    return channels.reshape(layer.spec.kv_heads, -1, layer.spec.head_dim)


def _shared_by_kv_head(layer: CalibratedLayer, sizes: F32) -> F32:
    grouped = _by_kv_head(layer, sizes)
    return np.broadcast_to(grouped.mean(axis=1, keepdims=True), grouped.shape).reshape(-1)


# What a matrix makes is scaled before what it is fed with, since scaling the one changes the rows of the other.
_GROUPS = (
    _Group(("attn.o",), ("attn.v",), _fold_values, _shared_by_kv_head),
    _Group(("ffn.down",), ("ffn.up",), _fold_up),
    _Group(("attn.q", "attn.k", "attn.v"), (), _norm("attn_norm")),
    _Group(("ffn.gate", "ffn.up"), (), _norm("ffn_norm")),
)


def _best_scale(matrices: list[F32], rows: F32, sizes: F32, formats: list[QuantFormatSpec]) -> F32:
    """The scale f32 [in] with the least error of the matrices' products with ``rows``; 1 where nothing is better."""
    best, least = np.ones_like(sizes), np.inf
    for power in _POWERS:
        scale = np.maximum(sizes, _LEAST_SIZE) ** np.float32(power)
        scale /= np.sqrt(scale.max() * scale.min())
        error = 0.0
        for matrix, format in zip(matrices, formats):
            rounded = QuantArray.quantize(matrix * scale, format).dense()
            rounded /= scale
            rounded -= matrix
            error += float(np.square(rows @ rounded.T).sum(dtype=np.float64))
        if error < least:
            best, least = scale, error
    return best


def _shrunk(matrix: F32, rows: F32, format: QuantFormatSpec) -> F32:
    """``matrix`` with the elements of each group cut to the range in which its part of the product errs least."""
    count, columns = matrix.shape
    if format.block == 0 or columns % format.block:
        return matrix
    groups = matrix.reshape(count, -1, format.block)
    fed = rows.reshape(len(rows), -1, format.block).transpose(1, 0, 2)
    products = fed.transpose(0, 2, 1) @ fed  # [groups, block, block]: sums of x x^T
    low, high = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
    best, least = groups, _errors(groups, groups, products, format)
    for shrink in _SHRINKS:
        tried = np.clip(groups, low * np.float32(shrink), high * np.float32(shrink))
        errors = _errors(tried, groups, products, format)
        better = errors < least
        best = np.where(better[:, :, None], tried, best)
        least = np.minimum(errors, least)
    return best.reshape(count, columns)


def _errors(tried: F32, wanted: F32, products: F32, format: QuantFormatSpec) -> F32:
    """The squared error of each group's part of the product once ``tried`` is rounded, f32 [rows, groups]."""
    difference = QuantArray.quantize(tried.reshape(len(tried), -1), format).dense().reshape(tried.shape)
    difference -= wanted
    by_group = difference.transpose(1, 0, 2)
    errors: F32 = ((by_group @ products) * by_group).sum(axis=2).T
    return errors
