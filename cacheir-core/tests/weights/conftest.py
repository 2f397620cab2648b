"""A model's tensors in files of a temporary folder, with the program that needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.ir.graph import Graph, Module, Op, Value, Weight
from cacheir.ir.types import QuantType, TensorType, Type
from cacheir.ir.weights import Derived, Recipe, Stored
from cacheir.models.imported import WeightSource
from cacheir.schedule.program import Program
from cacheir.schedule.program_weights import program_weights

FORMATS = core_formats()


@dataclass
class Stash:
    """Tensors laid out in files one after the other, after ``head`` bytes that are no tensor."""

    root: Path
    sources: dict[str, WeightSource]
    values: dict[str, NDArray[np.generic]]

    def put(self, key: str, format: str, shape: tuple[int, ...], *, file: str = "model.bin", seed: int = 0) -> None:
        """Append a random tensor."""
        values = np.random.default_rng([seed, *key.encode()]).standard_normal(shape).astype(np.float32)
        raw: NDArray[np.generic]
        if format in FORMATS:
            array = QuantArray.quantize(values, FORMATS[format])
            raw, values = array.blocks, array.dense()
        else:
            raw = values = values.astype({"f32": np.float32, "f16": np.float16}[format])
        path = self.root / file
        content = path.read_bytes() if path.exists() else b"head" * 5
        path.write_bytes(content + raw.tobytes())
        self.sources[key] = WeightSource(
            file=file, tensor=f"t.{key}", offset=len(content), nbytes=raw.nbytes, format=format, shape=shape
        )
        self.values[key] = values


@pytest.fixture
def stash(tmp_path: Path) -> Stash:
    """An empty stash."""
    root = tmp_path / "model"
    root.mkdir()
    return Stash(root, {}, {})


def weight(name: str, type_: Type, recipe: Recipe) -> Weight:
    return Weight(Value(name, type_, "weight"), recipe)


@pytest.fixture
def program(stash: Stash) -> Program:
    """Two layers with a dense norm, a quantised matrix and two derived weights, in two files."""
    stash.put("embed", "f16", (6, 32))
    for layer in (0, 1):
        stash.put(f"layers.{layer}.norm", "f32", (32,))
        stash.put(f"layers.{layer}.q", "q4_1", (4, 32), file="second.bin")
        stash.put(f"layers.{layer}.k", "q4_1", (2, 32), file="second.bin")
        stash.put(f"layers.{layer}.o", "f32", (3, 5))
    norm = weight("norm", TensorType.of("f32", 32), Stored("layers.$layer.norm"))
    q = weight("q", QuantType.of("q4_1", "f32", 4, 32), Stored("layers.$layer.q"))
    k = weight("k", QuantType.of("q4_1", "f32", 2, 32), Stored("layers.$layer.k"))
    qk = weight("qk", QuantType.of("q4_1", "f32", 6, 32), Derived("concat", ("q", "k"), (("axis", 0),)))
    o = weight("o", TensorType.of("f32", 3, 5), Stored("layers.$layer.o"))
    o_t = weight("o_t", TensorType.of("f32", 5, 3), Derived("transpose", ("o",), (("axes", (1, 0)),)))
    used = [norm.value, q.value, qk.value, o_t.value]
    out = Value("y", TensorType.of("f32", 1))
    layer_graph = Graph("layer", (), (), (norm, q, k, qk, o, o_t), (Op("work", tuple(used), (out,)),), (out,))
    embed = weight("embed", TensorType.of("f16", 6, 32), Stored("embed"))
    calls = tuple(
        Op("call", (), (Value(f"h.{number}", out.type),), (("callee", "layer"), ("layer", number))) for number in (0, 1)
    )
    rows = Value("rows", out.type)
    main = Graph("main", (), (), (embed,), (*calls, Op("work", (embed.value,), (rows,))), (rows,))
    return make_program({"decode": Module("decode", (main, layer_graph))}, stash.sources)


def make_program(modules: Mapping[str, Module], sources: Mapping[str, WeightSource]) -> Program:
    return Program(
        modules=modules,
        schedules={},
        plans={},
        weights=program_weights(modules.values()),
        sources=sources,
        groups=(),
        group_layers=(),
        target="cpu",
        backend="cpu",
        max_seq=8,
        max_rows=1,
        max_tokens=4,
    )


@pytest.fixture
def touch_later() -> Callable[[Path], None]:
    """Give a file an mtime that no other version of it had."""
    import os

    def touch(path: Path) -> None:
        now = path.stat().st_mtime_ns
        os.utime(path, ns=(now + 1_000_000_000, now + 1_000_000_000))

    return touch
