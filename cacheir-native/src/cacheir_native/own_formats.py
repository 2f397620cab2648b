"""CacheIR's own formats as blocks that panels keep as they are: q4_1, q4_0, q8_0, or bf16 for fp8.

A group of 64 or 128, or a row, becomes blocks of 32 that share its scale. Scales of panels are f16 and never in small
units: a weight that needs more than that is packed dense in f32, which is exact and takes 6 to 8 times the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cacheir.formats.quant_array import QuantArray

# Our format -> the format of its panels.
PANELS = {
    **{f"int4-g{size}": "q4_1" for size in (32, 64, 128)},
    **{f"int4-sym-g{size}": "q4_0" for size in (32, 64, 128)},
    **{f"int8-g{size}": "q8_0" for size in (32, 64, 128)},
    "int8": "q8_0",
    "fp8-e4m3": "bf16",
}
PANEL_BLOCK = 32


def why_no_panels(format: str, columns: int) -> str | None:
    """Why a weight of ``columns`` in one of our formats has no panels; None where it has."""
    if PANELS[format] != "bf16" and columns % PANEL_BLOCK:
        return f"its rows of {columns} are no whole blocks of {PANEL_BLOCK}"
    return None


def as_blocks(stored: QuantArray) -> tuple[str, Any] | None:
    """(format, C-contiguous bytes) that mean exactly what ``stored`` does; None where only f32 does."""
    name = stored.format.name
    if name == "fp8-e4m3":
        return _as_bf16(stored)
    return _row_as_blocks(stored) if name == "int8" else _groups_as_blocks(stored)


def _as_bf16(stored: QuantArray) -> tuple[str, Any]:
    """Four significant bits times a power of two are a bf16, if they are no smaller than its least normal number."""
    import numpy as np

    return "bf16", np.ascontiguousarray(stored.dense().view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def _row_as_blocks(stored: QuantArray) -> tuple[str, Any] | None:
    import numpy as np

    rows, columns = stored.shape
    scale = np.ascontiguousarray(stored.blocks[:, :4]).view(np.float32)
    half = scale.astype(np.float16)
    if not np.array_equal(half.astype(np.float32), scale):
        return None
    out = np.empty((rows, columns // PANEL_BLOCK, 2 + PANEL_BLOCK), np.uint8)
    out[:, :, :2] = half.view(np.uint8)[:, None, :]
    out[:, :, 2:] = stored.blocks[:, 4:].reshape(rows, -1, PANEL_BLOCK)
    return "q8_0", out


def _groups_as_blocks(stored: QuantArray) -> tuple[str, Any] | None:
    import numpy as np

    from cacheir.formats.groups import has_small_unit

    format = stored.format
    rows, columns = stored.shape
    groups = np.ascontiguousarray(stored.blocks).reshape(rows, -1, format.block_bytes)
    if has_small_unit(groups.reshape(-1, format.block_bytes)).any():
        return None
    panel = PANELS[format.name]
    if format.block == PANEL_BLOCK:
        return panel, groups
    header, runs = (4 if panel == "q4_1" else 2), format.block // PANEL_BLOCK
    code_bytes = (format.block_bytes - header) // runs
    out = np.empty((rows, groups.shape[1], runs, header + code_bytes), np.uint8)
    out[..., :header] = groups[:, :, None, :header]
    out[..., header:] = groups[:, :, header:].reshape(rows, groups.shape[1], runs, code_bytes)
    # A last group that is not full brings runs that lie behind the row's end.
    return panel, np.ascontiguousarray(out.reshape(rows, -1, header + code_bytes)[:, : columns // PANEL_BLOCK])
