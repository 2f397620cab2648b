"""``cacheir export``: a compiled program, or a graph of it, as a file that people or other tools read."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import typer

from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import CompileOptions
from cacheir.cli import model_options
from cacheir.cli.output import say
from cacheir.cli.show_graphs import find_mode
from cacheir.compile import open_program
from cacheir.errors import UsageError
from cacheir.ir.graph import Module
from cacheir.plugins.installation import default
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import ExporterSpec
from cacheir.weights.atomic_file import write_file

app = typer.Typer(
    help="Write graphs as text, JSON, DOT, MLIR or an HTML page, or as an exporter plugin does.",
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
def export(
    model: str = typer.Argument(help="An artifact, a model folder or file, or a named model."),
    output: str = typer.Argument(help="The file to write, - for standard output."),
    mode: str = typer.Option("", help="The mode whose graphs are written; decode where there is one."),
    graph: str = typer.Option("", help="The graph: main, a layer graph or a head; main or all, as the form has it."),
    format: str = typer.Option("", help="The exporter's name; without it the file's ending decides."),
    quant: str = model_options.QUANT,
) -> None:
    """Write a program, or a graph of it, to a file, whole or not at all."""
    exporter = _exporter(format, output)
    if exporter.takes == "artifact" and (mode or graph):
        raise UsageError(
            f"{exporter.name} shows the whole program, not a mode or a graph of it",
            hint="leave out --mode and --graph, or take another --format",
        )
    text = io.StringIO()
    resolve(exporter.run)(
        _part(exporter, open_program(model, CompileOptions(quant=quant), progress=say), mode, graph), text
    )
    if output == "-":
        sys.stdout.write(text.getvalue())
    else:
        write_file(Path(output), text.getvalue().encode("utf-8"))


def _part(exporter: ExporterSpec, artifact: Artifact, mode: str, graph: str) -> Any:
    """What the exporter takes: the artifact, the module of a mode (or one graph of it as a module), or a graph."""
    if exporter.takes == "artifact":
        return artifact
    modes = list(artifact.program.modules)
    module = artifact.program.modules[find_mode(modes, mode or ("decode" if "decode" in modes else modes[0]))]
    if exporter.takes == "module" and not graph:
        return module
    wanted = graph.removeprefix("@") or module.main.name
    names = [found.name for found in module.graphs]
    if wanted not in names:
        raise UsageError(f"mode {module.mode} has no graph {wanted!r}", hint=f"there are: {', '.join(names)}")
    found = module.graph(wanted)
    return Module(module.mode, (found,)) if exporter.takes == "module" else found


def _exporter(name: str, output: str) -> ExporterSpec:
    """The exporter asked for by name, or by the ending of ``output``. UsageError that lists what there is."""
    exporters = default().exporters
    if name:
        return exporters[name]
    # The longest ending that fits: `g.model-explorer.json` is more than a `.json`.
    fitting = exporters.where(lambda exporter: Path(output).name.endswith(exporter.suffix))
    if not fitting:
        known = ", ".join(f"{exporter.name} ({exporter.suffix})" for exporter in exporters)
        suffix = Path(output).suffix
        raise UsageError(f"no exporter writes {suffix or 'files without an ending'!r}", hint=f"--format: {known}")
    return max(fitting, key=lambda exporter: len(exporter.suffix))
