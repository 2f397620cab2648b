"""The lock of the runner: re-entrant, and its holder sees who waits."""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext

import pytest

from cacheir.runtime import awaited_lock
from cacheir.runtime.awaited_lock import AwaitedLock


def until(condition):
    while not condition():
        threading.Event().wait(0.001)


def test_the_holder_may_take_it_again_and_is_not_waited_for_by_itself():
    lock = AwaitedLock()
    with lock, lock:
        assert not lock.awaited
    assert not lock.awaited


@pytest.mark.parametrize("others", [1, 3])
def test_the_holder_sees_that_others_wait_until_the_last_has_it(others):
    lock, order = AwaitedLock(), []

    def take(number: int) -> None:
        with lock:
            order.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(others)]
    with lock:
        for thread in threads:
            thread.start()
        until(lambda: len(lock._waiting) == others)
        assert lock.awaited and order == []
    for thread in threads:
        thread.join()
    assert sorted(order) == list(range(others)) and not lock.awaited


def test_who_waits_has_it_before_those_who_come_later():
    """The thread that gives it back too, which was always faster than one that has to wake first."""
    lock, order = AwaitedLock(), []

    def take(name: str) -> None:
        with lock:
            order.append(name)

    threads = [threading.Thread(target=take, args=(name,)) for name in "abc"]
    with lock:
        for number, thread in enumerate(threads, 1):
            thread.start()
            until(lambda number=number: len(lock._waiting) == number)
        with lock:
            order.append("held again")
    take("late")
    for thread in threads:
        thread.join()
    assert order == ["held again", "a", "b", "c", "late"]


def test_who_takes_it_again_and_again_takes_turns():
    lock, order, ended = AwaitedLock(), [], threading.Event()

    def greedy() -> None:
        while not ended.is_set():
            with lock:
                order.append("greedy")
                until(lambda: ended.is_set() or lock.awaited)

    thread = threading.Thread(target=greedy)
    thread.start()
    until(lambda: order)
    for _ in range(200):
        with lock:
            order.append("other")
            until(lambda: lock.awaited)
    ended.set()
    thread.join()
    others = [place for place, name in enumerate(order) if name == "other"]
    assert len(others) == 200
    assert all(later - place == 2 for place, later in zip(others, others[1:]))


def test_who_is_interrupted_while_he_waits_lets_the_next_have_it(monkeypatch):
    lock, order = AwaitedLock(), []

    class Interrupting(threading.Event):
        def wait(self, timeout=None):
            if threading.current_thread().name == "interrupted":
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr("cacheir.runtime.awaited_lock.threading.Event", Interrupting)

    def take() -> None:
        name = threading.current_thread().name
        try:
            with lock:
                order.append(name)
        except KeyboardInterrupt:
            order.append(f"not {name}")

    first, interrupted, last = (threading.Thread(target=take, name=name) for name in ("first", "interrupted", "last"))
    with lock:
        first.start()
        until(lambda: len(lock._waiting) == 1)
        interrupted.start()
        interrupted.join()
        last.start()
        until(lambda: len(lock._waiting) == 2)
    first.join()
    last.join()
    assert order == ["not interrupted", "first", "last"] and not lock.awaited


@pytest.mark.parametrize("ahead", [0, 1, 2], ids=["free", "waits for the lock", "waits to be the first"])
def test_an_interrupt_at_any_line_leaves_no_place_and_no_lock(ahead):
    """Ctrl+C comes between any two of them: the lock was kept, or its place stopped all who came later."""
    reached = 1
    while _interrupted(reached, ahead):
        reached += 1
    assert reached > 3


def _interrupted(line: int, ahead: int) -> bool:
    """Whether a thread took and gave so many lines, was interrupted there, and others had the lock after it."""
    lock, lines, ended, done = AwaitedLock(), [], threading.Event(), []

    def count(frame, event, argument):
        if event in ("call", "line"):
            lines.append(frame.f_lineno)
            if len(lines) == line:
                raise KeyboardInterrupt
        return count

    def trace(frame, event, argument):
        return count(frame, event, argument) if frame.f_code.co_filename == awaited_lock.__file__ else None

    def interrupted() -> None:
        sys.settrace(trace)
        try:
            with lock:
                done.append("had it")
        except KeyboardInterrupt:
            done.append("interrupted")
        finally:
            sys.settrace(None)
        ended.wait(10)  # alive: a thread after it would be taken for the same one, and have its lock

    def take() -> None:
        with lock:
            done.append("took it")

    before, victim, after = (threading.Thread(target=each, daemon=True) for each in (take, interrupted, take))
    with lock if ahead else nullcontext():
        if ahead > 1:
            before.start()
            until(lambda: len(lock._waiting) == 1)
        victim.start()
        until(lambda: done or len(lock._waiting) == ahead > 0)
        after.start()
        until(lambda: not ahead or lock._waiting)
    for thread in (before, after) if ahead > 1 else (after,):
        thread.join(10)
        assert not thread.is_alive(), f"interrupted at line {lines[line - 1 :][:1]}"
    until(lambda: not {"had it", "interrupted"}.isdisjoint(done))
    ended.set()
    victim.join()
    assert not lock.awaited
    return "interrupted" in done


def test_an_error_gives_it_back():
    lock = AwaitedLock()
    with pytest.raises(ValueError, match="inside"), lock:
        raise ValueError("inside")
    taken = threading.Thread(target=lock.__enter__)
    taken.start()
    taken.join(10)
    assert not taken.is_alive()
