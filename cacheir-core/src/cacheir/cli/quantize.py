"""``cacheir quantize``: a model in, a checkpoint with quantised weights out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from cacheir.cli.output import print_json, print_table, say, size_text
from cacheir.errors import UsageError
from cacheir.models.find_model import find_path
from cacheir.plugins.installation import default
from cacheir.quantisers.choose import quant_text
from cacheir.quantisers.quantise_model import WeightReport, quantise_model

app = typer.Typer(
    help="Write a checkpoint of a model with its weights quantised.", add_completion=False, rich_markup_mode=None
)

_OUTPUT = typer.Option(..., "--output", "-o", help="The folder to write the checkpoint to.")
_CALIBRATION = typer.Option(None, help="A text for quantisers that look at activations; without it core's own.")


@app.command()
def quantize(
    model: str = typer.Argument(help="A folder with config.json, a model file, or a named model."),
    quant: str = typer.Option(..., help="A quantiser's name, as int8 or int4_awq, or a recipe file (.json)."),
    output: Path = _OUTPUT,
    calibration: Path = _CALIBRATION,
    weights: bool = typer.Option(False, "--weights", help="Show every weight, not the sums by format."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Quantise a model's weights into a checkpoint, which every command takes as a model."""
    installation = default()
    reports = quantise_model(
        find_path(model, installation),
        quant_text(quant),
        output,
        installation=installation,
        calibration=None if calibration is None else _text(calibration),
        progress=say,
    )
    if all(report.before == report.after for report in reports):
        say(f"note: {quant} leaves every weight of {model} as it is stored, so the checkpoint is no smaller")
    for report in reports:
        if report.warning:
            say(f"warning: {report.warning}")
    if as_json:
        print_json({"format": 1, "checkpoint": str(output), "quant": quant, "weights": [vars(row) for row in reports]})
        return
    headings = ("weight" if weights else "format", "was", "weights", "bytes", "error", "became 0")
    rows = [_row(report.key, [report]) for report in reports] if weights else _by_format(reports)
    print_table(headings, rows, right=headings[2:])
    print(output)


def _by_format(reports: list[WeightReport]) -> list[tuple[Any, ...]]:
    groups: dict[str, list[WeightReport]] = {}
    for report in reports:
        groups.setdefault(report.after, []).append(report)
    return [_row(format, group) for format, group in sorted(groups.items())]


def _row(name: str, group: list[WeightReport]) -> tuple[Any, ...]:
    errors = [report.error for report in group if report.error is not None]
    return (
        name,
        ", ".join(sorted({report.before for report in group})),
        len(group),
        size_text(sum(report.nbytes for report in group)),
        f"{max(errors):.2%}" if errors else "",
        f"{max(report.zeroed for report in group):.2%}",
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the text {path} cannot be read: {error}") from error
