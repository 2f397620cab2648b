"""The part of the row that kernels make: none of them, then one more each time, then the launches of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cacheir.bisection.halving import first_wrong
from cacheir.bisection.on_backend import BackendRunner, LaunchName, launches_by_kernel
from cacheir.bisection.probe import Evidence, Probe
from cacheir.bisection.result import Finding, Trial
from cacheir.bisection.tolerance import default_tolerance
from cacheir.compile_work import Compiled, CompileWork
from cacheir.plugins.ref import resolve

Tried = Callable[[str, Callable[[], Evidence]], "tuple[bool, Trial, Evidence]"]


class KernelSearch:
    """Variants by number: 0 runs every op by its meaning, ``count`` is the program as it is."""

    def __init__(self, compiled: Compiled, work: CompileWork, probe: Probe, tried: Tried) -> None:
        self._compiled = compiled
        self._installation = work.installation
        self._probe = probe
        self._tried = tried
        self._runner = BackendRunner(work.in_memory(compiled, Path("bisect")), work.installation)
        self._launches = launches_by_kernel(compiled.program)
        self._kernels = list(dict.fromkeys(launch.kernels for launch in self._launches))
        self._trials: dict[int, Trial] = {}
        self.count = len(self._kernels)

    def tolerance(self, extra: Mapping[str, Any]) -> float:
        """How far the program's logits may be from the reference's by what its kernels and its backend round.

        ``extra`` are the backend's own options.
        """
        chosen = [self._installation.kernels[name] for names in self._kernels for name in names]
        held = self._installation.backends[self._compiled.program.backend].matrix_dtype
        # Only kernels that say how many bytes they read of a weight take matrices as the backend holds them.
        reads = any(kernel.weight_bytes for kernel in chosen)
        return default_tolerance(
            numerics=[kernel.numerics for kernel in chosen],
            matrix_dtype=resolve(held)(extra) if held is not None and reads else "f32",
        )

    def is_wrong(self, number: int) -> bool:
        """Whether the program is wrong with its first ``number`` kernels, in the order in which they first run."""
        if number not in self._trials:
            what = "the whole program"
            if number < self.count:
                what = f"kernels up to {' or '.join(self._kernels[number - 1])}" if number else "no kernel"
            self._trials[number] = self._run(f"{what}, on the backend", self._off(number))
        return self._trials[number].is_wrong

    def finding(self, number: int, *, before: float) -> Finding:
        """What to say of variant ``number``, the first wrong one; ``before`` is the last pass's distance."""
        if number == 0:
            trial = self._trials[0]
            provider = self._installation.backends.provider(self._compiled.program.backend)
            return Finding(
                kind="backend",
                name=self._compiled.program.backend,
                plugin=provider.name,
                distance=trial.distance,
                before=before,
                error=trial.error,
            )
        later = self._off(number)
        own = [launch for launch in self._launches if launch.kernels == self._kernels[number - 1]]
        tried = {0: self._trials.get(number - 1), len(own): self._trials[number]}

        def is_wrong(count: int) -> bool:
            what = f"{count} of the {len(own)} launches of {' or '.join(own[0].kernels)}, on the backend"
            tried[count] = self._run(what, [*own[count:], *later])
            return bool(tried[count] and tried[count].is_wrong)  # type: ignore[union-attr]

        taken = first_wrong(0, len(own), is_wrong)
        launch, right, wrong = own[taken - 1], tried[taken - 1], tried[taken]
        assert wrong is not None
        return Finding(
            kind="kernel",
            name=" or ".join(launch.kernels),
            plugin=self._installation.kernels.provider(launch.kernels[0]).name,
            distance=wrong.distance,
            before=right.distance if right else before,
            mode=launch.mode,
            graph=launch.graph,
            node=launch.node,
            op=launch.op,
            layer=launch.layer,
            layers=self._layers(launch),
            made_by=self._made_by(launch),
            error=wrong.error,
        )

    def _layers(self, launch: LaunchName) -> tuple[int, ...]:
        """The one layer, if the program is right with its launches run by meaning; else all that have the launch."""
        if launch.layer is None:
            return ()
        alike = [
            other
            for other in self._launches
            if (other.graph, other.node, other.op) == (launch.graph, launch.node, launch.op)
        ]
        twins = [
            other
            for other in self._launches
            if other.layer == launch.layer and set(other.kernels) & set(launch.kernels)
        ]
        everywhere = tuple(dict.fromkeys(other.layer for other in alike if other.layer is not None))
        if len(everywhere) == 1:
            return everywhere
        what = f"all but the launches of {' or '.join(launch.kernels)} in layer {launch.layer}, on the backend"
        return everywhere if self._run(what, twins).is_wrong else (launch.layer,)

    def _made_by(self, launch: LaunchName) -> str:
        """The last rewrite that made the node."""
        for site in reversed(self._compiled.result.sites):
            if site.graph == launch.graph and site.mode in ("", launch.mode) and launch.node in site.made:
                return f"{site.pass_name} (rewrite {site.number})"
        return ""

    def _off(self, number: int) -> list[LaunchName]:
        """The launches of all kernels after the first ``number``."""
        on = set(self._kernels[:number])
        return [launch for launch in self._launches if launch.kernels not in on]

    def _run(self, what: str, by_meaning: list[LaunchName]) -> Trial:
        _, trial, _ = self._tried(what, lambda: self._runner.answer(self._probe, by_meaning))
        return trial
