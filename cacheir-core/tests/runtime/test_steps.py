"""The step planner: a table of wishes in, a plan out; what must hold of every plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.runtime.steps import Part, StepLimits, StepPlan, Wish, plan_step

LIMITS = StepLimits(max_rows=3, max_tokens=10, chunk_tokens=6)


def part(index: int, tokens: int, want: str) -> Part:
    return Part(index=index, tokens=tokens, want=want)


@pytest.mark.parametrize(
    ("wishes", "mode", "ahead", "parts"),
    [
        ([Wish(pending=1, want="token")], "decode", 1, [part(0, 1, "token")]),
        ([Wish(pending=1, want="token", ahead=8)], "decode", 8, [part(0, 1, "token")]),
        ([Wish(pending=1, want="logits", ahead=8)], "decode", 1, [part(0, 1, "logits")]),
        ([Wish(pending=4, want="token", ahead=8)], "prefill", 1, [part(0, 4, "token")]),
        ([Wish(pending=7, want="token")], "prefill", 1, [part(0, 6, "nothing")]),
        # One token each; the shorter lead counts.
        (
            [Wish(pending=1, want="token", ahead=8), Wish(pending=1, want="token", ahead=3)],
            "decode",
            3,
            [part(0, 1, "token"), part(1, 1, "token")],
        ),
        # The prompt gets what the decode row leaves, and its chunk has no output.
        (
            [Wish(pending=9, want="token"), Wish(pending=1, want="token", ahead=4)],
            "prefill",
            1,
            [part(0, 6, "nothing"), part(1, 1, "token")],
        ),
        # Two prompts share the budget of ten; rows end at three.
        (
            [Wish(pending=6, want="token"), Wish(pending=6, want="token"), *[Wish(pending=1, want="token")] * 2],
            "prefill",
            1,
            [part(0, 6, "token"), part(2, 1, "token"), part(3, 1, "token")],
        ),
    ],
)
def test_plans(wishes: list[Wish], mode: str, ahead: int, parts: list[Part]) -> None:
    assert plan_step(wishes, LIMITS) == StepPlan(mode=mode, parts=tuple(parts), ahead=ahead)


@given(
    wishes=st.lists(
        st.builds(
            Wish,
            pending=st.integers(1, 30),
            want=st.sampled_from(("nothing", "token", "logits")),
            ahead=st.integers(1, 9),
        ),
        min_size=1,
        max_size=8,
    ),
    limits=st.builds(
        StepLimits, max_rows=st.integers(1, 8), max_tokens=st.integers(1, 40), chunk_tokens=st.integers(1, 40)
    ),
)
def test_every_plan_is_within_the_limits_and_moves_on(wishes: list[Wish], limits: StepLimits) -> None:
    plan = plan_step(wishes, limits)
    assert 1 <= len(plan.parts) <= limits.max_rows
    assert sum(step.tokens for step in plan.parts) <= limits.max_tokens
    assert [step.index for step in plan.parts] == sorted({step.index for step in plan.parts})
    for step in plan.parts:
        wish = wishes[step.index]
        assert 1 <= step.tokens <= min(wish.pending, limits.chunk_tokens)
        assert step.want == (wish.want if step.tokens == wish.pending else "nothing")
    assert plan.mode == ("decode" if all(step.tokens == 1 for step in plan.parts) else "prefill")
    if plan.ahead > 1:
        assert plan.mode == "decode" and all(step.want == "token" for step in plan.parts)
        assert all(wishes[step.index].ahead >= plan.ahead for step in plan.parts)
