"""A report's distributions as one picture: time to first token, for each token, between chunks, and to the end."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cacheir.errors import UsageError
from cacheir_server.bench.report import times_of

SUFFIXES = (".svg", ".png")
_TITLES = {
    "ttft_ms": "Time to first token",
    "tpot_ms": "Time for each further token",
    "inter_token_ms": "Between chunks",
    "end_to_end_ms": "To the end",
}
_INCHES = (10.0, 7.0)


def check_plots(path: Path) -> None:
    """``UsageError`` where ``path`` could not be drawn to: before a run, so that none is lost."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"plots cannot be {str(path)!r}", hint="a name that ends with .svg or .png")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is no folder for plots", hint="make it, or name another")
    if path.is_dir():
        raise UsageError(f"{path} is a folder, so no plots can be drawn to it", hint=f"{path / 'load.svg'}")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"nothing can be written to {path.parent}", hint="name another folder for the plots")
    _figure_module()


def draw_plots(report: Mapping[str, Any], path: Path) -> None:
    """Draws the report's four distributions to ``path`` (.svg or .png), each the share of times below a time.

    Lines stand at the percentiles that the report gives. ``UsageError`` for a report without figures.
    """
    if not report["valid"]:
        raise UsageError("a run that counts for nothing has no plots", hint="; ".join(report["causes"]))
    figure = _figure_module().Figure(figsize=_INCHES, layout="constrained")
    load = report["load"]
    figure.suptitle(f"{load['model']}: {load['requests']} requests, {load['rate']:g} by the second")
    for axes, (name, values) in zip(figure.subplots(2, 2).flat, times_of(report["samples"]).items()):
        _draw(axes, _TITLES[name], values, report[name])
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # A date in the picture would make two of one report differ.
        figure.savefig(partial, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _draw(axes: Any, title: str, values_ms: Sequence[float], percentiles: Mapping[str, float]) -> None:
    ordered = sorted(values_ms)
    axes.step(ordered, [(number + 1) / len(ordered) for number in range(len(ordered))], where="post")
    for name, place in percentiles.items():
        axes.axvline(place, linestyle=":", linewidth=1, color="grey")
        axes.text(place, 0.02, f"{name} {place:.0f}", rotation=90, fontsize="small", ha="right", va="bottom")
    axes.set(title=title, xlabel="ms", ylabel="share", ylim=(0, 1.02))
    axes.set_xlim(left=0)


def _figure_module() -> Any:
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError:
        raise UsageError(
            "plots need the package matplotlib, which is not installed",
            hint="pip install 'matplotlib>=3.8' (the extra `benchmark` of cacheir-server)",
        ) from None
