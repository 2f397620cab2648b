"""Tiny decoders compiled for a backend in memory: the program, its random weights, and what its logits should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cacheir.artifact.card import CompileOptions
from cacheir.artifact.compatibility import buffer_uses, find_backend, offered_kernels, providers, selection_rules
from cacheir.ir.graph import Module
from cacheir.pipeline.program import PipelineOptions, run_pipeline
from cacheir.plugins import QuantFormatSpec
from cacheir.plugins.installation import Installation
from cacheir.plugins.ref import resolve
from cacheir.schedule.build_schedule import build_schedule
from cacheir.schedule.plan_memory import plan_memory
from cacheir.schedule.plan_steps import run_plan_steps
from cacheir.schedule.program import Program
from cacheir.schedule.program_weights import program_weights, weight_uses
from cacheir.schedule.select_kernels import select_kernels
from cacheir.testing.random_runs import RandomWeights
from cacheir.testing.tiny_decoders import LIMITS, tiny_decoders

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TinyWeights:
    """What an executor asks of a weight store, over random tensors; ``changed`` replaces some by canonical key."""

    def __init__(
        self,
        logical: Module,
        modules: Mapping[str, Module],
        changed: Mapping[str, Any],
        formats: Mapping[str, QuantFormatSpec],
    ) -> None:
        self._random = RandomWeights(logical)
        self._changed = changed
        self._formats = formats
        self._uses = weight_uses(modules.values())

    def get(self, recipe: str) -> Any:
        """The weight that ``recipe`` makes, as ``WeightStore.get`` gives it."""
        from cacheir.reference.recipes import weight_data

        use = self._uses[recipe]
        return weight_data(use.graph, use.name, use.layer, self.stored, formats=self._formats)

    def stored(self, key: str) -> Any:
        """A stored tensor by its canonical key."""
        return self._changed[key] if key in self._changed else self._random(key)

    def release(self) -> None:
        """Nothing is mapped, so there is nothing to give back."""

    def close(self) -> None:
        """Nothing is open."""


class TinyProgram:
    """The tiny decoder ``name`` compiled for the backend ``options.target``, and its weights.

    ``changed`` replaces stored tensors by canonical key. Nothing is read from or written to disk.
    """

    def __init__(
        self,
        name: str,
        installation: Installation,
        options: CompileOptions,
        *,
        changed: Mapping[str, Any] | None = None,
    ) -> None:
        decoder = tiny_decoders()[name]
        self.installation = installation
        self.ops = installation.ops.by_name()
        self.spec = decoder.spec
        self.logical = decoder.logical(self.ops)
        self.program = _compile(self, options)
        formats = installation.quant_formats.by_name()
        self.weights = TinyWeights(self.logical, self.program.modules, changed or {}, formats)
        self._meant: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """f32 [len(ids), V] by the meaning of the logical graph, which has neither cache nor kernels."""
        import numpy as np

        from cacheir.reference.interpreter import interpret

        key = tuple(ids)
        if key not in self._meant:
            inputs = {
                "tokens": np.array(ids, np.int32),
                "positions": np.arange(len(ids), dtype=np.int32),
                "row_starts": np.array([0, len(ids)], np.int32),
            }
            (rows,) = interpret(self.logical, self.ops, self.weights.stored, inputs)
            self._meant[key] = self.head(rows)
        return self._meant[key]

    def head(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits f32 [R, V] of hidden rows f32 [R, H] by the meaning of the logical head."""
        from cacheir.reference.interpreter import interpret

        (made,) = interpret(self.logical, self.ops, self.weights.stored, {"rows": rows}, graph="head.logits")
        logits: NDArray[np.float32] = made
        return logits

    def executor(self, **options: Any) -> Any:
        """A new executor of the backend with the program loaded; ``options`` are fields of ``ExecutorOptions``."""
        made = self.unloaded(**options)
        made.load(self.program, self.weights)
        return made

    def unloaded(self, **options: Any) -> Any:
        """A new executor of the backend, without a program."""
        from cacheir.runtime.executor import ExecutorOptions

        spec = find_backend(self.installation, self.program.backend)
        return resolve(spec.executor)(ExecutorOptions(**{"threads": 1, "installation": self.installation, **options}))


def _compile(tiny: TinyProgram, options: CompileOptions) -> Program:
    installation, ops = tiny.installation, tiny.ops
    backend = find_backend(installation, options.target)
    result = run_pipeline(
        tiny.logical,
        installation.passes.contributions,
        ops=ops,
        spec=tiny.spec,
        options=PipelineOptions(
            target=options.target, limits=LIMITS, requests=options.passes, skips=options.skip_passes
        ),
    )
    offered, rules = offered_kernels(installation), selection_rules(options, backend)
    schedules = {
        mode: build_schedule(
            module,
            select_kernels(module, ops, offered, rules, installation.select_kernel),
            target=options.target,
            row_classes=rules.row_classes,
            providers=providers(offered),
        )
        for mode, module in result.modules.items()
    }
    use_of = buffer_uses(installation)
    program = Program(
        modules=result.modules,
        schedules=schedules,
        plans={mode: plan_memory(module, schedules[mode], use_of) for mode, module in result.modules.items()},
        weights=program_weights(result.modules.values()),
        sources={},
        groups=result.groups.types,
        group_layers=result.groups.layers,
        target=options.target,
        backend=backend.name,
        max_seq=LIMITS.max_seq,
        max_rows=LIMITS.max_rows,
        max_tokens=LIMITS.max_tokens,
        spec=tiny.spec,
    )
    return run_plan_steps(program, backend)
