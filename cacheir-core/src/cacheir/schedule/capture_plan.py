"""The capture plan as data: for which row counts a device graph of a step is recorded, and where it must break.

A backend that captures finds it in ``Program.plan_notes["plan-captures"]``: ``captures_of(program)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheir.quick_dataclass import dataclass
from cacheir.schedule.record_json import from_json, to_json

if TYPE_CHECKING:
    from cacheir.schedule.program import Program

NOTE = "plan-captures"


@dataclass(frozen=True, kw_only=True)
class Break:
    """A launch that no device graph may hold: node ``node`` of ``graph``, and why."""

    graph: str
    node: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Capture:
    """The device graphs of steps of up to ``rows`` rows; a step of fewer rows is filled up to it.

    Where ``breaks`` is empty main is one device graph. Else it is cut at every launch of those nodes: ``pieces`` are
    the stretches between them, over all layers.
    """

    rows: int
    pieces: int
    breaks: tuple[Break, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CapturePlan:
    """The captures of one mode by rising row count; heads are captured apart, for the same counts."""

    mode: str
    captures: tuple[Capture, ...]

    def capture_for(self, rows: int) -> Capture | None:
        """The smallest capture that holds ``rows`` rows, None where the step runs without one."""
        return next((capture for capture in self.captures if rows <= capture.rows), None)


@dataclass(frozen=True, kw_only=True)
class CapturePlans:
    """The capture plans of a program, one for each mode that is captured."""

    modes: tuple[CapturePlan, ...]


def captures_of(program: Program) -> CapturePlans:
    """The capture plans of ``program``, none where its backend captures nothing.

    Raises ArtifactDamagedError where the notes of an artifact hold something else.
    """
    noted = program.plan_notes.get(NOTE)
    return CapturePlans(modes=()) if noted is None else from_json(CapturePlans, noted, f"plan_notes: {NOTE}")


def as_note(plans: CapturePlans) -> object:
    """The JSON value that ``captures_of`` reads."""
    return to_json(plans)
