"""``cacheir cache``: list and clear what is cached."""

from __future__ import annotations

import time

import typer

from cacheir import settings
from cacheir.artifact import cache as program_cache
from cacheir.cli.output import print_json, print_table, size_text
from cacheir.errors import UsageError

app = typer.Typer(
    help="List and clear what is cached.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)

_JSON = typer.Option(False, "--json", help="Print JSON.")


@app.command("list")
def list_entries(as_json: bool = _JSON) -> None:
    """List the compiled programs in the cache, the one used last first."""
    folder = settings.cache_dir()
    entries, beside = program_cache.entries(folder), program_cache.notes_bytes(folder)
    limit = settings.gigabytes("CACHEIR_CACHE_LIMIT_GB") * 1e9
    if as_json:
        rows = [{**vars(entry), "path": str(entry.path)} for entry in entries]
        print_json({"format": 1, "folder": str(folder), "limit_bytes": limit, "programs": rows, "notes_bytes": beside})
        return
    if entries:
        now = time.time()
        print_table(
            ("KEY", "MODEL", "TARGET", "CORE", "SIZE", "USED", "FAULT"),
            [
                (e.key[:16], e.model, e.target, e.core, size_text(e.nbytes), _ago(now - e.used), e.fault)
                for e in entries
            ],
            right=("SIZE",),
        )
        print()
    total = sum(entry.nbytes for entry in entries) + beside
    word = "program" if len(entries) == 1 else "programs"
    print(f"{len(entries)} {word}, {size_text(total)} of {size_text(limit)}, in {folder}")


@app.command("clear")
def clear(
    older: float = typer.Option(None, "--older", min=0, help="Remove what was not used for this many days."),
    everything: bool = typer.Option(False, "--all", help="Remove everything."),
    as_json: bool = _JSON,
) -> None:
    """Remove what is cached, with --all or --older. It is made again when it is needed."""
    if everything == (older is not None):
        raise UsageError("say what to remove", hint="cacheir cache clear --all, or --older DAYS")
    removed = program_cache.clear(settings.cache_dir(), older_than_days=older)
    nbytes = sum(entry.nbytes for entry in removed)
    if as_json:
        print_json({"format": 1, "removed": [entry.key for entry in removed], "bytes": nbytes})
        return
    print(f"removed {len(removed)} {'program' if len(removed) == 1 else 'programs'}, {size_text(nbytes)}")


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now"
