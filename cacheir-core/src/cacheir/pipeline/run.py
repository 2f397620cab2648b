"""Runs one pass on one graph of a module: call, check, verify, record.

The contract of a pass: it is ``(Graph, PassContext) -> Graph``; it gets a valid graph and gives a valid graph of the
same name, parameters and output types; it returns the same object where it has nothing to do; it reads nothing but its
arguments, and uses no clock, no randomness and no files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cacheir.errors import CacheIRError, PassBrokeGraph, PassFailed, VerifyError
from cacheir.ir.graph import Graph, Module
from cacheir.ir.parser import parse_graph
from cacheir.ir.verify import verify
from cacheir.pipeline.choose import ChosenPass
from cacheir.pipeline.context import PassContext
from cacheir.pipeline.diff import op_counts, text_diff
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import PassRecord, PassSpec

# ``observe(hook, **arguments)``: calls the observing hook of every plugin; ``Host.observe`` is one.
Observe = Callable[..., None]


def run_pass(
    item: ChosenPass,
    module: Module,
    name: str,
    context: PassContext,
    *,
    check_text: bool = False,
    observe: Observe | None = None,
) -> tuple[Module, PassRecord]:
    """The module after one pass on its graph ``name``, and what the pass did.

    ``check_text`` re-parses the text of what the pass returned.

    Raises:
        PassFailed: the pass raised, or returned something that is no graph.
        PassBrokeGraph: it returned a graph that does not verify, has another signature or does not survive its text.
    """
    spec, before = item.spec, module.graph(name)
    reason = why_not(spec, context)
    if reason:
        return module, _record(item, before, before, context, 0.0, "skipped", (reason,))
    if observe is not None:
        observe("cacheir_pass_starting", spec=spec, graph=before, mode=context.mode)
    start = time.perf_counter()
    after = _call(item, before, context)
    seconds = time.perf_counter() - start
    outcome = "unchanged"
    if after is not before and after != before:
        outcome = "changed"
        _check(item, before, after, module, context, check_text)
        module = module.replacing(after)
    else:
        after = before
    record = _record(item, before, after, context, seconds, outcome, tuple(context.notes))
    if observe is not None:
        observe("cacheir_pass_done", record=record, graph=after)
    return module, record


def why_not(spec: PassSpec, context: PassContext) -> str:
    """Why a pass does not run here, "" where it does."""
    if spec.modes and context.mode and context.mode not in spec.modes:
        return f"only for the modes {', '.join(spec.modes)}"
    if spec.targets and not any(_covers(target, context.target) for target in spec.targets):
        return f"only for the targets {', '.join(spec.targets)}"
    return ""


def _covers(declared: str, target: str) -> bool:
    """``cuda`` covers ``cuda`` and ``cuda.triton``."""
    return target == declared or target.startswith(declared + ".")


def _call(item: ChosenPass, before: Graph, context: PassContext) -> Graph:
    where = _where(item, before, context)
    try:
        after: Any = resolve(item.spec.run)(before, context)
    # A pass is a plugin's code and may raise anything; it is named and the cause is kept.
    except Exception as error:
        said = f"{error.hint}; or " if isinstance(error, CacheIRError) and error.hint else ""
        raise PassFailed(
            f"{where} raised {type(error).__name__}: {error}", hint=f"{said}go on without it: {_skip(item)}"
        ) from error
    if not isinstance(after, Graph):
        raise PassFailed(
            f"{where} returned {type(after).__name__}, not a Graph", hint=f"go on without it: {_skip(item)}"
        )
    return after


def _check(
    item: ChosenPass, before: Graph, after: Graph, module: Module, context: PassContext, check_text: bool
) -> None:
    signature = _signature_fault(before, after)
    if signature:
        raise _broke(item, before, after, context, signature)
    try:
        verify(after, context.ops, module=module.replacing(after), stage=item.spec.stage.value)
    except VerifyError as error:
        raise _broke(item, before, after, context, str(error), error.problems) from error
    if check_text:
        try:
            parsed = parse_graph(str(after))
        except CacheIRError as error:
            raise _broke(item, before, after, context, f"the text of @{after.name} does not parse: {error}") from error
        if parsed != after:
            raise _broke(item, before, after, context, f"the text of @{after.name} parses to another graph")


def _signature_fault(before: Graph, after: Graph) -> str:
    if after.name != before.name:
        return f"a pass may not rename @{before.name} to @{after.name}"
    if after.params != before.params:
        return f"a pass may not change the parameters of @{before.name}"
    if [value.type for value in after.outputs] != [value.type for value in before.outputs]:
        return f"a pass may not change the types that @{before.name} yields"
    return ""


def _broke(
    item: ChosenPass,
    before: Graph,
    after: Graph,
    context: PassContext,
    what: str,
    problems: tuple[object, ...] = (),
) -> PassBrokeGraph:
    diff = text_diff(str(before), str(after), old=f"before {item.spec.name}", new=f"after {item.spec.name}")
    return PassBrokeGraph(
        f"{_where(item, before, context)} broke the graph: {what}\n{diff}",
        problems=problems,
        hint=f"go on without it: {_skip(item)}",
    )


def _where(item: ChosenPass, graph: Graph, context: PassContext) -> str:
    mode = f" of {context.mode}" if context.mode else ""
    return f"pass {item.spec.name!r} (plugin {item.plugin!r}) on @{graph.name}{mode}"


def _skip(item: ChosenPass) -> str:
    return f"--skip-pass {item.spec.name}"


def _record(
    item: ChosenPass,
    before: Graph,
    after: Graph,
    context: PassContext,
    seconds: float,
    outcome: str,
    notes: tuple[str, ...],
) -> PassRecord:
    spec, changed = item.spec, outcome == "changed"
    return PassRecord(
        name=spec.name,
        plugin=item.plugin,
        stage=spec.stage,
        mode=context.mode,
        graph=before.name,
        outcome=outcome,
        before=before.hash,
        after=after.hash if changed else before.hash,
        seconds=seconds,
        diff=text_diff(str(before), str(after), old=f"before {spec.name}", new=f"after {spec.name}") if changed else "",
        counts=op_counts((before,), (after,)) if changed else {},
        rewrites=len(context.sites),
        notes=notes,
        sites=tuple((site.op, site.replaced, *site.made) for site in context.sites),
    )
