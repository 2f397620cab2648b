"""A row's bits do not depend on its neighbours, on how its prompt is cut, or on the number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

LONG = [(7 * index * index + 3 * index + 5) % 97 for index in range(24)]
OTHERS = ([1, 2, 3], [9], [50, 51, 52, 53])


def whole(tiny: Any, executor: Any, step: Callable[..., Any]) -> Any:
    (row,) = step(executor, "prefill", tiny.row(3, LONG[:16], want="logits", want_at=tuple(range(16))))
    return row.logits


# A window of four and three sinks: from position 7 on there is a gap between them.
REACH = {"kv_window": 4, "kv_sinks": 3}


@pytest.fixture(
    scope="module",
    params=[
        ("two-classes-window", True, {}),
        ("two-classes-window", True, REACH),
        ("quantised", False, {}),
        ("quantised", False, REACH),
        ("quantised", True, {}),
    ],
    ids=str,
)
def tiny(request: pytest.FixtureRequest, make_tiny: Any) -> Any:
    name, precise, reach = request.param
    return make_tiny(name, precise=precise, **reach)


@pytest.mark.parametrize("cuts", [[1], [3, 4], [15], list(range(1, 16))])
def test_chunks(tiny: Any, step: Any, cuts: list[int]) -> None:
    executor = tiny.open()
    expected = whole(tiny, executor, step)
    made = []
    for start, stop in zip([0, *cuts], [*cuts, 16]):
        at = tuple(range(stop - start))
        (row,) = step(executor, "prefill", tiny.row(1, LONG[start:stop], start, want="logits", want_at=at))
        made.append(row.logits)
    np.testing.assert_array_equal(np.concatenate(made), expected)


def test_neighbours(tiny: Any, step: Any) -> None:
    executor = tiny.open()
    expected = whole(tiny, executor, step)
    neighbours = [tiny.row(slot, ids) for slot, ids in enumerate(OTHERS)]
    beside = tiny.row(3, LONG[:16], want="logits", want_at=tuple(range(16)))
    for rows in ([*neighbours, beside], [beside, *neighbours], [neighbours[1], beside]):
        made = step(executor, "prefill", *rows)[rows.index(beside)]
        np.testing.assert_array_equal(made.logits, expected)


def test_decode_beside_others_is_prefill(tiny: Any, step: Any) -> None:
    executor = tiny.open()
    expected = whole(tiny, executor, step)
    step(executor, "prefill", tiny.row(3, LONG[:10]), tiny.row(0, [4, 4, 4]))
    for position in range(10, 16):
        wanted = tiny.row(3, [LONG[position]], position, want="logits")
        rows = (tiny.row(0, [position], position - 7), wanted)
        np.testing.assert_array_equal(step(executor, "decode", *rows)[1].logits[0], expected[position])


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(tiny: Any, step: Any, threads: int) -> None:
    expected = whole(tiny, tiny.open(), step)
    np.testing.assert_array_equal(whole(tiny, tiny.open(threads=threads), step), expected)


@pytest.mark.parametrize("page_tokens", [32, 64])
def test_pages(tiny: Any, step: Any, page_tokens: int) -> None:
    expected = whole(tiny, tiny.open(), step)
    np.testing.assert_array_equal(whole(tiny, tiny.open(page_tokens=page_tokens), step), expected)


def test_capabilities_say_so(tiny: Any) -> None:
    assert tiny.open().capabilities().determinism == "bit"
