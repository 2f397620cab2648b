"""Runs a plugin's code so that whatever it does costs that plugin alone: exits, interrupts, prints, takes for ever."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class TookTooLong(BaseException):
    """Raised inside a plugin's code at its time limit. No ``Exception``, so that the plugin does not catch it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"took longer than {seconds:g} s")


class Interrupts:
    """Tells a person's Ctrl-C from a plugin that raises KeyboardInterrupt by itself.

    Within ``watch()`` a SIGINT is noted in ``pressed`` before KeyboardInterrupt is raised. Outside the main thread,
    where Python delivers no signals, nothing is watched.
    """

    def __init__(self) -> None:
        self.pressed = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Note SIGINT for as long as the block runs."""
        previous = signal.getsignal(signal.SIGINT) if _is_main_thread() else None
        if previous is not signal.default_int_handler:
            yield  # someone else handles Ctrl-C, or nobody can
            return

        def note(number: int, frame: FrameType | None) -> None:
            self.pressed = True
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise ``TookTooLong`` in the block after ``seconds``; no limit for None, and none where there is no SIGALRM."""
    if seconds is None or not hasattr(signal, "setitimer") or not _is_main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TookTooLong(seconds)

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


class Printed:
    """What a plugin printed on standard output while it should not have."""

    def __init__(self) -> None:
        self.text = ""


@contextmanager
def clean_stdout() -> Iterator[Printed]:
    """Keep standard output clean: what Python code prints is kept, what is written to the descriptor goes to stderr.

    For a command, whose output another program may read. It swaps the process's standard output for as long as it
    lasts, so a library must not use it.
    """
    printed = Printed()
    kept = io.StringIO()
    before: Any = sys.stdout
    _flush(before)
    spare = _divert_descriptor()
    sys.stdout = kept
    try:
        yield printed
    finally:
        sys.stdout = before
        if spare is not None:
            os.dup2(spare, 1)
            os.close(spare)
        printed.text = "" if kept.closed else kept.getvalue()


def _divert_descriptor() -> int | None:
    """Point descriptor 1 at descriptor 2; gives a copy of the old one, None where either is closed."""
    try:
        spare = os.dup(1)
    except OSError:
        return None
    try:
        os.dup2(2, 1)
    except OSError:
        os.close(spare)
        return None
    return spare


def _flush(stream: Any) -> None:
    if stream is not None and not getattr(stream, "closed", False):
        stream.flush()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
