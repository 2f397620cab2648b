"""``cacheir profile``: what this machine has, and which backends can work on it."""

from __future__ import annotations

from typing import Any

import typer

from cacheir.bench.environment import environment
from cacheir.cli.output import print_json, print_table, size_text
from cacheir.plugins.installation import Installation, default
from cacheir.plugins.inventory import probe

app = typer.Typer(
    help="Show what this machine has: processor, instruction sets, memory, backends.",
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
def profile(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Show what this machine has: processor, instruction sets, memory, backends."""
    found = {"format": 1, **environment(), "backends": backends(default())}
    if as_json:
        print_json(found)
        return
    cpu, memory, numpy = found["cpu"], found["memory"], found["numpy"]
    limit = f", limited to {size_text(memory['limit_bytes'])}" if memory["limit_bytes"] else ""
    quota = f", quota {cpu['quota_cores']:g}" if cpu["quota_cores"] else ""
    rows = [
        ("processor", cpu["model"]),
        ("instruction sets", " ".join(cpu["instruction_sets"]) or "none that kernels have a use for"),
        ("cores", f"{cpu['usable_cores']} usable of {cpu['cores']} (affinity {cpu['affinity_cores']}{quota})"),
        ("memory", f"{_size(memory['total_bytes'])}, {_size(memory['available_bytes'])} free{limit}"),
        ("system", " ".join(found["system"].values())),
        ("python", f"{found['python']['version']} ({found['python']['implementation']})"),
        ("numpy", f"{numpy['version']} with {numpy['blas'] or 'no BLAS'} {numpy['blas_version']}"),
        ("cacheir", f"{found['cacheir']['version']} {found['cacheir']['commit'][:12]}"),
        *(("setting", f"{name}={value}") for name, value in {**found["settings"], **found["thread_variables"]}.items()),
    ]
    print_table(("WHAT", "VALUE"), rows)
    print()
    print_table(
        ("BACKEND", "STATE", "SUMMARY", "WHY"),
        [(b["name"], "ok" if b["usable"] else "idle", b["summary"], b["refusal"]) for b in found["backends"]],
    )


def backends(installation: Installation) -> list[dict[str, Any]]:
    """Each installed backend and what its probe says."""
    found = []
    for item in installation.backends.contributions:
        refusal = probe(item.spec)
        found.append(
            {
                "name": item.spec.name,
                "plugin": item.plugin.name,
                "summary": item.spec.summary,
                "targets": list(item.spec.targets),
                "usable": refusal is None,
                "refusal": refusal or "",
            }
        )
    return found


def _size(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else size_text(nbytes)
