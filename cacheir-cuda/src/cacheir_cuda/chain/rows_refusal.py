"""Whether the kernels for several rows are compiled for a chain, and which they are."""

from __future__ import annotations

from cacheir_cuda.chain import rows_attention_tiles, rows_tiles
from cacheir_cuda.chain.recognise import Chain


def why_not_rows(chain: Chain) -> str:
    """Why no kernels for several rows are compiled for ``chain``, "" where they are."""
    for name, shape in chain.matrices.items():
        if rows_tiles.rows_tile(shape, rows_tiles.BUCKETS[-1]) is None:
            return f"no {name} kernel for several rows is compiled for a matrix of {shape[1]} x {shape[2]}"
    if chain.attention not in rows_attention_tiles.ATTENTIONS:
        return "no attention kernel for several rows is compiled for its heads"
    if chain.hidden not in rows_tiles.HEADS or chain.vocabulary % 16:
        return f"no head kernel for several rows is compiled for {chain.vocabulary} x {chain.hidden}"
    return ""


def rows_note(chain: Chain) -> dict[str, object]:
    """For the plan: the kernels of a layer and the head by the most rows that they take, or why there are none."""
    reason = why_not_rows(chain)
    if reason:
        return {"rows_refused": reason}

    def kernels(rows: int) -> list[str]:
        made = []
        for name, shape in chain.matrices.items():
            tile = rows_tiles.parts_tile(shape, rows) or rows_tiles.rows_tile(shape, rows)
            made += [tile.kernel(shape[2])] if tile is not None else []
            made += [rows_attention_tiles.attention_kernel(chain.attention, rows)] if name == "qkv" else []
        return [*made, rows_tiles.head_kernel(chain.hidden, rows)]

    return {"rows": {str(rows): kernels(rows) for rows in rows_tiles.BUCKETS}}
