"""``"cacheir": {"provenance": true}``: what stood behind the tokens of an answer, as a field of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from cacheir.runtime.engine.job import Job
from cacheir.runtime.provenance import Trace
from cacheir_server.schemas.sampled import CacheIRPart
from cacheir_server.service import Service


def new_trace(part: CacheIRPart | None) -> Trace | None:
    """What a job that is asked about brings; None for every other."""
    return Trace() if part is not None and part.provenance else None


async def provenance_field(service: Service, jobs: Sequence[Job], *, tokens: bool = True) -> dict[str, Any]:
    """``{"cacheir": {"provenance": ...}}`` for jobs that have ended, ``{}`` where none was asked about.

    Without ``tokens`` no choice has any, nor the pages behind them.
    """
    traces = [job.trace for job in jobs if job.trace is not None]
    if not traces:
        return {}
    ledger = await asyncio.to_thread(lambda: service.ledger)  # the first look reads the artifact's files
    shown = traces if tokens else [Trace() for _ in traces]
    choices = [{"index": number, **trace.as_json()} for number, trace in enumerate(shown)]
    return {"cacheir": {"provenance": {**ledger, "choices": choices}}}
