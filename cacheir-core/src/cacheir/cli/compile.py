"""``cacheir compile``: a model in, an artifact out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import typer

from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import CompileOptions
from cacheir.cli import model_options
from cacheir.cli.output import print_json, say
from cacheir.compile import compile_model
from cacheir.errors import UsageError

app = typer.Typer(help="Compile a model into an artifact.", add_completion=False, rich_markup_mode=None)

_OUTPUT = typer.Option(..., "--output", "-o", help="The folder to write the artifact to.")
_MODE = typer.Option(["prefill", "decode"], help="A mode to compile; may be given twice.")
_PASS = typer.Option([], "--pass", help="Add a pass, or set options: NAME{option=value,...}.")
_SKIP = typer.Option([], "--skip-pass", help="Leave a pass out.")
_KERNEL = typer.Option([], "--kernel", help="Force a kernel for an op: op=kernel, or op=reference.")


@app.command()
def compile_command(
    model: str = typer.Argument(help="A folder with config.json, a model file, or a named model."),
    output: Path = _OUTPUT,
    target: str = typer.Option("cpu", help="The backend to compile for."),
    quant: str = model_options.QUANT,
    kv_window: int = model_options.KV_WINDOW,
    kv_sinks: int = model_options.KV_SINKS,
    mode: list[str] = _MODE,
    max_seq: int = typer.Option(0, min=0, help="Positions of a sequence; 0: the model's own limit, at most 8192."),
    max_rows: int = typer.Option(8, min=1, help="Sequences of a step."),
    max_tokens: int = typer.Option(512, min=1, help="Tokens of a step."),
    passes: list[str] = _PASS,
    skip_pass: list[str] = _SKIP,
    kernel: list[str] = _KERNEL,
    precise: bool = typer.Option(False, "--precise", help="Take only kernels that compute in f32."),
    batch_invariant: bool = typer.Option(
        False, "--batch-invariant", help="Take only kernels whose bits do not depend on the number of rows."
    ),
    cuda_dtype: str = model_options.CUDA_DTYPE,
    strict: bool = typer.Option(False, "--strict", help="Refuse a model of which a field or a tensor was left unused."),
    materialise: bool = typer.Option(False, "--materialise", help="Copy the weights into the artifact."),
    until: str = typer.Option("", help="Stop after this pass, and write the graphs' text for --from to go on with."),
    from_pass: str = typer.Option("", "--from", help="MODEL is what --until wrote after this pass: go on from there."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Compile a model into an artifact."""
    start = time.perf_counter()
    if until or from_pass:
        options = CompileOptions(
            target=target,
            quant=quant,
            modes=tuple(mode),
            max_seq=max_seq,
            max_rows=max_rows,
            max_tokens=max_tokens,
            passes=tuple(passes),
            skip_passes=tuple(skip_pass),
            kernels=forced_kernels(kernel),
            precise=precise,
            batch_invariant=batch_invariant,
            strict=strict,
            kv_window=kv_window,
            kv_sinks=kv_sinks,
            backend_options=model_options.cuda_options(cuda_dtype),
        )
        staged(model, output, options, until=until, after=from_pass, materialise=materialise, as_json=as_json)
        return
    artifact = compile_model(
        model,
        target=target,
        quant=quant or None,
        mode=mode,
        max_seq=max_seq,
        output=output,
        max_rows=max_rows,
        max_tokens=max_tokens,
        passes=passes,
        skip_passes=skip_pass,
        kernels=forced_kernels(kernel),
        precise=precise,
        batch_invariant=batch_invariant,
        strict=strict,
        kv_window=kv_window,
        kv_sinks=kv_sinks,
        backend_options=model_options.cuda_options(cuda_dtype),
        materialise=materialise,
        progress=say,
    )
    for note in (*artifact.card.model.notes, *artifact.notes):
        say(note)
    if as_json:
        print_json(_summary(artifact))
        return
    say(f"done in {time.perf_counter() - start:.1f} s")
    print(output)


def staged(
    model: str, output: Path, options: CompileOptions, *, until: str, after: str, materialise: bool, as_json: bool
) -> None:
    """One part of a compile in two: up to the pass ``until``, or from what was written after the pass ``after``."""
    from cacheir.stages import compile_from, compile_until

    if until and after:
        raise UsageError("--until and --from are the two parts of a compile", hint="give one of them")
    if until:
        if materialise:
            raise UsageError("--until writes no weights to materialise", hint="give --materialise with --from")
        compile_until(model, until, output, options, progress=say)
        if as_json:
            print_json({"format": 1, "stopped": str(output), "until": until})
        else:
            print(output)
        return
    if options != CompileOptions():
        raise UsageError(
            "a compile goes on with the options it was begun with", hint="give none of them with --from, only --output"
        )
    artifact = compile_from(model, output, after=after, materialise=materialise, progress=say)
    if as_json:
        print_json(_summary(artifact))
    else:
        print(output)


def forced_kernels(texts: Sequence[str]) -> dict[str, str]:
    """``op=kernel`` texts as a mapping; UsageError for another form, or for two kernels of one op."""
    forced: dict[str, str] = {}
    for text in texts:
        op, equals, name = text.partition("=")
        if not (op and equals and name):
            raise UsageError(f"cannot read --kernel {text!r}", hint="write --kernel linear=cpu.numpy.linear")
        if forced.setdefault(op, name) != name:
            raise UsageError(f"--kernel forces both {forced[op]} and {name} for {op}")
    return forced


def _summary(artifact: Artifact) -> dict[str, object]:
    card, plans = artifact.card, artifact.program.plans
    return {
        "format": 1,
        "artifact": str(artifact.path),
        "program_key": card.program_key,
        "model": {"name": card.model.name, "label": card.model.label, "importer": card.model.importer},
        "target": card.target,
        "modes": list(card.options.modes),
        "limits": {"max_seq": card.max_seq, "max_rows": card.max_rows, "max_tokens": card.max_tokens},
        "weights": "materialised" if artifact.manifest.materialised else "linked",
        "arena_bytes": {mode: plan.arena_bytes for mode, plan in plans.items()},
        "notes": list(artifact.notes),
    }
