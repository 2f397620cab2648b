"""Between the event loop and the engine's thread: jobs go over, events come back, and who goes away is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import TypeVar

from cacheir.errors import QueueFull
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.engine_thread import EngineThread
from cacheir.runtime.engine.job import Event, Job, Sink

T = TypeVar("T")

_ROOM_POLL_S = 0.02


class Answers:
    """The answers to some jobs, taken together or not at all. An async context: leaving it cancels what still runs.

    ``observe`` sees every last event, on the engine's thread.
    """

    def __init__(self, thread: EngineThread, jobs: Sequence[Job], observe: Sink) -> None:
        self.jobs = tuple(jobs)
        self._observe = observe
        self._thread = thread
        self._open = {job.id for job in jobs}
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    async def start(self, *, queue_wait_s: float = 0.0) -> None:
        """Queues the jobs; ``QueueFull`` once there was no room for ``queue_wait_s``."""
        loop = asyncio.get_running_loop()
        deadline, waited = loop.time() + queue_wait_s, False
        while True:
            try:
                await on_engine(self._thread, lambda engine: engine.submit_all(self._with_sinks(loop)))
                return
            except QueueFull:
                if loop.time() >= deadline:
                    self._open.clear()
                    raise
                if not waited:
                    waited = True
                    await on_engine(self._thread, _count_wait)
                await asyncio.sleep(_ROOM_POLL_S)
            except BaseException:
                self._open.clear()
                raise

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """Number of the job and event, as they come, until every job has ended."""
        while self._open:
            number, event = await self._events.get()
            if event.outcome is not None:
                self._open.discard(event.job_id)
            yield number, event

    async def __aenter__(self) -> Answers:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for job_id in self._open:
            self._thread.cancel(job_id)

    def _with_sinks(self, loop: asyncio.AbstractEventLoop) -> list[tuple[Job, Callable[[Event], None]]]:
        def sink(number: int) -> Callable[[Event], None]:
            def tell(event: Event) -> None:
                if event.outcome is not None:
                    self._observe(event)
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self._events.put_nowait, (number, event))

            return tell

        return [(job, sink(number)) for number, job in enumerate(self.jobs)]


async def on_engine(thread: EngineThread, work: Callable[[Engine], T]) -> T:
    """Runs ``work`` on the engine's thread between two steps, without holding up the event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def done(result: T | None, error: BaseException | None) -> None:
        def settle() -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        if not loop.is_closed():
            loop.call_soon_threadsafe(settle)

    thread.leave(work, done)
    return await future


def _count_wait(engine: Engine) -> None:
    engine.state.counters.backpressure_waits += 1
