"""Chooses a kernel for each op and row class, and keeps why each other candidate was not taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from cacheir.errors import NoKernelError, PluginError, UsageError
from cacheir.ir.graph import Module, Op
from cacheir.ir.opdef import OpDef
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import KernelChoice, KernelSpec
from cacheir.quick_dataclass import dataclass
from cacheir.schedule.row_order import meaning_varies
from cacheir.schedule.schedule import Candidate, Choice

FORCED = "forced by --kernel"  # the reason of such a choice; more may stand behind it
REFERENCE = "reference"  # the name that ``--kernel op=reference`` takes for "no kernel at all"


@dataclass(frozen=True)
class OfferedKernel:
    """A registered kernel with the plugin and the distribution that it comes from."""

    spec: KernelSpec
    plugin: str
    distribution: str


@dataclass(frozen=True, kw_only=True)
class SelectionRules:
    """What kernels are chosen for.

    ``targets`` are the backend's, best first; ``row_classes`` upper bounds of the row counts, 0 for the last;
    ``forced`` maps ops to the kernel that must run them (``reference`` for none). ``precise`` takes only kernels that
    compute in f32, as every meaning does, ``batch_invariant`` only those whose bits do not depend on the number of
    rows. An op that runs by its meaning may break the latter: the reason of its choice says so (``row_order.py``).
    """

    target: str
    targets: tuple[str, ...]
    row_classes: tuple[int, ...] = (0,)
    forced: Mapping[str, str] = field(default_factory=dict)
    precise: bool = False
    batch_invariant: bool = False


Selector = Callable[[Op, Sequence[KernelSpec], str, str], KernelChoice | None]


def select_kernels(
    module: Module,
    ops: Mapping[str, OpDef],
    kernels: Mapping[str, Sequence[OfferedKernel]],
    rules: SelectionRules,
    selector: Selector | None = None,
) -> dict[tuple[str, str], tuple[Choice, ...]]:
    """(graph, node) -> the choice for each row class.

    Candidates are the kernels of the backend's targets, ordered by target, then rank, then name; ``selector`` (the
    hook ``cacheir_select_kernel``) may take another of those that accept. An op that no kernel takes gets the kernel
    ``""`` and the reason: it runs by its meaning. Raises NoKernelError for an op that nothing defines, UsageError for
    a forced kernel that cannot be taken, PluginError for a selector or a ``refuses`` that breaks its word.
    """
    check_forced(rules, ops, kernels)
    choices = {}
    for graph in module.graphs:
        for op in graph.ops:
            where = f"@{graph.name}: {op.name} ({op.results[0] if op.results else 'no result'})"
            chosen = choose(op, ops, kernels, rules, selector, mode=module.mode, where=where)
            choices[graph.name, op.results[0].name if op.results else ""] = chosen
    return choices


def choose(
    op: Op,
    ops: Mapping[str, OpDef],
    kernels: Mapping[str, Sequence[OfferedKernel]],
    rules: SelectionRules,
    selector: Selector | None,
    *,
    mode: str,
    where: str,
) -> tuple[Choice, ...]:
    """The choice for each row class of one op; ``where`` begins the sentence of an error."""
    if op.callee:
        return tuple(Choice(rows_up_to=bound, kernel="call", reason="a call") for bound in rules.row_classes)
    if op.name not in ops:
        raise NoKernelError(f"{where}: no plugin defines the op {op.name!r}")
    offered = candidates_of(op, kernels.get(op.name, ()), rules.targets)
    return _choices(op, ops, offered, rules, selector, mode, where)


def candidates_of(op: Op, offered: Sequence[OfferedKernel], targets: tuple[str, ...]) -> list[OfferedKernel]:
    """The kernels for ``op`` that a backend with ``targets`` can call, in order of preference."""
    callable_ones = [kernel for kernel in offered if kernel.spec.op == op.name and kernel.spec.target in targets]
    return sorted(callable_ones, key=lambda k: (targets.index(k.spec.target), -k.spec.rank, k.spec.name))


def refusal_of(kernel: KernelSpec, op: Op, rules: SelectionRules) -> str:
    """Why ``kernel`` cannot run ``op`` whatever the number of rows, "" where it can."""
    first = op.operands[0].type.dtype if op.operands else ""
    if kernel.dtypes and first not in kernel.dtypes:
        return f"takes {' or '.join(kernel.dtypes)}, not {first}"
    if rules.precise and kernel.numerics != "f32":
        return f"computes in {kernel.numerics}, and --precise takes f32 alone"
    if rules.batch_invariant and kernel.row_order == "varies":
        return "its bits depend on the number of rows, and --batch-invariant was asked for"
    if kernel.refuses is None:
        return ""
    try:
        reason = resolve(kernel.refuses)(op)
    except UsageError:  # what the user asked of the kernel cannot be
        raise
    except Exception as error:
        raise PluginError(f"kernel {kernel.name!r}: refuses() raised {type(error).__name__}: {error}") from error
    return reason or ""


def rows_refusal(kernel: KernelSpec, fewest: int, most: int) -> str:
    """Why ``kernel`` does not take all row counts from ``fewest`` to ``most`` (0: no limit), "" where it does."""
    if kernel.min_rows > fewest:
        return f"takes {kernel.min_rows} rows or more"
    if kernel.max_rows and (not most or most > kernel.max_rows):
        return f"takes at most {kernel.max_rows} rows"
    return ""


def _choices(
    op: Op,
    ops: Mapping[str, OpDef],
    offered: Sequence[OfferedKernel],
    rules: SelectionRules,
    selector: Selector | None,
    mode: str,
    where: str,
) -> tuple[Choice, ...]:
    refusals = {kernel.spec.name: refusal_of(kernel.spec, op, rules) for kernel in offered}
    forced = rules.forced.get(op.name, "")
    if forced and refusals.get(forced):
        raise UsageError(
            f"{where}: kernel {forced!r} was forced, but {refusals[forced]}",
            hint=f"leave out --kernel {op.name}={forced}",
        )
    choices, fewest = [], 1
    for most in rules.row_classes:
        reasons = {
            kernel.spec.name: refusals[kernel.spec.name] or rows_refusal(kernel.spec, fewest, most)
            for kernel in offered
        }
        choices.append(_choice(op, ops, offered, reasons, rules, selector, mode, most))
        fewest = most + 1
    return tuple(choices)


def _choice(
    op: Op,
    ops: Mapping[str, OpDef],
    offered: Sequence[OfferedKernel],
    reasons: Mapping[str, str],
    rules: SelectionRules,
    selector: Selector | None,
    mode: str,
    most: int,
) -> Choice:
    accepting = [kernel.spec for kernel in offered if not reasons[kernel.spec.name]]
    forced = rules.forced.get(op.name, "")
    if forced == REFERENCE or not accepting:
        why = FORCED if forced == REFERENCE else _nobody(offered, reasons, rules)
        how = "its reference kernel" if ops[op.name].reference is not None else "its decomposition"
        if rules.batch_invariant and meaning_varies(op, ops):
            how += ", whose bits may depend on the number of rows"
        refused = _candidates(offered, reasons, "", why)
        return Choice(rows_up_to=most, kernel="", reason=f"{why}; runs by {how}", candidates=refused)
    taken, reason = accepting[0], _reason(accepting)
    if forced in {kernel.name for kernel in accepting}:
        taken, reason = next(kernel for kernel in accepting if kernel.name == forced), FORCED
    elif forced:
        reason = f"{reason}; the forced {forced} {reasons[forced]}"
    elif selector is not None:
        taken, reason = _ask(selector, op, accepting, rules.target, mode) or (taken, reason)
    return Choice(
        rows_up_to=most,
        kernel=taken.name,
        reason=reason,
        candidates=_candidates(offered, reasons, taken.name, f"{taken.name}: {reason}"),
    )


def _candidates(
    offered: Sequence[OfferedKernel], reasons: Mapping[str, str], taken: str, otherwise: str
) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(
            kernel=kernel.spec.name,
            target=kernel.spec.target,
            plugin=kernel.plugin,
            refusal="" if kernel.spec.name == taken else reasons[kernel.spec.name] or f"not chosen: {otherwise}",
        )
        for kernel in offered
    )


def _ask(
    selector: Selector, op: Op, accepting: Sequence[KernelSpec], target: str, mode: str
) -> tuple[KernelSpec, str] | None:
    choice = selector(op, accepting, target, mode)
    if choice is None:
        return None
    if choice.kernel not in accepting:
        raise PluginError(f"cacheir_select_kernel chose {choice.kernel.name!r} for {op.name}, which is no candidate")
    return choice.kernel, choice.reason


def _reason(accepting: Sequence[KernelSpec]) -> str:
    first, others = accepting[0], accepting[1:]
    if not others:
        return "the only kernel that takes it"
    if others[0].target != first.target:
        return f"target {first.target} comes first"
    return f"highest rank on {first.target}" if first.rank > others[0].rank else "first by name"


def _nobody(offered: Sequence[OfferedKernel], reasons: Mapping[str, str], rules: SelectionRules) -> str:
    if not offered:
        return f"no kernel for {' or '.join(rules.targets)}"
    return "; ".join(f"{kernel.spec.name} {reasons[kernel.spec.name]}" for kernel in offered)


def check_forced(
    rules: SelectionRules, ops: Mapping[str, OpDef], kernels: Mapping[str, Sequence[OfferedKernel]]
) -> None:
    """UsageError for a forced kernel that does not exist, or that the rules' target cannot call."""
    for op, name in rules.forced.items():
        if op not in ops:
            raise UsageError(f"--kernel {op}={name}: there is no op {op!r}")
        known = {k.spec.name: k.spec for k in kernels.get(op, ())}
        if name == REFERENCE:
            continue
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise UsageError(f"--kernel {op}={name}: there is no such kernel for {op} (there are: {names})")
        if known[name].target not in rules.targets:
            raise UsageError(
                f"--kernel {op}={name}: target {rules.target} calls {' or '.join(rules.targets)} kernels, "
                f"not {known[name].target}"
            )
