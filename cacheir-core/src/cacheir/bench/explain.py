"""Explains a step: what every node moves and computes, the time that must take here, and the time that it does take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cacheir.artifact.artifact import Artifact
from cacheir.artifact.compatibility import cost_model
from cacheir.bench.calibration import HOW, BackendRates, Calibration
from cacheir.bench.step_costs import NodeCost, StepShape, step_costs
from cacheir.bench.step_probe import StepTimes, fill_pages, probe_step, time_step
from cacheir.bench.validity import load_causes
from cacheir.errors import UsageError
from cacheir.models.imported import PLAIN_MODE
from cacheir.plugins.installation import Installation
from cacheir.plugins.ref import resolve
from cacheir.runtime.executor import CallTiming, ExecutorOptions
from cacheir.runtime.pages import pages_for

PAGE_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class Line:
    """A node with its times, each for all of its launches in the step, in seconds; None for what is not known.

    ``floor_s`` is the least that its bytes and operations take at the machine's rates; ``within`` names the node whose
    launch does this one's work too, "" for a launch of its own.
    """

    node: NodeCost
    floor_s: float | None = None
    predicted_s: float | None = None
    measured_s: float | None = None
    within: str = ""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A step of ``shape`` on ``backend`` with ``threads`` threads; None where a device computes, and no threads do.

    ``rest_predicted_s`` and ``rest_measured_s`` are what no node accounts for, so that nodes and rest add up to the
    step. ``notes`` say what is missing and how to get it.
    """

    backend: str
    threads: int | None
    shape: StepShape
    lines: tuple[Line, ...]
    rest_predicted_s: float | None = None
    rest_measured_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def floor_s(self) -> float | None:
        """The floors of all nodes."""
        return _sum(line.floor_s for line in self.lines)

    @property
    def predicted_s(self) -> float | None:
        """The predicted step: all nodes, and the rest."""
        return _sum((*(line.predicted_s for line in self.lines), self.rest_predicted_s))

    @property
    def measured_s(self) -> float | None:
        """The measured step: all nodes, and the rest."""
        return _sum((*(line.measured_s for line in self.lines), self.rest_measured_s))


def step_shape(
    artifact: Artifact, mode: str, *, rows: int = 1, tokens: int = 0, context: int = 0, head: str = "head.greedy"
) -> StepShape:
    """The step that is explained: ``rows`` sequences, in prefill of ``tokens`` tokens in all (0: as many as a step may
    have, at most 128); ``context`` is how many keys each row then has (0: 128, or its own tokens where they are more).

    Raises UsageError for a mode that the program does not have and for sizes that its steps cannot have.
    """
    program = artifact.program
    if PLAIN_MODE in program.modules:
        raise UsageError(
            "a plain graph has no steps to explain", hint="cacheir inspect MODEL --kernels shows its kernels and costs"
        )
    if mode not in program.modules:
        raise UsageError(f"the program has no mode {mode!r}", hint=f"it has {', '.join(program.modules)}")
    if not 1 <= rows <= program.max_rows:
        raise UsageError(f"--rows must be from 1 to {program.max_rows}, not {rows}")
    most = program.max_tokens // rows * rows
    count = rows if mode == "decode" else tokens or min(128 // rows * rows or rows, most)
    if mode == "prefill" and (not rows <= count <= most or count % rows):
        raise UsageError(f"--tokens must be a multiple of --rows, at most {most}, not {count}")
    keys = context or min(program.max_seq, max(128, count // rows))
    if not count // rows <= keys <= program.max_seq:
        raise UsageError(f"--context must be from {count // rows} to {program.max_seq}, not {keys}")
    return StepShape(mode=mode, rows=rows, tokens=count, keys=keys, head=head)


def explain(
    artifact: Artifact,
    installation: Installation,
    shape: StepShape,
    *,
    threads: int,
    calibration: Calibration | None = None,
    times: StepTimes | None = None,
) -> Explanation:
    """The step's nodes with what a calibration makes of them, and what was measured where ``times`` are given."""
    program = artifact.program
    nodes = step_costs(program, shape, installation.kernels.by_name(), cost_model(installation))
    lines = [Line(node=node) for node in nodes]
    notes: list[str] = []
    rest_predicted = rest_measured = None
    if calibration is not None:
        rates = calibration.rates(program.backend, threads)
        if rates is None or str(threads) not in calibration.threads:
            known = ", ".join(sorted(calibration.backends.get(program.backend, {}))) or "none"
            notes.append(
                f"the backend {program.backend} is not calibrated with {threads} threads (only with: {known}), so "
                f"nothing is predicted: run {HOW} --threads {threads}"
            )
        else:
            lines = [_predicted(line, calibration, rates, threads) for line in lines]
            rest_predicted = rates.step_s
            unknown = [line.node for line in lines if _rate_names(line.node, rates) is None]
            if unknown:
                names = ", ".join(dict.fromkeys(node.kernel or f"the meaning of {node.op}" for node in unknown))
                notes.append(f"never timed in a calibration, so the floor stands for the prediction: {names}")
    if times is not None:
        lines = _measured(lines, times.calls)
        rest_measured = times.step_s - sum(call.seconds for call in times.calls)
        notes += [f"the times are not the machine's alone: {cause}" for cause in load_causes(times.foreign_load)]
        notes += _beaten_floors(lines)
    return Explanation(
        backend=program.backend,
        threads=threads if counts_threads(installation, program.backend) else None,
        shape=shape,
        lines=tuple(lines),
        rest_predicted_s=rest_predicted,
        rest_measured_s=rest_measured,
        notes=tuple(notes),
    )


def counts_threads(installation: Installation, backend: str) -> bool:
    """Whether a step on ``backend`` depends on a number of threads: not where it measures a device of its own."""
    spec = installation.backends.by_name().get(backend)
    return spec is None or spec.rates is None


def measure_step(
    artifact: Artifact, installation: Installation, shape: StepShape, *, threads: int, repeats: int
) -> StepTimes:
    """Opens the program on its backend and times the step there, and each of its launches."""
    program = artifact.program
    executor = resolve(installation.backends[program.backend].executor)(
        ExecutorOptions(
            threads=threads,
            page_tokens=PAGE_TOKENS,
            batch_invariant=artifact.card.options.batch_invariant,
            extra=artifact.card.options.backend_options,
            installation=installation,
        )
    )
    try:
        executor.load(program, artifact.open_weights())
        pages = shape.rows * pages_for(shape.keys, PAGE_TOKENS)
        executor.open_pools([pages] * len(program.groups))
        fill_pages(executor, program, pages, PAGE_TOKENS)
        return time_step(executor, probe_step(shape, len(program.groups), PAGE_TOKENS), repeats=repeats)
    finally:
        executor.close()


def _beaten_floors(lines: Sequence[Line]) -> list[str]:
    """A note where nodes took less than their floor, which the column shows as more than 100 %."""
    beaten = [line.node.node for line in lines if line.floor_s and line.measured_s and line.floor_s > line.measured_s]
    if not beaten:
        return []
    named = ", ".join(f"%{name}" for name in dict.fromkeys(beaten))
    return [
        f"faster than the floor: {named}. They read less than all of it from memory (a cache, a screened head), or "
        f"others had the machine while it was calibrated ({HOW} measures it again)"
    ]


def _predicted(line: Line, calibration: Calibration, rates: BackendRates, threads: int) -> Line:
    node = line.node
    machine = calibration.threads[str(threads)]
    peak = rates.operations_per_s.get(node.numerics, 0.0)
    if node.numerics == "f32":
        peak = max(peak, machine.operations_per_s.get("f32", 0.0))
    computing = node.total.operations / peak if peak else 0.0
    floor = max(node.total.bytes / machine.read_bytes_per_s, computing)
    name = _rate_names(node, rates)
    if name is None:
        seconds = floor
    elif name == "":
        seconds = 0.0
    else:
        seconds = node.calls * rates.kernels[name].seconds(node.cost.bytes, node.cost.operations)
    return Line(node=node, floor_s=floor, predicted_s=seconds, measured_s=line.measured_s, within=line.within)


def _rate_names(node: NodeCost, rates: BackendRates) -> str | None:
    """The name of the rate that a node runs at: "" for one that is part of another's launch, None for none."""
    for name in (node.rate_key, node.kernel):
        if name and name in rates.kernels:
            return name
    # A value under another shape takes no launch where the executor never timed one.
    return "" if node.kernel in rates.joined else None


def _measured(lines: Sequence[Line], calls: Sequence[CallTiming]) -> list[Line]:
    """``lines`` with the time of each launch at the dearest of the nodes that it does the work of."""
    by_name = {(line.node.graph, line.node.node): line for line in lines}
    seconds: dict[tuple[str, str], float] = {}
    within: dict[tuple[str, str], str] = {}
    for call in calls:
        parts = [by_name[call.graph, name].node for name in call.node.split("+") if (call.graph, name) in by_name]
        if not parts:
            continue
        main = max(parts, key=lambda node: (node.cost.operations, node.cost.bytes))
        key = (main.graph, main.node)
        seconds[key] = seconds.get(key, 0.0) + call.seconds
        within |= {(part.graph, part.node): main.node for part in parts if part is not main}
    return [
        Line(
            node=line.node,
            floor_s=line.floor_s,
            predicted_s=line.predicted_s,
            measured_s=seconds.get((line.node.graph, line.node.node), 0.0),
            within=within.get((line.node.graph, line.node.node), ""),
        )
        for line in lines
    ]


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum, None where a part is not known."""
    known = list(values)
    return None if any(value is None for value in known) else sum(value for value in known if value is not None)
