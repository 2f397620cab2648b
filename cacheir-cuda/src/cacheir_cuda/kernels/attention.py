"""Grouped-query attention over pages in torch (Ainslie et al. 2023, arXiv:2305.13245): gathered pages, or SDPA."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from cacheir_cuda.pool import Pool


def kv_append(kv: Pool, k: Tensor, v: Tensor, slots: Tensor, *, layer: int) -> Pool:
    """kv, k and v [T, K, D], slots [T] -> kv, changed in place; a negative slot's token goes to the page of nobody."""
    at = slots.long()
    page = torch.where(at < 0, kv.pages, at.div(kv.page_tokens, rounding_mode="floor"))
    offset = at.remainder(kv.page_tokens)
    kv.put(layer, page, 0, offset, k)
    kv.put(layer, page, 1, offset, v)
    return kv


def paged_attention_decode(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    positions: Tensor,
    lengths: Tensor,
    *,
    layer: int,
    scale: float,
    window: int,
    softcap: float = 0.0,
    sinks: int = 0,
    out: Tensor,
) -> None:
    """q [T, N, D], page_table [T, M], positions [T], lengths [T] -> out [T, N, D]; one query a row.

    Every row gathers its whole page table, so that no length has to be known on the host.
    """
    keys, values, at = _gather(kv, layer, page_table)
    seen = _visible(at, positions[:, None], window, sinks)
    _attend(q[:, None], keys, values, seen[:, None], scale, softcap, out[:, None])


def paged_attention_prefill(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    row_starts: Tensor,
    positions: Tensor,
    lengths: Tensor,
    *,
    layer: int,
    scale: float,
    window: int,
    softcap: float = 0.0,
    sinks: int = 0,
    out: Tensor,
) -> None:
    """q [T, N, D], page_table [B, M], row_starts [B + 1], positions [T], lengths [B] -> out [T, N, D], causal."""
    for row, begin, end, length in _rows(kv, row_starts, lengths):
        table = page_table[row : row + 1, : -(-length // kv.page_tokens)]
        keys, values, at = _gather(kv, layer, table)
        seen = _visible(at, positions[begin:end, None], window, sinks)
        _attend(q[None, begin:end], keys, values, seen[None], scale, softcap, out[None, begin:end])


def paged_attention_prefill_sdpa(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    row_starts: Tensor,
    positions: Tensor,
    lengths: Tensor,
    *,
    layer: int,
    scale: float,
    window: int,
    out: Tensor,
) -> None:
    """As ``paged_attention_prefill`` without a window, by torch's SDPA in the pool's type: flash where it can be."""
    for row, begin, end, length in _rows(kv, row_starts, lengths):
        table = page_table[row : row + 1, : -(-length // kv.page_tokens)]
        keys, values, at = _gather(kv, layer, table, length)
        query = q[None, begin:end].transpose(1, 2).to(keys.dtype)
        whole = end - begin == length  # the prompt from its start: no mask has to be made
        seen = None if whole else _visible(at, positions[begin:end, None], 0)
        mixed = scaled_dot_product_attention(
            query,
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=seen,
            is_causal=whole,
            scale=scale,
            enable_gqa=True,
        )
        out[begin:end].copy_(mixed[0].transpose(0, 1))


def gathered_rows(
    kv: Pool, layer: int, page_table: Tensor, row_starts: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, list[int]]:
    """Keys and values [S, K, D] of all rows that have tokens, one behind the other, and how many each has."""
    counts = [length for _, _, _, length in _rows(kv, row_starts, lengths)]
    rows = [gathered_row(kv, layer, page_table[row], length) for row, _, _, length in _rows(kv, row_starts, lengths)]
    keys, values = (torch.cat([row[part] for row in rows]) for part in (0, 1))
    return keys, values, counts


def gathered_row(kv: Pool, layer: int, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values [length, K, D] of the row whose pages ``table`` [M] lists."""
    keys, values, _ = _gather(kv, layer, table[None, : -(-length // kv.page_tokens)], length)
    return keys[0], values[0]


def _rows(kv: Pool, row_starts: Tensor, lengths: Tensor) -> list[tuple[int, int, int, int]]:
    """(row, first token, last token + 1, keys) of each row that has tokens."""
    bounds = row_starts.tolist() if kv.row_starts is None else kv.row_starts
    counts = lengths.tolist() if kv.lengths is None else kv.lengths
    spans = zip(range(len(counts)), bounds, bounds[1:], counts)
    return [span for span in spans if span[1] < span[2]]


def _gather(kv: Pool, layer: int, table: Tensor, length: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """table [B, M] -> keys and values [B, S, K, D], positions [S] of theirs; S is ``length`` or whole pages.

    A freed page, -1, is that of nobody here: it lies at the end.
    """
    pages = kv.take(layer, table.long())  # [B, M, 2, K, P, D]
    rows, count, _, heads, page_tokens, head_dim = pages.shape
    both = pages.permute(2, 0, 1, 4, 3, 5).reshape(2, rows, count * page_tokens, heads, head_dim)[:, :, :length]
    return both[0], both[1], torch.arange(both.shape[2], dtype=torch.int32, device=table.device)


def _visible(at: Tensor, positions: Tensor, window: int, sinks: int = 0) -> Tensor:
    """at [S], positions [Q, 1] -> bool [Q, S]: no later key, and with a window those in it or the sinks."""
    seen = at <= positions
    return seen & ((at > positions - window) | (at < sinks)) if window else seen


def _attend(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float, softcap: float, out: Tensor) -> None:
    """q [B, Q, N, D], keys and values [B, S, K, D], seen [B, Q, S] -> out [B, Q, N, D], in float32."""
    batch, queries, heads, head_dim = q.shape
    grouped = (q * scale).reshape(batch, queries, keys.shape[2], -1, head_dim)
    scores = torch.einsum("bqkgd,bskd->bkgqs", grouped, keys.float())
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    hidden = ~seen[:, None, None]
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
    # A page may hold anything where nobody looks, NaN too, and 0 * NaN is NaN.
    looked_at = seen.any(dim=1)[:, :, None, None]
    mixed = torch.einsum("bkgqs,bskd->bqkgd", weights, values.float().masked_fill(~looked_at, 0))
    out.copy_(mixed.reshape(batch, queries, heads, head_dim))
