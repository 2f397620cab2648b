"""``cacheir bisect``: the first pass, rewrite or kernel with which a model's logits leave the reference."""

from __future__ import annotations

import math

import typer

from cacheir.artifact.card import CompileOptions
from cacheir.bisection.bisect_model import bisect_model
from cacheir.bisection.result import sentences, trials_text
from cacheir.cli import model_options
from cacheir.cli.compile import forced_kernels
from cacheir.cli.output import print_json, say
from cacheir.errors import UsageError

app = typer.Typer(
    help="Find the pass, rewrite or kernel that changes the answer.", add_completion=False, rich_markup_mode=None
)

_PASS = typer.Option([], "--pass", help="Add a pass, or set options: NAME{option=value,...}.")
_SKIP = typer.Option([], "--skip-pass", help="Leave a pass out.")
_KERNEL = typer.Option([], "--kernel", help="Force a kernel for an op: op=kernel, or op=reference.")


@app.command()
def bisect(
    model: str = typer.Argument(help="A folder with config.json, a model file, or a named model."),
    prompt: str = typer.Option("", help="The text to feed; without it and --tokens, ids of bisect's own are fed."),
    tokens: str = typer.Option("", help="The ids to feed, joined by commas."),
    tolerance: float = typer.Option(
        0.0,
        min=0.0,
        help="In standard deviations of the logits; 0: 1e-4, or what backend and kernels round (docs/bisect.md).",
    ),
    backend: str = typer.Option("auto", help="The backend whose program is searched; auto takes the first that can."),
    passes: list[str] = _PASS,
    skip_pass: list[str] = _SKIP,
    kernel: list[str] = _KERNEL,
    precise: bool = typer.Option(False, "--precise", help="Take only kernels that compute in f32."),
    quant: str = model_options.QUANT,
    kv_window: int = model_options.KV_WINDOW,
    kv_sinks: int = model_options.KV_SINKS,
    exit_code: bool = typer.Option(False, "--exit-code", help="End with 1 where something is wrong."),
    trials: bool = typer.Option(False, "--trials", help="List all runs."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Find the pass, rewrite or kernel with which the logits leave the reference by more than a tolerance."""
    if prompt and tokens:
        raise UsageError("--prompt and --tokens both say what to feed", hint="give one of them")
    if not math.isfinite(tolerance):
        raise UsageError(f"--tolerance is {tolerance}, of which nothing is more", hint="give a number, such as 0.1")
    found = bisect_model(
        model,
        backend=backend,
        prompt=prompt,
        tokens=token_ids(tokens),
        tolerance=tolerance,
        options=CompileOptions(
            passes=tuple(passes),
            skip_passes=tuple(skip_pass),
            kernels=forced_kernels(kernel),
            precise=precise,
            quant=quant,
            kv_window=kv_window,
            kv_sinks=kv_sinks,
        ),
        progress=say,
    )
    if as_json:
        print_json(found.to_json())
    else:
        print("\n".join([sentences(found), *([trials_text(found)] if trials else [])]))
    if exit_code and found.finding is not None:
        raise typer.Exit(1)


def token_ids(text: str) -> list[int]:
    """``3, 14,15`` -> its numbers; UsageError for anything else."""
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise UsageError(f"cannot read --tokens {text!r}", hint="write ids joined by commas: 3,14,15") from None
