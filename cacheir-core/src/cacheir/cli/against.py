"""``cacheir benchmark MODEL --against PEER``: our engine and others in turn, with all raw samples."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cacheir.bench.against.cells import chosen_cells
from cacheir.bench.against.compare import compare
from cacheir.bench.against.contestants import our_answers, ours, peer_contestants
from cacheir.bench.against.merge import merged
from cacheir.bench.against.tables import markdown
from cacheir.bench.report import write_report
from cacheir.cli.output import say
from cacheir.errors import UsageError
from cacheir.models.find_model import find_path
from cacheir.plugins.installation import default
from cacheir.runtime.backend_choice import choose_backend
from cacheir.runtime.usable_cores import usable_cores

_IN_PARTS = ("cpu", "native")  # a processor's prefill and decode are compared apart


def run_against(
    model: str,
    peers: Sequence[str],
    *,
    cells: Sequence[str] = (),
    samples: int = 7,
    screen: int = 2,
    extra: int = 7,
    seconds: float = 0,
    backend: str = "auto",
    threads: int = 0,
    precise: bool = False,
    pythons: Sequence[str] = (),
    models: Sequence[str] = (),
    settings: Sequence[str] = (),
    output: Path | None = None,
) -> dict[str, Any]:
    """The report of a comparison. ``output`` FILE.json is written after each cell, with a table FILE.md beside it.

    Cells and engines that an earlier report of the same model holds and that are not measured now stay in it.
    """
    installation = default()
    path = find_path(model, installation)
    count = threads or usable_cores()
    name = choose_backend(installation, backend).name
    answers = name not in _IN_PARTS or "vllm" in peers
    if answers and not set(peers) <= {"vllm"}:
        raise UsageError(f"on {name} whole answers are compared, and of the peers only vllm gives them")
    cells_of = chosen_cells(cells, answers=answers)
    contestants, missing = peer_contestants(
        installation,
        peers,
        model=path,
        threads=count,
        pythons=_pairs(pythons, "--peer-python"),
        models=_pairs(models, "--peer-model"),
        settings=_pairs(settings, "--peer-setting"),
    )
    for peer, reason in missing.items():
        say(f"{peer} does not run: {reason}")
    before = _before(output, path.name)

    def keep(report: Mapping[str, Any]) -> None:
        if output is not None:
            whole = merged(before, report)
            write_report(output, json.dumps(whole, indent=1, sort_keys=True, allow_nan=False) + "\n")
            write_report(output.with_suffix(".md"), markdown(whole))

    if answers:
        kv_dtype = "bf16" if name == "cuda" else ""
        engine = our_answers(path, backend=name, threads=count, precise=precise, kv_dtype=kv_dtype)
    else:
        engine = ours(path, backend=name, threads=count, precise=precise)
    report = compare(
        engine,
        contestants,
        missing,
        cells_of,
        model=path,
        threads=count,
        samples=samples,
        screen=screen,
        extra=extra,
        seconds=seconds or math.inf,
        progress=say,
        done=keep,
    )
    return merged(before, report)


def _pairs(given: Sequence[str], option: str) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{option} takes PEER=PATH, not {text!r}")
        found[name] = value
    return found


def _before(output: Path | None, model: str) -> Mapping[str, Any]:
    """What ``output`` holds about the same model, {} where it holds nothing."""
    if output is None or not output.exists():
        return {}
    if output.suffix != ".json":
        raise UsageError(f"{output} must end with .json", hint="the table is written beside it, with .md")
    try:
        report = json.loads(output.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{output} is there and is no report: {error}", hint="name another file") from error
    if not isinstance(report, dict) or report.get("model") != model:
        raise UsageError(f"{output} holds a report of another model", hint="name another file")
    return report
