"""Attention in primitives: masked softmax, over the step's own tokens or over gathered pages."""

from __future__ import annotations

from cacheir.ir.dims import Dim
from cacheir.ir.graph import Graph, Op, Value
from cacheir.ops.compose import Composer, dtype_of, shape_of


def grouped_query_attention(op: Op) -> Graph:
    """Scores of all pairs of tokens; the mask keeps a token to its own row, to what is not later, to the window."""
    composer = Composer(op)
    q, k, v, positions, row_starts = composer.params
    tokens, heads, head_dim = shape_of(q)
    kv_heads = shape_of(k)[1]
    rows = _row_of_token(composer, tokens, row_starts)
    same_row = composer.emit(
        "compare", composer.reshape(rows, tokens, 1), composer.reshape(rows, 1, tokens), direction="eq"
    )
    seen = _seen(composer, composer.reshape(positions, tokens, 1), composer.reshape(positions, 1, tokens))
    mask = composer.emit("logical_and", same_row, seen)
    keys = composer.reshape(composer.transpose(composer.working(k), 1, 2, 0), kv_heads, 1, head_dim, tokens)
    values = composer.reshape(composer.transpose(composer.working(v), 1, 0, 2), kv_heads, 1, tokens, head_dim)
    out = _attend(composer, _by_group(composer, q, kv_heads), keys, values, mask)
    merged = composer.reshape(composer.transpose(out, 2, 0, 1, 3), tokens, heads, head_dim)
    return composer.graph(composer.cast(merged, dtype_of(q)))


def paged_attention_prefill(op: Op) -> Graph:
    """Every token against the keys of every row, of which the mask leaves its own; the others' results are 0."""
    composer = Composer(op)
    q, kv, page_table, row_starts, positions, lengths = composer.params
    tokens, heads, head_dim = shape_of(q)
    batch = shape_of(page_table)[0]
    k, v, keys_size = _gather(composer, kv, page_table, lengths)
    kv_heads = shape_of(k)[2]
    row = _row_of_token(composer, tokens, row_starts)
    own = composer.emit(
        "compare", composer.reshape(row, 1, tokens, 1), _count(composer, batch, batch, 1, 1), direction="eq"
    )
    place = _count(composer, keys_size, 1, 1, keys_size)
    stored = composer.emit("compare", place, composer.reshape(lengths, batch, 1, 1), direction="lt")
    seen = _seen(composer, composer.reshape(positions, 1, tokens, 1), place)
    mask = composer.emit("logical_and", composer.emit("logical_and", own, stored), seen)
    mask = composer.reshape(mask, batch, 1, 1, tokens, keys_size)
    group = _by_group(composer, q, kv_heads)
    group = composer.reshape(group, 1, *shape_of(group))
    keys = composer.reshape(composer.transpose(k, 0, 2, 3, 1), batch, kv_heads, 1, head_dim, keys_size)
    values = composer.reshape(composer.transpose(v, 0, 2, 1, 3), batch, kv_heads, 1, keys_size, head_dim)
    out = _attend(composer, group, keys, values, mask)
    # Not a sum alone: 0 times another row's NaN would be NaN.
    own = composer.reshape(own, batch, 1, 1, tokens, 1)
    out = composer.emit("select", own, out, composer.constant(dtype_of(out), 0.0))
    out = composer.emit("reduce", out, kind="sum", axes=(0,))
    merged = composer.reshape(composer.transpose(out, 2, 0, 1, 3), tokens, heads, head_dim)
    return composer.graph(composer.cast(merged, dtype_of(q)))


def paged_attention_decode(op: Op) -> Graph:
    """One token a row against its own row's keys."""
    composer = Composer(op)
    q, kv, page_table, positions, lengths = composer.params
    batch, heads, head_dim = shape_of(q)
    k, v, keys_size = _gather(composer, kv, page_table, lengths)
    kv_heads = shape_of(k)[2]
    place = _count(composer, keys_size, 1, keys_size)
    stored = composer.emit("compare", place, composer.reshape(lengths, batch, 1), direction="lt")
    seen = _seen(composer, composer.reshape(positions, batch, 1), place)
    mask = composer.reshape(composer.emit("logical_and", stored, seen), batch, 1, 1, keys_size)
    group = composer.reshape(composer.working(q), batch, kv_heads, heads.constant // kv_heads.constant, head_dim)
    out = _attend(composer, group, composer.transpose(k, 0, 2, 3, 1), composer.transpose(v, 0, 2, 1, 3), mask)
    return composer.graph(composer.cast(composer.reshape(out, batch, heads, head_dim), dtype_of(q)))


def _gather(composer: Composer, kv: Value, page_table: Value, lengths: Value) -> tuple[Value, Value, Dim]:
    """Keys and values [B, S, K, D], and S."""
    name = composer.new_size("S")
    k, v = composer.emit("kv_gather", kv, page_table, lengths, layer=composer.attrs["layer"], keys=name)
    return k, v, shape_of(k)[1]


def _by_group(composer: Composer, q: Value, kv_heads: Dim) -> Value:
    """Queries [T, N, D] as [K, N / K, T, D]: query head n reads key/value head n // (N / K)."""
    tokens, heads, head_dim = shape_of(q)
    groups = composer.reshape(composer.working(q), tokens, kv_heads, heads.constant // kv_heads.constant, head_dim)
    return composer.transpose(groups, 1, 2, 0, 3)


def _attend(composer: Composer, q: Value, keys: Value, values: Value, mask: Value) -> Value:
    """softmax(q @ keys * scale, mask) @ values; q [..., T, D], keys [..., D, S], values [..., S, D]."""
    dtype = dtype_of(q)
    scores = composer.emit("matmul", q, composer.cast(keys, dtype))
    scaled = composer.emit("multiply", scores, composer.constant(dtype, composer.attrs["scale"]))
    if "softcap" in composer.attrs:
        cap = composer.constant(dtype, composer.attrs["softcap"])
        scaled = composer.emit("multiply", composer.emit("tanh", composer.emit("divide", scaled, cap)), cap)
    weights = composer.emit("softmax", scaled, mask, axis=-1)
    out: Value = composer.emit("matmul", weights, composer.cast(values, dtype))
    return out


def _seen(composer: Composer, position: Value, key_position: Value) -> Value:
    """Whether a token at ``position`` sees a key at ``key_position``: not later, and within the window or the sinks."""
    seen: Value = composer.emit("compare", key_position, position, direction="le")
    window = composer.attrs["window"]
    if window:
        last_hidden = composer.emit("subtract", position, composer.constant("i32", window))
        near = composer.emit("compare", key_position, last_hidden, direction="gt")
        if "sinks" in composer.attrs:
            sinks = composer.constant("i32", composer.attrs["sinks"])
            near = composer.emit("logical_or", near, composer.emit("compare", key_position, sinks, direction="lt"))
        seen = composer.emit("logical_and", seen, near)
    return seen


def _row_of_token(composer: Composer, tokens: Dim, row_starts: Value) -> Value:
    """i32 [T]: how many rows end at or before each token, which is the number of its own row."""
    starts = shape_of(row_starts)[0]
    ends = composer.reshape(composer.slice(row_starts, 0, 1, starts), 1, starts - 1)
    over = composer.emit("compare", ends, _count(composer, tokens, tokens, 1), direction="le")
    counted: Value = composer.emit("reduce", composer.cast(over, "i32"), kind="sum", axes=(1,))
    return counted


def _count(composer: Composer, size: Dim, *shape: Dim | int) -> Value:
    """0 to size - 1 as an i32 tensor of ``shape``, whose other axes are 1."""
    counted: Value = composer.reshape(composer.emit("iota", shape=(str(size),), axis=0, dtype="i32"), *shape)
    return counted
