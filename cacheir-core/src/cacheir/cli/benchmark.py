"""``cacheir benchmark``: times prefill and decode of one prompt, and the start of a process, with all raw samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from cacheir.bench.against.tables import markdown
from cacheir.bench.environment import environment, peak_memory_bytes
from cacheir.bench.generation import measure
from cacheir.bench.report import FORMAT, generation_report, lines, start_up_report, write_report
from cacheir.bench.start_up import measure_start_up
from cacheir.cli import model_options
from cacheir.cli.against import run_against
from cacheir.cli.output import print_json, say
from cacheir.errors import UsageError
from cacheir.plugins.installation import default
from cacheir.plugins.ref import resolve

app = typer.Typer(help="Time prefill and decode.", add_completion=False, rich_markup_mode=None)

_MODEL = typer.Argument(None, help="An artifact, a model folder or file, or a named model. Needed without --suite.")
_OUTPUT = typer.Option(None, "--output", "-o", help="Write the report to this file as well.")
_SETTINGS = typer.Option([], "--set", help="With --suite: NAME=VALUE, an option of the suite; may be repeated.")

_AGAINST = typer.Option([], "--against", help="Run this peer and ours alternately instead; may be repeated.")
_CELLS = typer.Option([], "--cell", help="With --against: only this cell; may be repeated.")
_PEER_PYTHON = typer.Option(
    [], "--peer-python", help="PEER=PATH: the Python of the environment that a peer is installed in."
)
_PEER_MODEL = typer.Option([], "--peer-model", help="PEER=PATH: what a peer opens where it cannot read MODEL.")
_PEER_SETTING = typer.Option([], "--peer-setting", help="PEER=SETTING: the only setting that a peer runs in.")


@app.command()
def benchmark(
    model: str = _MODEL,
    prompt: str = typer.Option(
        "Explain how a compiler turns a program into machine code.", help="The text to continue."
    ),
    decode_tokens: int = typer.Option(32, min=1, help="Decode steps of a run; ending tokens do not end it."),
    repeats: int = typer.Option(3, min=1, help="Runs that are kept."),
    warmup: int = typer.Option(1, min=0, help="Runs before them that are thrown away."),
    start_up: int = typer.Option(
        1, min=0, help="Processes started to time their first token, each with a cold and a warm cache."
    ),
    backend: str = model_options.BACKEND,
    threads: int = model_options.THREADS,
    max_seq: int = model_options.MAX_SEQ,
    batch_invariant: bool = model_options.BATCH_INVARIANT,
    precise: bool = model_options.PRECISE,
    quant: str = model_options.QUANT,
    kv_dtype: str = model_options.KV_DTYPE,
    kv_window: int = model_options.KV_WINDOW,
    kv_sinks: int = model_options.KV_SINKS,
    cuda_dtype: str = model_options.CUDA_DTYPE,
    suite: str = typer.Option(
        "", help="Run a plugin's suite instead; `cacheir plugins list --kind benchmarks` lists them."
    ),
    url: str = typer.Option("", help="With --suite: the server that is loaded."),
    settings: list[str] = _SETTINGS,
    against: list[str] = _AGAINST,
    cells: list[str] = _CELLS,
    samples: int = typer.Option(7, min=1, help="With --against: rounds of a cell, a sample of each engine in each."),
    screen: int = typer.Option(
        2, min=1, help="With --against: samples of each setting of a peer, to find its best one for a cell."
    ),
    extra_rounds: int = typer.Option(
        7, min=0, help="With --against: how many rounds more where samples did not count, for as many that do."
    ),
    cell_seconds: float = typer.Option(
        0.0, min=0, help="With --against: no round is begun that would end later in its cell; 0 for no limit."
    ),
    peer_python: list[str] = _PEER_PYTHON,
    peer_model: list[str] = _PEER_MODEL,
    peer_setting: list[str] = _PEER_SETTING,
    output: Path = _OUTPUT,
    as_json: bool = typer.Option(False, "--json", help="Print the JSON alone, without the summary on standard error."),
) -> None:
    """Time prefill and decode apart. The report is JSON on standard output, with every sample and the environment.

    A run that a prefix hit, a compile, a capture or the load of others spoilt is kept, marked with the cause, and left
    out of the averages.
    """
    if suite:
        options = {"model": model, "backend": backend, "repeats": repeats, "warmup": warmup, "progress": say}
        options |= {"url": url, "set": _pairs(settings)}
        _emit(resolve(default().benchmarks[suite].run)(options), output)
        return
    if model is None:
        raise UsageError("there is no model to measure", hint="cacheir benchmark MODEL, or --suite NAME")
    if against:
        if kv_window or kv_sinks:
            raise UsageError("--against compares with peers that see all positions", hint="leave out --kv-window")
        compared = run_against(
            model,
            against,
            cells=cells,
            samples=samples,
            screen=screen,
            extra=extra_rounds,
            seconds=cell_seconds,
            backend=backend,
            threads=threads,
            precise=precise,
            pythons=peer_python,
            models=peer_model,
            settings=peer_setting,
            output=output,
        )
        print_json(compared)
        if not as_json:
            say(markdown(compared))
        return
    report: dict[str, Any] = {"format": FORMAT}
    with model_options.open_runtime(
        model,
        backend=backend,
        threads=threads,
        max_seq=max_seq,
        batch_invariant=batch_invariant,
        precise=precise,
        quant=quant,
        kv_dtype=kv_dtype,
        kv_window=kv_window,
        kv_sinks=kv_sinks,
        cuda_dtype=cuda_dtype,
        unfuse=[],
    ) as runtime:
        ids = runtime.encode(prompt)
        measurement = measure(runtime, ids, decode_tokens=decode_tokens, repeats=repeats, warmup=warmup, progress=say)
        owned = runtime.memory()
        report |= generation_report(measurement)
        report["memory"] = {"peak_bytes": peak_memory_bytes(), "owned": {**vars(owned), "total": owned.total}}
        report["settings"] = {
            "model": runtime.artifact.card.model.name,
            "program_key": runtime.artifact.card.program_key,
            "backend": runtime.backend_choice.name,
            "backend_reason": runtime.backend_choice.reason,
            "batch_invariant": runtime.artifact.card.options.batch_invariant,
            "precise": runtime.artifact.card.options.precise,
            "quant": quant,
            "kv_dtype": kv_dtype,
            "kv_window": runtime.artifact.card.options.kv_window,
            "kv_sinks": runtime.artifact.card.options.kv_sinks,
            "cuda_dtype": cuda_dtype,
            "threads": threads,
            "max_seq": runtime.artifact.card.max_seq,
            "repeats": repeats,
            "warmup": warmup,
            "prompt": prompt,
            "compiled": runtime.artifact.origin == "compiled",
        }
    # Last, so that what is wrong with the model is said by this process and not by a child.
    if start_up:
        words = ["--backend", backend, "--threads", str(threads), "--max-seq", str(max_seq)]
        words += ["--batch-invariant"] if batch_invariant else []
        words += ["--precise"] if precise else []
        words += [*(["--quant", quant] if quant else []), *(["--kv-dtype", kv_dtype] if kv_dtype else [])]
        words += ["--cuda-dtype", cuda_dtype] if cuda_dtype else []
        words += ["--kv-window", str(kv_window), "--kv-sinks", str(kv_sinks)]
        report["start_up"] = start_up_report(measure_start_up(model, prompt, words, repeats=start_up, progress=say))
    report["environment"] = environment()
    _emit(report, output)
    if not as_json:
        for line in lines(report):
            say(line)


def _pairs(settings: list[str]) -> dict[str, str]:
    for setting in settings:
        if "=" not in setting:
            raise UsageError(f"--set {setting} has no value", hint="--set NAME=VALUE")
    return {name: value for name, _, value in (setting.partition("=") for setting in settings)}


def _emit(report: Any, output: Path | None) -> None:
    if output is not None:
        write_report(output, json.dumps(report, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")
    print_json(report)
