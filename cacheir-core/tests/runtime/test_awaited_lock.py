"""The lock of the runner: re-entrant, and its holder sees who waits."""

from __future__ import annotations

import threading

import pytest

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


def test_an_error_gives_it_back():
    lock = AwaitedLock()
    with pytest.raises(ValueError, match="inside"), lock:
        raise ValueError("inside")
    taken = threading.Thread(target=lock.__enter__)
    taken.start()
    taken.join(10)
    assert not taken.is_alive()
