"""``cacheir view``: the HTML page of a program, served to a browser on this machine."""

from __future__ import annotations

import io
import webbrowser

import typer

from cacheir.artifact.card import CompileOptions
from cacheir.cli import model_options
from cacheir.cli.export_page import export_html
from cacheir.cli.output import say
from cacheir.cli.page_server import PageServer
from cacheir.compile import open_program

app = typer.Typer(help="Look at a program in the browser.", add_completion=False, rich_markup_mode=None)


@app.command()
def view(
    model: str = typer.Argument(help="An artifact, a model folder or file, or a named model."),
    port: int = typer.Option(8765, min=0, max=65535, help="The port on 127.0.0.1; 0 takes a free one."),
    quant: str = model_options.QUANT,
    open_browser: bool = typer.Option(False, "--open", help="Open the page in the browser."),
) -> None:
    """Serve the page that `cacheir export --format html` writes, to this machine alone, until Ctrl-C."""
    text = io.StringIO()
    export_html(open_program(model, CompileOptions(quant=quant), progress=say), text)
    with PageServer(text.getvalue().encode("utf-8"), port) as server:
        print(server.url, flush=True)
        say("Ctrl-C ends it")
        if open_browser:
            webbrowser.open(server.url)
        server.serve_forever()
