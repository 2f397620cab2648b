"""``cacheir profile``: what this machine has, which backends can work on it, and how fast it is."""

from __future__ import annotations

from typing import Any

import typer

from cacheir import settings
from cacheir.bench.cpu_load import cpu_times, foreign_load, stolen_load
from cacheir.bench.environment import environment
from cacheir.bench.validity import load_causes
from cacheir.cli.output import print_json, print_table, say, size_text
from cacheir.cli.show_calibration import calibration_text
from cacheir.errors import UsageError
from cacheir.plugins.installation import Installation, default
from cacheir.plugins.inventory import probe
from cacheir.runtime.usable_cores import usable_cores
from cacheir.schedule.record_json import to_json

app = typer.Typer(
    help="Show what this machine has: processor, instruction sets, memory, backends.",
    add_completion=False,
    rich_markup_mode=None,
)


_TAKES = "this takes about a minute on a quiet machine, up to four on a busy one, where rates come out too low"
_THREADS = typer.Option([], "--threads", help="With --calibrate: a number of threads; may be repeated. Else 1 and all.")
_BACKENDS = typer.Option([], "--backend", help="With --calibrate: a backend to measure; may be repeated. Else all.")


@app.command()
def profile(
    calibrate: bool = typer.Option(
        False, "--calibrate", help="Measure this machine and its backends, and keep the result for cacheir explain."
    ),
    sample_mb: int = typer.Option(256, min=1, max=1 << 14, help="With --calibrate: megabytes that are moved."),
    repeats: int = typer.Option(5, min=1, help="With --calibrate: how often each thing is measured."),
    threads: list[int] = _THREADS,
    backend: list[str] = _BACKENDS,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show what this machine has: processor, instruction sets, memory, backends. With --calibrate, how fast it is."""
    if calibrate:
        _calibrate(sample_mb, repeats, threads, backend, as_json)
        return
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


def _calibrate(sample_mb: int, repeats: int, threads: list[int], names: list[str], as_json: bool) -> None:
    """Measure, keep and show."""
    from cacheir.bench.calibrate import calibrate
    from cacheir.bench.calibration import save_calibration

    for name in names:
        default().backends[name]  # UsageError for one that nobody registers
    if any(count < 1 for count in threads):
        raise UsageError(f"--threads must be 1 or more, not {min(threads)}")
    counts = sorted(set(threads)) or sorted({1, usable_cores()})
    say(_TAKES)
    before = cpu_times()
    found = calibrate(default(), threads=counts, sample_mb=sample_mb, repeats=repeats, backends=names, progress=say)
    after = cpu_times()
    path = save_calibration(found, settings.cache_dir())
    for cause in load_causes(foreign_load(before, after), stolen_load(before, after)):
        say(f"the rates may be too low: {cause}. Calibrate again when the machine is quiet")
    if as_json:
        print_json(to_json(found))
        return
    print(calibration_text(found))
    say(f"kept in {path}")


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
