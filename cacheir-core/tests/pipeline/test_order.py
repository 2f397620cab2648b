"""The order of the passes: stages, declarations, ties, reasons and the three ways it can be impossible."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.errors import PassOrderError
from cacheir.pipeline.choose import ChosenPass
from cacheir.pipeline.order import STAGES, order_passes
from cacheir.plugins.specs import PassSpec, Stage


def chosen(name: str, stage: Stage = Stage.LOGICAL, **fields: Any) -> ChosenPass:
    return ChosenPass(PassSpec(name=name, run="nowhere:run", stage=stage, summary="A pass.", **fields), "test")


def names(*passes: ChosenPass) -> list[str]:
    return [place.name for place in order_passes(passes, steps=())]


def reasons(*passes: ChosenPass) -> dict[str, str]:
    return {place.name: place.because for place in order_passes(passes)}


def test_stages_come_first_then_names() -> None:
    assert names(chosen("a", Stage.TARGET), chosen("b", Stage.MODE), chosen("d"), chosen("c")) == ["c", "d", "b", "a"]


def test_declared_order_wins_over_names() -> None:
    assert names(chosen("a", after=("z",)), chosen("z"), chosen("m", before=("z",))) == ["m", "z", "a"]


def test_an_absent_pass_orders_nothing() -> None:
    assert names(chosen("a", after=("gone",)), chosen("b", before=("gone",))) == ["a", "b"]


def test_steps_have_their_fixed_places() -> None:
    listed = [place.name for place in order_passes([chosen("t", Stage.TARGET), chosen("m", Stage.MODE), chosen("l")])]
    assert listed == [
        "l",
        "prefill-decode-specialization",
        "m",
        "t",
        "select-kernels",
        "choose-layouts",
        "schedule",
        "plan-memory",
        "plan-captures",
    ]


def test_a_pass_may_be_ordered_against_a_step() -> None:
    after = chosen("m", Stage.MODE, requires=("prefill-decode-specialization",))
    assert reasons(after)["m"] == "requires prefill-decode-specialization"
    with pytest.raises(PassOrderError, match="the program stage comes later"):
        order_passes([chosen("l", after=("prefill-decode-specialization",))])


def test_each_place_has_its_reason() -> None:
    said = reasons(chosen("fuse"), chosen("dead-code", after=("fuse",)), chosen("drop", before=("dead-code",)))
    assert said["dead-code"] == "after fuse; after drop, which asks for it"
    assert said["drop"] == "before dead-code"
    assert said["fuse"] == "before dead-code, which asks for it"
    assert reasons(chosen("alone"))["alone"] == "no order declared: by name"


def test_a_circle_names_its_members_and_nobody_else() -> None:
    with pytest.raises(PassOrderError, match="circle: ") as caught:
        names(
            chosen("a", after=("b",)), chosen("b", after=("c",)), chosen("c", after=("a",)), chosen("d", after=("a",))
        )
    circle = str(caught.value).split("circle: ")[1].split(" -> ")
    assert circle == ["c", "b", "a", "c"]


def test_a_missing_requirement_names_both_and_where_it_comes_from() -> None:
    with pytest.raises(PassOrderError, match="'a' requires 'gone'") as caught:
        names(chosen("a", requires=("gone",)))
    assert "--skip-pass a" in str(caught.value.hint)
    with pytest.raises(PassOrderError) as caught:
        order_passes([chosen("a", requires=("gone",))], providers={"gone": "it was left out by --skip-pass gone"})
    assert caught.value.hint == "it was left out by --skip-pass gone"


def test_an_order_against_the_stages_is_an_error() -> None:
    with pytest.raises(PassOrderError, match=r"'late' \(logical\) after 'early' \(mode\)"):
        names(chosen("late", after=("early",)), chosen("early", Stage.MODE))


def test_a_pass_cannot_take_the_name_of_a_step() -> None:
    with pytest.raises(PassOrderError, match="name of a step"):
        order_passes([chosen("schedule")])


@pytest.mark.parametrize("stage", [Stage.PROGRAM, Stage.PLAN])
def test_no_pass_joins_the_stages_of_the_steps(stage: Stage) -> None:
    with pytest.raises(ValueError, match="core's own steps"):
        chosen("intruder", stage)


@st.composite
def solvable(draw: st.DrawFn) -> list[ChosenPass]:
    """Passes whose declarations agree with one hidden order, given in any order."""
    count = draw(st.integers(1, 9))
    hidden = draw(st.permutations([f"p{index}" for index in range(count)]))
    stages = sorted(
        draw(st.lists(st.sampled_from([Stage.LOGICAL, Stage.MODE, Stage.TARGET]), min_size=count, max_size=count)),
        key=STAGES.index,
    )
    passes = []
    for index, name in enumerate(hidden):
        earlier = draw(st.sets(st.sampled_from(hidden[:index]))) if index else set()
        required = draw(st.sets(st.sampled_from(hidden[:index]))) if index else set()
        later = draw(st.sets(st.sampled_from(hidden[index + 1 :]))) if index + 1 < count else set()
        passes.append(chosen(name, stages[index], after=tuple(earlier), requires=tuple(required), before=tuple(later)))
    return draw(st.permutations(passes))


@given(solvable(), st.randoms())
def test_any_solvable_set_is_solved_and_always_alike(passes: list[ChosenPass], random: Any) -> None:
    order = names(*passes)
    assert sorted(order) == sorted(item.spec.name for item in passes)
    at = {name: index for index, name in enumerate(order)}
    ranks = [STAGES.index(next(item.spec.stage for item in passes if item.spec.name == name)) for name in order]
    assert ranks == sorted(ranks)
    for item in passes:
        for earlier in (*item.spec.after, *item.spec.requires):
            assert at[earlier] < at[item.spec.name]
        for later in item.spec.before:
            assert at[item.spec.name] < at[later]
    shuffled = list(passes)
    random.shuffle(shuffled)
    assert names(*shuffled) == order
