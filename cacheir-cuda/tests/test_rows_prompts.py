"""Prompts of a few tokens as one graph of the kernels for several rows: what they are given, and whose tokens come."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from cacheir.artifact.card import CompileOptions  # noqa: E402
from cacheir.errors import BackendError, RequestError  # noqa: E402
from cacheir.ir.types import KVType  # noqa: E402
from cacheir.runtime.executor import ExecutorOptions, Row, RowOutput, Step  # noqa: E402
from cacheir.runtime.sampling import SamplingParams  # noqa: E402
from cacheir.runtime.slots import Slots  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir.testing.tiny_programs import TinyProgram  # noqa: E402
from cacheir_cuda.chain import rows_run, rows_tiles  # noqa: E402
from cacheir_cuda.chain.launches import ChainWeights  # noqa: E402
from cacheir_cuda.chain.recognise import Chain  # noqa: E402
from cacheir_cuda.chain.rows_seat import RowsSeat  # noqa: E402
from cacheir_cuda.executor import CudaExecutor  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402

CPU, GREEDY = torch.device("cpu"), SamplingParams(max_tokens=9)
PAGE_TOKENS, MAX_SEQ, LAYERS = 16, 64, 4  # of ``qwen_chain``


def numbers(address: int, count: int) -> np.ndarray:
    """i32 [count] at ``address``, which a launch was given."""
    return np.ctypeslib.as_array((ctypes.c_int * count).from_address(address))


def token_of(token: int, position: int, page: int, first: int) -> int:
    """What the stand-in for the kernels makes of the last token of a row, which begins at ``first``."""
    return (7 * token + 131 * position + 17 * page + 5 * first) % 1000


class Device:
    """Reads and writes what the launches of a graph point to."""

    def __init__(self) -> None:
        self.driver = SimpleNamespace(replay=self.replay, destroy=self.destroy)
        self.graphs: list[Any] = []
        self.copies: dict[int, Any] = {}
        self.lost, self.failing, self.coming = False, -1, None

    def record(self, launches: Any, copy: Any) -> Any:
        self.copies[id(launches)] = copy
        kernels = [one.kernel for one in launches]
        assert kernels[0] == rows_tiles.BEGIN and kernels[-1] == rows_tiles.ADVANCE
        assert kernels[-2].startswith("rows_head_") and len(kernels) == 3 + 6 * LAYERS
        self.graphs.append(launches)
        return launches

    def destroy(self, graphs: Any) -> None:
        for graph in graphs:
            self.graphs.remove(graph)

    def replay(self, launches: Any, stream: Any) -> None:
        ctypes.memmove(*self.copies[id(launches)])
        attention, advance = launches[2].arguments, launches[-1].arguments
        count = advance.row_count
        assert launches[0].blocks == launches[-1].blocks == count and not advance.steps
        starts = numbers(attention.row_starts, attention.sequences + 1).tolist()
        table = numbers(attention.page_table, attention.sequences * attention.table_width)
        tokens, positions, slots = (
            numbers(address, count) for address in (launches[0].arguments.tokens, attention.positions, attention.slots)
        )
        assert starts[0] == 0 and starts == sorted(starts)
        assert (slots[starts[-1] :] == -1).all(), "what nobody asked for is kept nowhere"
        made = np.full(count, 999, np.int32)
        for sequence, (first, last) in enumerate(zip(starts, starts[1:])):
            for row in range(first, last):
                place = int(positions[row]) // PAGE_TOKENS
                page = int(table[sequence * attention.table_width + place])
                assert slots[row] == page * PAGE_TOKENS + positions[row] % PAGE_TOKENS
                made[row] = token_of(int(tokens[row]), int(positions[row]), page, int(positions[first]))
        if self.failing >= 0:
            made[self.failing] = -1
        assert not numbers(advance.produced, count).any()
        self.coming = (numbers(advance.ring, count), made)

    def wait(self) -> None:
        """The tokens come when they are waited for, as late as can be."""
        if self.coming is not None and not self.lost:
            ring, made = self.coming
            ring[...] = made


@pytest.fixture
def running(qwen_chain: Chain, monkeypatch: pytest.MonkeyPatch) -> Any:
    """(device, seat) whose kernels are ``Device``."""
    return opened(qwen_chain, monkeypatch)


def opened(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> tuple[Device, RowsSeat]:
    device = Device()
    over = SimpleNamespace(record=lambda stream: None, synchronize=device.wait)
    monkeypatch.setattr(rows_run, "KernelModule", lambda *_: device)
    monkeypatch.setattr(torch.cuda, "Event", lambda: over)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    seat = RowsSeat()
    no_weights = SimpleNamespace(get=lambda layout, recipes: torch.zeros(1))
    seat.load(chain, ChainWeights(chain, no_weights), CPU)  # type: ignore[arg-type]
    seat.open(Pool(KVType(LAYERS, 8, 128, "bf16"), range(LAYERS), 40, PAGE_TOKENS, CPU), MAX_SEQ)
    return device, seat


def made_of(seat: RowsSeat, rows: list[Row], slots: Slots | None = None) -> tuple[RowOutput, ...]:
    return seat.start_prompt(rows, [row.tokens for row in rows], slots or Slots()).finish()


def a_row(slot: int, tokens: list[int], position: int, want: str = "token", at: int | None = None) -> Row:
    pages = tuple(4 * slot + page for page in range(-(-(position + len(tokens)) // PAGE_TOKENS)))
    wanted = () if at is None else (at,)
    return Row(
        slot=slot, tokens=tuple(tokens), position=position, pages=(pages,), want=want, want_at=wanted, sampling=GREEDY
    )


@st.composite
def steps(draw: st.DrawFn) -> list[Row]:
    rows: list[Row] = []
    left = draw(st.integers(1, 32))
    while left:
        count = draw(st.integers(1, left))
        left -= count
        tokens = draw(st.lists(st.integers(0, 1023), min_size=count, max_size=count))
        want = draw(st.sampled_from(["token", "token", "nothing"]))
        at = draw(st.none() | st.integers(0, count - 1)) if want == "token" else None
        rows.append(a_row(len(rows), tokens, draw(st.integers(0, MAX_SEQ - count)), want, at))
        if len(rows) == 10:
            break
    return rows


@settings(deadline=None, max_examples=40)
@given(asked=st.lists(steps(), min_size=1, max_size=3))
def test_each_row_gets_the_token_after_its_own_last_one(qwen_chain: Chain, asked: list[list[Row]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        device, seat = opened(qwen_chain, patch)
        for number, rows in enumerate(asked):
            slots = Slots()
            assert seat.takes_prompt(rows, slots) is any(row.want == "token" for row in rows)
            outputs = made_of(seat, rows, slots)
            for row, output in zip(rows, outputs, strict=True):
                assert output.slot == row.slot and output.error is None
                at = row.want_at[0] if row.want_at else len(row.tokens) - 1
                place = row.position + at
                expected = token_of(row.tokens[at], place, row.pages[0][place // PAGE_TOKENS], row.position)
                wanted = expected if row.want == "token" else None
                assert output.token == wanted and slots.of(row).last_token == wanted
            assert seat.counters() == {"rows_chain_steps": 0, "rows_chain_prompts": number + 1}
        made = {(len(numbers(one[-1].arguments.ring, one[-1].arguments.row_count)), one[2].arguments.sequences)
                for one in device.graphs}  # fmt: skip
        sizes = [(sum(len(row.tokens) for row in rows), len(rows)) for rows in asked]
        assert made == {(max(8, _power(tokens)), _power(rows)) for tokens, rows in sizes}
        assert seat.captures == len(made) == len(device.graphs)
        seat.close_pages()
        assert not device.graphs and seat.captures == len(made)


def _power(count: int) -> int:
    return next(1 << bit for bit in range(8) if count <= 1 << bit)


def test_a_row_whose_logits_are_not_finite_fails_alone(running: Any) -> None:
    device, seat = running
    device.failing = 4
    rows = [a_row(0, [5] * 3, 0), a_row(1, [7] * 2, 9), a_row(2, [9], 20)]
    outputs = made_of(seat, rows)
    assert [bool(one.error) for one in outputs] == [False, True, False]


def test_tokens_that_never_come_are_an_error(running: Any) -> None:
    device, seat = running
    device.lost = True
    rows = [a_row(0, [5] * 3, 0)]
    with pytest.raises(BackendError, match="without the tokens of a prompt's 8 rows"):
        made_of(seat, rows)


@pytest.mark.parametrize("pages", [1, 5])
def test_pages_that_do_not_fit_are_refused(running: Any, pages: int) -> None:
    _, seat = running
    row = Row(slot=3, tokens=(5,) * 4, position=14, pages=(tuple(range(pages)),), want="token", sampling=GREEDY)
    with pytest.raises(RequestError, match=f"slot 3 has {pages} pages .* position 17 wants 2 of the 4"):
        made_of(seat, [row])


def test_what_is_left_to_others(running: Any) -> None:
    _, seat = running
    slots = Slots()
    few, many = [a_row(0, [5] * 32, 0)], [a_row(0, [5] * 33, 0)]
    assert seat.takes_prompt(few, slots) and not seat.takes_prompt(many, slots)
    for changed in ({"sampling": SamplingParams(temperature=0.8, seed=1)}, {"want": "logits"}, {"want": "nothing"}):
        row = Row(slot=1, tokens=(5, 6), position=0, pages=((0,),), **{"sampling": GREEDY, "want": "token", **changed})
        assert not seat.takes_prompt([row], slots)
    row = Row(slot=2, tokens=(5, 6), position=0, pages=((0,),), want="token", want_at=(0, 1), sampling=GREEDY)
    assert not seat.takes_prompt([row], slots)
    seat.close_pages()
    assert not seat.takes_prompt(few, slots)


def test_the_executor_asks_for_few_tokens_here_and_for_others_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for either; main must run by the kernels for several rows besides."""
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    tiny = TinyProgram("grouped", plugin_host("cacheir_cuda.plugin"), CompileOptions(target="cuda"))
    executor = CudaExecutor(ExecutorOptions(threads=1, installation=tiny.installation, page_tokens=PAGE_TOKENS))
    executor.load(tiny.program, tiny.weights)
    executor.open_pools([8])
    asked: list[str] = []

    def answers(name: str) -> Any:
        return lambda *_, **__: asked.append(name) or ()

    by_rows = [True]
    executor._blocks = SimpleNamespace(takes=lambda mode: True, by_rows=lambda mode: by_rows[0], close=lambda: None)
    executor._prefills.run = answers("graphs")  # type: ignore[method-assign]
    seat = executor._chain.rows
    seat.refusal, seat.start_prompt = "", answers("rows")  # type: ignore[method-assign]
    step = Step(mode="prefill", rows=(a_row(0, [5, 6], 0),))
    executor.submit(step)
    by_rows[0] = False
    executor.submit(step)
    by_rows[0], seat.refusal = True, "the kernels are not there"
    executor.submit(step)
    assert asked == ["rows", "graphs", "graphs"]
    executor.close()
