"""Compares engines on one model file: opens each in its own process, runs the cells, and makes the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cacheir.bench.against.answers import compare_answers
from cacheir.bench.against.cells import Cell
from cacheir.bench.against.child import Child
from cacheir.bench.against.contestants import Contestant, memory_probe
from cacheir.bench.against.rounds import CellRun, run_cell
from cacheir.bench.against.tables import summaries
from cacheir.bench.environment import environment
from cacheir.errors import BackendError

FORMAT = 2

Progress = Callable[[str], None]


def compare(
    ours: Contestant,
    peers: Sequence[Contestant],
    missing: Mapping[str, str],
    cells: Sequence[Cell],
    *,
    model: Path,
    threads: int,
    samples: int,
    screen: int,
    extra: int = 0,
    seconds: float = math.inf,
    progress: Progress = lambda text: None,
    done: Callable[[Mapping[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """The report as JSON values; ``done`` is told it after each cell, so that what was measured can be kept.

    A peer that does not open the model is left out and named with its reason. BackendError where ours does not.
    """
    absent = dict(missing)
    began = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    with ExitStack() as stack:
        progress(f"opening {ours.label}")
        engines = [stack.enter_context(Child(ours))]
        for peer in peers:
            progress(f"opening {peer.label}")
            try:
                engines.append(stack.enter_context(Child(peer)))
            except BackendError as error:
                absent[peer.label] = str(error)
                progress(str(error))
        probe = stack.enter_context(Child(memory_probe(threads)))
        runs: list[CellRun] = []
        answers: list[dict[str, Any]] = []
        report: dict[str, Any] = {}
        for cell in cells:
            runs.append(
                run_cell(
                    cell,
                    engines,
                    probe,
                    samples=samples,
                    screen=screen,
                    extra=extra,
                    seconds=seconds,
                    progress=progress,
                )
            )
            if cell.kind == "answer":
                answers += compare_answers(cell, _in_rounds(runs[-1], engines))
            report = {**_report(model, threads, engines, runs, absent, began), "answers": list(answers)}
            done(report)
    return report


def _in_rounds(run: CellRun, engines: Sequence[Child]) -> list[Child]:
    """Those that took part in the rounds of a cell to the end."""
    labels = {sample.label for sample in run.samples if sample.part == "round"} - set(run.refused)
    return [engine for engine in engines if engine.contestant.label in labels]


def _report(
    model: Path,
    threads: int,
    engines: Sequence[Child],
    runs: Sequence[CellRun],
    missing: Mapping[str, str],
    began: str,
) -> dict[str, Any]:
    samples = [{**_sample(sample), "run": began} for run in runs for sample in map(asdict, run.samples)]
    decode_bytes = int(engines[0].facts["decode_bytes"])
    facts = {engine.contestant.label: dict(engine.facts) for engine in engines}
    around = environment()
    named = {began: {"commit": around["cacheir"]["commit"], "decode_bytes": decode_bytes, "engines": facts}}
    return {
        "format": FORMAT,
        "model": model.name,
        "file_bytes": model.stat().st_size if model.is_file() else None,
        "decode_bytes": decode_bytes,
        "threads": threads,
        "engines": facts,
        "missing": dict(missing),
        "refused": {run.cell.name: dict(run.refused) for run in runs if run.refused},
        "rows": summaries(samples, named),
        "samples": samples,
        "runs": named,
        "environment": around,
    }


def _sample(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "seconds": list(sample["seconds"]), "invalid": list(sample["invalid"])}
