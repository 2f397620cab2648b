"""How long a queue may grow: what is refused at the door, with its reason."""

from __future__ import annotations

from cacheir.errors import QueueFull
from cacheir.runtime.engine.job import Job
from cacheir.runtime.engine.state import EngineState


def check_room(state: EngineState, job: Job) -> None:
    """``QueueFull`` where ``job`` would make the queue longer than it may be, in requests or in tokens."""
    limits = state.limits
    if len(state.waiting) >= limits.max_queue:
        raise QueueFull(
            f"{len(state.waiting)} requests wait, and the queue holds {limits.max_queue}",
            hint="try again in a moment, or serve with a larger --max-queue-size",
        )
    queued = state.queued_tokens
    if queued and queued + len(job.ids) > limits.max_queue_tokens:
        raise QueueFull(
            f"{queued} prompt tokens wait, and with the {len(job.ids)} of this request the queue would hold more than "
            f"{limits.max_queue_tokens}",
            hint="try again in a moment, or serve with a larger --max-queue-tokens",
        )
