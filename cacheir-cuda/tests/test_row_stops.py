"""Where an answer ends, seen on the device: a row behind its end tells no token, stores nothing, and moves nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from cacheir.artifact.card import CompileOptions  # noqa: E402
from cacheir.runtime.executor import Row, RowOutput, Step  # noqa: E402
from cacheir.runtime.row_ends import ends_of  # noqa: E402
from cacheir.runtime.sampling import SamplingParams  # noqa: E402
from cacheir.runtime.slots import Slots  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir.testing.opened_backend import OpenedBackend  # noqa: E402
from cacheir.testing.tiny_programs import TinyProgram  # noqa: E402
from cacheir_cuda.kernels import advance  # noqa: E402
from cacheir_cuda.row_stops import NEVER, STOP_IDS, STOPPED, RowStops, is_over, told_output  # noqa: E402

PAGE, STEPS, UNTOUCHED = 4, 9, 777.0
SOURCES = Path(__file__).parents[1] / "cpp"
PROMPTS = ((5, 9, 3), (7, 11, 4, 6, 8), (2, 3))


def row_of(sampling: SamplingParams | None, slot: int = 0, draw: int = 0) -> Row:
    return Row(slot=slot, tokens=(1,), position=3, pages=((0,),), sampling=sampling, draw=draw)


def test_what_a_row_ends_at() -> None:
    slots = Slots()
    assert ends_of(row_of(None), slots) == ((), 0)
    assert ends_of(row_of(SamplingParams(stop_ids=(4, 2))), slots) == ((2, 4), 0)
    assert ends_of(row_of(None), slots) == ((2, 4), 0), "the slot keeps its parameters"
    assert ends_of(row_of(SamplingParams(max_tokens=9), draw=6), slots) == ((), 3)
    assert ends_of(row_of(SamplingParams(max_tokens=9), draw=9), slots) == ((), 1), "who asks for a token gets one"


def test_words_of_rows() -> None:
    stops, slots = RowStops(), Slots()
    most = tuple(range(10, 10 + STOP_IDS))
    rows = [
        row_of(SamplingParams(max_tokens=7, stop_ids=(8, 3)), 0, draw=2),
        row_of(SamplingParams(stop_ids=most), 1),
        row_of(SamplingParams(max_tokens=4, stop_ids=(*most, 99)), 2),
    ]
    words = stops.words(rows, slots)
    assert words[0].tolist() == [0, 5, 0, 0, 3, 8, *NEVER[6:]]
    assert words[1].tolist() == [0, 0, 0, 0, *most]
    assert words[2].tolist() == [0, 4, *NEVER[2:]], "more ids than places: the host looks for them"
    assert stops.counters() == {"stops_on_host: more than 8 ids end an answer": 1}


@pytest.mark.skipif(not SOURCES.exists(), reason="the kernels' sources are in the repository alone")
def test_words_are_those_of_the_kernels() -> None:
    text = (SOURCES / "stops.cuh").read_text()
    constants = dict(re.findall(r"constexpr int (\w+) = (-?\d+);", text))
    assert constants == {"STOPPED": str(STOPPED), "STOP_IDS": str(STOP_IDS)}
    fields = re.findall(r"int (\w+)(?:\[(\w+)\])?;", text.partition("struct Stops {")[2].partition("};")[0])
    sizes = [int(constants.get(size, size or 1)) for _, size in fields]
    assert [name for name, _ in fields] == ["stopped", "left", "unused", "ids"] and sum(sizes) == len(NEVER)


def test_what_is_told() -> None:
    slots = Slots()
    row = row_of(None)
    slot = slots.of(row)
    assert told_output(row, slot, 12) == RowOutput(slot=0, token=12) and slot.last_token == 12
    over = told_output(row, slot, STOPPED)
    assert over == RowOutput(slot=0, stopped=True) and slot.last_token == 12
    failed = told_output(row, slot, -1)
    assert failed.error and failed.token is None
    assert is_over([over, over]) and is_over([over, failed]) and not is_over([over, RowOutput(slot=1, token=3)])


def kernels_of(how: str) -> Any:
    if how == "torch":
        return advance
    pytest.importorskip("triton", reason="Triton is not installed")
    from cacheir_cuda.kernels import triton_advance

    return triton_advance


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("how", ["torch", "triton"])
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_the_end_of_a_step(how: str, data: st.DataObject) -> None:
    """Some steps of some rows, beside the rule written out in Python."""
    rows, width = data.draw(st.integers(1, 5)), 3
    ids = st.lists(st.integers(0, 4), max_size=3)
    words = [
        [0, data.draw(st.integers(0, 5)), 0, 0, *(data.draw(ids) + [-2] * STOP_IDS)[:STOP_IDS]] for _ in range(rows)
    ]
    first = data.draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows))
    padding = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    table = torch.from_numpy(np.random.default_rng(0).permutation(rows * width).reshape(rows, width).astype(np.int32))
    made = kernels_of(how)

    def i32(values: Any) -> Any:
        return torch.tensor(values, dtype=torch.int32)

    place = [int(table[r, p // PAGE]) * PAGE + p % PAGE for r, p in enumerate(first)]
    slots, stops = i32([-1 if pad else at for pad, at in zip(padding, place)]), i32(words)
    positions, lengths, fed, told = i32(first), i32(first) + 1, i32([0] * rows), i32([0] * rows)
    over, left, at = [False] * rows, [line[1] for line in words], list(first)
    for _ in range(4):
        tokens = data.draw(st.lists(st.integers(-1, 6), min_size=rows, max_size=rows))
        made.end_rows(i32(tokens), stops, positions, fed, told)
        made.move_rows(slots, table, lengths, positions, stops, PAGE)
        assert told.tolist() == [STOPPED if over[r] else tokens[r] for r in range(rows)]
        assert fed.tolist() == tokens
        for r in range(rows):
            over[r] = over[r] or left[r] == 1 or tokens[r] in words[r][4:]
            left[r] -= left[r] > 1
            at[r] += not over[r]
        assert positions.tolist() == at and (lengths - positions).tolist() == [1] * rows
        for r in range(rows):
            expected = int(table[r, min(at[r] // PAGE, width - 1)]) * PAGE + at[r] % PAGE
            assert slots[r] == (-1 if padding[r] or over[r] else expected)


@pytest.fixture(scope="module")
def tiny() -> TinyProgram:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
        return TinyProgram("grouped", plugin_host("cacheir_cuda.plugin"), CompileOptions(target="cuda"))


@pytest.fixture
def opened(tiny: TinyProgram) -> Iterator[OpenedBackend]:
    made = OpenedBackend(tiny, page_tokens=PAGE, extra={"device": "cpu", "cuda_dtype": "float32"})
    yield made
    made.executor.close()


def ran(
    opened: OpenedBackend, sampling: list[SamplingParams], steps: int = STEPS
) -> tuple[list[list[int | None]], list[list[bool]], Any]:
    """Prompts, then up to ``steps`` steps ahead: the tokens of each step, who had stopped, what the pages hold then."""
    opened.fill_pages(UNTOUCHED)
    rows = []
    for slot, (ids, params) in enumerate(zip(PROMPTS, sampling)):
        (made,) = opened.step("prefill", opened.row(slot, ids, sampling=params))
        assert made.token is not None
        pages = (opened.pages_of(slot),) * len(opened.tiny.program.groups)
        rows.append(Row(slot=slot, tokens=(made.token,), position=len(ids), pages=pages, sampling=params, draw=1))
    tokens: list[list[int | None]] = []
    stopped: list[list[bool]] = []

    def sink(outputs: Any) -> None:
        tokens.append([one.token for one in outputs])
        stopped.append([one.stopped for one in outputs])

    done = opened.executor.run_ahead(Step(mode="decode", rows=tuple(rows)), steps, sink)
    assert done == len(tokens) == len(stopped)
    return tokens, stopped, [opened.executor.read_pages(0, opened.pages_of(slot)) for slot in range(len(rows))]


def kept(pages: Any) -> int:
    """How many tokens of a sequence were stored: positions before the first that nobody wrote."""
    flat = np.concatenate([page[0, 0, 0, :, 0] for page in pages])
    return int(np.argmax(flat == UNTOUCHED)) if (flat == UNTOUCHED).any() else len(flat)


@pytest.mark.parametrize("how", ["greedy", "sampled"])
def test_a_row_that_ended_stores_nothing_and_its_neighbours_go_on(opened: OpenedBackend, how: str) -> None:
    drawn = [{"temperature": 1.2, "seed": 40 + slot} if how == "sampled" else {} for slot in range(3)]
    free = [SamplingParams(**one) for one in drawn]
    alone, no_stops, whole = ran(opened, free)
    assert len(alone) == STEPS and not any(map(any, no_stops))
    # Row 0 ends at the token of its fourth step, or where that came first; row 1 after five more tokens.
    ending = alone[3][0]
    last = next(step for step, line in enumerate(alone) if line[0] == ending)
    ends = [SamplingParams(stop_ids=(ending,), **drawn[0]), SamplingParams(max_tokens=6, **drawn[1]), free[2]]
    tokens, stopped, pages = ran(opened, ends)
    assert len(tokens) == STEPS
    for step in range(STEPS):
        assert stopped[step] == [step > last, step > 4, False]
        for slot in range(3):
            assert tokens[step][slot] == (None if stopped[step][slot] else alone[step][slot])
    # The token that ends an answer is fed nowhere: the last that is stored is the one before it.
    assert [kept(one) for one in pages] == [len(PROMPTS[0]) + last + 1, len(PROMPTS[1]) + 5, len(PROMPTS[2]) + STEPS]
    np.testing.assert_array_equal(pages[2], whole[2])


def test_a_run_is_over_once_all_rows_are(opened: OpenedBackend) -> None:
    alone, _, _ = ran(opened, [SamplingParams()] * 3)
    first = [SamplingParams(stop_ids=(alone[0][slot],)) for slot in range(3)]
    tokens, stopped, _ = ran(opened, first)
    assert tokens == [alone[0], [None] * 3] and stopped == [[False] * 3, [True] * 3]
    bounded = [SamplingParams(max_tokens=1 + slot) for slot in (1, 2, 3)]
    tokens, stopped, _ = ran(opened, bounded)
    assert [sum(not line[slot] for line in stopped) for slot in range(3)] == [1, 2, 3]
    assert len(tokens) == 4


def test_more_ids_than_places_are_left_to_the_host(opened: OpenedBackend) -> None:
    alone, _, _ = ran(opened, [SamplingParams()] * 3)
    many = tuple({line[0] for line in alone} | set(range(40, 40 + STOP_IDS + 1)))
    tokens, stopped, _ = ran(opened, [SamplingParams(stop_ids=many), SamplingParams(), SamplingParams()])
    assert tokens == alone and not any(map(any, stopped))
    assert opened.executor.counters()["stops_on_host: more than 8 ids end an answer"] == 1


@pytest.mark.usefixtures("interpreted")
def test_the_same_by_triton() -> None:
    """Of sampled rows too the steps are replays there."""
    tiny = TinyProgram("grouped", plugin_host("cacheir_cuda.plugin"), CompileOptions(target="cuda"))
    made = OpenedBackend(tiny, page_tokens=PAGE, extra={"device": "cpu", "cuda_dtype": "bfloat16"})
    drawn = [SamplingParams(temperature=1.2, seed=slot, max_tokens=most) for slot, most in ((1, 2), (2, 9))]
    tokens, stopped, pages = ran(made, drawn, 3)
    assert stopped == [[False, False], [True, False], [True, False]]
    assert [[token is None for token in line] for line in tokens] == stopped
    assert [kept(one) for one in pages] == [len(PROMPTS[0]) + 1, len(PROMPTS[1]) + 3]
    assert made.executor.counters()["graph_misses"] == 0
    made.executor.close()
