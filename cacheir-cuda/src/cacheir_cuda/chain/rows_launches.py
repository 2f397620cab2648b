"""One step of several rows as launches of the CUDA C++ kernels: buffers on the device, and each kernel's arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import e as EULER
from math import log2
from typing import Any

import torch

from cacheir_cuda.chain import rows_arguments as arguments
from cacheir_cuda.chain import rows_attention_tiles, rows_tiles, tiles
from cacheir_cuda.chain.launches import ChainBuffers, ChainWeights, KernelLaunch
from cacheir_cuda.chain.recognise import Chain
from cacheir_cuda.pool import Pool


@dataclass(frozen=True)
class RowsInputs:
    """What a step is given, i32 on the device: ``tokens``, ``positions``, ``slots`` [R], ``page_table`` [sequences, M].

    ``row_starts`` [sequences + 1] says which rows are a prompt's; None: each row is a sequence of its own (decode).
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    page_table: torch.Tensor
    row_starts: torch.Tensor | None = None

    @property
    def count(self) -> int:
        """Rows of the step."""
        return len(self.tokens)


class RowsBuffers:
    """What the kernels read and write beside weights, pages and inputs, for up to ``rows`` rows.

    ``hidden`` f32 [R, H] and ``normed`` bf16 [R, H] (hidden times the next norm's weights, tiled) are the rows after a
    step; ``squares`` f32 [R, parts], as many parts as the kernel leaves that wrote them, add up to the squares of each.
    ``qkv`` f32 [R, N]; where QKV leaves sums apart they are in ``qkv_parts`` [R, split, N], without scale and bias.
    """

    def __init__(self, chain: Chain, device: torch.device, max_seq: int, rows: int = rows_tiles.BUCKETS[-1]) -> None:
        def floats(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        def narrow(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.bfloat16, device=device)

        wide, hidden = chain.heads * tiles.HEAD_DIM, chain.hidden
        self.hidden, self.middle = floats(rows, hidden), floats(rows, hidden)
        self.normed, self.middle_normed = narrow(rows, hidden), narrow(rows, hidden)
        self.squares, self.middle_squares = floats(rows * hidden // 4), floats(rows * hidden // 4)
        self.qkv = floats(rows, (chain.heads + 2 * chain.kv_heads) * tiles.HEAD_DIM)
        parts = max([each[-1] for each in rows_tiles.PARTS.get(chain.matrices["qkv"], {}).values()], default=0)
        self.qkv_parts = floats(rows, parts * self.qkv.shape[1])
        self.attended, self.gated = narrow(rows, wide), narrow(rows, chain.feed_forward)
        self.best = floats(rows, 2 * rows_tiles.MULTIPROCESSORS)
        self.best_id = torch.zeros((rows, 2 * rows_tiles.MULTIPROCESSORS), dtype=torch.int32, device=device)
        self.turns = ChainBuffers.turns_of(chain, device, max_seq)


class RowsStep:
    """The launches of a step. ``pool`` are the KV pages in bfloat16."""

    def __init__(self, chain: Chain, weights: ChainWeights, buffers: RowsBuffers, pool: Pool) -> None:
        self._chain, self._weights, self.buffers, self._pool = chain, weights, buffers, pool
        self._layers = [weights.layer(number) for number in range(len(chain.layers))]
        for layer in range(len(self._layers)):  # made now, not in the first step
            for name in chain.matrices:
                for rows in rows_tiles.BUCKETS:
                    self._matrix(name, layer, rows)

    def squares(self, name: str, count: int) -> int:
        """How many parts of each row's sum of squares the product ``name`` leaves in a step of ``count`` rows."""
        shape = self._chain.matrices[name]
        return self._tile(name, count).squares(shape[1])

    def begin(self, inputs: RowsInputs) -> KernelLaunch:
        """Takes the embeddings of the step's tokens as its rows."""
        return KernelLaunch(rows_tiles.BEGIN, inputs.count, rows_tiles.BEGIN_THREADS, 0, self._begin(inputs))

    def layers(self, inputs: RowsInputs, step: int = 0) -> Iterator[KernelLaunch]:
        """All layers; ``step`` of a graph of several, whose ``inputs`` are those of its first."""
        for number in range(len(self._layers)):
            yield from self._layer(number, inputs, step)

    def head(self, count: int) -> KernelLaunch:
        """The candidates of each row for the greedy token."""
        chain, buffers = self._chain, self.buffers
        rows = bucket_of(count)
        return KernelLaunch(
            rows_tiles.head_kernel(chain.hidden, rows), rows_tiles.MULTIPROCESSORS, rows_tiles.HEAD_THREADS,
            rows_tiles.head_shared_bytes(chain.hidden, rows),
            arguments.RowsHead(
                weights=_at(self._weights.head), rows=_at(buffers.normed), squares=_at(buffers.squares),
                best=_at(buffers.best), best_id=_at(buffers.best_id), vocabulary=chain.vocabulary,
                square_count=self.squares("down", count), eps=chain.eps,
            ),
        )  # fmt: skip

    def advance(
        self,
        inputs: RowsInputs,
        ring: torch.Tensor,
        produced: torch.Tensor,
        step: int,
        steps: int,
        stops: torch.Tensor | None = None,
    ) -> KernelLaunch:
        """Each row's token to ``ring`` i32 [*, R] (pinned) and to the step after; the last of ``steps`` moves on.

        ``stops`` i32 [R, STOP_WORDS]: where answers end, None where all rows go on.
        """
        buffers, table = self.buffers, inputs.page_table
        return KernelLaunch(
            rows_tiles.ADVANCE, inputs.count, rows_tiles.BEGIN_THREADS, 0,
            arguments.RowsAdvance(
                begin=self._begin(inputs), best=_at(buffers.best), best_id=_at(buffers.best_id),
                tokens=_at(inputs.tokens), ring=_at(ring), positions=_at(inputs.positions), slots=_at(inputs.slots),
                produced=_at(produced), stops=_at(stops), page_table=_at(table), blocks=self.head(inputs.count).blocks,
                row_count=inputs.count, page_tokens=self._pool.page_tokens, table_width=table.shape[1], step=step,
                steps=steps if step == steps - 1 else 0,
            ),
        )  # fmt: skip

    def _begin(self, inputs: RowsInputs) -> arguments.RowsBegin:
        chain, buffers = self._chain, self.buffers
        return arguments.RowsBegin(
            tokens=_at(inputs.tokens), embedding=_at(self._weights.embedding), gain=_at(self._layers[0]["norm"]),
            hidden=_at(buffers.hidden), next=_at(buffers.normed), squares=_at(buffers.squares),
            vocabulary=chain.vocabulary, width=chain.hidden, square_count=self.squares("down", inputs.count),
        )  # fmt: skip

    def _layer(self, number: int, inputs: RowsInputs, step: int) -> Iterator[KernelLaunch]:
        chain, buffers, weights, count = self._chain, self.buffers, self._layers[number], inputs.count
        parts = self._parts(inputs)
        yield self._product(
            "qkv", number, count, tile=parts, rows=_at(buffers.normed), squares=_at(buffers.squares),
            square_count=self.squares("down", count), bias=_at(weights["bias"]),
            out=_at(buffers.qkv_parts if parts else buffers.qkv), eps=chain.eps,
            **self._bring("qkv", number, inputs, step),
        )  # fmt: skip
        yield from self._attention(number, inputs, step)
        yield self._product(
            "output", number, count, rows=_at(buffers.attended), residual=_at(buffers.hidden),
            gain=_at(weights["feed_forward_norm"]), out=_at(buffers.middle), next=_at(buffers.middle_normed),
            next_squares=_at(buffers.middle_squares), **self._bring("output", number, inputs, step),
        )  # fmt: skip
        yield self._product(
            "gate_up", number, count, rows=_at(buffers.middle_normed), squares=_at(buffers.middle_squares),
            square_count=self.squares("output", count), out=_at(buffers.gated), eps=chain.eps,
            **self._bring("gate_up", number, inputs, step),
        )  # fmt: skip
        last = number == len(self._layers) - 1
        gain = self._weights.final_norm if last else self._layers[number + 1]["norm"]
        yield self._product(
            "down", number, count, rows=_at(buffers.gated), residual=_at(buffers.middle), gain=_at(gain),
            out=_at(buffers.hidden), next=_at(buffers.normed), next_squares=_at(buffers.squares),
            **self._bring("down", number, inputs, step),
        )  # fmt: skip

    def _bring(self, name: str, number: int, inputs: RowsInputs, step: int) -> dict[str, Any]:
        """What the product ``name`` of layer ``number`` brings into the L2 cache: the pages of the attention next."""
        of_layer = number if name == "qkv" else number + 1
        bringer = rows_tiles.BRINGERS[self._chain.hidden][bucket_of(inputs.count)]
        brings = name == bringer or (name == "qkv" and number == 0 and bringer)
        if not brings or inputs.row_starts is not None or of_layer == len(self._layers):
            return {}
        pages = self._pool.layer(self._chain.layers[of_layer].number)
        return {
            "page_bytes": pages[0].nbytes, "row_count": inputs.count, "page_tokens": self._pool.page_tokens,
            "table_width": inputs.page_table.shape[1], "step": step, "pages": _at(pages),
            "page_table": _at(inputs.page_table), "positions": _at(inputs.positions),
        }  # fmt: skip

    def _attention(self, number: int, inputs: RowsInputs, step: int) -> Iterator[KernelLaunch]:
        chain, buffers, weights = self._chain, self.buffers, self._layers[number]
        parts = self._parts(inputs)
        given = arguments.RowsAttention(
            qkv=_at(buffers.qkv_parts if parts else buffers.qkv), out=_at(buffers.attended),
            pages=_at(self._pool.layer(chain.layers[number].number)),
            page_table=_at(inputs.page_table), positions=_at(inputs.positions), slots=_at(inputs.slots),
            row_starts=_at(inputs.row_starts), q_gain=_at(weights["q_norm"]), k_gain=_at(weights["k_norm"]),
            turns=_at(buffers.turns), sequences=inputs.page_table.shape[0], page_tokens=self._pool.page_tokens,
            table_width=inputs.page_table.shape[1], spare_page=self._pool.pages, step=step, eps=chain.eps,
            scale=chain.scale * log2(EULER),
        )  # fmt: skip
        if parts:
            given.squares, given.bias = _at(buffers.squares), _at(weights["bias"])
            given.square_count, given.width = self.squares("down", inputs.count), chain.hidden
        heads, kind = chain.attention, "attention" if inputs.row_starts is None else "prompt"
        tile = rows_attention_tiles.attention_tile(heads, inputs.count)
        if kind == "prompt":
            append, tile = rows_attention_tiles.append_kernel(heads), rows_attention_tiles.PROMPTS[heads]
            yield KernelLaunch(append, inputs.count, 64 * chain.kv_heads, 0, given)
        blocks = tile.blocks(heads, inputs.count)
        yield KernelLaunch(tile.name(kind, heads), blocks, tile.threads, tile.shared_bytes, given)

    def _parts(self, inputs: RowsInputs) -> rows_tiles.PartsTile | None:
        """The choice for QKV where it leaves its sums in parts."""
        if inputs.row_starts is not None:
            return None
        return rows_tiles.parts_tile(self._chain.matrices["qkv"], bucket_of(inputs.count))

    def _product(
        self, name: str, number: int, count: int, *, tile: rows_tiles.Product | None = None, **given: Any
    ) -> KernelLaunch:
        kind, rows, columns = self._chain.matrices[name]
        tile = tile or self._tile(name, count)
        outputs = rows // 2 if kind == "swiglu" else rows
        weights = _at(self._matrix(name, number, count))
        return KernelLaunch(
            tile.kernel(columns), tile.blocks(rows), tile.threads, tile.shared_bytes(columns),
            arguments.RowsProduct(weights=weights, outputs=outputs, **given),
        )  # fmt: skip

    def _matrix(self, name: str, number: int, count: int) -> torch.Tensor | None:
        packed = not isinstance(self._tile(name, count), rows_tiles.ResidualTile)
        return self._layers[number][name] if packed else self._weights.plain(number, name)

    def _tile(self, name: str, count: int) -> rows_tiles.Product:
        tile = rows_tiles.rows_tile(self._chain.matrices[name], bucket_of(count))
        assert tile is not None, "why_not_rows comes first"
        return tile


def bucket_of(count: int) -> int:
    """The bucket of a step of ``count`` rows, at most as many as any kernel takes."""
    found = rows_tiles.bucket(count)
    assert found is not None, f"{count} rows are more than any kernel takes"
    return found


def _at(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
