"""Case E11: a replay never reads what another step left, and a recording that fails leaves a working executor.

On the processor, where a replay calls the launches of a recorded step over its fixed inputs, as a device graph does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend's kernels are torch's")

from cacheir.artifact.card import CompileOptions  # noqa: E402
from cacheir.runtime.executor import Row, RowOutput, Step  # noqa: E402
from cacheir.runtime.sampling import SamplingParams  # noqa: E402
from cacheir.schedule.plan_captures import plan_captures  # noqa: E402
from cacheir.testing import tiny_programs  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir.testing.tiny_programs import TinyProgram  # noqa: E402

PAGE_TOKENS, PAGES_OF_ROW, ROWS = 4, 19, 6


@pytest.fixture(scope="module")
def tiny() -> TinyProgram:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
        limits = replace(tiny_programs.LIMITS, max_rows=ROWS, max_seq=PAGE_TOKENS * PAGES_OF_ROW)
        patch.setattr(tiny_programs, "LIMITS", limits)
        made = TinyProgram("grouped", plugin_host("cacheir_cuda.plugin"), CompileOptions(target="cuda"))
    made.program = plan_captures(made.program, (1, 2, 4), lambda kernel: True)  # three rows are filled up to four
    return made


def opened(tiny: TinyProgram, *, graph: bool = True, pages: int = ROWS * PAGES_OF_ROW) -> Any:
    extra = {"device": "cpu", "cuda_dtype": "float32", "use_cuda_graph": graph}
    made = tiny.executor(page_tokens=PAGE_TOKENS, extra=extra)
    made.open_pools([pages])
    return made


@pytest.fixture
def both(tiny: TinyProgram) -> Iterator[tuple[Any, Any]]:
    """An executor that replays and one that launches each kernel anew."""
    pair = opened(tiny), opened(tiny, graph=False)
    yield pair
    for each in pair:
        each.close()


def row(slot: int, tokens: tuple[int, ...], position: int) -> Row:
    """Its pages lie in no order, and are no more than it needs."""
    needed = -(-(position + len(tokens)) // PAGE_TOKENS)
    pages = tuple((7 * (slot * PAGES_OF_ROW + number) + 3) % (ROWS * PAGES_OF_ROW) for number in range(needed))
    return Row(slot=slot, tokens=tokens, position=position, pages=(pages,), want="token", sampling=SamplingParams())


def run(executor: Any, mode: str, *rows: Row) -> list[int | None]:
    made: tuple[RowOutput, ...] = executor.wait(executor.submit(Step(mode=mode, rows=rows))).rows
    assert not any(one.error for one in made)
    return [one.token for one in made]


def begun(executors: tuple[Any, ...], rows: int, seed: int) -> list[tuple[int, ...]]:
    """Prompts of each of ``rows`` rows, computed by all executors."""
    random = np.random.default_rng(seed)
    prompts = [tuple(random.integers(3, 60, 1 + slot % 3).tolist()) for slot in range(rows)]
    for executor in executors:
        for slot, ids in enumerate(prompts):
            run(executor, "prefill", row(slot, ids, 0))
    return prompts


def check_pages(replays: Any, launches: Any) -> None:
    """The same keys and values everywhere; a product of one row more adds in another order."""
    every = range(ROWS * PAGES_OF_ROW)
    np.testing.assert_allclose(replays.read_pages(0, every), launches.read_pages(0, every), rtol=0, atol=1e-5)


def test_e11_every_border_of_pages_and_width_of_the_table(both: tuple[Any, Any]) -> None:
    """One row to the last position: the table grows from one page to 19, recorded for each power of two of them."""
    replays, launches = both
    begun(both, 1, 1)
    for position in range(1, PAGE_TOKENS * PAGES_OF_ROW):
        fed = row(0, (3 + position % 50,), position)
        assert run(replays, "decode", fed) == run(launches, "decode", fed), position
    check_pages(replays, launches)
    assert replays.counters()["graph_misses"] == 0
    assert launches.counters()["graph_misses"] == PAGE_TOKENS * PAGES_OF_ROW - 1


def test_e11_rows_in_turn_and_pages_opened_anew(both: tuple[Any, Any]) -> None:
    """1, 2, 3, 5, 4, 1 rows: a smaller step finds nothing of the larger one before it; then pools of another size."""
    replays, launches = both
    for seed in (2, 3):
        lengths = [len(ids) for ids in begun(both, 5, seed)]
        for number, count in enumerate((1, 2, 3, 5, 4, 1)):
            rows = [row(slot, (5 + number + slot,), lengths[slot]) for slot in range(count)]
            assert run(replays, "decode", *rows) == run(launches, "decode", *rows), count
            lengths[:count] = [length + 1 for length in lengths[:count]]
        check_pages(replays, launches)
        for each in both:
            each.open_pools([ROWS * PAGES_OF_ROW + seed])


def test_e11_of_two_executors_one_is_closed(tiny: TinyProgram, both: tuple[Any, Any]) -> None:
    replays, launches = both
    other = opened(tiny)
    begun((*both, other), 2, 4)
    fed = [row(slot, (9,), 3) for slot in range(2)]
    assert run(other, "decode", *fed) == run(replays, "decode", *fed) == run(launches, "decode", *fed)
    other.close()
    fed = [row(slot, (8,), 4) for slot in range(2)]
    assert run(replays, "decode", *fed) == run(launches, "decode", *fed)
    check_pages(replays, launches)


def test_e11_no_memory_to_record(both: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows run one by one; the next step is recorded as if nothing had been."""
    replays, launches = both
    begun(both, 3, 5)
    make, failed = replays._graphs._make, []

    def fails_once(rows: int, width: int, head: str) -> Any:
        if not failed:
            failed.append(rows)
            raise torch.OutOfMemoryError("injected")
        return make(rows, width, head)

    monkeypatch.setattr(replays._graphs, "_make", fails_once)
    for position in (3, 4):
        fed = [row(slot, (11 + slot,), position) for slot in range(3)]
        assert run(replays, "decode", *fed) == run(launches, "decode", *fed)
    check_pages(replays, launches)
    assert failed == [4]
    assert {rows for rows, _, _ in replays._graphs.kept._steps} == {1, 4}
