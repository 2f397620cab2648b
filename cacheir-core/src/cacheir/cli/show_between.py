"""The graphs of a model after a pass, or what changed in them between two passes."""

from __future__ import annotations

from collections.abc import Mapping

from cacheir.artifact.card import CompileOptions
from cacheir.cli.output import say
from cacheir.cli.show_graphs import find_graph, find_mode, module_text
from cacheir.errors import UsageError
from cacheir.ir.graph import Module
from cacheir.pipeline.diff import text_diff
from cacheir.stages import modules_after


def graphs_after(
    model: str, options: CompileOptions, *, until: str, since: str, mode: str, graph: str
) -> list[dict[str, str]]:
    """``mode`` and ``text`` of the modules after the pass ``until``; with ``since`` their diff from what it left.

    Text of ``graph`` alone where that is named. Raises UsageError where ``until`` is "".
    """
    if not until:
        raise UsageError("inspect --from shows what changed since a pass", hint="say up to where with --until PASS")
    new = _texts(modules_after(model, until, options, progress=say), mode, graph)
    if not since:
        return [{"mode": name, "text": text} for name, text in new.items()]
    old = _texts(modules_after(model, since, options, progress=say), mode, graph)
    whole = old.get("", "")  # where no mode was begun, every mode comes from the logical module
    texts = {name: text_diff(old.get(name, whole), text, old=since, new=until) for name, text in new.items()}
    return [{"mode": name, "text": text} for name, text in texts.items()]


def _texts(modules: Mapping[str, Module], mode: str, graph: str) -> dict[str, str]:
    if mode and "" not in modules:
        modules = {mode: modules[find_mode(list(modules), mode)]}
    if not graph:
        return {name: module_text(module, whole=True) for name, module in modules.items()}
    return {name: f"// {name or 'logical'}\n{found}" for name, found in find_graph(list(modules.values()), graph)}
