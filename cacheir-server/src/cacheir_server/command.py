"""``cacheir serve``: one model behind an OpenAI-compatible server."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cacheir.errors import UsageError
from cacheir_server.foreign_options import ServeCommand

if TYPE_CHECKING:
    from cacheir_server.settings import ServerSettings

MODEL = typer.Argument(..., metavar="model", help="An artifact, a model folder or file, or a named model.")
KEY = typer.Option(
    [], "--api-key", help="A key that opens the server; may be given several times. Also: CACHEIR_API_KEY."
)


def serve(
    model: str = MODEL,
    host: str = typer.Option("127.0.0.1", help="The address to listen at."),
    port: int = typer.Option(8000, min=0, max=65535, help="The port; 0 takes a free one."),
    backend: str = typer.Option("auto", help="The backend that runs it; auto takes the first that can work here."),
    threads: int = typer.Option(0, min=0, help="Threads of the backend; 0: as many as the process may use."),
    max_seq: int = typer.Option(
        0,
        "--max-seq",
        "--max-model-len",
        min=0,
        help="Positions of a sequence; 0: the model's own limit, at most 8192.",
    ),
    kv_tokens: int = typer.Option(0, min=0, help="Positions of all sequences together; 0: one full context."),
    max_batch_size: int = typer.Option(
        0,
        "--max-batch-size",
        "--max-num-seqs",
        min=0,
        help="Requests that run at once; 0: as many as the program takes.",
    ),
    max_queue_size: int = typer.Option(256, min=1, help="Requests that may wait."),
    max_queue_tokens: int = typer.Option(1 << 20, min=1, help="Prompt tokens that may wait."),
    queue_wait: float = typer.Option(0.0, min=0.0, help="Seconds for which a request waits for room in the queue."),
    audit_cache: int = typer.Option(0, min=0, help="Compute every N-th reused prefix anew and compare; 0: none."),
    spill: str = typer.Option("off", help="Move cold KV pages to host memory: off, advised (by cost) or on."),
    spill_bytes: int = typer.Option(1 << 30, min=0, help="Room for spilled pages."),
    spill_folder: str = typer.Option("", help="Spill to a file in this folder instead of to memory."),
    draft_tokens: int = typer.Option(0, min=0, max=16, help="Tokens to guess from the prompt, for greedy requests."),
    share_duplicates: bool = typer.Option(True, help="Compute greedy requests that are equal in all once."),
    fast_lane: bool = typer.Option(True, help="Use a step's plan again while all requests want one more token."),
    record: int = typer.Option(256, min=0, help="Scheduler decisions that are kept for `cacheir incident save`."),
    precise: bool = typer.Option(False, help="Take only kernels that compute in f32."),
    quant: str = typer.Option(
        "", "--quant", "--quantization", help="Quantise the weights: a quantiser's name, or a recipe file (.json)."
    ),
    kv_dtype: str = typer.Option(
        "", "--kv-dtype", "--kv-cache-dtype", help="How keys and values are stored: f32, f16, bf16, int8 or fp8."
    ),
    kv_window: int = typer.Option(0, min=0, help="Positions that each token sees; 0: as the model has it."),
    kv_sinks: int = typer.Option(0, min=0, help="First positions that each token sees besides a window."),
    cuda_dtype: str = typer.Option("", help="How the cuda backend holds matrices: bfloat16 or float16."),
    jit_after_warmup: str = typer.Option(
        "", help="error: the cuda backend runs its steps once at the start, and compiles no kernel after that."
    ),
    batch_invariant: bool = typer.Option(False, help="Take only kernels whose bits do not depend on what runs beside."),
    api_key: list[str] = KEY,
    served_model_name: str = typer.Option("", help="What requests call the model; else its own name."),
    tool_parser: str = typer.Option(
        "",
        "--tool-parser",
        "--tool-call-parser",
        help="How the model writes tool calls; else as its chat template shows.",
    ),
    max_body_bytes: int = typer.Option(8 << 20, min=1024, help="The largest body that is read."),
    stall: float = typer.Option(30.0, min=0.1, help="Seconds that a step may take before /health says 503."),
    otel: bool = typer.Option(False, help="Send a span for each request, as the OTEL_* variables say."),
    drain: float = typer.Option(30.0, min=0.0, max=86_400.0, help="Seconds that SIGTERM leaves the answers under way."),
) -> None:
    """Serve a model over HTTP, as OpenAI's API has it.

    SIGTERM lets the answers under way come to their ends; a second one does not.
    """
    from dataclasses import replace

    from cacheir import CompileOptions
    from cacheir.bench.spill_speed import spill_speed
    from cacheir.runtime.engine.engine import Engine, default_limits
    from cacheir.runtime.engine.prompt_lookup import Speculation
    from cacheir.runtime.engine.spill import SpillPolicy
    from cacheir.runtime.runtime import Runtime
    from cacheir.settings import cache_dir
    from cacheir_server.app import create_app
    from cacheir_server.run_server import run_server
    from cacheir_server.service import Service
    from cacheir_server.settings import ServerSettings
    from cacheir_server.spans import make_spans

    if not host:
        raise UsageError("--host is empty, which would listen at every address", hint="name it: 127.0.0.1, or 0.0.0.0")
    keys = _keys(api_key)
    if spill_folder and not os.access(spill_folder, os.W_OK | os.X_OK):
        raise UsageError(
            f"nothing can be written to {spill_folder!r}", hint="--spill-folder names a folder that is there"
        )
    if spill_folder and spill == "off":
        raise UsageError("--spill-folder names a place, and nothing is spilled", hint="give --spill advised or on too")
    policy = SpillPolicy(mode=spill, host_bytes=spill_bytes, folder=Path(spill_folder) if spill_folder else None)
    spans = make_spans() if otel else None
    settings = ServerSettings(
        model_name=served_model_name or Path(model).name or model,
        api_keys=keys,
        max_body_bytes=max_body_bytes,
        tool_parser=tool_parser,
        queue_wait_s=queue_wait,
        stall_s=stall,
        drain_s=drain,
    )
    runtime = Runtime(
        model,
        backend,
        max_seq=max_seq,
        threads=threads,
        batch_invariant=batch_invariant,
        kv_tokens=kv_tokens,
        kv_dtype=kv_dtype,
        backend_options={
            name: value for name, value in (("cuda_dtype", cuda_dtype), ("jit_after_warmup", jit_after_warmup)) if value
        },
        compile_options=CompileOptions(
            precise=precise,
            quant=quant,
            kv_window=kv_window,
            kv_sinks=kv_sinks,
            max_rows=max_batch_size or CompileOptions.max_rows,
        ),
        progress=lambda text: print(text, file=sys.stderr),
    )
    limits = default_limits(runtime.model)
    batch = max_batch_size or limits.max_batch
    if batch > limits.max_batch:
        runtime.close()
        raise UsageError(
            f"--max-batch-size {batch} is more than the {limits.max_batch} rows of the program",
            hint=f"compile the model with --max-rows {batch}, or ask for less",
        )
    limits = replace(limits, max_batch=batch, max_queue=max_queue_size, max_queue_tokens=max_queue_tokens)
    _warn(runtime, settings)
    if spill != "off" and not spill_folder:  # the speed of the disk is no part of a calibration
        speed, said = spill_speed(cache_dir(), runtime.model.program.backend)
        policy = replace(policy, calibrated_bytes_per_s=speed)
        print(f"note: {said}", file=sys.stderr)
    engine = Engine(
        runtime.model,
        limits,
        speculation=Speculation(draft_tokens=draft_tokens),
        record=record,
        audit_every=audit_cache,
        spill=policy,
        share_duplicates=share_duplicates,
        fast_lane=fast_lane,
    )
    service = Service(runtime, settings, engine)
    run_server(create_app(service, spans), service, host, port)


app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command(cls=ServeCommand)(serve)


def _keys(given: list[str]) -> tuple[str, ...]:
    keys = tuple(given) or ((os.environ["CACHEIR_API_KEY"],) if "CACHEIR_API_KEY" in os.environ else ())
    if any(not key.strip() or key != key.strip() for key in keys):
        raise UsageError("an API key is empty or has spaces at its ends", hint="leave --api-key out to let anyone in")
    if any(not key.isprintable() for key in keys):
        raise UsageError(
            "an API key has a line break or another character that no header can carry",
            hint="take one of letters, digits and signs",
        )
    return keys


def _warn(runtime: object, settings: ServerSettings) -> None:
    from cacheir.runtime.runtime import Runtime

    assert isinstance(runtime, Runtime)
    model = runtime.model
    if model.limits.max_seq < model.program.max_seq:
        print(
            f"note: the KV pages hold {model.limits.max_seq} positions and the model could have "
            f"{model.program.max_seq}; --kv-tokens makes room for more",
            file=sys.stderr,
        )
    print(f"bodies are read up to {settings.max_body_bytes} bytes", file=sys.stderr)
