"""``BackendAhead``: a backend that runs ahead as the contract says passes, and each check catches its own culprit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cacheir.errors import UsageError
from cacheir.runtime.executor import RowOutput, Step
from cacheir.runtime.row_ends import ends_of
from cacheir.runtime.slots import Slots
from cacheir.testing.backend_ahead import BackendAhead

CHECKS = sorted(name for name in vars(BackendAhead) if name.startswith("test_"))


def running_ahead(base: Any) -> Any:
    """``base`` that takes single steps for ``run_ahead``, stops rows at their ends, and obeys its sink."""

    class Executor(base):  # type: ignore[misc]
        early = 0  # tokens before its last at which a row is stopped
        obeys = True
        draws_on = True

        def capabilities(self) -> Any:
            return replace(super().capabilities(), run_ahead=True, stops_ahead=True, begins_ahead=True)

        def submit(self, step: Any) -> Any:
            self.slots = getattr(self, "slots", Slots())
            for row in step.rows:
                self.slots.of(row)  # keeps the sampling of each
            return super().submit(step)

        def run_ahead(self, step: Any, n: int, sink: Any) -> int:
            if any(row.want != "token" for row in step.rows):
                raise UsageError("only tokens run ahead")
            over: set[int] = set()
            for number in range(n):
                live = [row for row in step.rows if row.slot not in over]
                made = {one.slot: one for one in self.submit(Step(mode="decode", rows=tuple(live))).rows}
                told = [made.get(row.slot, RowOutput(slot=row.slot, stopped=True)) for row in step.rows]
                for row in live:
                    ids, left = ends_of(row, self.slots)
                    if made[row.slot].token in ids or 0 < left <= 1 + self.early:
                        over.add(row.slot)
                if (sink(told) and self.obeys) or len(over) == len(step.rows):
                    return number + 1
                moved = (replace(row, position=row.position + 1, draw=row.draw + self.draws_on) for row in step.rows)
                step = replace(step, rows=tuple(moved))
            return n

    return Executor


def like(base: Any, **changed: Any) -> Any:
    """``running_ahead(base)`` with other members."""
    return type("Executor", (running_ahead(base),), changed)


def runs_on_silently(base: Any) -> Any:
    """Says that it does not run ahead, and takes the step all the same."""
    return type("Executor", (base,), {"run_ahead": lambda self, step, n, sink: 0})


def repeats_itself(base: Any) -> Any:
    """Draws the same numbers in every step."""
    return like(base, draws_on=False)


def ends_early(base: Any) -> Any:
    """A row has one token less than its answer may have."""
    return like(base, early=1)


def stores_behind_the_end(base: Any) -> Any:
    """Rows that are stopped go on unseen."""

    class Executor(running_ahead(base)):  # type: ignore[misc]
        def run_ahead(self, step: Any, n: int, sink: Any) -> int:
            over: set[int] = set()

            def told(rows: Any) -> Any:
                over.update(row.slot for row in rows if row.stopped)
                return sink(rows)

            taken = super().run_ahead(step, n, told)
            for row in step.rows:
                if row.slot in over:
                    self.submit(Step(mode="decode", rows=(replace(row, position=row.position + n - 1),)))
            return int(taken)

    return Executor


def goes_on(base: Any) -> Any:
    """Does not ask its sink."""
    return like(base, obeys=False)


def takes_what_it_began(base: Any) -> Any:
    """Feeds the prompt's token behind a prompt, whatever comes."""

    class Executor(running_ahead(base)):  # type: ignore[misc]
        begun: Any = None

        def submit(self, step: Any) -> Any:
            if self.begun and step.mode == "decode" and len(step.rows) == 1:
                step = replace(step, rows=tuple(replace(row, tokens=()) for row in step.rows))
            self.begun = step.then
            return super().submit(step)

    return Executor


CULPRITS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "test_running_ahead_is_stepping": (runs_on_silently, repeats_itself),
    "test_running_ahead_keeps_to_where_answers_end": (ends_early, stores_behind_the_end),
    "test_a_sink_ends_running_ahead": (goes_on,),
    "test_steps_behind_prompts_are_steps": (takes_what_it_began,),
}
PAIRS = [pytest.param(name, make, id=make.__name__) for name, makes in CULPRITS.items() for make in makes]


def test_a_backend_that_runs_ahead_passes(check: Any) -> None:
    assert check(running_ahead) == {}


@pytest.mark.parametrize(("failing", "make"), PAIRS)
def test_each_check_catches_its_culprit(check: Any, failing: str, make: Callable[[Any], Any]) -> None:
    found = {name for name in CHECKS if check(make, only=name)}
    assert found == (set(CHECKS) if make is repeats_itself else {failing})  # wrong tokens show in all of them


def test_every_check_has_a_culprit() -> None:
    assert set(CHECKS) == set(CULPRITS)
