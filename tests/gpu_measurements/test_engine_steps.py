"""engine_steps.py beside a GPU that is stood for (host_run.py): which graphs are noted, what is put back and told."""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the script measures what runs on it")
pytest.importorskip("triton", reason="Triton is not installed, and the script has a kernel in it")

STEP_US = 300.0


class Stood:
    """``Device`` of host_run, whose events are of its own clock: the end of what is queued."""

    def __init__(self, host_run: ModuleType, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = device = host_run.Device(0.0)
        stack.enter_context(host_run.stand_ins(device))
        replay, replays = device.replay, []
        over = torch.cuda.Event

        class Event(over):  # type: ignore[misc, valid-type]
            def __init__(self, enable_timing: bool = False) -> None:
                self.at = 0.0

            def record(self, stream: Any = None) -> None:
                self.at = STEP_US * 1e-3 * sum(replays)

            def elapsed_time(self, end: Event) -> float:
                return end.at - self.at

        def noted(graph: tuple[int, int], stream: Any = None) -> None:
            replays.append(graph[0])
            if len(device._queued) + graph[0] > len(device.rings[graph[1]]):
                device.begin()  # a graph that is replayed alone writes to the ring's first places
            replay(graph, stream)

        device.replay = noted
        self.replays = replays
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)


@pytest.fixture
def stood(monkeypatch: pytest.MonkeyPatch) -> Any:
    with ExitStack() as stack:
        yield Stood(importlib.import_module("host_run"), stack, monkeypatch)


def test_each_way_times_the_steps_of_an_answer(stood: Stood, monkeypatch: pytest.MonkeyPatch) -> None:
    host_run, engine_steps = (importlib.import_module(name) for name in ("host_run", "engine_steps"))
    model = host_run.opened(32)
    chain = model.executor._chain.rows._rows
    monkeypatch.setattr(engine_steps, "ids", lambda length, seed: [3 + seed % 900, *range(5, 4 + length)])
    befores = []
    found = engine_steps.measured(model, chain, lambda: befores.append(sum(stood.replays)), 2)
    samples = found["us_a_step"]
    assert len(samples) == 9 and all(len(taken) == 2 for by in samples.values() for taken in by.values())
    for way, by in samples.items():
        assert all(taken == pytest.approx([STEP_US] * 2) for taken in by.values()), way
    assert len(befores) == 1 + 2 * len(samples)  # compiled, then once for each way and round
    for parts in found["parts"].values():
        assert sum(steps for steps, _ in parts["graphs_us"]) == engine_steps.STEPS
        assert parts["gaps_us"] == [0.0] * (len(parts["graphs_us"]) - 1)
    lines = engine_steps.table(found).splitlines()
    assert len(lines) == 1 + 9 + 2 and "300.0 (300.0, 300.0)" in lines[1]


def test_the_replay_is_put_back_and_other_graphs_are_not_noted(stood: Stood) -> None:
    host_run, noted_graphs = (importlib.import_module(name) for name in ("host_run", "noted_graphs"))
    model = host_run.opened(32)
    host_run.batch(model, 32, output=9)
    chain = model.executor._chain.rows._rows
    driver, graph = chain._module.driver, chain._recorded[32].graphs[4]
    own = driver.replay
    with noted_graphs.noting(chain, 32, 4, False, lambda: None) as found:
        driver.replay(graph, 0)
        driver.replay((4, graph[1]), 0)  # equal, and another's
    assert found.steps == 4 and len(found.graphs) == 1 and driver.replay is own
    assert found.us_a_step() == pytest.approx(STEP_US)
