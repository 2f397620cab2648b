"""Grouped-query attention over pages (Ainslie et al. 2023, arXiv:2305.13245): softmax(q k * scale) v per head."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cacheir_cpu.pool import Pool, RowKeys

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

# Queries of a prompt that share one score matrix: bounds it to this many rows times the keys.
QUERY_BLOCK = 128


def kv_append(kv: Pool, k: F32, v: F32, slots: I32, *, layer: int) -> Pool:
    """kv, k and v [T, K, D], slots [T] -> kv, changed in place: the verifier proved that nobody reads the old one."""
    kv.append(layer, k, v, slots)
    return kv


def paged_attention_decode(
    q: F32,
    kv: Pool,
    page_table: I32,
    positions: I32,
    lengths: I32,
    *,
    layer: int,
    scale: float,
    window: int,
    softcap: float = 0.0,
    sinks: int = 0,
    out: F32,
) -> None:
    """q [T, N, D], page_table [T, M], positions [T], lengths [T] -> out [T, N, D]; one query a row."""
    for index, row in enumerate(kv.rows(page_table, lengths)):
        stop = int(positions[index]) + 1
        seen = row.part(_window_start(stop - 1, window), stop, sinks)
        _one_query(q[index], kv.keys(layer, seen), kv.values(layer, seen), scale, softcap, out[index])


def paged_attention_prefill(
    q: F32,
    kv: Pool,
    page_table: I32,
    row_starts: I32,
    positions: I32,
    lengths: I32,
    *,
    layer: int,
    scale: float,
    window: int,
    softcap: float = 0.0,
    sinks: int = 0,
    out: F32,
) -> None:
    """q [T, N, D], page_table [B, M], row_starts [B + 1], positions [T], lengths [B] -> out [T, N, D], causal."""
    for row, begin, end in _rows(kv, page_table, row_starts, lengths):
        keys, values, places = _all_seen(kv, layer, row, positions[begin:end], window, sinks)
        for start in range(begin, end, QUERY_BLOCK):
            block = slice(start, min(start + QUERY_BLOCK, end))
            columns = _columns(places, positions[block], window, sinks)
            part = keys[:, columns], values[:, columns], places[columns]
            _query_block(q[block], *part, positions[block], scale, window, sinks, softcap, out[block])


def paged_attention_prefill_invariant(
    q: F32,
    kv: Pool,
    page_table: I32,
    row_starts: I32,
    positions: I32,
    lengths: I32,
    *,
    layer: int,
    scale: float,
    window: int,
    softcap: float = 0.0,
    sinks: int = 0,
    out: F32,
) -> None:
    """q [T, N, D], page_table [B, M], row_starts [B + 1], positions [T], lengths [B] -> out [T, N, D], causal.

    One query at a time over just its own keys, which is what decoding does.
    """
    for row, begin, end in _rows(kv, page_table, row_starts, lengths):
        keys, values, places = _all_seen(kv, layer, row, positions[begin:end], window, sinks)
        for index in range(begin, end):
            columns = _columns(places, positions[index : index + 1], window, sinks)
            _one_query(q[index], keys[:, columns], values[:, columns], scale, softcap, out[index])


def _rows(kv: Pool, page_table: I32, row_starts: I32, lengths: I32) -> Iterator[tuple[RowKeys, int, int]]:
    """Where the keys of each row that has tokens lie, its first token and its last + 1."""
    bounds = row_starts.tolist()
    for index, row in enumerate(kv.rows(page_table, lengths)):
        if bounds[index] < bounds[index + 1]:
            yield row, bounds[index], bounds[index + 1]


def _all_seen(
    kv: Pool, layer: int, row: RowKeys, positions: I32, window: int, sinks: int
) -> tuple[F32, F32, NDArray[np.int32]]:
    """Keys and values [K, S, D] that any of a row's tokens at ``positions`` sees, and the positions [S] of these."""
    start, stop = _window_start(int(positions[0]), window), int(positions[-1]) + 1
    seen = row.part(start, stop, sinks)
    places = np.arange(start, stop, dtype=np.int32)
    if seen.length > len(places):
        places = np.concatenate([np.arange(seen.length - len(places), dtype=np.int32), places])
    return kv.keys(layer, seen), kv.values(layer, seen), places


def _columns(places: I32, positions: I32, window: int, sinks: int) -> slice | I32:
    """Which of ``places`` some of ``positions`` see; all that lie between the first and the last of them do."""
    start, stop = np.searchsorted(places, (_window_start(int(positions[0]), window), int(positions[-1]) + 1))
    if start <= sinks:
        return slice(0, stop)
    return np.concatenate([np.arange(sinks), np.arange(start, stop)]) if sinks else slice(start, stop)


def _window_start(position: int, window: int) -> int:
    return max(0, position + 1 - window) if window else 0


def _cap(scores: F32, softcap: float) -> None:
    """Scores s become softcap * tanh(s / softcap), in place; 0 leaves them."""
    if softcap:
        scores /= np.float32(softcap)
        np.tanh(scores, out=scores)
        scores *= np.float32(softcap)


def _softmax(scores: F32) -> None:
    """Scores [..., S] become their softmax over S, in place; -inf counts for nothing."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)


def _one_query(q: F32, keys: F32, values: F32, scale: float, softcap: float, out: F32) -> None:
    kv_heads, head_dim = keys.shape[0], keys.shape[2]
    query = (q * np.float32(scale)).reshape(kv_heads, -1, head_dim)
    scores = np.matmul(query, keys.transpose(0, 2, 1))
    _cap(scores, softcap)
    _softmax(scores)
    out[...] = np.matmul(scores, values).reshape(out.shape)


def _query_block(
    q: F32,
    keys: F32,
    values: F32,
    places: I32,
    positions: I32,
    scale: float,
    window: int,
    sinks: int,
    softcap: float,
    out: F32,
) -> None:
    tokens, heads, head_dim = q.shape
    kv_heads, seen = keys.shape[:2]
    # [K, G * T, D]: the queries of all heads that read one key head are rows of one product.
    query = (q * np.float32(scale)).reshape(tokens, kv_heads, heads // kv_heads, head_dim).transpose(1, 2, 0, 3)
    scores = np.matmul(query.reshape(kv_heads, -1, head_dim), keys.transpose(0, 2, 1))
    scores = scores.reshape(kv_heads, heads // kv_heads, tokens, seen)
    _cap(scores, softcap)
    hidden = places > positions[:, None]
    if window:
        hidden |= (places <= positions[:, None] - window) & (places >= sinks)
    scores[:, :, hidden] = -np.inf
    _softmax(scores)
    mixed = np.matmul(scores.reshape(kv_heads, -1, seen), values)
    out[...] = mixed.reshape(kv_heads, heads // kv_heads, tokens, head_dim).transpose(2, 0, 1, 3).reshape(out.shape)
