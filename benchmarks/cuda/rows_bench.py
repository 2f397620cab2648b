"""A model on a GPU for the kernels of several rows: random weights, pages, launches, and graphs that are timed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from random_models import SHAPES, parameters
from torch import Tensor

from cacheir.ir.types import KVType
from cacheir_cuda.chain import tiles
from cacheir_cuda.chain.driver_calls import Driver, Graph
from cacheir_cuda.chain.launches import ChainWeights, KernelLaunch
from cacheir_cuda.chain.packing import pack
from cacheir_cuda.chain.recognise import Chain, ChainLayer
from cacheir_cuda.chain.rows_launches import RowsBuffers, RowsInputs, RowsStep
from cacheir_cuda.pool import Pool

PAGE_TOKENS, MAX_SEQ, EPS = 16, 2304, 1e-6

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Bench:
    """A model of ``layers`` layers of the named shape with random weights, its kernels and pages."""

    def __init__(self, cubin: Path, name: str, layers: int = 0, pages: int = 1100) -> None:
        family, shape = SHAPES[name]
        self.shape, self.layers = shape, layers or shape.layers
        self.tensors = random_tensors(name, self.layers)
        self.chain = chain_of(family, shape, self.layers)
        torch.zeros(1, device=DEVICE)
        self.driver = Driver()
        self.module = self.driver.load(cubin.read_bytes())
        self.functions: dict[str, Any] = {}
        kind = KVType(self.layers, shape.kv_heads, shape.head_dim, "bf16")
        self.pool = Pool(kind, range(self.layers), pages, PAGE_TOKENS, DEVICE)
        self.buffers = RowsBuffers(self.chain, DEVICE, MAX_SEQ)
        self.weights = ChainWeights(self.chain, Weights(self.tensors))

    @cached_property
    def step(self) -> RowsStep:
        """The launches of several rows; only for a shape that ``why_not_rows`` has nothing against."""
        return RowsStep(self.chain, self.weights, self.buffers, self.pool)

    def launch(self, launches: Sequence[KernelLaunch], stream: int | None = None) -> None:
        on = torch.cuda.current_stream().cuda_stream if stream is None else stream
        for one in launches:
            if one.kernel not in self.functions:
                self.functions[one.kernel] = self.driver.function(self.module, one.kernel, one.shared_bytes)
            function = self.functions[one.kernel]
            self.driver.launch(function, one.blocks, one.threads, one.shared_bytes, on, one.arguments)

    def timed(
        self, launches: Sequence[KernelLaunch], reset: Callable[[], object] = lambda: None, repeats: int = 30
    ) -> float:
        """Median milliseconds of a graph of ``launches``; ``reset`` comes before each replay."""
        return self.times(launches, [reset], repeats)[0]

    def times(
        self, launches: Sequence[KernelLaunch], resets: Sequence[Callable[[], object]], repeats: int
    ) -> list[float]:
        """``timed`` of one graph for each of ``resets``; the first three replays do not count."""
        stream = torch.cuda.Stream()
        graph = self.graph(launches, stream.cuda_stream)
        made: list[float] = []
        for number, reset in enumerate(resets):
            times = []
            for _ in range(repeats + (0 if number else 3)):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                with torch.cuda.stream(stream):
                    reset()
                begin.record(stream)
                self.driver.replay(graph, stream.cuda_stream)
                end.record(stream)
                end.synchronize()
                times.append(begin.elapsed_time(end))
            made.append(statistics.median(times[-repeats:]))
        self.driver.destroy([graph])
        return made

    def graph(self, launches: Sequence[KernelLaunch], stream: int) -> Graph:
        """A graph of ``launches``, which run once."""
        torch.cuda.synchronize()
        self.launch(launches, stream)  # functions are found outside the capture
        torch.cuda.synchronize()
        self.driver.begin_capture(stream)
        self.launch(launches, stream)
        return self.driver.end_capture(stream)

    def inputs(self, positions: Sequence[int], seed: int = 0, starts: Sequence[int] | None = None) -> RowsInputs:
        """Rows at ``positions``, each sequence's pages in no order; ``starts`` are the sequences' first rows."""
        drawn = torch.Generator().manual_seed(seed)
        begins = list(starts) if starts is not None else [*range(len(positions)), len(positions)]
        width = max(positions) // PAGE_TOKENS + 2
        pages = torch.randperm(self.pool.pages, generator=drawn)[: width * (len(begins) - 1)]
        table = pages.view(-1, width).to(torch.int32)
        slots = []
        for sequence, (first, last) in enumerate(zip(begins, begins[1:])):
            for row in range(first, last):
                place = positions[row]
                slots.append(int(table[sequence, place // PAGE_TOKENS]) * PAGE_TOKENS + place % PAGE_TOKENS)
        tokens = torch.randint(3, self.chain.vocabulary, (len(positions),), generator=drawn)

        def put(values: Any) -> Tensor:
            return torch.as_tensor(values, dtype=torch.int32).to(DEVICE)

        given = None if starts is None else put(begins)
        return RowsInputs(put(tokens), put(positions), put(slots), put(table), given)


class Weights:
    """Stands for ``Residents``: tensors by name, in the layout that is asked for."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors, self._made = tensors, {}

    def get(self, layout: str, recipes: Sequence[str]) -> Tensor:
        key = (layout, tuple(recipes))
        if key not in self._made:
            parts = [self._tensors[name] for name in recipes]
            joined = parts[0] if len(parts) == 1 else torch.cat(parts)
            if layout == "f32":
                joined = joined.float()
            elif layout.startswith("fragments"):
                kind, rows, count, warps = layout.split()[1:5]
                joined = pack(joined, tiles.Tile(kind, int(rows), int(count), int(warps), "", 1, 0))
            self._made[key] = joined
        return self._made[key]


def random_tensors(name: str, layers: int) -> dict[str, Tensor]:
    """The tensors of the first ``layers`` layers, as ``random_models`` draws them."""
    generator = torch.Generator(DEVICE).manual_seed(7)
    made = {}
    for key, size, mean in parameters(name):
        if not key.startswith("model.layers.") or int(key.split(".")[2]) < layers:
            drawn = torch.randn(size, generator=generator, device=DEVICE) * (0.1 if mean else 0.02) + mean
            made[key] = drawn.to(torch.bfloat16)
    return made


def chain_of(family: str, shape: Any, layers: int) -> Chain:
    """The chain that the recogniser finds in this model."""

    def layer(number: int) -> ChainLayer:
        at = f"model.layers.{number}"
        q, k, v = (f"{at}.self_attn.{part}_proj" for part in "qkv")
        normed = family == "qwen3"
        return ChainLayer(
            number=number, norm=f"{at}.input_layernorm.weight", qkv=(f"{q}.weight", f"{k}.weight", f"{v}.weight"),
            biases=(f"{q}.bias", f"{k}.bias", f"{v}.bias") if family == "qwen2" else (),
            q_norm=f"{at}.self_attn.q_norm.weight" if normed else "",
            k_norm=f"{at}.self_attn.k_norm.weight" if normed else "", output=f"{at}.self_attn.o_proj.weight",
            feed_forward_norm=f"{at}.post_attention_layernorm.weight",
            gate_up=(f"{at}.mlp.gate_proj.weight", f"{at}.mlp.up_proj.weight"), down=f"{at}.mlp.down_proj.weight",
        )  # fmt: skip

    factors = (1.0,) * (shape.head_dim // 2)
    turn = {"dims": shape.head_dim, "theta": shape.rope_theta, "factors": factors, "magnitude": 1.0}
    return Chain(
        hidden=shape.hidden, feed_forward=shape.feed_forward, heads=shape.heads, kv_heads=shape.kv_heads,
        vocabulary=shape.vocab, eps=EPS, scale=shape.head_dim**-0.5, turn=tuple(turn.items()),
        embedding="model.embed_tokens.weight", final_norm="model.norm.weight",
        head="model.embed_tokens.weight" if shape.tied else "lm_head.weight",
        layers=tuple(layer(number) for number in range(layers)),
    )  # fmt: skip


def all_steps(bench: Bench, inputs: RowsInputs, ring: Tensor, produced: Tensor, steps: int) -> Iterator[KernelLaunch]:
    for number in range(steps):
        yield from bench.step.layers(inputs, number)
        yield bench.step.head(inputs.count)
        yield bench.step.advance(inputs, ring, produced, number, steps)
