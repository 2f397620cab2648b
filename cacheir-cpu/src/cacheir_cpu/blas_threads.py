"""How many threads NumPy's BLAS may use: never more than the executor was given."""

from __future__ import annotations

from typing import Any

from threadpoolctl import ThreadpoolController


class BlasThreads:
    """A limit on the BLAS pools of this process, from ``limit`` until ``restore``.

    BLAS threads spin at their barriers, so one more of them than there are cores costs a decode step tenfold. A pool
    that is smaller already (OPENBLAS_NUM_THREADS) stays as it is.
    """

    def __init__(self) -> None:
        self._limiter: Any = None

    def limit(self, threads: int) -> None:
        """Let BLAS use at most ``threads`` threads; 0 leaves it alone."""
        controller = ThreadpoolController()
        widest = max((pool["num_threads"] for pool in controller.info() if pool["user_api"] == "blas"), default=0)
        if 0 < threads < widest:
            self._limiter = controller.limit(limits=threads, user_api="blas")

    def restore(self) -> None:
        """Give BLAS its own number of threads back."""
        if self._limiter is not None:
            self._limiter.restore_original_limits()
            self._limiter = None
