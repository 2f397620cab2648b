"""``cacheir plugins``: list, doctor, hooks, new, ledger."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from cacheir.cli.output import colour_states, print_json, print_table, wants_colour
from cacheir.errors import UsageError
from cacheir.plugins import inventory
from cacheir.plugins.installation import default
from cacheir.plugins.kinds import KINDS, Kind
from cacheir.plugins.markers import HOOK_API
from cacheir.plugins.plugin import Plugin
from cacheir.plugins.scaffold import kinds, write_plugin

app = typer.Typer(
    help="List, check, explain and start plugins.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)

_JSON = typer.Option(False, "--json", help="Print JSON.")
_FOLDER = typer.Option(Path("."), "--in", help="The folder to make it in.")
_ARTIFACT = typer.Argument(help="An artifact folder.")


@app.command("list")
def list_plugins(
    kind: str = typer.Option("", help="List what plugins provide of one kind: passes, kernels, ..."),
    as_json: bool = _JSON,
) -> None:
    """List plugins, their state and what they provide."""
    if kind:
        _list_kind(_kind(kind), as_json)
        return
    rows = inventory.plugin_rows(default())
    if as_json:
        print_json({"format": 1, "hook_api": list(HOOK_API), "plugins": [_plugin_json(row) for row in rows]})
        return
    print_table(
        ("PLUGIN", "PACKAGE", "VERSION", "STATE", "PROVIDES"),
        [
            (row.plugin.name, row.plugin.distribution, row.plugin.version, row.plugin.state, _provides(row))
            for row in rows
        ],
    )
    plugins = [row.plugin for row in rows]
    bad = [plugin for plugin in plugins if plugin.problems]
    left = f", {len(bad)} with problems.  cacheir plugins doctor {bad[0].name if len(bad) == 1 else ''}" if bad else "."
    print(f"\n{len(plugins)} {'plugin' if len(plugins) == 1 else 'plugins'}{left}".rstrip())


@app.command("hooks")
def list_hooks(as_json: bool = _JSON) -> None:
    """List every hook: its arguments, its level, who implements it."""
    rows = inventory.hook_rows(default())
    if as_json:
        print_json(
            {
                "format": 1,
                "hook_api": list(HOOK_API),
                "hooks": [
                    {
                        "name": row.name,
                        "arguments": row.arguments,
                        "level": row.level,
                        "since": row.since,
                        "summary": row.summary,
                        "implementers": row.implementers,
                    }
                    for row in rows
                ],
            }
        )
        return
    print_table(
        ("HOOK", "ARGUMENTS", "LEVEL", "SINCE", "IMPLEMENTED BY"),
        [(row.name, ", ".join(row.arguments), row.level, row.since, ", ".join(row.implementers)) for row in rows],
    )


@app.command("doctor")
def doctor(
    name: str = typer.Argument("", help="The plugin to look at closely, with tracebacks; all without it."),
    as_json: bool = _JSON,
) -> int:
    """Check plugins: imports every reference, runs every check. Exits with 1 where something is at fault."""
    from cacheir.plugins.doctor import examine, failures

    sections = examine(default(), name or None)
    count = failures(sections)
    if as_json:
        found = [
            {
                "title": section.title,
                "findings": [vars(finding) for finding in section.findings],
            }
            for section in sections
        ]
        print_json({"format": 1, "problems": count, "sections": found})
        return 1 if count else 0
    for section in sections:
        print(section.title)
        for finding in section.findings:
            _print_finding(finding)
    print(f"\n{count} {'problem' if count == 1 else 'problems'}.")
    return 1 if count else 0


@app.command("new")
def new(
    kind: str = typer.Argument(help=f"What the plugin adds: {', '.join(kinds())}."),
    name: str = typer.Argument(help="Its name, lower case words joined by '-'."),
    folder: Path = _FOLDER,
) -> None:
    """Start a plugin: a package that works, with its test."""
    made = write_plugin(kind, name, folder)
    print(f"wrote {made}")
    print("try it:")
    for command in (f"pip install --no-deps -e {made}", f"cacheir plugins doctor {name}", f"pytest {made}/tests"):
        print(f"  {command}")


@app.command("ledger")
def ledger(
    artifact: Path = _ARTIFACT,
    as_json: bool = _JSON,
) -> None:
    """List who supplied what an artifact is made of, and what lost.

    Each pass, op, kernel and family of it, with the plugin that it comes from.
    """
    from cacheir.cli.show_ledger import ledger_json, ledger_text, read_ledger

    found = read_ledger(artifact, default())
    if as_json:
        print_json(ledger_json(found))
    else:
        print(ledger_text(found))


def _list_kind(kind: Kind, as_json: bool) -> None:
    rows = inventory.kind_rows(default(), kind)
    if as_json:
        print_json({"format": 1, "kind": kind.name, kind.attribute: rows})
        return
    headings = list(rows[0]) if rows else ["name", "plugin", "summary"]
    print_table(
        [heading.upper().replace("_", " ") for heading in headings],
        [[_text(row[key]) for key in headings] for row in rows],
    )


def _kind(name: str) -> Kind:
    spelt = name.replace("_", " ").replace("-", " ")
    for kind in KINDS:
        if spelt in (kind.name, kind.plural):
            return kind
    raise UsageError(f"there is no kind {name!r}", hint=f"there are: {', '.join(kind.attribute for kind in KINDS)}")


def _plugin_json(row: inventory.PluginRow) -> dict[str, Any]:
    plugin = row.plugin
    return {
        "name": plugin.name,
        "package": plugin.distribution,
        "version": plugin.version,
        "module": plugin.target,
        "state": plugin.state,
        "seconds": plugin.seconds,
        "summary": row.summary,
        "hooks": plugin.hooks,
        "provides": row.provides,
        "idle": row.idle,
        "problems": [problem.sentence for problem in plugin.problems],
    }


def _provides(row: inventory.PluginRow) -> str:
    return row.provides_text() if not _lost_everything(row.plugin) else row.plugin.problems[0].sentence


def _lost_everything(plugin: Plugin) -> bool:
    return bool(plugin.problems) and not plugin.implementations


def _print_finding(finding: Any) -> None:
    first, *more = finding.text.split("\n")
    line = f"  {finding.status:<5} {first}"
    print(colour_states(line) if wants_colour(sys.stdout) else line)
    for text in (*more, *([f"hint: {finding.hint}"] if finding.hint else ()), *finding.detail.splitlines()):
        print(f"        {text}")


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
