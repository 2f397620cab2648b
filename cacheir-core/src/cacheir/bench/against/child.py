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
            start_new_session=True,  # an engine may have processes of its own: they are stopped and counted with it
        )
        try:
            answer = self._answer()
            if "ready" not in answer:
                raise BackendError(f"{contestant.label} does not open the model: {answer.get('error', answer)}")
        except BaseException:
            self.close()
            raise
        self.facts: dict[str, Any] = answer["ready"]
        self.said: dict[str, Any] = {}
        self._stop()

    def run(self, cell: Cell, repeats: int = 1) -> tuple[float, ...]:
        """Seconds of each of ``repeats`` runs of ``cell``; ``said`` is what the engine says about them besides.

        BackendError where the engine fails at it.
        """
        answer = self._ask(cell, {"repeats": repeats})
        if "seconds" not in answer:
            raise BackendError(f"{self.contestant.label} does not run {cell.name}: {answer.get('error', answer)}")
        self.said = {name: said for name, said in answer.items() if name != "seconds"}
        return tuple(float(seconds) for seconds in answer["seconds"])

    def ask(self, cell: Cell, name: str, **given: Any) -> Any:
        """What the engine's method of that name says about ``cell``. BackendError where it fails or has none."""
        answer = self._ask(cell, {"ask": name, **given})
        if name not in answer:
            raise BackendError(f"{self.contestant.label} gives no {name}: {answer.get('error', answer)}")
        return answer[name]

    def _ask(self, cell: Cell, given: dict[str, Any]) -> dict[str, Any]:
        request: dict[str, Any] = {"kind": cell.kind, "tokens": cell.tokens, "batch": cell.batch, **given}
        request |= {"prompt": cell.prompt} if cell.prompt else {}
        assert self._process.stdin is not None
        self._signal("SIGCONT")
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise BackendError(f"{self.contestant.label} has ended: {self._last_words()}") from error
        answer = self._answer()
        self._stop()
        return answer

    def cpu_seconds(self) -> float:
        """The processor time that it and its own processes have taken so far; 0 where the system does not say."""
        ticks = sum(_ticks_of_session(path, self._process.pid) for path in Path("/proc").glob("[0-9]*/stat"))
        return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0

    def close(self) -> None:
        """End the process and those that it has started, which stay where it has ended alone. Twice is allowed."""
        if not self._said.closed:
            self._kill()
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
        watchdog = threading.Timer(LONGEST_SECONDS, self._kill)
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
        self._signal("SIGSTOP")

    def _kill(self) -> None:
        self._process.kill()
        self._signal("SIGKILL")

    def _signal(self, name: str) -> None:
        """To the process and to those that it has started, where the system has such a thing."""
        if hasattr(os, "killpg"):
            try:
                os.killpg(self._process.pid, getattr(signal, name))
            except ProcessLookupError:
                return  # it has ended, which the next answer will say

    def _last_words(self) -> str:
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - 4096))
        lines = [line.strip() for line in self._said.read().decode(errors="replace").split("\n") if line.strip()]
        return lines[-1] if lines else f"it ended with {self._process.poll()}"


def _ticks_of_session(stat: Path, session: int) -> int:
    """What a process has used, those included that it has waited for; 0 for one of another session."""
    try:
        # The name in parentheses may hold spaces; after it come state, parent, group, session and, from the 12th on,
        # user and system time and those of ended processes.
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return 0  # it has ended meanwhile
    return sum(map(int, fields[11:15])) if len(fields) > 14 and int(fields[3]) == session else 0
