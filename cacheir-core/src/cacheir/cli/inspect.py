"""``cacheir inspect``: the graphs, pass diffs, kernels and memory of an artifact, or of a model compiled on demand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import CompileOptions
from cacheir.cli import model_options
from cacheir.cli.output import print_json, say
from cacheir.cli.show_between import graphs_after
from cacheir.cli.show_graphs import find_graph, find_mode, fold_calls, module_text
from cacheir.cli.show_history import histories, histories_json, histories_text
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
    history: str = typer.Option("", help="Show which passes touched the value %NAME, and how; under all its names."),
    kernels: bool = typer.Option(False, "--kernels", help="Show which kernel runs each op, and why."),
    memory: bool = typer.Option(False, "--memory", help="Show the memory plan."),
    summary: bool = typer.Option(False, "--summary", help="Show everything on a page; so does no option at all."),
    until: str = typer.Option("", help="Of a model: show the graphs as they are after this pass."),
    from_pass: str = typer.Option("", "--from", help="With --until: show what changed since this pass."),
    every_call: bool = typer.Option(False, "--every-call", help="Show the call of each layer, not the first and last."),
    target: str = typer.Option("", help="When a model is compiled on demand: the backend."),
    quant: str = model_options.QUANT,
    passes: list[str] = _PASS,
    skips: list[str] = _SKIP,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show the graphs, pass diffs, kernels and memory of an artifact or a model."""
    if until or from_pass:
        options = _options(target, quant, passes, skips)
        texts_after = graphs_after(model, options, until=until, since=from_pass, mode=mode, graph=graph)
        if as_json:
            print_json({"format": 1, "until": until, "from": from_pass, "graphs": texts_after})
        else:
            print("\n".join(text["text"] if every_call else fold_calls(text["text"]) for text in texts_after).rstrip())
        return
    artifact = _opened(model, _options(target, quant, passes, skips))
    asked = _Asked(artifact, mode=mode, graph=graph)
    if pass_name:
        kernels, memory = _plan_step(pass_name, kernels, memory)
    is_step = fold_name(pass_name) in _SHOWN_AS_PLANS
    shows_graphs = bool(mode or graph) and not (pass_name or history or kernels or memory or summary)
    sections: dict[str, Any] = {}
    texts: list[str] = []
    if summary or not (mode or graph or pass_name or history or kernels or memory):
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
    if history:
        name, found = histories(artifact.program.modules, artifact.records(), history, modes=asked.modes, graph=graph)
        sections["history"] = histories_json(name, found)
        texts.append(histories_text(name, found))
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


def _options(target: str, quant: str, passes: list[str], skips: list[str]) -> CompileOptions:
    """How a model is compiled on demand."""
    return CompileOptions(
        target=target or CompileOptions.target, quant=quant, passes=tuple(passes), skip_passes=tuple(skips)
    )


def _opened(model: str, options: CompileOptions) -> Artifact:
    """The artifact; a model is compiled unless the cache has it. UsageError for compile options on an artifact."""
    artifact = open_program(model, options, progress=say)
    if artifact.origin == "artifact" and options != CompileOptions():
        raise UsageError(
            f"{model} is an artifact: it was compiled for {artifact.card.target} already",
            hint="--target, --quant, --pass and --skip-pass are for a model; compile it again for other ones",
        )
    return artifact


# Planning steps whose work is shown whole, as --kernels and --memory show it; of the others there are the records.
_SHOWN_AS_PLANS = ("select-kernels", "schedule", "plan-memory")


def _plan_step(name: str, kernels: bool, memory: bool) -> tuple[bool, bool]:
    """Planning steps leave no diff but the plan: kernels for selection and schedule, the memory plan for memory."""
    if fold_name(name) in ("select-kernels", "schedule"):
        return True, memory
    return kernels, memory or fold_name(name) == "plan-memory"
