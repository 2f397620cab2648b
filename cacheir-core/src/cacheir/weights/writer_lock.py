"""Locks on what is being written: the kernel lets go of one when its process ends, in whatever container that is.

A process is known by its number alone only within one container; a lock is known to all that share the file system.
Where the system or the file system has no such locks nothing is held, and the number must do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl


@contextmanager
def writing(path: Path, make: Callable[[Path], object]) -> Iterator[None]:
    """``make(path)`` makes a file or folder, or moves one there; it is locked until the end, renamed or not.

    Between the making and the lock nobody who clears leftovers (``clearing``) looks at it. Raises what ``make`` raises,
    and OSError where the folder that it goes into cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _held(path.parent, shared=True):
        make(path)
        lock = _lock(path)
    try:
        yield
    finally:
        _let_go(lock)


@contextmanager
def clearing(folder: Path) -> Iterator[None]:
    """Whoever asks in here whether something in ``folder`` ``is_written`` gets an answer that stays true."""
    with _held(folder, shared=False):
        yield


def is_written(path: Path) -> bool:
    """Whether a process that lives is writing ``path``; False where that is not known."""
    lock = _lock(path, wait=False)
    if lock is None:
        return False
    _let_go(lock)
    return lock < 0


_TAKEN = -1


@contextmanager
def _held(folder: Path, *, shared: bool) -> Iterator[None]:
    lock = _lock(folder, shared=shared)
    try:
        yield
    finally:
        _let_go(lock)


def _lock(path: Path, *, shared: bool = False, wait: bool = True) -> int | None:
    """An open file that holds the lock; ``_TAKEN`` where somebody else has it, None where there is none to be had."""
    if sys.platform == "win32":
        return None
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(lock)
        return _TAKEN
    except OSError:
        os.close(lock)
        return None
    return lock


def _let_go(lock: int | None) -> None:
    if lock is not None and lock != _TAKEN:
        os.close(lock)
