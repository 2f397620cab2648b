"""What an artifact needs that may be missing here, and which of its kernels refuse on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.artifact.card import Card, CompileOptions
from cacheir.errors import ArtifactDamagedError, BackendUnavailable, MissingKernelError
from cacheir.ir.graph import Module, Op
from cacheir.models.imported import PLAIN_MODE
from cacheir.plugins.installation import Installation
from cacheir.plugins.providers import hint_for
from cacheir.plugins.specs import BackendSpec
from cacheir.schedule.add_costs import add_costs
from cacheir.schedule.build_schedule import build_schedule
from cacheir.schedule.op_cost import CostModel
from cacheir.schedule.plan_captures import GraphSafe
from cacheir.schedule.plan_memory import BufferUse, UseOf
from cacheir.schedule.schedule import Choice, Entry, Schedule
from cacheir.schedule.select_kernels import (
    OfferedKernel,
    SelectionRules,
    choose,
    refusal_of,
    rows_refusal,
)

_NOT_KERNELS = ("", "call")

# A child process begins with the installed packages alone, whatever its parent had registered.
_REGISTRATION = (
    "a plugin is found in every process through an entry point of the group cacheir in its package; "
    "what a call registered is known in that process alone"
)


def find_backend(installation: Installation, name: str) -> BackendSpec:
    """The backend ``name``; BackendUnavailable where nobody registers it, with where it would come from."""
    backend = installation.backends.find(name)
    if backend is None:
        known = ", ".join(installation.backends.names()) or "none"
        raise BackendUnavailable(
            f"no installed plugin has a backend {name!r} (there are: {known})",
            hint=hint_for("backend", name, installation.plugins) or _REGISTRATION,
        )
    return backend


def offered_kernels(installation: Installation) -> dict[str, list[OfferedKernel]]:
    """Op -> the kernels that plugins register for it."""
    offered: dict[str, list[OfferedKernel]] = {}
    for item in installation.kernels.contributions:
        kernel = OfferedKernel(item.spec, item.plugin.name, item.plugin.distribution)
        offered.setdefault(item.spec.op, []).append(kernel)
    return offered


def selection_rules(options: CompileOptions, backend: BackendSpec) -> SelectionRules:
    """What ``options`` and the backend ask of kernels; those of a plain graph, which has no rows, must take any."""
    return SelectionRules(
        target=backend.name,
        targets=backend.targets,
        row_classes=(0,) if options.modes == (PLAIN_MODE,) else (*backend.row_classes, 0),
        forced=options.kernels,
        precise=options.precise,
        batch_invariant=options.batch_invariant,
    )


def cost_model(installation: Installation) -> CostModel:
    """What the costs of ops are worked out with here."""
    return CostModel(ops=installation.ops.by_name(), formats=installation.quant_formats.by_name())


def buffer_uses(installation: Installation) -> UseOf:
    """How each kernel treats its buffers; an op that runs by its meaning gives fresh arrays."""
    fixed = {"call": BufferUse(writes_out=True), "": BufferUse(writes_out=False)}

    def use_of(kernel: str) -> BufferUse:
        if kernel in fixed:
            return fixed[kernel]
        spec = installation.kernels[kernel]
        return BufferUse(writes_out=spec.writes_out, in_place=spec.in_place, over=spec.in_place_over)

    return use_of


def graph_safety(installation: Installation) -> GraphSafe:
    """Whether a device graph may hold a kernel."""
    return lambda kernel: installation.kernels[kernel].graph_safe


def check_kernels(card: Card, schedules: Mapping[str, Schedule], installation: Installation, where: str) -> None:
    """Raise MissingKernelError for kernels that nobody registers here, ArtifactDamagedError for one of another op."""
    missing: dict[str, str] = {}
    for mode, schedule in schedules.items():
        for graph in schedule.graphs:
            for entry in graph.entries:
                for choice in entry.choices:
                    if choice.kernel in _NOT_KERNELS:
                        continue
                    spec = installation.kernels.find(choice.kernel)
                    if spec is None:
                        missing.setdefault(choice.kernel, mode)
                    elif spec.op != entry.op_name or spec.name != choice.kernel:
                        raise ArtifactDamagedError(
                            f"{where}: {mode} runs {entry.op_name} with {choice.kernel!r}, a kernel for {spec.op}"
                        )
    if missing:
        kernel, mode = sorted(missing.items())[0]
        package = next((package for package in card.packages if kernel in package.provides), None)
        source = f" from {package.distribution} {package.version}" if package else ""
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise MissingKernelError(
            f"{where}: {mode} needs {kernel}{source}{more}, which no installed plugin has",
            hint="install that package, or compile the model again on this machine",
        )


def choose_again(
    module: Module, schedule: Schedule, installation: Installation, rules: SelectionRules
) -> tuple[Schedule, tuple[str, ...]]:
    """The schedule with other kernels where the chosen ones refuse on this machine, and a sentence for each of those.

    The same schedule, unchanged, where none does.
    """
    offered, ops = offered_kernels(installation), installation.ops.by_name()
    choices: dict[tuple[str, str], tuple[Choice, ...]] = {}
    notes = []
    for launches in schedule.graphs:
        graph = module.graph(launches.graph)
        for entry in launches.entries:
            op = graph.ops[entry.op]
            where = f"@{graph.name}: {op.name} (%{entry.node})"
            chosen = entry.choices
            if reason := _refusal(entry, op, installation, rules):
                chosen = choose(op, ops, offered, rules, installation.select_kernel, mode=module.mode, where=where)
                names = dict.fromkeys(choice.kernel or "its meaning" for choice in chosen)
                notes.append(f"{module.mode} {where} runs by {', '.join(names)} here: {reason}")
            choices[graph.name, entry.node] = chosen
    if not notes:
        return schedule, ()
    priced = add_costs(module, choices, cost_model(installation), installation.kernels.by_name())
    rebuilt = build_schedule(
        module, priced, target=schedule.target, row_classes=rules.row_classes, providers=providers(offered)
    )
    return rebuilt, tuple(notes)


def providers(offered: Mapping[str, Sequence[OfferedKernel]]) -> dict[str, str]:
    """Kernel -> the distribution that it comes from."""
    return {kernel.spec.name: kernel.distribution for kernels in offered.values() for kernel in kernels}


def _refusal(entry: Entry, op: Op, installation: Installation, rules: SelectionRules) -> str:
    if tuple(choice.rows_up_to for choice in entry.choices) != rules.row_classes:
        return "the backend has other row classes now"
    fewest = 1
    for choice in entry.choices:
        if choice.kernel not in _NOT_KERNELS:
            spec = installation.kernels[choice.kernel]
            reason = refusal_of(spec, op, rules) or rows_refusal(spec, fewest, choice.rows_up_to)
            if spec.target not in rules.targets:
                reason = f"the backend does not call {spec.target} kernels"
            if reason:
                return f"{spec.name} {reason}"
        fewest = choice.rows_up_to + 1
    return ""
