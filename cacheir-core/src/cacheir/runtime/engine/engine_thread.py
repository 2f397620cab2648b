"""One thread that owns an engine: others leave requests in a queue, and their sinks are called from the thread."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from cacheir.errors import UsageError
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job, Sink

T = TypeVar("T")
Done = Callable[[Any, "BaseException | None"], None]

# Between two looks at whether the engine still moves.
_POLL_SECONDS = 0.05


class EngineThread:
    """Runs an engine until it is closed. Every method may be called from any thread.

    Commands are run between two steps, in order, and what they raise is raised at the caller. ``stalled_seconds``
    tells a health check how long the step under way has taken; it is 0 while nothing is to do.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failure: BaseException | None = None  # what ended the thread, if anything but ``close`` did
        self._commands: deque[tuple[Callable[[Engine], Any], Done]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._draining = False
        self._beat = time.monotonic()
        self._busy = not engine.idle
        engine.wanted = self._wanted
        self._thread = threading.Thread(target=self._loop, name="cacheir-engine", daemon=True)
        self._thread.start()

    @property
    def stalled_seconds(self) -> float:
        """How long ago a step or a command ended, while there is work; 0 where there is none."""
        return time.monotonic() - self._beat if self._busy else 0.0

    @property
    def alive(self) -> bool:
        """Whether the thread still runs; not while it ends, having failed."""
        return self.failure is None and self._thread.is_alive()

    def submit(self, job: Job, sink: Sink) -> None:
        """As ``Engine.submit``. ``sink`` is called from the engine's thread and must not block."""
        self.call(lambda engine: engine.submit(job, sink))

    def submit_all(self, jobs: Sequence[tuple[Job, Sink]]) -> None:
        """All of them, or none where one is refused."""
        self.call(lambda engine: engine.submit_all(jobs))

    def cancel(self, job_id: str) -> None:
        """Ends a job with ``cancelled`` before the next step; does not wait for it. A closed engine has ended it."""
        self._queue(lambda engine: engine.cancel(job_id))

    def call(self, work: Callable[[Engine], T]) -> T:
        """Runs ``work`` on the engine's thread between two steps and gives what it gives."""
        ended = threading.Event()
        outcome: list[Any] = []

        def done(result: T | None, error: BaseException | None) -> None:
            outcome[:] = [result, error]
            ended.set()

        self.leave(work, done)
        ended.wait()
        if outcome[1] is not None:
            raise outcome[1]
        result: T = outcome[0]
        return result

    def leave(self, work: Callable[[Engine], T], done: Done = lambda result, error: None) -> None:
        """As ``call``, without waiting: ``done`` is told the result or the error, on the engine's thread."""
        if not self._queue(work, done):
            failed = "the engine is closed" if self.failure is None else f"the engine failed: {self.failure}"
            raise UsageError(failed)

    def drain(self, timeout_s: float) -> bool:
        """Takes no more jobs and waits until those that are there have ended.

        False where the time was too short, or the thread ended; then what is left ends with ``cancelled``.
        """
        self._draining = True
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.alive:
            # Looked at from here: a command would end the call of ``run_ahead`` under way.
            with self._wake:
                if self._closing:  # which cancels what is left
                    return False
                if not self._busy and not self._commands:
                    return True
            time.sleep(_POLL_SECONDS)
        self._queue(lambda engine: engine.close())
        return False

    def close(self) -> None:
        """Ends all jobs with ``cancelled``, and the thread. Closing twice is allowed."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def __enter__(self) -> EngineThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def draining(self) -> bool:
        """Whether ``drain`` was asked for, so that new work is to be refused."""
        return self._draining

    def _wanted(self) -> bool:
        """Whether a command waits for the step under way."""
        return bool(self._commands) or self._closing

    def _queue(self, work: Callable[[Engine], Any], done: Done = lambda result, error: None) -> bool:
        """Whether the thread is there to run ``work``, which is asked under the lock that ``close`` takes."""
        with self._wake:
            if self._closing or not self._thread.is_alive():
                return False
            self._commands.append((work, done))
            self._wake.notify()
            return True

    def _loop(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:  # noqa: BLE001  every caller is told; the log says at what
            self._note(error)
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self.engine.close()
        except Exception as error:  # noqa: BLE001  a client's, when it was told
            self._note(error)
        finally:
            self._refuse_the_rest()

    def _note(self, error: Exception) -> None:
        self.failure = self.failure or error
        traceback.print_exception(error, file=sys.stderr)

    def _turn(self) -> bool:
        """Commands that were left, then a step; waits where there is neither. False once it is closed."""
        with self._wake:
            while not self._commands and self.engine.idle and not self._closing:
                self._busy = False
                self._wake.wait()
            if self._closing:
                return False
            commands, self._commands = self._commands, deque()
            if not self._busy:
                self._busy, self._beat = True, time.monotonic()
        if commands:
            self.engine.tell()
        for work, done in commands:
            try:
                result = work(self.engine)
            except Exception as error:  # noqa: BLE001  told to whoever left the command
                done(None, error)
            else:
                done(result, None)
        self.engine.step()
        self._beat = time.monotonic()
        return True

    def _refuse_the_rest(self) -> None:
        with self._wake:
            self._closing = True
            rest, self._commands = self._commands, deque()
        for _, done in rest:
            done(None, UsageError("the engine is closed"))
