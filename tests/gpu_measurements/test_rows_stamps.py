"""The stamps of R1's kernels of 32 rows without a GPU: which plans, and what is made of what they note."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the script measures what runs on it")

from cacheir.ir.types import KVType  # noqa: E402
from cacheir_cuda.chain import rows_tiles  # noqa: E402
from cacheir_cuda.chain.launches import ChainWeights, KernelLaunch  # noqa: E402
from cacheir_cuda.chain.rows_launches import RowsBuffers, RowsInputs  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402

SOURCES = Path(__file__).resolve().parents[2] / "cacheir-cuda" / "cpp"
CPU = torch.device("cpu")
COUNTS = [4, 5, 6, 7, 8]  # blocks of the made-up launches


@pytest.fixture
def stamps() -> ModuleType:
    return importlib.import_module("rows_stamps")


@pytest.fixture
def chain() -> Any:
    bench, models = (importlib.import_module(name) for name in ("rows_bench", "random_models"))
    return bench.chain_of(*models.SHAPES["r1-distill-1.5b"], 2)


def bench_of(chain: Any) -> Any:
    weights = ChainWeights(chain, SimpleNamespace(get=lambda layout, recipes: torch.zeros(1)))  # type: ignore[arg-type]
    pool = Pool(KVType(2, chain.kv_heads, 128, "bf16"), range(2), 3, 16, CPU)
    return SimpleNamespace(chain=chain, weights=weights, buffers=RowsBuffers(chain, CPU, 32), pool=pool)


def inputs_of() -> RowsInputs:
    values = torch.zeros(32, dtype=torch.int32)
    return RowsInputs(values, values, values, torch.zeros((32, 2), dtype=torch.int32))


def launches_of(chain: Any, plan: Any) -> list[KernelLaunch]:
    return list(importlib.import_module("rows_held").planned(bench_of(chain), plan).layers(inputs_of()))


def test_the_plans_are_of_the_searchs_kernels_and_their_blocks_have_room(stamps: ModuleType, chain: Any) -> None:
    candidates = importlib.import_module("rows_candidates")
    known = {
        kernel
        for plans in candidates.candidates(chain).values()
        for plan in plans
        for kernel in candidates.named(plan, chain).values()
    }
    made = list(stamps.plans(chain))
    assert made[0] == {} and len(made) < 60
    assert len({str(sorted(plan.items())) for plan in made}) == len(made)
    for plan in made:
        assert candidates.fits_together(plan, chain) and set(candidates.named(plan, chain).values()) <= known
    for plan in (made[0], made[-1]):
        launches = launches_of(chain, plan)
        assert {one.kernel for one in launches} <= known | rows_tiles.all_kernels()
        assert max(one.blocks for one in launches) <= stamps.BLOCKS


def test_the_array_is_that_of_the_sources(stamps: ModuleType) -> None:
    found = re.search(r"rows_stamps\[(\d+)\]\[(\d+)\]\[(\d+)\];", (SOURCES / "device.cuh").read_text())
    assert found and [int(size) for size in found.groups()] == [len(stamps.LAYER), stamps.BLOCKS, len(stamps.PLACES)]
    for number, name in enumerate(("rows_parts", "rows_attention", "rows_residual", "rows_stream")):
        kernel = "KERNEL" if name == "rows_residual" else number
        places = re.findall(rf"STAMP\({kernel}, (\d)\);", (SOURCES / f"{name}.cuh").read_text())
        noted = {stamps.PLACES[int(place)] for place in places}
        assert {"begins", "asked", "waited", "rows", "first", "ends"} <= noted <= {*stamps.PLACES} - {"-"}


class Array:
    """Each block begins 1 us after the one before it, waits until 100 us later, and ends 200 us later; each read comes
    5 ms after the one before it, and each kernel 10 us after the one before it. Rows come in down alone."""

    def __init__(self, stamps: ModuleType, counts: list[int]) -> None:
        self._stamps, self._counts, self.reads = stamps, counts, 0

    def read(self) -> Any:
        made = torch.zeros(len(self._stamps.LAYER), self._stamps.BLOCKS, len(self._stamps.PLACES), dtype=torch.int64)
        begun = 10**18 + 5_000_000 * self.reads
        for kernel, count in enumerate(self._counts):
            for block in range(count):
                for place, after in (("begins", 0), ("waited", 100_000), ("ends", 200_000 + 7 * self.reads)):
                    at = begun + 10_000 * kernel + 1000 * block + after
                    made[kernel, block, self._stamps.PLACES.index(place)] = at
        made[4, :, self._stamps.PLACES.index("rows")] = begun + 150_000
        self.reads += 1
        return made


def test_the_first_median_and_last_block_of_each_kernel(stamps: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("synchronize", lambda: None), ("Stream", lambda: SimpleNamespace(cuda_stream=3))):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(stamps, "REPLAYS", 3)
    launches, called = [SimpleNamespace(blocks=count) for count in COUNTS], []
    driver = SimpleNamespace(replay=lambda graph, stream: called.append((graph, stream)), destroy=called.append)
    bench = SimpleNamespace(driver=driver, graph=lambda given, stream: f"graph of {len(given)}")
    array = Array(stamps, COUNTS)
    taken = stamps.stamped(bench, launches, lambda: called.append("reset"), array)
    assert called == ["reset", *[("graph of 5", 3)] * 3, ["graph of 5"]] and array.reads == 3
    made = stamps.table(taken, COUNTS)
    assert list(made) == list(stamps.LAYER)
    assert made["qkv"] == {"begins": (-100, -98, -97), "waited": (0, 2, 3), "ends": (100.01, 102.01, 103.01)}
    assert made["down"] == {
        "begins": (-60, -56, -53), "waited": (40, 44, 47), "rows": (50, 50, 50), "ends": (140.01, 144.01, 147.01)
    }  # fmt: skip


def test_what_is_wrong_is_told_once_and_never_timed(stamps: ModuleType, chain: Any) -> None:
    named = importlib.import_module("rows_candidates").named
    wrong, told, plans = "rows_stream_swiglu_k1536_t1_w12_s13_c4", list[dict[str, Any]](), list(stamps.plans(chain))
    timer = SimpleNamespace(
        chain=chain, layer_us=lambda plan: 34.0 + len(plan), alone_us=lambda plan, name: 5.0,
        held=lambda plan, name: {"right": named(plan, chain)[name] != wrong},
    )  # fmt: skip
    made = stamps.measured(timer, iter(plans), told.append, lambda: False)
    assert [plan for _, plan in made] == [plan for plan in plans if wrong not in named(plan, chain).values()]
    assert made[0] == (34, {}) and 0 < len(made) < len(plans)
    singles = [str(row["kernels"]) for row in told if row["stage"] == "single"]
    assert len(set(singles)) == len(singles) and any(wrong in one for one in singles)
    assert not any(wrong in str(row["kernels"]) for row in told if row["stage"] == "layer")
    assert len(stamps.measured(timer, iter(plans), told.append, lambda: told[-1]["stage"] == "layer")) <= 1


def test_the_base_and_the_fastest_plans_are_stamped(
    stamps: ModuleType, chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("synchronize", lambda: None), ("Stream", lambda: SimpleNamespace(cuda_stream=3))):
        monkeypatch.setattr(torch.cuda, name, value)
    bench, replayed, fast = bench_of(chain), list[str](), "rows_stream_swiglu_k1536_t1_w12_s13_c4"
    bench.graph = lambda given, stream: " ".join(one.kernel for one in given)
    bench.driver = SimpleNamespace(
        load=bytes.decode, replay=lambda graph, stream: replayed.append(graph), destroy=lambda graphs: None
    )

    def layer_us(plan: Any) -> float:
        return 34 - (fast in importlib.import_module("rows_candidates").named(plan, chain).values())

    timer = SimpleNamespace(
        chain=chain, inputs=inputs_of(), layer_us=layer_us, alone_us=lambda plan, name: 5.0,
        held=lambda plan, name: {"right": True},
    )  # fmt: skip
    monkeypatch.setattr(stamps, "Bench", lambda cubin, name: bench)
    monkeypatch.setattr(stamps, "GpuTimer", lambda bench: timer)
    monkeypatch.setattr(stamps, "Stamps", lambda module: Array(stamps, [stamps.BLOCKS] * len(stamps.LAYER)))
    (tmp_path / "stamped").write_text("stamped")
    given = [tmp_path / "plain", tmp_path / "stamped", tmp_path / "out.jsonl", 60]
    monkeypatch.setattr(sys, "argv", ["rows_stamps.py", *map(str, given)])
    stamps.main()
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    found = [row for row in rows if row["stage"] == "stamps"]
    assert [row["layer_us"] for row in found] == [34, *[33] * stamps.BEST] and found[0]["kernels"] == {}
    assert all(row["kernels"]["gate_up"] == fast for row in found[1:])
    assert all([*row["stamps"]] == [*stamps.LAYER] and row["stamps"]["qkv"]["waited"][0] == 0 for row in found)
    assert (bench.module, len(replayed)) == ("stamped", len(found) * stamps.REPLAYS)
    assert [fast in graph for graph in replayed[:: stamps.REPLAYS]] == [False, *[True] * stamps.BEST]
    assert set(timer.inputs.positions.tolist()) == {stamps.CONTEXT}
