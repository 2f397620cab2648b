"""Each kernel of a step of 32 rows, of any plan, beside float32 torch, and bit for bit when it runs again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from rows_bench import DEVICE, Bench
from rows_candidates import LAYER, QKV, ROWS, Plan, PlannedStep
from rows_chain import candidates, normed_rows, parts_of, reference_attention, tiled, untiled
from torch import Tensor

from cacheir_cuda.chain import tiles
from cacheir_cuda.chain.launches import KernelLaunch

ALLOWED = 0.01  # of the largest value; the products round their rows to bfloat16
REPEATS, CHAINED = 25, 10  # of a kernel, of a graph of all layers
CONTEXT = 192


def planned(bench: Bench, plan: Plan) -> PlannedStep:
    """The launches of ``plan``."""
    return PlannedStep(bench.chain, bench.weights, bench.buffers, bench.pool, plan)


class Held:
    """Random rows for each kernel of the first layer, and what float32 makes of them."""

    def __init__(self, bench: Bench) -> None:
        self._bench, chain = bench, bench.chain
        most = max(split for *_, split in QKV)  # the package's buffer has room for the parts of its own choice
        bench.buffers.qkv_parts = torch.zeros(ROWS, most * chain.matrices["qkv"][1], device=DEVICE)
        layer, weights = chain.layers[0], {}
        for name in [*layer.qkv, *layer.biases, *layer.gate_up, layer.output, layer.down, layer.norm]:
            weights[name] = bench.tensors[name].float()
        self._norm, self._middle_norm = weights[layer.norm], bench.tensors[layer.feed_forward_norm].float()
        self._next_norm, self._last_norm = (
            bench.tensors[name].float() for name in (chain.layers[1].norm, chain.final_norm)
        )

        def drawn(width: int, scale: float = 1.0) -> Tensor:
            return torch.randn(ROWS, width, device=DEVICE) * scale

        pages = bench.pool.storage
        for part in pages:
            part.copy_(torch.randn(part.shape, device=DEVICE) * 2)
        self.inputs = bench.inputs([CONTEXT + 3 * i for i in range(ROWS)], seed=5)
        self.inputs.slots.fill_(-1)
        self._x, self._middle = drawn(chain.hidden, 3), drawn(chain.hidden, 3)
        self._mixed = drawn(chain.heads * tiles.HEAD_DIM).bfloat16()
        self._gated = drawn(chain.feed_forward).bfloat16()
        self._qkv = normed_rows(self._x, self._norm) @ torch.cat([weights[name] for name in layer.qkv]).T
        self._qkv += torch.cat([weights[name] for name in layer.biases])
        y = normed_rows(self._middle, self._middle_norm)
        gate, up = (y @ weights[name].T for name in layer.gate_up)
        after_output = self._x + self._mixed.float() @ weights[layer.output].T
        after_down = self._middle + self._gated.float() @ weights[layer.down].T
        self._expected = {
            "qkv": [self._qkv],
            "output": [after_output, after_output * self._middle_norm, (after_output**2).sum(-1)],
            "gate_up": [torch.nn.functional.silu(gate) * up],
            "down": [after_down, after_down * self._next_norm, (after_down**2).sum(-1)],
        }

    def error(self, plan: Plan, name: str) -> dict[str, Any]:
        """The largest error relative to the largest value, and whether ``REPEATS`` runs have the same bits."""
        step = planned(self._bench, plan)
        launch = step.head(ROWS) if name == "head" else list(step.layers(self.inputs))[LAYER.index(name)]
        self._fill(step, name)
        expected = self._attended(step) if name == "attention" else self._expected.get(name, [])
        self._bench.launch([launch])
        found = self._left(step, name)
        if name == "head":
            ids, best = candidates(self._bench, ROWS)
            logits = normed_rows(self._x, self._last_norm) @ self._bench.tensors[self._bench.chain.head].float().T
            found, expected = [best, best.max(-1).values], [logits.gather(1, ids), logits.max(-1).values]
        errors = [float((one.float() - other).abs().max() / other.abs().max()) for one, other in zip(found, expected)]
        worst = max(errors) if all(error == error for error in errors) else float("inf")
        first, equal = self._bits(name), True
        for _ in range(REPEATS):
            self._fill(step, name)
            self._bench.launch([launch])
            equal = equal and all(torch.equal(one, other) for one, other in zip(first, self._bits(name)))
        return {"error": worst, "equal": equal, "right": worst <= ALLOWED and equal}

    def chained(self, plan: Plan) -> bool:
        """Whether all layers in a graph have the same bits ``CHAINED`` times, steps of 8 rows between them."""
        bench, step, stream = self._bench, planned(self._bench, plan), torch.cuda.current_stream().cuda_stream
        small = bench.inputs([CONTEXT] * 8)
        small.slots.fill_(-1)

        def graph(launches: Sequence[KernelLaunch]) -> Any:
            side = torch.cuda.Stream()
            return bench.graph(launches, side.cuda_stream)

        graphs = [
            graph([own.begin(inputs), *own.layers(inputs), own.head(inputs.count)])
            for own, inputs in ((step, self.inputs), (bench.step, small))
        ]
        made: list[list[Tensor]] = []
        for _ in range(CHAINED):
            bench.driver.replay(graphs[1], stream)
            bench.driver.replay(graphs[0], stream)
            torch.cuda.synchronize()
            made.append([self._bench.buffers.hidden.clone(), *(one.clone() for one in candidates(bench, ROWS))])
        bench.driver.destroy(graphs)
        return all(torch.equal(one, other) for again in made[1:] for one, other in zip(made[0], again))

    def _fill(self, step: PlannedStep, name: str) -> None:
        """The inputs of the kernel ``name``; everything that a kernel of the layer writes is no number."""
        buffers = self._bench.buffers
        ends, middles = (step.squares(each, ROWS) for each in ("down", "output"))
        outputs: list[Tensor] = self._written(name)
        for rows, squares, parts, normed, gain, of in (
            (
                self._x,
                buffers.squares,
                ends,
                buffers.normed,
                self._last_norm if name == "head" else self._norm,
                "hidden",
            ),
            (self._middle, buffers.middle_squares, middles, buffers.middle_normed, self._middle_norm, "middle"),
        ):
            getattr(buffers, of).copy_(rows)
            normed.copy_(tiled(rows * gain))
            squares.zero_()
            parts_of(squares, parts)[:, 3] = (rows * rows).sum(-1)
        buffers.attended.copy_(tiled(self._mixed))
        buffers.gated.copy_(tiled(self._gated))
        if name == "attention":
            buffers.qkv_parts.copy_(self._sums(buffers.qkv_parts.shape))
        for each in outputs:
            each.fill_(float("nan"))

    def _sums(self, shape: torch.Size) -> Tensor:
        return torch.randn(shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(3)) * 2

    def _written(self, name: str) -> list[Tensor]:
        buffers = self._bench.buffers
        return {
            "qkv": [buffers.qkv_parts], "attention": [buffers.attended], "gate_up": [buffers.gated],
            "output": [buffers.middle, buffers.middle_normed, buffers.middle_squares],
            "down": [buffers.hidden, buffers.normed, buffers.squares], "head": [buffers.best],
        }[name]  # fmt: skip

    def _bits(self, name: str) -> list[Tensor]:
        """What the kernel left, as whole numbers: what it did not write is no number twice."""
        kinds = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
        return [each.clone().view(kinds[each.dtype]) for each in self._written(name)]

    def _left(self, step: PlannedStep, name: str) -> list[Tensor]:
        """What the kernel left, as ``_expected`` has it."""
        buffers = self._bench.buffers
        made: dict[str, Callable[[], list[Tensor]]] = {
            "qkv": lambda: [self._whole_qkv(step)],
            "attention": lambda: [untiled(buffers.attended)],
            "output": lambda: [buffers.middle, untiled(buffers.middle_normed), self._summed(step, "output")],
            "gate_up": lambda: [untiled(buffers.gated)],
            "down": lambda: [buffers.hidden, untiled(buffers.normed), self._summed(step, "down")],
            "head": list,
        }
        return made[name]()

    def _summed(self, step: PlannedStep, name: str) -> Tensor:
        squares = self._bench.buffers.squares if name == "down" else self._bench.buffers.middle_squares
        return parts_of(squares, step.squares(name, ROWS)).sum(-1)

    def _whole_qkv(self, step: PlannedStep) -> Tensor:
        """[ROWS, N] of the sums in parts, as attention takes it."""
        buffers, chain = self._bench.buffers, self._bench.chain
        tile, outputs = step._parts(self.inputs), chain.matrices["qkv"][1]
        assert tile is not None, "the search is of a shape whose QKV leaves parts"
        sums = buffers.qkv_parts.flatten()[: ROWS * tile.split * outputs].view(ROWS, tile.split, outputs).sum(1)
        scale = torch.rsqrt(self._summed(step, "down")[:, None] / chain.hidden + chain.eps)
        return sums * scale + torch.cat([self._bench.tensors[name].float() for name in chain.layers[0].biases])

    def _attended(self, step: PlannedStep) -> list[Tensor]:
        qkv = self._whole_qkv(step)
        rows = [reference_attention(self._bench, qkv, self.inputs, row, row)[0] for row in range(ROWS)]
        return [torch.stack(rows)]
