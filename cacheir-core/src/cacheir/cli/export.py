"""``cacheir export``: one graph of an artifact, or of a model compiled on demand, as a file that other tools read."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import typer

from cacheir.cli.output import say
from cacheir.cli.show_graphs import find_mode
from cacheir.compile import open_program
from cacheir.errors import UsageError
from cacheir.plugins.installation import default
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import ExporterSpec
from cacheir.weights.atomic_file import write_file

app = typer.Typer(
    help="Write a graph as text, JSON or DOT, or as an exporter plugin does.",
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
def export(
    model: str = typer.Argument(help="An artifact, a model folder or file, or a named model."),
    output: str = typer.Argument(help="The file to write, - for standard output."),
    mode: str = typer.Option("decode", help="The mode whose graph is written."),
    graph: str = typer.Option("main", help="The graph: main, a layer graph or a head."),
    format: str = typer.Option("", help="The exporter's name; without it the file's ending decides."),
) -> None:
    """Write one graph to a file, whole or not at all."""
    exporter = _exporter(format, output)
    program = open_program(model, progress=say).program
    module = program.modules[find_mode(list(program.modules), mode)]
    names = [found.name for found in module.graphs]
    if graph not in names:
        raise UsageError(f"mode {module.mode} has no graph {graph!r}", hint=f"there are: {', '.join(names)}")
    text = io.StringIO()
    resolve(exporter.run)(module.graph(graph), text)
    if output == "-":
        sys.stdout.write(text.getvalue())
    else:
        write_file(Path(output), text.getvalue().encode("utf-8"))


def _exporter(name: str, output: str) -> ExporterSpec:
    """The exporter asked for by name, or by the ending of ``output``. UsageError that lists what there is."""
    exporters = default().exporters
    if name:
        return exporters[name]
    suffix = Path(output).suffix
    found = exporters.where(lambda exporter: exporter.suffix == suffix)
    if not found:
        known = ", ".join(f"{exporter.name} ({exporter.suffix})" for exporter in exporters)
        raise UsageError(f"no exporter writes {suffix or 'files without an ending'!r}", hint=f"--format: {known}")
    return found[0]
