"""Reference kernels on the KV state."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.reference.elementwise import OutTypes
from cacheir.reference.kv_pool import KVPool


def kv_append(
    kv: KVPool, k: NDArray[Any], v: NDArray[Any], slots: NDArray[np.int32], out_types: OutTypes, layer: int
) -> KVPool:
    """The pool itself, changed: the state is linear, so nobody reads the older version."""
    kv.append(layer, k, v, slots)
    return kv


def kv_gather(
    kv: KVPool,
    page_table: NDArray[np.int32],
    lengths: NDArray[np.int32],
    out_types: OutTypes,
    layer: int,
    keys: str,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Keys and values f32 [B, max(lengths), K, D]."""
    return kv.gather(layer, page_table, lengths)
