"""Decode steps that begin behind a prompt: on its token, gone on with where they are asked for, else forgotten."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from cacheir.ir.types import KVType  # noqa: E402
from cacheir.runtime.executor import Row, RowOutput, Step  # noqa: E402
from cacheir.runtime.sampling import SamplingParams  # noqa: E402
from cacheir.runtime.slots import Slots  # noqa: E402
from cacheir.runtime.step_inputs import stage  # noqa: E402
from cacheir_cuda.chain import arguments, rows_run, tiles  # noqa: E402
from cacheir_cuda.chain import run as row_run  # noqa: E402
from cacheir_cuda.chain.behind_prompt import FIRST_STEPS, rows_behind  # noqa: E402
from cacheir_cuda.chain.launches import ChainWeights  # noqa: E402
from cacheir_cuda.chain.recognise import Chain  # noqa: E402
from cacheir_cuda.chain.rows_run import RowsChain  # noqa: E402
from cacheir_cuda.chain.rows_tiles import ADVANCE  # noqa: E402
from cacheir_cuda.chain.run import DecodeChain  # noqa: E402
from cacheir_cuda.chain.seat import ChainSeat  # noqa: E402
from cacheir_cuda.executor import CudaExecutor  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402
from cacheir_cuda.row_stops import RowStops  # noqa: E402
from cacheir_cuda.under_way import UnderWay  # noqa: E402

CPU, GREEDY, MAX_SEQ = torch.device("cpu"), SamplingParams(max_tokens=99), 128
PAGE_TOKENS = tiles.GROUP_TOKENS


def next_token(token: int, position: int) -> int:
    """What the stand-in for the kernels makes of ``token`` at ``position``."""
    return (31 * token + 7 * position + 5) % 1000


class Device:
    """Stands for driver and GPU: works off its queue when somebody waits for it, in order."""

    def __init__(self) -> None:
        self._queue: list[Callable[[], None]] = []
        self._captured: list[Any] | None = None
        self.state, self.token = np.zeros(4, np.int32), 0

    def work(self) -> bool:
        """Work off the queue; whether it is through."""
        while self._queue:
            self._queue.pop(0)()
        return True

    def later(self, work: Callable[[], None]) -> None:
        self._queue.append(work)

    def load(self, image: bytes) -> int:
        return 0

    def function(self, *_: Any) -> int:
        return 0

    def begin_capture(self, stream: Any) -> None:
        self._captured = []

    def end_capture(self, stream: Any) -> list[Any]:
        made, self._captured = self._captured, None
        assert made is not None
        return [one for one in made if isinstance(one, arguments.Advance)]

    def launch(self, *given: Any, **_: Any) -> None:
        if self._captured is not None:
            self._captured.append(given[-1])
        else:
            self.later(self._begin)

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        self.later(lambda: (ctypes.memmove(target, source, nbytes), None)[1])

    def replay(self, graph: list[Any], stream: Any) -> None:
        def steps() -> None:
            for one in graph:
                self.token = next_token(self.token, int(self.state[0]))
                ctypes.c_int.from_address(one.ring + 4 * int(self.state[1])).value = self.token
                self.state[:2] += 1

        self.later(steps)

    def destroy(self, graphs: Any) -> None:
        assert not self._queue

    def _begin(self) -> None:
        self.token = int(self.state[2])


class Prompt:
    """The last step of a prompt, under way on ``device``: its token is there when the queue gets to it."""

    def __init__(self, device: Device, row: Row, token: int) -> None:
        self.place = np.full(1, -2, np.int32)
        device.later(lambda: self.place.fill(token))

        def finish() -> tuple[RowOutput, ...]:
            device.work()
            return (RowOutput(slot=row.slot, token=int(self.place[0])),)

        self.under_way = UnderWay(finish, self.place.ctypes.data)


@pytest.fixture(scope="module")
def made(qwen_chain: Chain) -> Any:
    """A chain on a stand-in for the device."""
    device, patch = Device(), pytest.MonkeyPatch()
    over = SimpleNamespace(record=lambda stream: None, query=device.work, synchronize=device.work)
    stream = SimpleNamespace(cuda_stream=0)
    for owner, name, value in (
        (torch.Tensor, "pin_memory", lambda tensor: tensor), (torch.cuda, "Event", lambda: over),
        (torch.cuda, "current_stream", lambda _=None: stream), (torch.cuda, "Stream", lambda _=None: stream),
        (torch.cuda, "get_device_capability", lambda _=None: (9, 0)), (row_run, "load_cubin", lambda *_: b""),
        (row_run, "Driver", lambda: device),
    ):  # fmt: skip
        patch.setattr(owner, name, value)
    weights = SimpleNamespace(get=lambda layout, recipes: torch.zeros(1))
    chain = DecodeChain(qwen_chain, weights, CPU)  # type: ignore[arg-type]
    chain.open(Pool(KVType(4, 8, 128, "bf16"), range(4), 8, PAGE_TOKENS, CPU), MAX_SEQ)
    device.state = chain._buffers.state.numpy()
    yield SimpleNamespace(chain=chain, device=device)
    patch.undo()


def prompt_row(length: int, position: int = 0) -> Row:
    return Row(slot=0, tokens=tuple(range(length)), position=position, pages=((3, 1, 4, 2, 5, 6),), sampling=GREEDY)


def decode_row(prompt: Row, token: int) -> Row:
    position = prompt.position + len(prompt.tokens)
    return replace(prompt, tokens=(token,), position=position, draw=prompt.draw + 1, length=position + 1)


def expected(token: int, position: int, count: int) -> list[int]:
    found = []
    for place in range(position, position + count):
        token = next_token(token, place)
        found.append(token)
    return found


def begun(made: Any, row: Row, token: int, n: int) -> UnderWay:
    (after,), slots = rows_behind((row,)), Slots()
    staged = stage([after], [after.tokens], 1, PAGE_TOKENS, MAX_SEQ // PAGE_TOKENS)
    stops, prompt = RowStops().words((after,), slots), Prompt(made.device, row, token).under_way
    under_way: UnderWay = made.chain.begin_behind(after, staged, stops, n, prompt)
    return under_way


def ran(made: Any, row: Row, n: int) -> list[int]:
    """The tokens of a run that begins anew."""
    told: list[int] = []
    staged, slots = stage([row], [row.tokens], 1, PAGE_TOKENS, MAX_SEQ // PAGE_TOKENS), Slots()
    made.chain.run(row, staged, RowStops().words((row,), slots), n, slots, lambda rows: told.append(rows[0].token))
    return told


def went_on(made: Any, row: Row, n: int) -> list[int] | None:
    told: list[int] = []
    done = made.chain.go_on(row, n, Slots(), lambda rows: told.append(rows[0].token))
    assert done is None or done == len(told)
    return None if done is None else told


@settings(max_examples=60)
@given(
    length=st.integers(1, 20), position=st.integers(0, 20), token=st.integers(0, 999), room=st.integers(1, 50),
    asked=st.integers(1, 60),
)  # fmt: skip
def test_they_go_on_with_the_prompts_token(
    made: Any, length: int, position: int, token: int, room: int, asked: int
) -> None:
    row = prompt_row(length, position)
    under_way = begun(made, row, token, room)
    (output,) = under_way.finish()
    assert output.token == token
    after = decode_row(row, token)
    told = went_on(made, after, asked)
    if asked < min(room, FIRST_STEPS):
        assert told is None
    else:
        assert told == expected(token, after.position, min(room, asked))
    assert went_on(made, after, asked) is None
    assert ran(made, after, 5) == expected(token, after.position, 5)


@pytest.mark.parametrize(
    "other",
    [
        {"tokens": (8,)}, {"position": 6}, {"pages": ((3, 1, 4, 2, 5, 7),)}, {"draw": 2}, {"slot": 1},
        {"sampling": SamplingParams(max_tokens=98)}, {"mask": np.zeros(1, np.uint32)},
    ],
)  # fmt: skip
def test_others_begin_anew(made: Any, other: dict[str, Any]) -> None:
    row = prompt_row(5)
    begun(made, row, 7, 9).finish()
    asked = replace(decode_row(row, 7), **other)
    assert went_on(made, asked, 9) is None
    assert ran(made, asked, 9) == expected(asked.tokens[0], asked.position, 9)


def test_nobody_goes_on_before_the_prompts_token_was_told_or_after_another_run(made: Any) -> None:
    row = prompt_row(5)
    begun(made, row, 7, 9)
    assert went_on(made, decode_row(row, 7), 9) is None
    begun(made, row, 7, 9).finish()
    assert ran(made, decode_row(row, 3), 4) == expected(3, 5, 4)
    assert went_on(made, decode_row(row, 7), 9) is None
    begun(made, row, 7, 9).finish()
    made.chain.close_pages()
    made.chain.open(Pool(KVType(4, 8, 128, "bf16"), range(4), 8, PAGE_TOKENS, CPU), MAX_SEQ)
    made.device.state = made.chain._buffers.state.numpy()
    assert went_on(made, decode_row(row, 7), 9) is None
    assert ran(made, decode_row(row, 7), 4) == expected(7, 5, 4)


def test_a_prompt_that_fails_is_followed_by_nobody(made: Any) -> None:
    row = prompt_row(5)
    begun(made, row, -1, 9).finish()
    assert went_on(made, decode_row(row, 0), 9) is None
    assert ran(made, decode_row(row, 6), 20) == expected(6, 5, 20)


@pytest.mark.parametrize("between", ["prompt", "measure", "nothing"])
def test_nobody_goes_on_after_another_step(made: Any, between: str) -> None:
    """It may be of a session beside the engine, and its kernels write what the begun steps left in the buffers."""
    row, seat, executor = prompt_row(5), ChainSeat(), CudaExecutor.__new__(CudaExecutor)
    seat._chain, seat.refusal = made.chain, ""
    executor._chain, executor._slots, executor._stops = seat, Slots(), RowStops()
    executor._options = SimpleNamespace(page_tokens=PAGE_TOKENS)  # type: ignore[assignment]
    executor._program = SimpleNamespace(max_seq=MAX_SEQ)  # type: ignore[assignment]
    executor._staged = lambda step: stage(step.rows, [(0,)], 1, PAGE_TOKENS, MAX_SEQ // PAGE_TOKENS)  # type: ignore[method-assign]
    executor._prefill = lambda step: Prompt(made.device, row, 7).under_way  # type: ignore[method-assign]
    executor._launch = lambda step, timings: ()  # type: ignore[method-assign]
    executor.wait(executor.submit(Step(mode="prefill", rows=(row,), then=9)))
    other = Step(mode="prefill", rows=(prompt_row(3),))
    if between == "prompt":
        executor.wait(executor.submit(other))
    elif between == "measure":
        executor.measure(other)
    after = decode_row(row, 7)
    assert went_on(made, after, 9) == (expected(7, after.position, 9) if between == "nothing" else None)
    assert ran(made, after, 5) == expected(7, after.position, 5)


class Seat:
    """Stands for the chain's place in an executor."""

    def __init__(self, takes: bool = True) -> None:
        self.begun: list[tuple[int, list[int], int]] = []
        self._takes = takes

    def takes(self, rows: Any, slots: Any) -> bool:
        return self._takes

    def begin_behind(self, rows: Any, staged: Any, stops: Any, n: int, prompts: UnderWay) -> UnderWay:
        self.begun.append((n, staged.inputs["positions"].tolist(), int(stops[0][1])))
        return prompts


@pytest.mark.parametrize(
    ("then", "positions", "pages", "takes", "at", "want", "begins"),
    [
        (9, 64, 2, True, 8, "token", True), (9, 64, 2, False, 8, "token", False), (9, 64, 2, True, 0, "token", False),
        (9, 13, 2, True, 8, "token", False), (9, 14, 2, True, 8, "token", True), (11, 64, 1, True, 8, "token", True),
        (12, 64, 1, True, 8, "token", False), (9, 64, 2, True, 8, "nothing", False),
    ],
)  # fmt: skip
def test_the_executor_begins_what_has_room_and_a_token(
    then: int, positions: int, pages: int, takes: bool, at: int, want: str, begins: bool
) -> None:
    executor, seat = CudaExecutor.__new__(CudaExecutor), Seat(takes)
    executor._chain, executor._slots, executor._stops = seat, Slots(), RowStops()  # type: ignore[assignment]
    executor._options = SimpleNamespace(page_tokens=16)  # type: ignore[assignment]
    executor._program = SimpleNamespace(max_seq=positions, groups=(), max_rows=4, max_tokens=64)  # type: ignore[assignment]
    table = tuple(range(pages))
    rows = tuple(replace(prompt_row(count), slot=count, pages=(table,), want=want) for count in (3, 5))
    executor._staged = lambda step: stage(step.rows, [(0,), (0,)], 1, 16, 4)  # type: ignore[method-assign]
    prompt = UnderWay(lambda: (), at)
    step = Step(mode="prefill", rows=rows, then=then)
    assert executor._behind(step, prompt) is prompt
    assert seat.begun == ([(then, [3, 5], 98)] if begins else [])
    done = (RowOutput(slot=0, token=7),)
    assert executor._behind(step, done) is done


class RowsDevice(Device):
    """``KernelModule`` and its driver on the stand-in, for kernels of several rows."""

    def __init__(self) -> None:
        super().__init__()
        self.driver, self.rows = self, list[int]()

    def launch(self, launches: Any, stream: Any = None, **_: Any) -> None:  # type: ignore[override]
        def begin() -> None:
            (one,) = launches
            self.rows = numbers(one.arguments.tokens, one.blocks)

        self.later(begin)

    def record(self, launches: Any, copy: Any = None) -> list[Any]:
        return [one.arguments for one in launches if one.kernel == ADVANCE]

    def replay(self, graph: list[Any], stream: Any) -> None:
        def steps() -> None:
            for one in graph:
                places, (produced, *_) = numbers(one.positions, one.row_count), numbers(one.produced, 1)
                now = [place + one.step for place in places]
                self.rows = [next_token(token, place) for token, place in zip(self.rows, now)]
                for row, token in enumerate(self.rows):
                    at = one.ring + 4 * ((produced + one.step) * one.row_count + row)
                    ctypes.c_int.from_address(at).value = token
                for row in range(one.row_count if one.steps else 0):
                    ctypes.c_int.from_address(one.positions + 4 * row).value += one.steps
                    ctypes.c_int.from_address(one.produced + 4 * row).value += one.steps

        self.later(steps)


def numbers(address: int, count: int) -> list[int]:
    """i32 [count] at ``address``, which a launch was given."""
    return list((ctypes.c_int * count).from_address(address))


@pytest.mark.parametrize("room", [1, 2, 3, 30])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_several_rows_go_on_with_their_prompts_tokens(
    made: Any, qwen_chain: Chain, monkeypatch: pytest.MonkeyPatch, count: int, room: int
) -> None:
    device = RowsDevice()
    over = SimpleNamespace(record=lambda stream: None, query=device.work, synchronize=device.work)
    monkeypatch.setattr(torch.cuda, "Event", lambda: over)
    monkeypatch.setattr(rows_run, "KernelModule", lambda *_: device)
    weights = SimpleNamespace(get=lambda layout, recipes: torch.zeros(1))
    chain = RowsChain(qwen_chain, ChainWeights(qwen_chain, weights), CPU)  # type: ignore[arg-type]
    chain.open(Pool(KVType(4, 8, 128, "bf16"), range(4), 64, PAGE_TOKENS, CPU), MAX_SEQ)
    prompts = [replace(prompt_row(3 + n), slot=n, pages=(tuple(range(6 * n, 6 * n + 6)),)) for n in range(count)]
    rows, slots = rows_behind(prompts), Slots()

    def begin(tokens: list[int]) -> list[Row]:
        place = np.full(count, -2, np.int32)
        device.later(lambda: place.__setitem__(slice(None), tokens))

        def finish() -> tuple[RowOutput, ...]:
            device.work()
            return tuple(RowOutput(slot=row.slot, token=token) for row, token in zip(rows, place.tolist()))

        staged = stage(rows, [row.tokens for row in rows], 1, PAGE_TOKENS, MAX_SEQ // PAGE_TOKENS)
        stops, prompt = RowStops().words(rows, slots), UnderWay(finish, place.ctypes.data)
        chain.begin_behind(rows, staged, stops, room, prompt).finish()
        return [decode_row(row, token) for row, token in zip(prompts, tokens)]

    told: list[list[int]] = []
    asked = begin([11 * n + 2 for n in range(count)])
    assert chain.go_on(asked, 20 if room > 1 else 1, slots, lambda outputs: told.append([x.token for x in outputs]))
    steps = min(room, 20 if room > 1 else 1)
    assert [list(one) for one in zip(*told)] == [expected(row.tokens[0], row.position, steps) for row in asked]
    asked = begin(list(range(count)))
    for other in (asked[:-1], asked[::-1], [*asked[:-1], replace(asked[-1], tokens=(99,))]):
        assert chain.go_on(other, 20, slots, lambda outputs: None) is None
        begin(list(range(count)))
    staged = stage(asked, [row.tokens for row in asked], 1, PAGE_TOKENS, MAX_SEQ // PAGE_TOKENS)
    assert chain.run(asked, staged, RowStops().words(asked, slots), 5, slots, lambda outputs: None) == 5
    assert chain.go_on(asked, 20, slots, lambda outputs: None) is None
    asked = begin(list(range(count)))
    chain.forget_begun()
    assert chain.go_on(asked, 20, slots, lambda outputs: None) is None
    chain.close_pages()
