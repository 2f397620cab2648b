"""One step of the decode chain as launches: its buffers on the device, and for each kernel its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import Structure
from dataclasses import dataclass
from math import e as EULER
from math import log2
from typing import Any

import torch

from cacheir_cuda.chain import arguments, tiles
from cacheir_cuda.chain.recognise import Chain
from cacheir_cuda.kernels.rotary import rope_table
from cacheir_cuda.pool import Pool
from cacheir_cuda.residents import Residents
from cacheir_cuda.row_stops import STOP_WORDS

STOPS_AT = 4  # words of the state before what a run stops at: position, tokens produced, first token, one spare
STATE_WORDS = STOPS_AT + STOP_WORDS


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel by name with what it is launched with."""

    kernel: str
    blocks: int
    threads: int
    shared_bytes: int
    arguments: Structure


class ChainBuffers:
    """What the chain's kernels read and write beside weights and pages. The host's part is pinned.

    ``state`` i32 [STATE_WORDS + pages of a sequence] is the state, what the run stops at, and the page table; ``ring``
    i32 [n] on the host takes the tokens of a run.
    """

    def __init__(self, chain: Chain, device: torch.device, max_seq: int, page_tokens: int) -> None:
        def floats(count: int) -> torch.Tensor:
            return torch.zeros(count, dtype=torch.float32, device=device)

        def split(count: int) -> torch.Tensor:
            return torch.zeros(2 * count, dtype=torch.bfloat16, device=device)

        tile, wide = chain.products, chain.heads * tiles.HEAD_DIM
        self.row, self.middle = floats(chain.hidden), floats(chain.hidden)
        self.row_normed, self.middle_normed = split(chain.hidden), split(chain.hidden)
        self.row_squares = floats(tile["down"].squares(chain.hidden))
        self.middle_squares = floats(tile["output"].squares(chain.hidden))
        self.qkv = floats((chain.heads + 2 * chain.kv_heads) * tiles.HEAD_DIM)
        self.attended, self.gated = split(wide), split(chain.feed_forward)
        self.best = floats(tiles.HEADS[chain.hidden].grid)
        self.best_id = torch.zeros(self.best.numel(), dtype=torch.int32, device=device)
        words = STATE_WORDS + -(-max_seq // page_tokens)
        self.state = torch.zeros(words, dtype=torch.int32, device=device)
        self.host_state = torch.zeros(words, dtype=torch.int32).pin_memory()
        self.ring = torch.zeros(max_seq, dtype=torch.int32).pin_memory()
        self.turns = self.turns_of(chain, device, max_seq)

    @staticmethod
    def turns_of(chain: Chain, device: torch.device, max_seq: int) -> torch.Tensor:
        """f32 [max_seq, pairs, 2]: cos and sin as the step's own rope table gives them."""
        turn: dict[str, Any] = dict(chain.turn)
        both = [torch.empty(max_seq, turn["dims"] // 2, device=device) for _ in range(2)]
        positions = torch.arange(max_seq, dtype=torch.int32, device=device)
        rope_table(positions, **turn, out=(both[0], both[1]))
        return torch.stack(both, dim=-1).contiguous()


class ChainWeights:
    """Where the chain's weights lie: residents, in the layout that each kernel reads."""

    def __init__(self, chain: Chain, residents: Residents) -> None:
        self._chain, self._residents = chain, residents
        for layer in range(len(chain.layers)):  # made now, not in the first step
            self.layer(layer)
        self.embedding = residents.get("dense", (chain.embedding,))
        self.head = residents.get("dense", (chain.head,))
        self.final_norm = residents.get("f32", (chain.final_norm,))

    def layer(self, number: int) -> dict[str, torch.Tensor | None]:
        """The weights of one layer by their part."""
        chain, get = self._chain, self._residents.get
        layer, tile = chain.layers[number], chain.products
        return {
            "norm": get("f32", (layer.norm,)),
            "qkv": get(layout_of(tile["qkv"]), layer.qkv),
            "bias": get("f32", layer.biases) if layer.biases else None,
            "q_norm": get("f32", (layer.q_norm,)) if layer.q_norm else None,
            "k_norm": get("f32", (layer.k_norm,)) if layer.k_norm else None,
            "output": get(layout_of(tile["output"]), (layer.output,)),
            "feed_forward_norm": get("f32", (layer.feed_forward_norm,)),
            "gate_up": get(layout_of(tile["gate_up"]), layer.gate_up),
            "down": get(layout_of(tile["down"]), (layer.down,)),
        }

    def plain(self, number: int, name: str) -> torch.Tensor:
        """The matrix ``name`` of layer ``number`` [N, K] as it is stored; q, k and v, gate and up below each other."""
        recipes = getattr(self._chain.layers[number], name)
        joined = ("dense", (recipes,)) if isinstance(recipes, str) else ("rows", recipes)
        made: torch.Tensor = self._residents.get(*joined)
        return made


def layout_of(tile: tiles.Tile) -> str:
    """The word of ``residents.py`` for a matrix that ``tile`` reads."""
    if tile.hold == "stored":
        return "rows"
    return f"fragments {tile.kind} {tile.rows} {tile.tiles} {tile.warps}"


class ChainStep:
    """The launches of a step. ``pool`` are the KV pages in bfloat16."""

    def __init__(self, chain: Chain, weights: ChainWeights, buffers: ChainBuffers, pool: Pool) -> None:
        self._chain, self._weights, self._buffers, self._pool = chain, weights, buffers, pool
        self._layers = [weights.layer(number) for number in range(len(chain.layers))]

    def begin(self) -> KernelLaunch:
        """Takes the state's token as the row that the next step begins with."""
        return self._advance(0, 0, 0)

    def step(self, number: int, steps: int) -> Iterator[KernelLaunch]:
        """Step ``number`` of the ``steps`` of a graph; the last one moves the state on."""
        for layer in range(len(self._layers)):
            yield from self._layer(layer, number)
        yield self._head()
        yield self._advance(self._buffers.best.numel(), number, steps if number == steps - 1 else 0)

    def _head(self) -> KernelLaunch:
        chain, buffers = self._chain, self._buffers
        return _product(
            tiles.HEADS[chain.hidden], chain.vocabulary, chain.hidden, weights=_at(self._weights.head),
            row=_at(buffers.row_normed), squares=_at(buffers.row_squares), square_count=buffers.row_squares.numel(),
            out=_at(buffers.best), out_id=_at(buffers.best_id), outputs=chain.vocabulary, eps=chain.eps,
        )  # fmt: skip

    def _layer(self, layer: int, number: int) -> Iterator[KernelLaunch]:
        chain, buffers, weights, tile = self._chain, self._buffers, self._layers[layer], self._chain.products
        hidden, inner, wide = chain.hidden, chain.feed_forward, chain.heads * tiles.HEAD_DIM
        rows = wide + 2 * chain.kv_heads * tiles.HEAD_DIM
        pages, table = self._pool.layer(chain.layers[layer].number), _at(buffers.state) + 4 * STATE_WORDS
        yield _product(
            tile["qkv"], rows, hidden, weights=_at(weights["qkv"]), row=_at(buffers.row_normed),
            squares=_at(buffers.row_squares), square_count=buffers.row_squares.numel(), bias=_at(weights["bias"]),
            out=_at(buffers.qkv), outputs=rows, eps=chain.eps,
            step=number, page_bytes=pages[0].nbytes, pages=_at(pages), page_table=table, state=_at(buffers.state),
            page_tokens=self._pool.page_tokens,
        )  # fmt: skip
        yield KernelLaunch(
            tiles.attention_kernel(chain.attention),
            chain.kv_heads * tiles.CLUSTER,
            tiles.ATTENTION_THREADS,
            0,
            arguments.Attention(
                qkv=_at(buffers.qkv), out=_at(buffers.attended),
                pages=_at(pages),
                page_table=table, q_gain=_at(weights["q_norm"]),
                k_gain=_at(weights["k_norm"]), turns=_at(buffers.turns), state=_at(buffers.state),
                stopped=_at(buffers.state) + 4 * STOPS_AT, step=number, page_tokens=self._pool.page_tokens,
                table_width=buffers.state.numel() - STATE_WORDS, eps=chain.eps, scale=chain.scale * log2(EULER),
            ),
        )  # fmt: skip
        yield _product(
            tile["output"], hidden, wide, weights=_at(weights["output"]), row=_at(buffers.attended),
            residual=_at(buffers.row), gain=_at(weights["feed_forward_norm"]), out=_at(buffers.middle),
            next=_at(buffers.middle_normed), next_squares=_at(buffers.middle_squares), outputs=hidden,
        )  # fmt: skip
        yield _product(
            tile["gate_up"], 2 * inner, hidden, weights=_at(weights["gate_up"]), row=_at(buffers.middle_normed),
            squares=_at(buffers.middle_squares), square_count=buffers.middle_squares.numel(), out=_at(buffers.gated),
            outputs=inner, eps=chain.eps,
        )  # fmt: skip
        last = layer == len(self._layers) - 1
        gain = self._weights.final_norm if last else self._layers[layer + 1]["norm"]
        yield _product(
            tile["down"], hidden, inner, weights=_at(weights["down"]), row=_at(buffers.gated),
            residual=_at(buffers.middle), gain=_at(gain), out=_at(buffers.row), next=_at(buffers.row_normed),
            next_squares=_at(buffers.row_squares), outputs=hidden,
        )  # fmt: skip

    def _advance(self, blocks: int, number: int, steps: int) -> KernelLaunch:
        buffers = self._buffers
        return KernelLaunch(
            tiles.ADVANCE,
            1,
            tiles.ADVANCE_THREADS,
            0,
            arguments.Advance(
                best=_at(buffers.best), best_id=_at(buffers.best_id), embedding=_at(self._weights.embedding),
                gain=_at(self._layers[0]["norm"]), row=_at(buffers.row), next=_at(buffers.row_normed),
                squares=_at(buffers.row_squares), ring=_at(buffers.ring), state=_at(buffers.state),
                stops=_at(buffers.state) + 4 * STOPS_AT, blocks=blocks, width=self._chain.hidden,
                square_count=buffers.row_squares.numel(), step=number, steps=steps,
            ),
        )  # fmt: skip


def _product(tile: tiles.Tile, rows: int, columns: int, **given: Any) -> KernelLaunch:
    made = arguments.Product(tiles=rows // (tile.tiles * tile.rows), **given)
    return KernelLaunch(tile.kernel(columns), tile.blocks(rows), 32 * tile.warps, tile.shared_bytes(columns), made)


def _at(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
