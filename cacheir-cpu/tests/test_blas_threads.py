"""The limit on BLAS threads: it lowers, never raises, and goes again."""

from __future__ import annotations

import numpy as np
from threadpoolctl import ThreadpoolController, threadpool_limits

from cacheir_cpu.blas_threads import BlasThreads


def _threads() -> int:
    np.ones((2, 2), np.float32) @ np.ones((2, 2), np.float32)
    return max(pool["num_threads"] for pool in ThreadpoolController().info() if pool["user_api"] == "blas")


def test_the_limit_lowers_and_is_restored() -> None:
    with threadpool_limits(limits=3, user_api="blas"):
        before = _threads()
        threads = BlasThreads()
        threads.limit(1)
        assert _threads() == 1
        threads.restore()
        assert _threads() == before


def test_a_smaller_pool_and_no_limit_stay_as_they_are() -> None:
    with threadpool_limits(limits=1, user_api="blas"):
        for limit in (0, 1, 5):
            threads = BlasThreads()
            threads.limit(limit)
            assert _threads() == 1
            threads.restore()
            assert _threads() == 1
