"""A run of the kernels for several rows on the host: what it fills in, launches, reports and refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from cacheir.errors import BackendError  # noqa: E402
from cacheir.ir.types import KVType  # noqa: E402
from cacheir.runtime.executor import Row  # noqa: E402
from cacheir.runtime.sampling import SamplingParams  # noqa: E402
from cacheir.runtime.slots import Slots  # noqa: E402
from cacheir_cuda.chain import rows_run, rows_tiles, tiles  # noqa: E402
from cacheir_cuda.chain.launches import ChainWeights  # noqa: E402
from cacheir_cuda.chain.recognise import Chain  # noqa: E402
from cacheir_cuda.chain.rows_seat import RowsSeat  # noqa: E402
from cacheir_cuda.main_inputs import MainInputs  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402
from cacheir_cuda.row_stops import RowStops  # noqa: E402

CPU = torch.device("cpu")


def test_a_step_is_filled_up() -> None:
    given = {"tokens": [4, 5], "positions": [9, 1], "slots": [30, 7], "page_table": [[1, 2], [3, 0]]}
    shapes = {**dict.fromkeys(("tokens", "positions", "slots", "produced"), (4,)), "page_table": (4, 3)}
    inputs = MainInputs(shapes, CPU)
    for tensor in inputs.tensors.values():
        tensor.fill_(7)  # of another step
    inputs.fill_up({name: np.array(value, np.int32) for name, value in given.items()}, rows_run.FREE_ROWS)
    made = inputs.tensors
    assert made["tokens"].tolist() == [4, 5, 0, 0]
    assert made["slots"].tolist() == [30, 7, -1, -1]
    assert made["produced"].tolist() == [0] * 4
    assert made["page_table"].tolist() == [[1, 2, 0], [3, 0, 0], [0] * 3, [0] * 3]


class Device:
    """Stands for the GPU: a graph of n steps gives each row's next n tokens, which count up from 100 * row."""

    def __init__(self, bad: int = -1, lost: int = -1) -> None:
        self.bad, self.lost, self.launched = bad, lost, []
        self.driver = SimpleNamespace(replay=self.replay, destroy=lambda graphs: None)

    def record(self, launches: Any) -> Any:
        advances = [one.arguments for one in launches if one.kernel == rows_tiles.ADVANCE]
        assert [one.step for one in advances] == list(range(len(advances)))
        return len(advances)

    def launch(self, launches: Any, stream: Any = None) -> None:
        self.launched += [one.kernel for one in launches]
        self.number = 0

    def replay(self, steps: int, stream: Any) -> None:
        for _ in range(steps):
            if self.number != self.lost:
                self.ring[self.number] = 100 * np.arange(self.ring.shape[1]) + self.number
            if self.number == self.bad:
                self.ring[self.number, 1] = -1
            self.number += 1

    def close(self) -> None:
        self.launched.append("closed")


class Over:
    def record(self, stream: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


@pytest.fixture
def running(qwen_chain: Chain, monkeypatch: pytest.MonkeyPatch) -> Any:
    """(device, seat) for three rows whose kernels are ``Device``."""
    weights = SimpleNamespace(get=lambda layout, recipes: torch.zeros(1))
    device = Device()
    monkeypatch.setattr(rows_run, "KernelModule", lambda *_: device)
    monkeypatch.setattr(torch.cuda, "Event", Over)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    seat = RowsSeat()
    seat.load(qwen_chain, ChainWeights(qwen_chain, weights), CPU)  # type: ignore[arg-type]
    assert not seat.takes(3)
    seat.open(Pool(KVType(4, 8, 128, "bf16"), range(4), 3, 16, CPU), 32)
    made = rows_run._Recorded

    def watched(*given: Any) -> Any:
        recorded = made(*given)
        device.ring = recorded.ring
        return recorded

    monkeypatch.setattr(rows_run, "_Recorded", watched)
    return device, seat


def three_rows() -> tuple[list[Row], Any, Any, Slots]:
    slots = Slots()
    greedy = SamplingParams(max_tokens=9)
    rows = [Row(slot=i, tokens=(5,), position=i, pages=((0, 1),), sampling=greedy) for i in range(3)]
    for row in rows:
        slots.of(row)
    inputs = {name: np.zeros(3, np.int32) for name in ("tokens", "positions", "slots")}
    staged = SimpleNamespace(rows=3, inputs={**inputs, "page_table": np.zeros((3, 2), np.int32)})
    return rows, staged, RowStops().words(rows, slots), slots


def test_a_run_reports_each_step_of_each_row(running: Any) -> None:
    device, seat = running
    assert seat.takes(3) and seat.takes(32) and not seat.takes(33) and not seat.takes(1)
    rows, staged, stops, slots = three_rows()
    told: list[list[int | None]] = []
    assert seat.run(rows, staged, stops, 11, slots, lambda outputs: told.append([one.token for one in outputs])) == 11
    assert told == [[n, 100 + n, 200 + n] for n in range(11)]
    assert device.ring.shape[1] == 4  # three rows in a graph of four
    assert seat.captures == 3  # of 1, 2 and 8 steps
    assert [one.token for one in seat.start(rows, staged, slots).finish()] == [0, 100, 200]
    assert seat.counters() == {"rows_chain_steps": 12, "rows_chain_prompts": 0}
    seat.close_pages()
    assert not seat.takes(3)
    seat.close()
    assert device.launched[-1] == "closed"


def test_a_row_that_fails_ends_the_run(running: Any) -> None:
    device, seat = running
    device.bad = 2
    rows, staged, stops, slots = three_rows()
    told: list[Any] = []
    assert seat.run(rows, staged, stops, 8, slots, told.append) == 3
    assert [bool(one.error) for one in told[-1]] == [False, True, False]


def test_tokens_that_never_come_are_an_error(running: Any) -> None:
    device, seat = running
    device.lost = 1
    rows, staged, stops, slots = three_rows()
    with pytest.raises(BackendError, match="without the tokens of step 1"):
        seat.run(rows, staged, stops, 4, slots, lambda outputs: None)


def test_other_pages_are_refused(monkeypatch: pytest.MonkeyPatch, running: Any) -> None:
    _, seat = running
    seat.open(Pool(KVType(4, 8, 128, "f16"), range(4), 3, 16, CPU), 32)
    assert "KV pages are f16" in seat.refusal and not seat.takes(2)
    assert tiles.GROUP_TOKENS == 16
    seat.open(Pool(KVType(4, 8, 128, "bf16"), range(4), 3, 8, CPU), 32)
    assert "8 tokens" in seat.refusal
