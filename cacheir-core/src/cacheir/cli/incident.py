"""``cacheir incident``: what a server decided of late, kept in a file, and run again elsewhere to the same tokens."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path

import typer

from cacheir.cli.model_options import (
    BACKEND,
    BATCH_INVARIANT,
    KV_DTYPE,
    MAX_SEQ,
    MODEL,
    PRECISE,
    QUANT,
    THREADS,
    open_runtime,
)
from cacheir.cli.output import print_json
from cacheir.errors import BackendError, UsageError
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.incident import MAX_FILE_BYTES, load_incident, replay, save_incident

app = typer.Typer(
    help="Keep what a server decided of late, and replay it offline.", add_completion=False, rich_markup_mode=None
)

_TIMEOUT_S = 30
_OUTPUT = typer.Option(..., "--output", "-o", help="The file to write.")
_FILE = typer.Argument(help="A file of `cacheir incident save`.")


@app.command()
def save(
    url: str = typer.Option("http://127.0.0.1:8000", help="The server."),
    output: Path = _OUTPUT,
    api_key: str = typer.Option("", help="Its key; also CACHEIR_API_KEY."),
) -> None:
    """Fetch a running server's flight recorder: its last decisions, with their requests and tokens."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is no address of a server", hint="it begins with http:// or https://")
    request = urllib.request.Request(f"{url.rstrip('/')}/v1/cacheir/incident")
    if key := api_key or os.environ.get("CACHEIR_API_KEY", ""):
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            raw = answer.read(MAX_FILE_BYTES + 1)
        found = json.loads(raw[:MAX_FILE_BYTES])
    except (OSError, ValueError) as error:
        raise BackendError(f"{url} gave no incident: {error}", hint="is a cacheir server running there?") from None
    save_incident(output, found)
    print(f"{output}: {len(found.get('jobs', []))} requests, {len(found.get('decisions', []))} decisions")


@app.command(name="replay")
def replay_command(
    model: str = MODEL,
    file: Path = _FILE,
    backend: str = BACKEND,
    threads: int = THREADS,
    max_seq: int = MAX_SEQ,
    batch_invariant: bool = BATCH_INVARIANT,
    precise: bool = PRECISE,
    quant: str = QUANT,
    kv_dtype: str = KV_DTYPE,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> int:
    """Run the requests of an incident again and compare every token. Exits with 10 where one differs."""
    incident = load_incident(file)
    runtime = open_runtime(
        model,
        backend=backend,
        threads=threads,
        max_seq=max_seq,
        batch_invariant=batch_invariant,
        precise=precise,
        unfuse=[],
        quant=quant,
        kv_dtype=kv_dtype,
    )
    with runtime:
        same_program = incident.get("program_key") == runtime.artifact.lock.program_key
        outcome = replay(Engine(runtime.model), incident)
    if as_json:
        print_json({"format": 1, "same_program": same_program, **vars(outcome)})
    else:
        if not same_program:
            print("note: the incident comes from another program (model, options, target or plugins)")
        for job_id in outcome.skipped:
            print(f"skipped {job_id}: it had no tokens, or stages that a file cannot hold")
        print(f"{outcome.jobs} requests, {outcome.tokens} tokens")
        if outcome.parted is None:
            print("all tokens are the same")
        else:
            print(f"request {outcome.parted[0]} parts at its token {outcome.parted[1]}")
    return 0 if outcome.parted is None else BackendError.exit_code
