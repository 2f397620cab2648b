"""Answers of the whole program on its backend, with some launches run by their meaning instead of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cacheir.artifact.artifact import Artifact
from cacheir.bisection.by_meaning import page_table
from cacheir.bisection.probe import PAGE_TOKENS, Evidence, Probe
from cacheir.plugins.installation import Installation
from cacheir.plugins.ref import resolve
from cacheir.runtime.executor import Executor, ExecutorOptions, Row, Step
from cacheir.runtime.usable_cores import usable_cores
from cacheir.schedule.flatten import flatten
from cacheir.schedule.program import Program
from cacheir.schedule.unfuse import address

# The graphs that the probe runs beside main.
_HEADS = ("head.logits", "head.greedy", "head.sampled")


@dataclass(frozen=True, kw_only=True)
class LaunchName:
    """One launch of the program: ``kernels`` are its kernels, one for each row class where they are not the same."""

    mode: str
    root: str
    graph: str
    node: str
    layer: int | None
    op: str
    kernels: tuple[str, ...]

    @property
    def address(self) -> str:
        """How ``--unfuse`` names it."""
        return address(self.mode, self.graph, self.node, self.layer)


def launches_by_kernel(program: Program) -> list[LaunchName]:
    """The launches that a probe runs and that have a kernel, in the order in which they first run."""
    found = []
    for mode, module in program.modules.items():
        roots = [module.main, *(graph for name in _HEADS for graph in module.heads if graph.name == name)]
        for root in roots:
            for launch in flatten(program, mode, root.name):
                kernels = tuple(dict.fromkeys(choice.kernel for choice in launch.choices if choice.kernel))
                if kernels:
                    found.append(
                        LaunchName(
                            mode=mode,
                            root=root.name,
                            graph=launch.graph,
                            node=launch.node,
                            layer=launch.layer,
                            op=launch.op.name,
                            kernels=kernels,
                        )
                    )
    return found


class BackendRunner:
    """Runs one program on a fresh executor each time."""

    def __init__(self, artifact: Artifact, installation: Installation) -> None:
        self._artifact = artifact
        self._installation = installation
        self._make: Callable[[ExecutorOptions], Executor] = resolve(
            installation.backends[artifact.program.backend].executor
        )

    def answer(self, probe: Probe, by_meaning: Iterable[LaunchName]) -> Evidence:
        """The answer with the launches ``by_meaning`` run by the meaning of their ops."""
        program = self._artifact.program
        options = ExecutorOptions(
            threads=usable_cores(),
            batch_invariant=self._artifact.card.options.batch_invariant,
            extra=self._artifact.card.options.backend_options,
            page_tokens=PAGE_TOKENS,
            unfuse=tuple(launch.address for launch in by_meaning),
            installation=self._installation,
        )
        executor = self._make(options)
        try:
            executor.load(program, self._artifact.open_weights())
            return _asked(executor, program, probe)
        finally:
            executor.close()


def _asked(executor: Executor, program: Program, probe: Probe) -> Evidence:
    """Rows with the same tokens, as many as the program takes: for logits, for the greedy token, for a sampled one."""
    import numpy as np

    first = page_table(len(probe.ids))
    # Each row's pages lie beyond those of the row before it.
    tables = [tuple(page + row * len(first) for page in first) for row in range(3)]
    executor.open_pools([3 * len(first) + 1] * len(program.groups))
    parts: list[Any] = []
    tokens: dict[tuple[int, int], int] = {}
    sampled: dict[tuple[int, int], int] = {}
    for number, (mode, start, stop) in enumerate(probe.steps()):
        place = number, stop - 1
        rows = [_row(probe, start, stop, tables[0], 0, "logits", len(program.groups))]
        # The last step has one row, for kernels that are chosen for one row alone.
        if stop < len(probe.ids) or not start:
            greedy = _row(probe, start, stop, tables[1], 1, "token", len(program.groups))
            drawn = _row(probe, start, stop, tables[2], 2, "token", len(program.groups))
            drawn = replace(drawn, sampling=probe.draws[place].sampling, draw=probe.draws[place].draw)
            rows += [greedy, drawn][: min(program.max_rows, program.max_tokens // (stop - start)) - 1]
        outputs = executor.wait(executor.submit(Step(mode=mode, rows=tuple(rows)))).rows
        for output in outputs:
            if output.error:
                return Evidence(error=output.error)
        parts.append(np.array(outputs[0].logits))
        for output, kept in zip(outputs[1:], (tokens, sampled)):
            if output.token is not None:
                kept[place] = output.token
    return Evidence(logits=np.concatenate(parts), tokens=tokens, sampled=sampled)


def _row(probe: Probe, start: int, stop: int, pages: Sequence[int], slot: int, want: str, groups: int) -> Row:
    return Row(
        slot=slot,
        tokens=tuple(probe.ids[start:stop]),
        position=start,
        pages=(tuple(pages),) * groups,
        want=want,
        want_at=tuple(range(stop - start)) if want == "logits" else (),
    )
