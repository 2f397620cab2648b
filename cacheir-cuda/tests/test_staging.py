"""Rows of one token are staged without an array for each, and as core stages them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from cacheir.errors import RequestError
from cacheir.runtime.executor import Row, Step
from cacheir.runtime.slots import Slots
from cacheir.runtime.step_inputs import stage
from cacheir_cuda.staging import stage_step, widths_of

PAGE_TOKENS = 4
PROGRAM: Any = SimpleNamespace(max_seq=512, max_rows=40, max_tokens=64, groups=("kv",))


@st.composite
def steps(draw: Any) -> Step:
    rows = []
    for slot in range(draw(st.integers(1, 33))):
        position = draw(st.integers(0, 300))
        pages = draw(st.lists(st.integers(0, 999), min_size=position // PAGE_TOKENS + 1, max_size=90))
        want = draw(st.sampled_from(["token", "token", "logits", "nothing"]))
        want_at = draw(st.sampled_from([(), (0,)])) if want != "nothing" else ()
        length = draw(st.integers(0, 400))
        rows.append(
            Row(slot=slot, tokens=(draw(st.integers(0, 99)),), position=position, pages=(tuple(pages),), want=want,
                want_at=want_at, length=length)
        )  # fmt: skip
    return Step(mode="decode", rows=tuple(rows))


@settings(deadline=None)
@given(steps())
def test_a_step_is_staged_as_core_stages_it(step: Step) -> None:
    made = stage_step(step, Slots(), PROGRAM, PAGE_TOKENS)
    width = made.inputs["page_table"].shape[1]
    assert width in widths_of(PROGRAM, PAGE_TOKENS)
    expected = stage(step.rows, [row.tokens for row in step.rows], 1, PAGE_TOKENS, width)
    assert made.inputs.keys() == expected.inputs.keys()
    for name, array in expected.inputs.items():
        assert made.inputs[name].dtype == array.dtype == np.int32
        np.testing.assert_array_equal(made.inputs[name], array)
    assert made.head_spans == expected.head_spans
    assert (made.tokens, made.rows, made.head_rows) == (expected.tokens, expected.rows, expected.head_rows)


def test_a_row_without_a_page_for_its_token_is_refused() -> None:
    rows = tuple(Row(slot=slot, tokens=(1,), position=4 * slot, pages=((0,),), want="token") for slot in range(2))
    with pytest.raises(RequestError, match="slot 1 has 1 pages of 4 tokens, too few for position 4"):
        stage_step(Step(mode="decode", rows=rows), Slots(), PROGRAM, PAGE_TOKENS)
