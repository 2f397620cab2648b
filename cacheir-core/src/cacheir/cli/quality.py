"""``cacheir quality``: how far the answers of one form of a model are from those of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from cacheir.artifact.artifact import Artifact
from cacheir.cli import model_options
from cacheir.cli.output import print_json, print_table, say
from cacheir.errors import UsageError
from cacheir.plugins.installation import Installation, default
from cacheir.quality.protocol import DEFAULT_TEXT, WINDOW, read_text
from cacheir.quality.run import Baseline, Subject, TextChoice, baseline, check_pair, check_subject, compared
from cacheir.quality.swapped import BACKEND, Attribution, attribute
from cacheir.quality.weights import ZEROED_LIMIT, WeightChange, weight_changes

app = typer.Typer(
    help="Compare the answers of two models: perplexity, divergence, agreement.",
    add_completion=False,
    rich_markup_mode=None,
)

_SECOND = typer.Argument(
    "", help="The model that is judged; without it the baseline itself, with --quant or --kv-dtype."
)
_TEXT = typer.Option(None, help="The text to score; without it a part of a novel that core brings.")


@app.command()
def quality(
    a: str = typer.Argument(help="The baseline: an artifact, a model folder or file, or a named model."),
    b: str = _SECOND,
    text: Path = _TEXT,
    window: int = typer.Option(WINDOW, min=4, help="Tokens of a window; its second half is scored."),
    windows: int = typer.Option(2, min=0, help="How many windows; 0: all of the text."),
    skip: int = typer.Option(0, min=0, help="Windows to leave out at the beginning."),
    backend: str = typer.Option(BACKEND, help="The backend that runs both models."),
    quant: str = model_options.QUANT,
    kv_dtype: str = model_options.KV_DTYPE,
    precise: bool = model_options.PRECISE,
    attribution: bool = typer.Option(
        False, "--attribute", help="Also swap one module at a time into the baseline, to see which one costs most."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Compare the answers of two models on a text; --quant and --kv-dtype are for the second."""
    if not (b or quant or kv_dtype):
        raise UsageError("there is nothing to compare with", hint="name a second model, or give --quant or --kv-dtype")
    if attribution and backend != BACKEND:
        raise UsageError(f"--attribute swaps weights on the backend {BACKEND}", hint="leave --backend out")
    installation = default()
    choice = TextChoice(text=read_text(text or DEFAULT_TEXT), window=window, windows=windows, skip=skip)
    first = Subject(model=a, backend=backend, precise=precise)
    second = Subject(model=b or a, quant=quant, kv_dtype=kv_dtype, backend=backend, precise=precise)
    judged_program = check_subject(second, installation, say)
    if b:
        check_pair(check_subject(first, installation, say), judged_program, choice, installation)
    reference = baseline(first, choice, installation, say)
    found, judged = compared(second, choice, reference, installation, say)
    changes = list(weight_changes(reference.artifact, judged))
    parts = _attributed(reference, judged, installation) if attribution else []
    for change in changes:
        if change.zeroed > ZEROED_LIMIT:
            say(f"warning: {', '.join(change.keys)}: {change.zeroed:.0%} of its weights became 0 in {change.format}")
    if as_json:
        print_json(
            {
                "format": 1,
                "baseline": a,
                "model": b or a,
                "quant": quant,
                "kv_dtype": kv_dtype,
                "backend": backend,
                "text": _text_json(reference),
                "comparison": found.to_json(),
                "weights": [vars(change) for change in changes],
                "attribution": [{"module": part.module, **part.comparison.to_json()} for part in parts],
            }
        )
        return
    rows = [
        ("tokens scored", found.tokens),
        ("perplexity of the baseline", f"{found.baseline_perplexity:.3f}"),
        ("perplexity", f"{found.perplexity:.3f}  ({found.perplexity_change:+.2%})"),
        ("mean KL divergence", f"{found.mean_kl:.5f} nats"),
        ("largest KL divergence", f"{found.max_kl:.3f} nats"),
        ("same most probable token", f"{found.top1:.2%}"),
    ]
    print_table(("", "value"), rows)
    if changes:
        print()
        print_table(
            ("format", "weights", "largest error", "most that became 0"),
            _by_format(changes),
            right=("weights", "largest error", "most that became 0"),
        )
    if parts:
        print()
        print_table(("module", "mean KL", "max KL", "perplexity", "top-1"), [*map(_part_row, parts)], right=_NUMBERS)


_NUMBERS = ("mean KL", "max KL", "perplexity", "top-1")


def _attributed(reference: Baseline, judged: Artifact, installation: Installation) -> list[Attribution]:
    """Modules, the one that costs most first."""
    parts = attribute(reference.artifact, judged, reference.answers, reference.protocol, installation, say)
    return sorted(parts, key=lambda part: -part.comparison.mean_kl)


def _text_json(reference: Baseline) -> dict[str, Any]:
    cut = reference.protocol
    return {"sha256": cut.sha256, "windows": len(cut.windows), "window": cut.window, "scored": cut.scored}


def _by_format(changes: list[WeightChange]) -> list[tuple[str, int, str, str]]:
    groups: dict[str, list[WeightChange]] = {}
    for change in changes:
        groups.setdefault(change.format, []).append(change)
    return [
        (name, len(group), f"{max(row.error for row in group):.2%}", f"{max(row.zeroed for row in group):.2%}")
        for name, group in sorted(groups.items())
    ]


def _part_row(part: Attribution) -> tuple[str, str, str, str, str]:
    found = part.comparison
    return (
        part.module,
        f"{found.mean_kl:.5f}",
        f"{found.max_kl:.3f}",
        f"{found.perplexity_change:+.2%}",
        f"{found.top1:.2%}",
    )
