"""An engine in its own process that stays open, so that loading is not timed, and stands still while others run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from cacheir.bench.against.cells import Cell
from cacheir.bench.against.contestants import Contestant
from cacheir.errors import BackendError

# A model that loads from a slow disk, and a cell of a large model on a slow machine.
LONGEST_SECONDS = 600.0
_CAN_STOP = hasattr(signal, "SIGSTOP")


class Child:
    """One contestant's process; use it in a ``with`` block. BackendError where it does not open its model."""

    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            contestant.command,
            env={**os.environ, **contestant.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )
        try:
            answer = self._answer()
            if "ready" not in answer:
                raise BackendError(f"{contestant.label} does not open the model: {answer.get('error', answer)}")
        except BaseException:
            self.close()
            raise
        self.facts: dict[str, Any] = answer["ready"]
        self._stop()

    def run(self, cell: Cell, repeats: int = 1) -> tuple[float, ...]:
        """Seconds of each of ``repeats`` runs of ``cell``. BackendError where the engine fails at it."""
        request: dict[str, Any] = {"kind": cell.kind, "tokens": cell.tokens, "batch": cell.batch, "repeats": repeats}
        request |= {"prompt": cell.prompt} if cell.prompt else {}
        assert self._process.stdin is not None
        if _CAN_STOP:
            self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise BackendError(f"{self.contestant.label} has ended: {self._last_words()}") from error
        answer = self._answer()
        self._stop()
        if "seconds" not in answer:
            raise BackendError(f"{self.contestant.label} does not run {cell.name}: {answer.get('error', answer)}")
        return tuple(float(seconds) for seconds in answer["seconds"])

    def cpu_seconds(self) -> float:
        """The processor time that it has taken so far; 0 where the system does not say."""
        try:
            # The name in parentheses may hold spaces; user and system time are the 12th and 13th field after it.
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the process. Closing twice is allowed."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue  # what was not sent is of no use to a process that has ended
        self._said.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watchdog = threading.Timer(LONGEST_SECONDS, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise BackendError(f"{self.contestant.label} gave no answer: {self._last_words()}") from error
        if not isinstance(answer, dict):
            raise BackendError(f"{self.contestant.label} gave {answer!r} for an answer")
        return answer

    def _stop(self) -> None:
        # Threads that spin for their next work would take time from the engine whose turn it is.
        if _CAN_STOP:
            self._process.send_signal(signal.SIGSTOP)

    def _last_words(self) -> str:
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - 4096))
        lines = [line.strip() for line in self._said.read().decode(errors="replace").split("\n") if line.strip()]
        return lines[-1] if lines else f"it ended with {self._process.poll()}"
