"""Memory of every family: plans within a tenth of what must be alive at once, and the executors' accounts foretold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import CompileOptions
from cacheir.compile import open_program
from cacheir.ir.graph import Module
from cacheir.plugins.installation import default
from cacheir.plugins.ref import resolve
from cacheir.runtime.executor import ExecutorOptions, MemoryUse
from cacheir.schedule.memory_plan import MemoryPlan
from cacheir.schedule.plan_memory import ALIGNMENT
from cacheir.schedule.schedule import Schedule
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TINY_FAMILIES


def bytes_alive(graph: str, module: Module, schedule: Schedule, plan: MemoryPlan) -> int:
    """The most bytes in use during any entry of ``graph``, with what a call needs on top; values that share a place
    count once.
    """
    places = plan.frame(graph).places
    most = 0
    for number, entry in enumerate(schedule.graph(graph).entries):
        alive = {name: place for name, place in places.items() if place.first <= number <= place.last}
        blocks: dict[str, int] = {}
        for name, place in alive.items():
            host = name
            while places[host].in_place_of in alive:
                host = places[host].in_place_of
            blocks[host] = max(blocks.get(host, 0), -(-place.nbytes // ALIGNMENT) * ALIGNMENT)
        callee = module.graph(graph).ops[entry.op].callee
        inner = bytes_alive(callee, module, schedule, plan) if callee else 0
        most = max(most, sum(blocks.values()) + inner)
    return most


def check(artifact: Artifact) -> None:
    program = artifact.program
    for mode, plan in program.plans.items():
        module, schedule = program.modules[mode], program.schedules[mode]
        roots = [graph.name for graph in (module.main, *module.heads)]
        least = max(bytes_alive(name, module, schedule, plan) for name in roots)
        assert least <= plan.arena_bytes <= 1.1 * least, (mode, least, plan.arena_bytes)
        for graph in module.graphs:
            frame, own = plan.frame(graph.name), bytes_alive(graph.name, module, schedule, plan)
            assert own <= frame.with_callees <= 1.1 * own, (mode, graph.name, own, frame.with_callees)


def account(artifact: Artifact, *, kv_dtype: str = "") -> tuple[MemoryUse, MemoryUse]:
    """What the backend foretells for pools of a few pages, and what its executor then says that it owns."""
    program, backend = artifact.program, default().backends[artifact.program.backend]
    options = ExecutorOptions(threads=2, page_tokens=16, kv_dtype=kv_dtype)
    pages = [5 + group for group in range(len(program.groups))]
    foretold = resolve(backend.memory)(program, options, pages).use
    executor = resolve(backend.executor)(options)
    try:
        executor.load(program, artifact.open_weights())
        executor.open_pools(pages)
        return foretold, executor.memory()
    finally:
        executor.close()


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_the_plan_is_tight_and_the_account_foretold(family: str, tmp_path: Path) -> None:
    write_tiny(tmp_path / "model", family=family)
    for backend in ("cpu", "native"):
        artifact = open_program(tmp_path / "model", CompileOptions(target=backend, max_tokens=64, max_seq=128))
        check(artifact)
        foretold, owned = account(artifact)
        assert foretold == owned, backend


@pytest.mark.parametrize("backend", ["cpu", "native"])
def test_experts_that_are_unpacked_at_load_are_foretold(backend: str, tmp_path: Path) -> None:
    write_tiny(tmp_path / "model", family="qwen3_moe")
    options = CompileOptions(target=backend, quant="int4", max_tokens=64, max_seq=128)
    foretold, owned = account(open_program(tmp_path / "model", options))
    assert foretold == owned


@pytest.mark.parametrize("kv_dtype", ["f16", "bf16", "int8"])
@pytest.mark.parametrize("backend", ["cpu", "native"])
def test_other_storage_of_keys_is_foretold(backend: str, kv_dtype: str, tmp_path: Path) -> None:
    write_tiny(tmp_path / "model", family="llama")
    artifact = open_program(tmp_path / "model", CompileOptions(target=backend, max_tokens=64, max_seq=128))
    foretold, owned = account(artifact, kv_dtype=kv_dtype)
    assert foretold == owned


@pytest.mark.parametrize("kv_dtype", ["", "int8"])
def test_the_account_of_cuda_is_foretold(kv_dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    for family in ("llama", "qwen3", "gemma2"):
        write_tiny(tmp_path / family, family=family)
        options = CompileOptions(target="cuda", max_tokens=64, max_seq=128)
        foretold, owned = account(open_program(tmp_path / family, options), kv_dtype=kv_dtype)
        assert foretold == owned, family


@pytest.mark.parametrize("backend", ["cpu", "native"])
def test_the_plan_of_a_real_model_is_tight(smollm2_path: Path, backend: str) -> None:
    check(open_program(smollm2_path, CompileOptions(target=backend, max_seq=2048)))
