"""Runs the planning steps that a backend adds after core's own: each takes the program and gives the program."""

from __future__ import annotations

from cacheir.errors import PluginError
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import BackendSpec
from cacheir.schedule.program import Program
from cacheir.schedule.record_json import json_bytes


def run_plan_steps(program: Program, backend: BackendSpec) -> Program:
    """The program after ``backend.plan_steps``. What a step wants to keep, as JSON values, it puts into ``plan_notes``.

    Raises PluginError for a step that raises, returns something else, or notes what JSON cannot hold.
    """
    for step in backend.plan_steps:
        function = resolve(step)
        name = step if isinstance(step, str) else getattr(function, "__name__", repr(function))
        where = f"backend {backend.name!r}: plan step {name}"
        try:
            program = function(program)
            json_bytes(getattr(program, "plan_notes", {}))
        except Exception as error:
            raise PluginError(f"{where} raised {type(error).__name__}: {error}") from error
        if not isinstance(program, Program):
            raise PluginError(f"{where} gave {type(program).__name__}, not a Program")
    return program
