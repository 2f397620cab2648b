"""A run that ends in an exception leaves the device at work: nothing that it still reads or writes is touched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from cacheir.ir.types import KVType  # noqa: E402
from cacheir.runtime.executor import Row  # noqa: E402
from cacheir.runtime.sampling import SamplingParams  # noqa: E402
from cacheir.runtime.slots import Slots  # noqa: E402
from cacheir.runtime.step_inputs import stage  # noqa: E402
from cacheir_cuda.chain import launches, rows_run, tiles  # noqa: E402
from cacheir_cuda.chain import run as row_run  # noqa: E402
from cacheir_cuda.chain.launches import ChainWeights  # noqa: E402
from cacheir_cuda.chain.prompt_inputs import PromptInputs  # noqa: E402
from cacheir_cuda.chain.recognise import Chain  # noqa: E402
from cacheir_cuda.chain.rows_run import RowsChain  # noqa: E402
from cacheir_cuda.chain.rows_tiles import ADVANCE  # noqa: E402
from cacheir_cuda.main_inputs import MainInputs  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402
from cacheir_cuda.row_stops import RowStops  # noqa: E402

CPU = torch.device("cpu")


class Device:
    """Stands for driver and GPU. ``busy`` from a graph's launch until somebody waits: nobody touches what it reads."""

    def __init__(self) -> None:
        self.driver, self.busy, self.destroyed = self, False, 0
        self._captured: list[Any] = []

    # What the chain of one row calls, then what the kernels for several rows do.
    def load(self, image: bytes) -> int:
        return 0

    def function(self, *_: Any) -> int:
        return 0

    def unload(self, module: Any) -> None: ...

    def begin_capture(self, stream: Any) -> None:
        self._captured = [None]

    def end_capture(self, stream: Any) -> list[Any]:
        made, self._captured = self._captured[1:], []
        return made

    def launch(self, *given: Any, **_: Any) -> None:
        if self._captured:
            self._captured.append(given[-1])
        else:
            self.untouched()

    def record(self, made: Any, copy: Any = None) -> list[Any]:
        return [one.arguments for one in made if one.kernel == ADVANCE]

    def replay(self, graph: list[Any], stream: Any) -> None:
        self.busy = True

    def destroy(self, graphs: Any) -> None:
        self.untouched()
        self.destroyed += len(graphs)

    def close(self) -> None: ...

    def untouched(self) -> None:
        assert not self.busy, "the device still works on the run before"

    def wait(self) -> None:
        self.busy = False


def pool() -> Pool:
    return Pool(KVType(4, 8, 128, "bf16"), range(4), 8, tiles.GROUP_TOKENS, CPU)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    over = SimpleNamespace(record=lambda stream: None, query=lambda: not made.busy, synchronize=made.wait)
    stream = SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    for owner, name, value in (
        (torch.cuda, "Event", lambda: over), (torch.cuda, "current_stream", lambda _=None: stream),
        (torch.cuda, "Stream", lambda _=None: stream), (torch.cuda, "get_device_capability", lambda _=None: (9, 0)),
        (row_run, "load_cubin", lambda *_: b""), (row_run, "Driver", lambda: made),
        (rows_run, "KernelModule", lambda *_: made),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, value)
    for kind, name in ((MainInputs, "fill_up"), (PromptInputs, "fill")):
        monkeypatch.setattr(kind, name, watched(made, getattr(kind, name)))
    return made


def watched(device: Device, written: Any) -> Any:
    """``written``, which nobody may ask for while ``device`` is busy."""

    def fill(*given: Any) -> Any:
        device.untouched()
        return written(*given)

    return fill


class Left(Exception):
    """A client's sink gives up."""


def rows_of(count: int) -> tuple[list[Row], Any, Slots]:
    greedy, slots = SamplingParams(max_tokens=9), Slots()
    rows = [Row(slot=i, tokens=(5,), position=i, pages=((i,),), sampling=greedy) for i in range(count)]
    for row in rows:
        slots.of(row)
    return rows, stage(rows, [row.tokens for row in rows], 1, tiles.GROUP_TOKENS, 2), slots


def gives_up(outputs: Any) -> None:
    raise Left


def test_the_chain_of_one_row(device: Device, qwen_chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = SimpleNamespace(get=lambda layout, recipes: torch.zeros(1))
    made = row_run.DecodeChain(qwen_chain, weights, CPU)  # type: ignore[arg-type]
    made.open(pool(), 32)
    (row,), staged, slots = rows_of(1)
    ring, state = made._ring, made._host_state
    begun = made._launch

    def looked_at(launch: launches.KernelLaunch, stream: int) -> None:
        if launch is made._begin:  # its inputs were just written
            device.untouched()
            assert state[2] == 5 and (ring[:4] == row_run.EMPTY).all()
            ring[:4] = 7
        begun(launch, stream)

    monkeypatch.setattr(made, "_launch", looked_at)
    for _ in range(2):
        with pytest.raises(Left):
            made.run(row, staged, RowStops().words((row,), slots), 4, slots, gives_up)
        assert device.busy
    told: list[Any] = []
    assert made.run(row, staged, RowStops().words((row,), slots), 4, slots, told.append) == 4
    assert [one.token for (one,) in told] == [7] * 4
    made.close_pages()
    assert device.destroyed == 1


@pytest.mark.parametrize("how", ["run", "start", "start_prompt"])
def test_the_kernels_for_several_rows(
    device: Device, qwen_chain: Chain, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    no_weights = SimpleNamespace(get=lambda layout, recipes: torch.zeros(1))
    made = RowsChain(qwen_chain, ChainWeights(qwen_chain, no_weights), CPU)  # type: ignore[arg-type]
    made.open(pool(), 32)
    rows, staged, slots = rows_of(3)
    monkeypatch.setattr(rows_run, "let_others_run", lambda: gives_up(None))  # whoever waits for tokens is interrupted
    for _ in range(3):
        if how == "start_prompt":
            made.start_prompt(rows, [row.tokens for row in rows], slots)  # and nobody waits
            continue
        with pytest.raises(Left):
            if how == "run":
                made.run(rows, staged, RowStops().words(rows, slots), 4, slots, lambda outputs: None)
            else:
                made.start(rows, staged, slots).finish()
        assert device.busy
    made.close_pages()
    assert device.destroyed >= 1 and not device.busy
