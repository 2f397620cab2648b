"""``cacheir inspect``: the graphs, pass diffs, kernels and memory of an artifact, or of a model compiled on demand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import CompileOptions
from cacheir.cli.output import print_json, say
from cacheir.cli.show_graphs import find_graph, find_mode, fold_calls, module_text
from cacheir.cli.show_passes import named_records, records_json, records_text
from cacheir.cli.show_plan import kernels_json, kernels_text, memory_json, memory_text, state_and_weights_text
from cacheir.cli.show_summary import summary_json, summary_text
from cacheir.compile import open_program
from cacheir.errors import UsageError
from cacheir.pipeline.names import fold_name
from cacheir.pipeline.steps import PLAN_STEPS

app = typer.Typer(
    help="Show the graphs, passes, kernels and memory of an artifact or a model.",
    add_completion=False,
    rich_markup_mode=None,
)

_PASS = typer.Option([], "--pass", help="When a model is compiled on demand: add a pass, NAME{option=value,...}.")
_SKIP = typer.Option([], "--skip-pass", help="When a model is compiled on demand: leave a pass out.")


@app.command()
def inspect(
    model: str = typer.Argument(help="An artifact, a model folder or file, or a named model."),
    mode: str = typer.Option("", help="Show the graphs of one mode, or limit what else is asked for to it."),
    graph: str = typer.Option("", help="Show one graph, or limit what else is asked for to it."),
    pass_name: str = typer.Option("", help="Show what a pass or step did: its diffs and notes."),
    kernels: bool = typer.Option(False, "--kernels", help="Show which kernel runs each op, and why."),
    memory: bool = typer.Option(False, "--memory", help="Show the memory plan."),
    summary: bool = typer.Option(False, "--summary", help="Show everything on a page; so does no option at all."),
    every_call: bool = typer.Option(False, "--every-call", help="Show the call of each layer, not the first and last."),
    target: str = typer.Option("", help="When a model is compiled on demand: the backend."),
    passes: list[str] = _PASS,
    skips: list[str] = _SKIP,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show the graphs, pass diffs, kernels and memory of an artifact or a model."""
    artifact = _opened(model, target, passes, skips)
    asked = _Asked(artifact, mode=mode, graph=graph)
    if pass_name:
        kernels, memory = _plan_step(pass_name, kernels, memory)
    is_step = any(fold_name(pass_name) == step.name for step in PLAN_STEPS)
    shows_graphs = bool(mode or graph) and not (pass_name or kernels or memory or summary)
    sections: dict[str, Any] = {}
    texts: list[str] = []
    if summary or not (mode or graph or pass_name or kernels or memory):
        sections["summary"] = summary_json(artifact) if as_json else None
        texts.append("" if as_json else summary_text(artifact))
    if shows_graphs:
        shown = list(asked.graphs())
        sections["graphs"] = [{"mode": mode_name, "text": text} for mode_name, text in shown]
        texts.append("\n".join(text if every_call else fold_calls(text) for _, text in shown))
    if pass_name and not is_step:
        known = [step.name for step in PLAN_STEPS]
        name, records = named_records(artifact.records(), pass_name, mode=mode, graph=graph, more_names=known)
        sections["pass"] = {"name": name, "records": records_json(records) if as_json else []}
        texts.append(records_text(name, records, whole=every_call))
    if kernels:
        sections["kernels"] = {m: kernels_json(artifact.program, m, graph=graph) for m in asked.modes}
        texts += [kernels_text(artifact.program, m, graph=graph) for m in asked.modes]
    if memory:
        sections["memory"] = {m: memory_json(artifact.program, m) for m in asked.modes}
        texts += [*(memory_text(artifact.program, m) for m in asked.modes), state_and_weights_text(artifact.program)]
    if as_json:
        print_json({"format": 1, "artifact": str(artifact.path), **sections})
    else:
        print("\n\n".join(text.rstrip("\n") for text in texts))


class _Asked:
    """What the options limit the answer to."""

    def __init__(self, artifact: Artifact, *, mode: str, graph: str) -> None:
        known = list(artifact.program.modules)
        self.modes = [find_mode(known, mode)] if mode else known
        self.graph = graph
        self._modules = [artifact.program.modules[name] for name in self.modes]
        if graph:
            self._found = find_graph(self._modules, graph)

    def graphs(self) -> Iterator[tuple[str, str]]:
        """(mode, text) of what is to be shown."""
        if not self.graph:
            for module in self._modules:
                yield module.mode, module_text(module, whole=True)
            return
        for mode, graph in self._found:
            yield mode, f"// {mode}\n{graph}"


def _opened(model: str, target: str, passes: list[str], skips: list[str]) -> Artifact:
    """The artifact; a model is compiled unless the cache has it. UsageError for compile options on an artifact."""
    options = CompileOptions(target=target or CompileOptions.target, passes=tuple(passes), skip_passes=tuple(skips))
    artifact = open_program(model, options, progress=say)
    if artifact.origin == "artifact" and (target or passes or skips):
        raise UsageError(
            f"{model} is an artifact: it was compiled for {artifact.card.target} already",
            hint="--target, --pass and --skip-pass are for a model; compile it again for other ones",
        )
    return artifact


def _plan_step(name: str, kernels: bool, memory: bool) -> tuple[bool, bool]:
    """Planning steps leave no diff but the plan: kernels for selection and schedule, the memory plan for memory."""
    if fold_name(name) in ("select-kernels", "schedule"):
        return True, memory
    return kernels, memory or fold_name(name) == "plan-memory"
