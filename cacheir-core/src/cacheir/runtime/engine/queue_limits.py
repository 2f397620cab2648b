"""How long a queue may grow: what is refused at the door, with its reason."""

from __future__ import annotations

from collections.abc import Sequence

from cacheir.errors import QueueFull
from cacheir.runtime.engine.job import Job
from cacheir.runtime.engine.state import EngineState


def check_room(state: EngineState, jobs: Sequence[Job]) -> None:
    """``QueueFull`` where ``jobs`` would make the queue longer than it may be, in requests or in tokens.

    One request alone is always let into an empty queue, however long its prompt.
    """
    limits, waiting = state.limits, len(state.waiting)
    if waiting + len(jobs) > limits.max_queue:
        raise QueueFull(
            f"{waiting} requests wait, and the queue holds {limits.max_queue}: there is no room for {len(jobs)} more",
            hint="try again in a moment, or serve with a larger --max-queue-size",
        )
    queued, asked = state.queued_tokens, sum(len(job.ids) for job in jobs)
    if (queued or len(jobs) > 1) and queued + asked > limits.max_queue_tokens:
        raise QueueFull(
            f"{queued} prompt tokens wait, and with {asked} more the queue would hold more than "
            f"{limits.max_queue_tokens}",
            hint="try again in a moment, or serve with a larger --max-queue-tokens",
        )
