"""``cacheir models``: the named models, where they lie, and why one cannot be used."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from cacheir.cli.output import print_json, print_table
from cacheir.errors import CacheIRError
from cacheir.models.find_model import find_importer
from cacheir.plugins.installation import Installation, default
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import ModelSpec

app = typer.Typer(help="List the named models that are installed.", add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class _Row:
    """A named model; ``where`` is "" where it is not installed, ``problem`` says why it cannot be used."""

    name: str
    summary: str
    license: str
    distribution: str
    plugin: str
    where: str
    problem: str
    hint: str


@app.command()
def models(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List the named models, where each lies, its licence, and whether it can be used."""
    installation = default()
    rows = [_row(item.spec, item.plugin.name, installation) for item in installation.models.contributions]
    if as_json:
        print_json({"format": 1, "models": [vars(row) for row in rows]})
        return
    if not rows:
        print("no installed plugin names a model")
        return
    print_table(
        ("MODEL", "LICENCE", "STATE", "SUMMARY", "WHERE"),
        [
            (row.name, row.license, "idle" if row.problem else "ok", row.summary, row.problem or row.where)
            for row in rows
        ],
    )
    for row in rows:
        if row.hint:
            print(f"\n{row.name}: {row.hint}")


def _row(spec: ModelSpec, plugin: str, installation: Installation) -> _Row:
    where = problem = hint = ""
    try:
        path = resolve(spec.find)()
        where = str(path)
        find_importer(path, installation)
    except CacheIRError as error:
        problem, hint = str(error), error.hint or ""
    # A plugin's code: the other models are listed all the same.
    except Exception as error:  # noqa: BLE001
        problem = f"{type(error).__name__}: {error}"
    return _Row(spec.name, spec.summary, spec.license, spec.distribution, plugin, where, problem, hint)
