"""A step's arrays beside what each token says of itself, written out one by one."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.errors import RequestError
from cacheir.runtime.executor import Row
from cacheir.runtime.step_inputs import stage

WIDTH = 12


@st.composite
def steps(draw):
    """(rows, tokens, groups, page_tokens)"""
    page_tokens, groups = draw(st.sampled_from([1, 3, 16])), draw(st.integers(1, 3))
    rows, tokens = [], []
    for slot in range(draw(st.integers(1, 6))):
        count = draw(st.integers(1, min(20, WIDTH * page_tokens)))
        position = draw(st.integers(0, WIDTH * page_tokens - count))
        needed = -(-(position + count) // page_tokens)
        held = st.lists(st.integers(0, 900), min_size=needed, max_size=WIDTH)
        want = draw(st.sampled_from(["nothing", "token", "logits"]))
        wanted = draw(st.lists(st.integers(0, count - 1), unique=True)) if want == "logits" else ()
        rows.append(
            Row(
                slot=slot, tokens=(), position=position, pages=tuple(tuple(draw(held)) for _ in range(groups)),
                want=want, want_at=tuple(sorted(wanted)), length=draw(st.sampled_from([0, 700])),
            )
        )  # fmt: skip
        tokens.append(tuple(draw(st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count))))
    return rows, tokens, groups, page_tokens


@given(steps())
def test_every_token_lies_where_it_says(step):
    rows, tokens, groups, page_tokens = step
    staged = stage(rows, tokens, groups, page_tokens, WIDTH)
    flat, heads, starts = [], [], [0]
    for row, ids in zip(rows, tokens):
        end = row.position + len(ids)
        wanted = {"nothing": (), "token": (len(ids) - 1,)}.get(row.want, row.want_at or (len(ids) - 1,))
        heads += [len(flat) + at for at in wanted]
        flat += [(row, token, row.position + i, row.length or end) for i, token in enumerate(ids)]
        starts.append(len(flat))
    inputs = staged.inputs
    assert inputs["tokens"].tolist() == [token for _, token, _, _ in flat]
    assert inputs["positions"].tolist() == [position for _, _, position, _ in flat]
    assert inputs["sequence_lengths"].tolist() == [length for _, _, _, length in flat]
    assert inputs["row_starts"].tolist() == starts and inputs["head_rows"].tolist() == heads
    for group in range(groups):
        suffix = f".{group}" if group else ""
        slots = [row.pages[group][at // page_tokens] * page_tokens + at % page_tokens for row, _, at, _ in flat]
        assert inputs[f"slots{suffix}"].tolist() == slots
        assert inputs[f"lengths{suffix}"].tolist() == [row.position + len(ids) for row, ids in zip(rows, tokens)]
        table = inputs[f"page_table{suffix}"]
        assert table.tolist() == [[*row.pages[group], *[0] * (WIDTH - len(row.pages[group]))] for row in rows]
    assert all(array.dtype == np.int32 for array in inputs.values())
    assert (staged.tokens, staged.rows, staged.head_rows) == (len(flat), len(rows), len(heads))
    assert [heads[span] for span in staged.head_spans] == [
        [at for at in heads if first <= at < last] for first, last in zip(starts, starts[1:])
    ]


@pytest.mark.parametrize(("pages", "said"), [(2, "2 pages of 4 tokens, too few for position 8"), (5, "holds 4")])
def test_pages_that_do_not_fit_are_refused(pages, said):
    row = Row(slot=3, tokens=(), position=5, pages=(tuple(range(pages)),), want="token")
    with pytest.raises(RequestError, match=f"slot 3 has .*{re.escape(said)}"):
        stage([row], [(1, 2, 3, 4)], 1, 4, 4)
