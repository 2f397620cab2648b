"""How the search holds a kernel to float32, with the kernels stood for by torch on the processor."""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the script measures what runs on it")

from cacheir.ir.types import KVType  # noqa: E402
from cacheir_cuda.chain.launches import ChainWeights  # noqa: E402
from cacheir_cuda.chain.rows_launches import RowsBuffers, RowsStep  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402

CPU = torch.device("cpu")


class Stood:
    """``Bench`` on the processor, whose launches are what their kernels mean; ``spoil`` may change what they left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bench, models = (importlib.import_module(name) for name in ("rows_bench", "random_models"))
        family, shape = models.SHAPES["r1-distill-1.5b"]
        small = replace(shape, vocab=2112 * 8)
        monkeypatch.setitem(models.SHAPES, "r1-distill-1.5b", (family, small))
        monkeypatch.setattr(bench, "DEVICE", CPU)
        self.shape, self.layers = small, 2
        self.tensors = bench.random_tensors("r1-distill-1.5b", 2)
        self.chain = bench.chain_of(family, small, 2)
        kind = KVType(2, small.kv_heads, small.head_dim, "bf16")
        self.pool = Pool(kind, range(2), 32 * 20, bench.PAGE_TOKENS, CPU)
        self.buffers = RowsBuffers(self.chain, CPU, 512)
        self.weights = ChainWeights(self.chain, SimpleNamespace(get=lambda layout, recipes: torch.zeros(1)))
        self.step = RowsStep(self.chain, self.weights, self.buffers, self.pool)
        self.inputs = lambda *given, **named: bench.Bench.inputs(self, *given, **named)
        self.spoil: Any = lambda: None
        self.driver = SimpleNamespace(replay=lambda graph, stream: self.launch(graph), destroy=lambda graphs: None)
        self.graph = lambda launches, stream: launches

    def launch(self, launches: Any) -> None:
        for one in launches:
            self._run(one)
        self.spoil()

    def _run(self, one: Any) -> None:
        chain = importlib.import_module("rows_chain")
        buffers, tensors, layer, given = self.buffers, self.tensors, self.chain.layers[0], one.arguments
        kind = one.kernel.split("_")[1]

        def matrix(*names: str) -> Any:
            return torch.cat([tensors[name].float() for name in names])

        def scale(squares: Any, count: int) -> Any:
            mean = chain.parts_of(squares, count).sum(-1, keepdim=True) / self.chain.hidden
            return torch.rsqrt(mean + self.chain.eps)

        if kind == "begin":
            buffers.hidden.copy_(self.held._x)
            buffers.normed.copy_(chain.tiled(self.held._x))
            buffers.squares.fill_(1)
        elif kind == "parts":
            split = int(one.kernel.split("_s")[1].split("_")[0])
            rows, weights = chain.untiled(buffers.normed).float(), matrix(*layer.qkv)
            each = rows.shape[1] // split
            cut = [slice(i * each, (i + 1) * each) for i in range(split)]
            sums = torch.stack([rows[:, part] @ weights[:, part].T for part in cut], 1)
            buffers.qkv_parts.flatten()[: sums.numel()] = sums.flatten()
        elif kind == "attention":
            held = importlib.import_module("rows_held").Held
            qkv = held._whole_qkv(self.held, self.planned)
            mixed = [chain.reference_attention(self, qkv, self.held.inputs, row, row)[0] for row in range(32)]
            buffers.attended.copy_(chain.tiled(torch.stack(mixed).bfloat16()))
        elif kind == "stream":
            rows = chain.untiled(buffers.middle_normed).float() * scale(buffers.middle_squares, given.square_count)
            gate, up = (rows @ matrix(name).T for name in layer.gate_up)
            buffers.gated.copy_(chain.tiled((torch.nn.functional.silu(gate) * up).bfloat16()))
        elif kind == "residual":
            down = "k8960" in one.kernel
            rows = chain.untiled(buffers.gated if down else buffers.attended).float()
            made = (buffers.middle if down else buffers.hidden) + rows @ matrix(layer.down if down else layer.output).T
            following = matrix(self.chain.layers[1].norm if down else layer.feed_forward_norm)
            left = (buffers.hidden, buffers.normed, buffers.squares)
            if not down:
                left = (buffers.middle, buffers.middle_normed, buffers.middle_squares)
            left[0].copy_(made)
            left[1].copy_(chain.tiled(made * following))
            count = self.planned.squares("down" if down else "output", 32)
            chain.parts_of(left[2], count).zero_()[:, 1] = (made * made).sum(-1)
        elif kind == "head":
            rows = chain.untiled(buffers.normed).float() * scale(buffers.squares, given.square_count)
            found = (rows @ matrix(self.chain.head).T).view(32, 132, -1).max(-1)
            ids = found.indices + torch.arange(132) * (self.shape.vocab // 132)
            buffers.best.flatten()[: 32 * 132] = found.values.flatten()
            buffers.best_id.flatten()[: 32 * 132] = ids.flatten().int()


@pytest.fixture
def stood(monkeypatch: pytest.MonkeyPatch) -> Stood:
    made = Stood(monkeypatch)
    for name in ("rows_held", "rows_chain", "rows_search"):
        monkeypatch.setattr(importlib.import_module(name), "DEVICE", CPU)
    stream = SimpleNamespace(cuda_stream=0)
    for name, value in (("synchronize", lambda: None), ("Stream", lambda: stream), ("current_stream", lambda: stream)):
        monkeypatch.setattr(torch.cuda, name, value)
    return made


def test_each_kernel_is_held_to_float32_and_to_its_own_bits(stood: Stood, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_held, candidates = (importlib.import_module(name) for name in ("rows_held", "rows_candidates"))
    stood.held = held = rows_held.Held(stood)
    plans = {name: (plans[0], plans[-1]) for name, plans in candidates.candidates(stood.chain).items()}
    monkeypatch.setattr(rows_held, "REPEATS", 2)
    for name in candidates.KERNELS:
        for plan in ({}, *plans[name]):
            stood.planned = rows_held.planned(stood, plan)
            found = held.error(plan, name)
            assert found["right"] and 0 < found["error"] < 0.01, (name, plan, found)

    stood.planned = rows_held.planned(stood, {})
    stood.spoil = lambda: stood.buffers.gated[3, 5].add_(1000)
    found = held.error({}, "gate_up")
    assert found["error"] > 0.01 and found["equal"] and not found["right"]
    stood.spoil = lambda: stood.buffers.middle_normed[7, 7].fill_(float("nan"))
    assert held.error({}, "output")["error"] == float("inf")
    turns = iter(range(100))
    stood.spoil = lambda: stood.buffers.hidden[0, 0].add_(1e-3 * (next(turns) == 1))
    found = held.error({}, "down")
    assert found["error"] < 0.01 and not found["equal"] and not found["right"]


def test_a_graph_of_all_layers_is_held_to_its_bits_and_timed_by_its_contexts(
    stood: Stood, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = importlib.import_module("rows_search")
    timer = search.GpuTimer(stood)
    stood.held, stood.planned = timer._held, importlib.import_module("rows_held").planned(stood, {})
    monkeypatch.setattr(importlib.import_module("rows_held"), "CHAINED", 2)
    assert timer.chained({})
    turns = iter(range(1000))
    stood.spoil = lambda: stood.buffers.hidden[0, 0].add_(1e-3 * (next(turns) == 3))
    assert not timer.chained({})
    seen = []

    def times(launches: Any, resets: Any, repeats: int) -> list[float]:
        for reset in resets:
            reset()
            seen.append((len(launches), int(timer.inputs.positions[0])))
        return [0.001 * position for _, position in seen[-len(resets) :]]

    stood.times = times
    stood.timed = lambda launches, reset=lambda: None, repeats=0: times(launches, [reset], repeats)[0]
    contexts = list(search.CONTEXTS)
    assert timer.layer_us({}) == pytest.approx(sum(contexts) / len(contexts) / stood.layers)
    assert seen == [(5 * stood.layers, context) for context in contexts]
    assert timer.alone_us({}, "down") == pytest.approx(contexts[3] / stood.layers) and seen[-1] == (2, contexts[3])
