"""Pairs of ops as the two ops that they stand for."""

from __future__ import annotations

from cacheir.ir.graph import Graph, Op
from cacheir.ops.compose import Composer


def rms_norm_pair(op: Op) -> Graph:
    """Two norms."""
    composer = Composer(op)
    a, b, weight_a, weight_b = composer.params
    eps = composer.attrs["eps"]
    return composer.graph(
        composer.emit("rms_norm", a, weight_a, eps=eps), composer.emit("rms_norm", b, weight_b, eps=eps)
    )


def rope_pair(op: Op) -> Graph:
    """Two rotations."""
    composer = Composer(op)
    a, b, cos, sin = composer.params
    layout = composer.attrs["layout"]
    return composer.graph(
        composer.emit("rope", a, cos, sin, layout=layout), composer.emit("rope", b, cos, sin, layout=layout)
    )
