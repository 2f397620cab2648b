"""``cacheir explain``: what one step of a program runs, why, what it costs, and where its time goes."""

from __future__ import annotations

from dataclasses import replace

import typer

from cacheir import settings
from cacheir.artifact import layout
from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import CompileOptions
from cacheir.artifact.read import read_card
from cacheir.bench.calibration import load_calibration
from cacheir.bench.explain import counts_threads, explain, measure_step, step_shape
from cacheir.cli import model_options
from cacheir.cli.compile import forced_kernels
from cacheir.cli.output import print_json, say
from cacheir.cli.show_explanation import backend_text, explanation_json, explanation_text
from cacheir.cli.show_passes import matches_text, named_records, records_json
from cacheir.compile import open_program
from cacheir.errors import UsageError
from cacheir.models.find_model import find_path
from cacheir.pipeline.steps import PLAN_STEPS
from cacheir.plugins.installation import default
from cacheir.runtime.backend_choice import choose_backend
from cacheir.runtime.usable_cores import usable_cores

app = typer.Typer(
    help="Explain a step: kernels and why, bytes, floors, times.", add_completion=False, rich_markup_mode=None
)

_KERNEL = typer.Option([], "--kernel", help="Force a kernel for an op: op=kernel, or op=reference.")


@app.command()
def explain_command(
    model: str = model_options.MODEL,
    mode: str = typer.Option("decode", help="The step: decode or prefill."),
    node: str = typer.Option("", help="Show the candidates of one node."),
    pass_name: str = typer.Option("", "--pass", help="Show what a pass matched, or why it found nothing, and no step."),
    measure: bool = typer.Option(False, "--measure", help="Load the weights and time every launch."),
    context: int = typer.Option(0, min=0, help="Keys of a row in this step; 0: 128, or the tokens of the step."),
    rows: int = typer.Option(1, min=1, help="Sequences of the step."),
    tokens: int = typer.Option(0, min=0, help="Tokens of a prefill step; 0: 128, or as many as a step may have."),
    repeats: int = typer.Option(7, min=1, help="With --measure: how often; the medians count."),
    backend: str = model_options.BACKEND,
    threads: int = model_options.THREADS,
    max_seq: int = model_options.MAX_SEQ,
    kernel: list[str] = _KERNEL,
    precise: bool = model_options.PRECISE,
    quant: str = model_options.QUANT,
    kv_window: int = model_options.KV_WINDOW,
    kv_sinks: int = model_options.KV_SINKS,
    batch_invariant: bool = model_options.BATCH_INVARIANT,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Explain a step: kernels and why, bytes, floors, times. Nothing is loaded without --measure."""
    options = CompileOptions(
        max_seq=max_seq,
        kernels=forced_kernels(kernel),
        precise=precise,
        quant=quant,
        batch_invariant=batch_invariant,
        kv_window=kv_window,
        kv_sinks=kv_sinks,
    )
    artifact, refusal = _opened(model, backend, options, to_run=measure)
    if pass_name:
        if node or measure:
            raise UsageError("--pass is about the compile, and --node and --measure about the step", hint="give one")
        if mode not in artifact.program.modules:
            raise UsageError(f"the program has no mode {mode!r}", hint=f"it has {', '.join(artifact.program.modules)}")
        known = [item.name for item in (*default().passes, *PLAN_STEPS)]
        name, records = named_records(artifact.records(), pass_name, mode=mode, more_names=known)
        if as_json:
            print_json({"format": 1, "pass": name, "records": records_json(records)})
        else:
            print(matches_text(name, records))
            if not records:
                say(f"cacheir passes tells when it runs; cacheir compile --pass {name} asks for it")
        return
    count = threads or settings.count("CACHEIR_THREADS") or usable_cores()
    shape = step_shape(artifact, mode, rows=rows, tokens=tokens, context=context)
    calibration, missing = load_calibration(settings.cache_dir())
    if refusal:  # nor are this machine's rates those of the device
        calibration = None
        missing = (
            f"the backend {artifact.program.backend} cannot work here ({refusal}), so floors, predictions and times "
            "are left out: they need its device. Kernels, candidates, bytes and operations are the program's own"
        )
    times = None
    if measure:
        threaded = counts_threads(default(), artifact.program.backend)
        say(f"timing a {mode} step on {backend_text(artifact.program.backend, count if threaded else None)}")
        times = measure_step(artifact, default(), shape, threads=count, repeats=repeats)
    found = explain(artifact, default(), shape, threads=count, calibration=calibration, times=times)
    name = node.removeprefix("%")
    known = list(dict.fromkeys(line.node.node for line in found.lines))
    if name and name not in known:
        raise UsageError(f"the step has no node {name!r}", hint=f"its nodes: {', '.join(known)}")
    if as_json:
        print_json({"format": 1, **explanation_json(found, node=name), "calibrated": calibration is not None})
    else:
        print(explanation_text(found, node=name))
    if missing:
        say(missing)


def _opened(model: str, backend: str, options: CompileOptions, *, to_run: bool) -> tuple[Artifact, str]:
    """The artifact, and why its backend cannot work here; UsageError for compile options on what is compiled already.

    Raises BackendUnavailable where the backend cannot work here and the program is ``to_run``.
    """
    path = find_path(model, default())
    demanded = read_card(path).backend if layout.is_artifact(path) else ""
    choice = choose_backend(default(), backend, demanded=demanded, to_run=to_run)
    if demanded and options != CompileOptions():
        raise UsageError(
            f"{model} is an artifact: it was compiled already",
            hint="--kernel, --max-seq, --precise, --quant, --batch-invariant, --kv-window, --kv-sinks are for models",
        )
    return open_program(path, replace(options, target=choice.name), progress=say), choice.refusal
