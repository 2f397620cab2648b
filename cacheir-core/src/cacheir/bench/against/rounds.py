"""Runs engines alternately, cell by cell, with the memory probe beside every run."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cacheir.bench.against.cells import Cell
from cacheir.bench.against.contestants import Contestant
from cacheir.bench.against.gpu_state import gpu_state
from cacheir.bench.cpu_load import SHORTEST_SECONDS, CpuTimes, cpu_times, foreign_load, stolen_load
from cacheir.bench.timing import percentile
from cacheir.bench.validity import load_causes
from cacheir.errors import BackendError

# A run that is shorter is repeated until a sample lasts this long: the kernel counts load in hundredths of a second.
_SAMPLE_SECONDS, _MOST_REPEATS = 0.4, 32

Clock = Callable[[], "CpuTimes | None"]


class Engine(Protocol):
    """A child, or what stands for one in a test."""

    contestant: Contestant

    @property
    def facts(self) -> Mapping[str, Any]: ...

    @property
    def said(self) -> Mapping[str, Any]: ...

    def run(self, cell: Cell, repeats: int = 1) -> Sequence[float]: ...

    def cpu_seconds(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One turn of an engine: ``seconds`` of each repeat, and bytes per second of the probe just before and after it.

    ``part`` is ``screen`` where settings of one engine were compared, ``round`` where engines were. ``stolen`` is the
    part of ``foreign_load`` that other virtual machines had. ``skipped_bytes`` are those of the weights that a run of
    the cell did not have to read, where the engine says so. ``gpu`` is what ``gpu_state`` gave after whole answers.
    """

    cell: str
    label: str
    engine: str
    part: str
    number: int
    seconds: tuple[float, ...]
    probe_before: float
    probe_after: float
    foreign_load: float | None
    stolen: float | None
    invalid: tuple[str, ...]
    skipped_bytes: float | None = None
    gpu: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class CellRun:
    """All samples of a cell; ``refused`` says, by label, why an engine does not run it."""

    cell: Cell
    samples: tuple[Sample, ...]
    refused: Mapping[str, str]


def run_cell(
    cell: Cell,
    engines: Sequence[Engine],
    probe: Engine,
    *,
    samples: int,
    screen: int = 2,
    extra: int = 0,
    seconds: float = math.inf,
    progress: Callable[[str], None] = lambda text: None,
    clock: Clock = cpu_times,
) -> CellRun:
    """Warm-ups, ``screen`` samples of each setting of an engine that has several, then ``samples`` rounds.

    A round is one sample of each engine in turn, in the setting whose median was least when it was screened. As long
    as an engine has fewer than ``samples`` that count, up to ``extra`` further rounds follow. No round is begun that
    would go beyond ``seconds`` of the cell if it took as long as the longest before it; where that leaves none, this
    is the reason why an engine did not run. One that fails at the cell is left out from there on, with its reason.
    """
    began, longest = time.monotonic(), 0.0
    refused: dict[str, str] = {}
    ready: list[tuple[Engine, int]] = []
    for engine in engines:
        try:
            ready.append((engine, _repeats(min(engine.run(cell)[0] for _ in range(_warm_ups(cell))))))
        except BackendError as error:
            refused[engine.contestant.label] = str(error)
    turns = _Turns(cell, (*engines, probe), probe, clock)
    found: list[Sample] = []

    def take(chosen: Sequence[tuple[Engine, int]], part: str, number: int) -> list[tuple[Engine, int]]:
        """A sample of each; those that did not fail."""
        good = []
        for engine, repeats in chosen:
            try:
                sample = turns.sample(engine, repeats, part, number)
            except BackendError as error:
                refused[engine.contestant.label] = str(error)
                progress(str(error))
                continue
            good.append((engine, repeats))
            found.append(sample)
            mark = f"  ({sample.invalid[0]})" if sample.invalid else ""
            rate = cell.work / percentile(sample.seconds, 50)
            progress(f"{cell.name} {part} {number + 1}: {sample.label} {rate:.1f} tokens/s{mark}")
        return good

    names = [engine.contestant.engine for engine, _ in ready]
    several = [pair for pair in ready if names.count(pair[0].contestant.engine) > 1]
    for number in range(screen):
        several = take(several, "screen", number)
    kept = _best_settings([pair for pair in ready if pair[0].contestant.label not in refused], found)
    for number in range(samples + extra):
        at = time.monotonic()
        if (number >= samples and _enough(found, samples, kept)) or at + longest > began + seconds:
            break
        kept = take(kept, "round", number)
        longest = max(longest, time.monotonic() - at)
    compared = {sample.label for sample in found if sample.part == "round"}
    unheard = [engine.contestant.label for engine, _ in kept if engine.contestant.label not in compared]
    refused |= dict.fromkeys(unheard, f"no round fitted into {seconds:g} s, which its warm-ups and screening took")
    return CellRun(cell=cell, samples=tuple(found), refused=refused)


def _enough(found: Sequence[Sample], samples: int, kept: Sequence[tuple[Engine, int]]) -> bool:
    """Whether each of the engines has ``samples`` that count."""
    counts = Counter(sample.label for sample in found if sample.part == "round" and not sample.invalid)
    return all(counts[engine.contestant.label] >= samples for engine, _ in kept)


class _Turns:
    """Takes samples; the probe after one run is the probe before the next."""

    def __init__(self, cell: Cell, everyone: Sequence[Engine], probe: Engine, clock: Clock) -> None:
        self._cell, self._everyone, self._probe, self._clock = cell, everyone, probe, clock
        probe.run(cell)
        self._last = self._bandwidth()

    def sample(self, engine: Engine, repeats: int, part: str, number: int) -> Sample:
        before = self._now()
        seconds = tuple(engine.run(self._cell, repeats))
        after = self._now()
        # The warm-up may have been slower than this: a load that cannot be told would let a spoilt sample count.
        while before is not None and after is not None and after.clock - before.clock < SHORTEST_SECONDS:
            seconds += tuple(engine.run(self._cell, repeats))
            after = self._now()
        load, stolen = foreign_load(before, after), stolen_load(before, after)
        probe_before, self._last = self._last, self._bandwidth()
        return Sample(
            cell=self._cell.name,
            label=engine.contestant.label,
            engine=engine.contestant.engine,
            part=part,
            number=number,
            seconds=seconds,
            probe_before=probe_before,
            probe_after=self._last,
            foreign_load=load,
            stolen=stolen,
            invalid=load_causes(load, stolen),
            skipped_bytes=engine.said.get("skipped_bytes"),
            gpu=gpu_state() if self._cell.kind == "answer" else None,
        )

    def _bandwidth(self) -> float:
        return float(self._probe.facts["bytes"] / self._probe.run(self._cell)[0])

    def _now(self) -> CpuTimes | None:
        """The time that the engines take is not that of others."""
        times = self._clock()
        if times is None:
            return None
        return replace(times, own=times.own + sum(engine.cpu_seconds() for engine in self._everyone))


def _warm_ups(cell: Cell) -> int:
    """On a GPU the first run may compile, and the second capture."""
    return 2 if cell.kind == "answer" else 1


def _repeats(seconds: float) -> int:
    return min(_MOST_REPEATS, max(1, math.ceil(_SAMPLE_SECONDS / max(seconds, 1e-6))))


def _best_settings(ready: Sequence[tuple[Engine, int]], screened: Sequence[Sample]) -> list[tuple[Engine, int]]:
    """One setting of each engine: that with the least median, or the first where none was screened."""

    def cost(pair: tuple[Engine, int]) -> float:
        label = pair[0].contestant.label
        times = [seconds for sample in screened if sample.label == label for seconds in sample.seconds]
        return percentile(times, 50)

    names = dict.fromkeys(engine.contestant.engine for engine, _ in ready)
    return [min((pair for pair in ready if pair[0].contestant.engine == name), key=cost) for name in names]
