"""What the sampled head takes of each row of a step, as arrays: for every executor that walks launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.runtime.executor import Row
from cacheir.runtime.slots import Slots


def sampling_arrays(rows: Sequence[Row], slots: Slots) -> dict[str, NDArray[Any]]:
    """All but the masks, [R] each: temperature, top_p, min_p f32, top_k, position, draw i32, seed u64."""
    given = [slots.of(row).sampling for row in rows]
    return {
        "temperature": np.array([p.temperature if p else 0.0 for p in given], np.float32),
        "top_k": np.array([p.top_k if p else 0 for p in given], np.int32),
        "top_p": np.array([p.top_p if p else 1.0 for p in given], np.float32),
        "min_p": np.array([p.min_p if p else 0.0 for p in given], np.float32),
        "seed": np.array([(p.seed if p else None) or 0 for p in given], np.uint64),
        "position": np.array([row.position + max(1, len(row.tokens)) - 1 for row in rows], np.int32),
        "draw": np.array([row.draw for row in rows], np.int32),
    }


def sampled_head_inputs(rows: Sequence[Row], slots: Slots, mask_words: int) -> dict[str, NDArray[Any]]:
    """``sampling_arrays`` and the masks, u32 [R, mask_words]: a row without a mask may take every token."""
    everything = np.full(mask_words, 0xFFFFFFFF, np.uint32)
    masks = np.array([everything if row.mask is None else row.mask for row in rows], np.uint32)
    return {**sampling_arrays(rows, slots), "mask": masks}
