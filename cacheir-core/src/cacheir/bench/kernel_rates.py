"""Times every kernel of a backend in synthetic decoders of two widths, and fits how its time follows from its cost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import CompileOptions
from cacheir.artifact.compatibility import cost_model
from cacheir.artifact.program_key import header_facts
from cacheir.bench.calibration import BackendRates, KernelRate
from cacheir.bench.step_costs import NodeCost, StepShape, step_costs
from cacheir.bench.step_probe import fill_pages, probe_step, time_launches, time_step
from cacheir.bench.synthetic_decoder import MAX_POSITIONS, SyntheticSize, synthetic_layers, write_synthetic
from cacheir.compile_work import CompileWork
from cacheir.ir.dtypes import dtype_bytes, is_dtype
from cacheir.plugins.installation import Installation
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import BackendSpec
from cacheir.runtime.executor import CallTiming, ExecutorOptions
from cacheir.runtime.pages import pages_for
from cacheir.schedule.op_cost import Cost

if TYPE_CHECKING:
    import numpy as np

FORMATS = ("f32", "bf16", "q8_0", "q4_1")  # storage formats of the decoders, those that tell nothing new left out
HIDDEN = (512, 1024)
PAGE_TOKENS = 16
SHAPES = (
    StepShape(mode="decode", rows=1, tokens=1, keys=32),
    StepShape(mode="decode", rows=1, tokens=1, keys=2048),
    StepShape(mode="decode", rows=4, tokens=4, keys=256),
    StepShape(mode="prefill", rows=1, tokens=32, keys=32),
    StepShape(mode="prefill", rows=1, tokens=192, keys=512),
)
_MAX_ROWS, _MAX_TOKENS = 4, 256
_FIT_ROUNDS = 20
_LONG_SECONDS = 5e-4
_ENOUGH_SECONDS = 0.25  # a long step is a mean over many launches: after two runs of it more tell little


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Launches of one kernel in one step: the cost of one and its seconds."""

    key: str
    numerics: str
    cost: Cost
    seconds: float


def backend_rates(
    backend: BackendSpec,
    installation: Installation,
    threads: int,
    *,
    weight_mb: int,
    repeats: int,
    progress: Callable[[str], None] = lambda text: None,
) -> BackendRates:
    """The rates of ``backend`` with ``threads`` threads, measured on about ``weight_mb`` megabytes of weights."""
    samples: list[Sample] = []
    rests: list[float] = []
    launched: set[str] = set()
    formats = installation.quant_formats.by_name()
    with tempfile.TemporaryDirectory(prefix="cacheir-calibrate-") as folder:
        for format in FORMATS:
            known = frozenset(launched)
            for hidden in HIDDEN:
                bits = 8 * dtype_bytes(format) if is_dtype(format) else formats[format].bits_per_weight
                layers = 1
                artifact = _compiled(backend, installation, Path(folder), hidden, layers, format)
                keys, in_layers = _keys(artifact, installation)
                if keys <= known:
                    break  # the kernels read other weights than these files hold: nothing new to learn
                if not in_layers <= known:  # else one layer is enough beside the embedding and the head, which are new
                    layers = synthetic_layers(hidden, bits, weight_mb * 1_000_000)
                    artifact = _compiled(backend, installation, Path(folder), hidden, layers, format)
                launched |= keys
                progress(f"{backend.name}, {threads} threads: {layers} layers of {hidden} in {format}")
                more, rest = _measured(artifact, backend, installation, threads, repeats, Path(folder))
                samples += more
                rests.append(rest)
    rates = fitted(samples)
    return BackendRates(
        kernels=rates,
        joined=tuple(sorted({key.partition("@")[0] for key in launched} - set(rates))),
        step_s=max(0.0, min(rests)),
        operations_per_s=_best_operations(samples),
    )


def fitted(samples: Sequence[Sample]) -> dict[str, KernelRate]:
    """A rate for each key, and one for each kernel over all formats."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        for name in dict.fromkeys((sample.key, sample.key.partition("@")[0])):
            groups.setdefault(name, []).append(sample)
    return {name: fit_rate(group) for name, group in sorted(groups.items())}


def fit_rate(samples: Sequence[Sample]) -> KernelRate:
    """The rate, none of its parts negative, that is nearest to most of ``samples``.

    The error of a sample is relative to the larger of its time and the fitted one, and counts by its size and not its
    square: a launch during which the system ran something else must not decide.
    """
    import numpy as np

    rows = np.array([[1.0, s.cost.bytes, s.cost.operations] for s in samples])
    seconds = np.array([max(s.seconds, 1e-9) for s in samples])
    rate, least = np.zeros(3), float("inf")
    for power in (0.0, 0.5, 1.0):  # from which weights the search starts decides where it ends
        weights = seconds**-power
        for _ in range(_FIT_ROUNDS):
            found = _least_squares(rows * weights[:, None], seconds * weights)
            larger = np.maximum(rows @ found, seconds)
            error = np.abs(rows @ found - seconds) / larger
            weights = 1 / (larger * np.sqrt(np.maximum(error, 0.05)))
            if error.sum() < least * (1 - 1e-9):
                rate, least = found, float(error.sum())
    return KernelRate(launch_s=float(rate[0]), s_per_byte=float(rate[1]), s_per_operation=float(rate[2]))


def _least_squares(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The vector, none of its parts negative, with the least squared error: of three parts every choice is tried."""
    import numpy as np

    best, least = np.zeros(rows.shape[1]), float("inf")
    for count in range(1, rows.shape[1] + 1):
        for parts in map(list, combinations(range(rows.shape[1]), count)):
            scale = np.abs(rows[:, parts]).max(axis=0)
            if not scale.all():
                continue
            solved = np.linalg.lstsq(rows[:, parts] / scale, wanted, rcond=None)[0] / scale
            error = float(np.square(rows[:, parts] @ solved - wanted).sum())
            if (solved >= 0).all() and error < least * (1 - 1e-9):
                best, least = np.zeros(rows.shape[1]), error
                best[parts] = solved
    return best


def samples_of(nodes: Sequence[NodeCost], calls: Sequence[CallTiming]) -> Iterator[Sample]:
    """Measured launches with their costs. Nodes that an executor runs in one are counted to the dearest of them."""
    by_name = {(node.graph, node.node): node for node in nodes}
    for call in calls:
        parts = [by_name[call.graph, name] for name in call.node.split("+") if (call.graph, name) in by_name]
        if not parts or not call.calls:
            continue
        main = max(parts, key=lambda node: (node.cost.operations, node.cost.bytes))
        if main.rate_key:
            cost = sum((node.cost for node in parts), Cost())
            yield Sample(key=main.rate_key, numerics=main.numerics, cost=cost, seconds=call.seconds / call.calls)


def _measured(
    artifact: Artifact,
    backend: BackendSpec,
    installation: Installation,
    threads: int,
    repeats: int,
    cache: Path,
) -> tuple[list[Sample], float]:
    """The samples of all shapes, and the least that a step took beyond its launches."""
    program = artifact.program
    kernels, model = installation.kernels.by_name(), cost_model(installation)
    executor = resolve(backend.executor)(
        ExecutorOptions(threads=threads, page_tokens=PAGE_TOKENS, installation=installation)
    )
    samples: list[Sample] = []
    rest = float("inf")
    try:
        executor.load(program, artifact.open_weights(cache))
        pages = max(shape.rows * pages_for(shape.keys, PAGE_TOKENS) for shape in SHAPES)
        executor.open_pools([pages] * len(program.groups))
        fill_pages(executor, program, pages, PAGE_TOKENS)
        for shape in SHAPES:
            step, nodes = (
                probe_step(shape, len(program.groups), PAGE_TOKENS),
                step_costs(program, shape, kernels, model),
            )
            if shape.mode == "prefill":
                samples += samples_of(nodes, time_launches(executor, step, repeats=repeats, enough_s=_ENOUGH_SECONDS))
                continue
            times = time_step(executor, step, repeats=repeats, of=min)
            samples += samples_of(nodes, times.calls)
            rest = min(rest, times.step_s - sum(call.seconds for call in times.calls))
    finally:
        executor.close()
    return samples, rest


def _compiled(
    backend: BackendSpec, installation: Installation, folder: Path, hidden: int, layers: int, format: str
) -> Artifact:
    """A synthetic decoder, its weights in a file of ``folder``, compiled for ``backend``."""
    size = SyntheticSize(hidden=hidden, layers=layers)
    model = write_synthetic(folder, size, format, installation.quant_formats.by_name())
    options = CompileOptions(target=backend.name, max_rows=_MAX_ROWS, max_tokens=_MAX_TOKENS, max_seq=MAX_POSITIONS)
    work = CompileWork.begin(options, installation, None)
    return work.in_memory(work.compile(model, header_facts(model)), folder)


def _keys(artifact: Artifact, installation: Installation) -> tuple[set[str], set[str]]:
    """What is measured: by all that is launched, and by the launches of layers alone."""
    kernels, model = installation.kernels.by_name(), cost_model(installation)
    nodes = [node for shape in SHAPES for node in step_costs(artifact.program, shape, kernels, model) if node.rate_key]
    layers = {graph.name for module in artifact.program.modules.values() for graph in module.layers}
    return {node.rate_key for node in nodes}, {node.rate_key for node in nodes if node.graph in layers}


def _best_operations(samples: Sequence[Sample]) -> Mapping[str, float]:
    """By how kernels compute. Only launches that take long count: where threads meet, some of a short one's time may be
    booked to its neighbours.
    """
    best: dict[str, float] = {}
    for sample in samples:
        if sample.seconds >= _LONG_SECONDS:
            best[sample.numerics] = max(best.get(sample.numerics, 0.0), sample.cost.operations / sample.seconds)
    return best
