"""A float twin: a decoder that computes what another one does, with weights that lie on no grid.

A model that came quantised is no baseline for quantisers: its weights are whole steps from one another, and rounding to
four bits may give them back exactly. The twin has the gains of its norms folded into the matrices that read them, and
pairs of channels of its residual stream turned by small angles, which every matrix at the stream turns along with.
Channels that stick out stay where they are, since the angles are small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cacheir.models.decoder_spec import DecoderSpec

F32 = NDArray[np.float32]

_DEGREES = (5.0, 15.0)
_ROUNDS = 2
# Matrices of a layer that read the residual stream after a norm, and those that write it.
_READERS = {"attn_norm": ("attn.q", "attn.k", "attn.v"), "ffn_norm": ("ffn.gate", "ffn.up")}
_WRITERS = ("attn.o", "ffn.down")


def float_twin(spec: DecoderSpec, weights: Mapping[str, F32], seed: int = 0) -> tuple[DecoderSpec, dict[str, F32]]:
    """The twin of a decoder of the standard block without experts and without norms after its parts.

    ``weights`` are by canonical key. The head is untied from the embedding. Logits are equal up to rounding in f32.
    """
    if any(layer.experts or layer.post_norms for layer in spec.layers):
        raise ValueError("a twin is made of decoders without experts and without norms after their parts")
    turn = rotation(spec.hidden, seed)
    twin = dict(weights)
    head = weights["embed"] if spec.tied_head else weights["head"]
    twin["embed"] = _f32(weights["embed"] @ turn)
    twin["head"] = _f32((head * _gain(spec, weights["norm"])) @ turn)
    twin["norm"] = _no_gain(spec)
    for number in range(len(spec.layers)):
        prefix = f"layers.{number}."
        for norm, matrices in _READERS.items():
            gain = _gain(spec, weights[prefix + norm])
            for matrix in matrices:
                twin[prefix + matrix] = _f32((weights[prefix + matrix] * gain) @ turn)
            twin[prefix + norm] = _no_gain(spec)
        for matrix in _WRITERS:
            twin[prefix + matrix] = _f32(turn.T @ weights[prefix + matrix])
            if (bias := f"{prefix}{matrix}_bias") in weights:
                twin[bias] = _f32(weights[bias] @ turn)
    return replace(spec, tied_head=False), twin


def rotation(size: int, seed: int) -> NDArray[np.float64]:
    """An orthogonal matrix [size, size]: seeded pairs of channels, each turned by 5 to 15 degrees, twice."""
    random = np.random.default_rng(seed)
    turn = np.eye(size)
    for _ in range(_ROUNDS):
        order = random.permutation(size)
        first, second = order[: size // 2], order[size // 2 : size // 2 * 2]
        angle = np.radians(random.uniform(*_DEGREES, len(first))) * random.choice([-1.0, 1.0], len(first))
        step = np.eye(size)
        step[first, first] = step[second, second] = np.cos(angle)
        step[first, second], step[second, first] = np.sin(angle), -np.sin(angle)
        turn = turn @ step
    return turn


def _gain(spec: DecoderSpec, norm: F32) -> NDArray[np.float64]:
    return norm.astype(np.float64) + spec.norm_offset


def _no_gain(spec: DecoderSpec) -> F32:
    return np.full(spec.hidden, 1.0 - spec.norm_offset, np.float32)


def _f32(array: NDArray[np.floating]) -> F32:
    return np.ascontiguousarray(array, np.float32)
