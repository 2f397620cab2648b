"""Kernels for 17 to 32 rows of R1-Distill-Qwen-1.5B beside those of the package (``cpp/rows_searched.cuh``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cacheir_cuda.chain import rows_attention_tiles, rows_tiles
from cacheir_cuda.chain.launches import ChainWeights, KernelLaunch
from cacheir_cuda.chain.recognise import Chain
from cacheir_cuda.chain.rows_attention_tiles import AttentionTile
from cacheir_cuda.chain.rows_launches import RowsBuffers, RowsInputs, RowsStep
from cacheir_cuda.chain.rows_tiles import PartsTile, Product, ResidualTile, StreamTile, rows_tile
from cacheir_cuda.pool import Pool

MODEL, ROWS = "r1-distill-1.5b", 32
LAYER = ("qkv", "attention", "output", "gate_up", "down")  # in the order of their launches
KERNELS = (*LAYER, "head")


@dataclass(frozen=True)
class HeadTile:
    """The head with ``stages`` kilobytes of weights under way in each warp."""

    stages: int

    def kernel(self, width: int) -> str:
        """The function's name in the cubin."""
        return f"rows_head_h{width}_c{ROWS // 8}_s{self.stages}"

    def shared_bytes(self, width: int) -> int:
        """Dynamic shared memory of a block: the rows and the ring."""
        return ROWS * width * 2 + rows_tiles.HEAD_WARPS * self.stages * 1024


Tile = Product | AttentionTile | HeadTile
Plan = dict[str, Tile]  # by kernel; what is not named is the package's choice

DOWN = (
    (3, 2, 4, 6, 3, 3, 1), (3, 2, 4, 6, 2, 3, 1), (3, 2, 4, 6, 2, 4, 1), (3, 2, 4, 6, 2, 6, 1), (3, 2, 4, 6, 3, 2, 1),
    (3, 2, 4, 6, 2, 2, 1), (3, 2, 6, 6, 2, 2, 1), (3, 2, 5, 6, 2, 3, 1), (2, 3, 4, 6, 3, 3, 1), (2, 3, 4, 6, 2, 4, 1),
    (2, 3, 4, 6, 2, 6, 1), (4, 2, 4, 8, 2, 3, 1), (4, 2, 4, 8, 2, 5, 1), (2, 2, 4, 5, 2, 2, 1), (2, 2, 4, 5, 3, 3, 1),
    (2, 2, 4, 5, 4, 3, 1),
)  # fmt: skip
DOWN_EARLY = (
    (3, 2, 4, 6, 2, 6, 1), (3, 2, 4, 6, 3, 3, 1), (3, 2, 4, 6, 2, 4, 1), (3, 2, 6, 6, 2, 2, 1), (3, 2, 5, 6, 2, 3, 1),
    (2, 3, 4, 6, 2, 6, 1), (2, 3, 4, 6, 3, 3, 1), (4, 2, 4, 8, 2, 5, 1), (2, 2, 4, 5, 3, 3, 1),
)  # fmt: skip
OUTPUT = (
    (2, 2, 3, 4, 2, 2, 3), (2, 2, 2, 4, 2, 2, 2), (2, 2, 2, 4, 3, 2, 2), (2, 2, 2, 4, 3, 3, 2), (4, 1, 4, 4, 2, 2, 2),
    (2, 1, 4, 2, 3, 3, 2), (2, 1, 4, 2, 3, 2, 2), (1, 4, 1, 4, 6, 6, 3), (1, 4, 2, 4, 3, 3, 2), (2, 2, 2, 6, 2, 2, 2),
)  # fmt: skip
OUTPUT_EARLY = ((2, 2, 3, 4, 2, 2, 2), (2, 2, 2, 4, 3, 3, 2), (1, 4, 1, 4, 6, 6, 3))
# Warps, kilobytes of a warp.
GATE = (
    (12, 7), (12, 8), (12, 9), (12, 10), (12, 11), (12, 13), (8, 9), (8, 10), (8, 12), (8, 18), (6, 16), (6, 24),
    (16, 8),
)  # fmt: skip
# Tiles, groups, parts of a block, parts of the columns, as many as the attention next must add.
QKV = ((1, 4, 2, 4), (2, 2, 3, 4), (4, 1, 4, 4), (1, 4, 1, 4), (2, 2, 4, 3), (2, 2, 4, 4))
# By the parts that it adds; where the package's QKV leaves another number, it is QKV[-1] that leaves them.
ATTENTION = {
    2: (
        (2, 1, 8, 2, 0, 0, 2), (2, 1, 8, 4, 0, 0, 2), (2, 1, 12, 2, 0, 0, 1), (2, 1, 16, 2, 0, 0, 1),
        (3, 1, 8, 3, 0, 0, 2), (3, 1, 8, 2, 0, 0, 2),
    ),
    4: (
        (2, 1, 8, 2, 0, 0, 2), (2, 1, 8, 4, 0, 0, 2), (2, 1, 12, 2, 0, 0, 1), (2, 1, 16, 2, 0, 0, 1),
        (3, 1, 8, 3, 0, 0, 2),
    ),
}  # fmt: skip
HEAD = (4,)


def candidates(chain: Chain) -> dict[str, list[Plan]]:
    """Plans that change one kernel, by its name, and another where the two only go together."""
    chosen = rows_attention_tiles.attention_tile(chain.attention, ROWS)
    gate_up = rows_tile(chain.matrices["gate_up"], ROWS)
    assert isinstance(gate_up, StreamTile), "the search is of a shape whose gate and up stream"

    def parts(given: tuple[int, int, int, int]) -> Plan:
        plan: Plan = {"qkv": PartsTile(*given, ROWS)}
        return plan if given[-1] == chosen.parts else plan | {"attention": replace(chosen, parts=given[-1])}

    def attention(given: tuple[int, int, int, int, int, int, int], added: int) -> Plan:
        qkv: Plan = {} if added == chosen.parts else {"qkv": PartsTile(*QKV[-1], ROWS)}
        return qkv | {"attention": AttentionTile(*given, added)}

    def residual(name: str, by_early: dict[bool, tuple[tuple[int, int, int, int, int, int, int], ...]]) -> list[Plan]:
        return [{name: ResidualTile(*given, ROWS, early)} for early, every in by_early.items() for given in every]

    return {
        "qkv": [parts(given) for given in QKV],
        "attention": [attention(given, added) for added, every in ATTENTION.items() for given in every],
        "output": residual("output", {False: OUTPUT, True: OUTPUT_EARLY}),
        "gate_up": [{"gate_up": replace(gate_up, warps=warps, stages=stages)} for warps, stages in GATE],
        "down": residual("down", {False: DOWN, True: DOWN_EARLY}),
        "head": [{"head": HeadTile(stages)} for stages in HEAD],
    }


def fits_together(plan: Plan, chain: Chain) -> bool:
    """Whether attention adds as many parts as QKV leaves."""
    qkv = plan.get("qkv") or rows_tiles.parts_tile(chain.matrices["qkv"], ROWS)
    attention = plan.get("attention") or rows_attention_tiles.attention_tile(chain.attention, ROWS)
    assert isinstance(qkv, PartsTile) and isinstance(attention, AttentionTile)
    return qkv.split == attention.parts


def named(plan: Plan, chain: Chain) -> dict[str, str]:
    """The kernels of ``plan`` by what they compute."""
    made = {}
    for name, tile in plan.items():
        if isinstance(tile, AttentionTile):
            made[name] = tile.name("attention", chain.attention)
        else:
            made[name] = tile.kernel(chain.hidden if isinstance(tile, HeadTile) else chain.matrices[name][2])
    return made


class PlannedStep(RowsStep):
    """The launches of a step of 17 to 32 rows whose kernels are those of ``plan``."""

    def __init__(self, chain: Chain, weights: ChainWeights, buffers: RowsBuffers, pool: Pool, plan: Plan) -> None:
        self._plan = plan
        super().__init__(chain, weights, buffers, pool)

    def _tile(self, name: str, count: int) -> Product:
        planned = self._plan.get(name)
        if planned is None or isinstance(planned, PartsTile):  # which is asked for by _parts
            return super()._tile(name, count)
        assert not isinstance(planned, AttentionTile | HeadTile)
        return planned

    def _parts(self, inputs: RowsInputs) -> PartsTile | None:
        planned = self._plan.get("qkv")
        assert planned is None or isinstance(planned, PartsTile)
        return planned or super()._parts(inputs)

    def _attention(self, number: int, inputs: RowsInputs, step: int) -> Iterator[KernelLaunch]:
        tile, heads = self._plan.get("attention"), self._chain.attention
        for one in super()._attention(number, inputs, step):
            if isinstance(tile, AttentionTile):
                blocks = tile.blocks(heads, inputs.count)
                one = KernelLaunch(
                    tile.name("attention", heads), blocks, tile.threads, tile.shared_bytes, one.arguments
                )
            yield one

    def head(self, count: int) -> KernelLaunch:
        """The candidates of each row for the greedy token."""
        tile, made = self._plan.get("head"), super().head(count)
        if not isinstance(tile, HeadTile):
            return made
        width = self._chain.hidden
        return replace(made, kernel=tile.kernel(width), shared_bytes=tile.shared_bytes(width))
