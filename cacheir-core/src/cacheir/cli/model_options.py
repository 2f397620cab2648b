"""The options that every command which opens a model has in common, and how it is opened with them."""

from __future__ import annotations

import os

import typer

from cacheir.artifact.card import CompileOptions
from cacheir.cli.output import say
from cacheir.runtime.runtime import Runtime

MODEL = typer.Argument(help="An artifact, a folder with config.json, a .gguf or .npz file, or a named model.")
BACKEND = typer.Option("auto", help="The backend that runs it; auto takes the first that can work here.")
THREADS = typer.Option(0, min=0, help="Threads of the backend; 0: as many as the process may use.")
MAX_SEQ = typer.Option(0, min=0, help="Positions of a sequence; 0: the model's own limit, at most 8192.")
BATCH_INVARIANT = typer.Option(
    False, "--batch-invariant", help="Take only kernels whose bits do not depend on what runs beside a row."
)
PRECISE = typer.Option(
    False, "--precise", help="Take only kernels that compute in f32: slower on some backends, and closest to the model."
)
QUANT = typer.Option("", help="Quantise the weights: a quantiser's name, as int8 or int4, or a recipe file (.json).")
KV_DTYPE = typer.Option("", help="How keys and values are stored: f32, f16, bf16, int8 or fp8; default the backend's.")
KV_WINDOW = typer.Option(0, min=0, help="Let each token see this many of the latest positions; 0: as the model has it.")
KV_SINKS = typer.Option(0, min=0, help="Besides a window, let each token see this many of the first positions.")
CUDA_DTYPE = typer.Option("", help="How the cuda backend holds matrices: bfloat16 (its default), float16 or float32.")
STRICT = typer.Option(False, "--strict", help="Refuse a model of which a field or a tensor was left unused.")
UNFUSE = typer.Option([], help="Run a node by its meaning, to find a fault: NODE, or NODE@LAYER; may be repeated.")

# The threads of NumPy's OpenBLAS spin for 0.1 s before they sleep, on cores that a backend's own threads want: 35 ms of
# the time to a first token on native, a quarter of a prompt's on cpu. The library reads it when NumPy is imported; 2**4
# cycles are the least that it takes.
_BLAS_SLEEPS_AT_ONCE = ("OPENBLAS_THREAD_TIMEOUT", "4")


def open_runtime(
    model: str,
    *,
    backend: str,
    threads: int,
    max_seq: int,
    batch_invariant: bool,
    precise: bool,
    strict: bool = False,
    unfuse: list[str],
    quant: str = "",
    kv_dtype: str = "",
    cuda_dtype: str = "",
    kv_window: int = 0,
    kv_sinks: int = 0,
) -> Runtime:
    """The open model; what takes long, and which kernels had to be replaced here, is said on standard error."""
    os.environ.setdefault(*_BLAS_SLEEPS_AT_ONCE)
    runtime = Runtime(
        model,
        backend,
        threads=threads,
        max_seq=max_seq,
        batch_invariant=batch_invariant,
        unfuse=unfuse,
        kv_dtype=kv_dtype,
        backend_options=cuda_options(cuda_dtype),
        compile_options=CompileOptions(
            precise=precise, strict=strict, quant=quant, kv_window=kv_window, kv_sinks=kv_sinks
        ),
        progress=say,
    )
    for note in runtime.artifact.notes:
        say(note)
    return runtime


def cuda_options(cuda_dtype: str) -> dict[str, str]:
    """``--cuda-dtype`` as an option of the backend; another backend than cuda refuses it."""
    return {"cuda_dtype": cuda_dtype} if cuda_dtype else {}
