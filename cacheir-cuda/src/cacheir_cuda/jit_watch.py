"""Counts the kernels that Triton compiles, and says so, or refuses, where one comes after the warm-up."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from cacheir.errors import BackendError


class JitWatch:
    """``mode`` is ``allow`` or ``error``. ``compiled`` are the names of what was built, ``late`` of those after it.

    Triton calls one function before it compiles; whoever held that place is called on.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self.warm = False
        self.compiled: list[str] = []
        self.late: list[str] = []
        self._before: Callable[..., Any] | None = None
        self._watching = False

    def start(self) -> None:
        """Be told of every kernel that is compiled; without Triton there is none."""
        if find_spec("triton") is None or self._watching:
            return
        from triton import knobs

        self._before, self._watching = knobs.runtime.jit_cache_hook, True
        knobs.runtime.jit_cache_hook = self._compiling

    def stop(self) -> None:
        """Be told no more."""
        if self._watching:
            from triton import knobs

            if knobs.runtime.jit_cache_hook == self._compiling:
                knobs.runtime.jit_cache_hook = self._before
            self._watching = False

    def _compiling(self, **told: Any) -> bool | None:
        """Called with what is about to be compiled; True would skip it. BackendError where that may not be any more."""
        name = str(getattr(told.get("fn"), "name", told.get("repr", "a kernel")))
        self.compiled.append(name)
        if self.warm:
            self.late.append(name)
            if self._mode == "error":
                raise BackendError(
                    f"the Triton kernel {name} would be compiled after the warm-up",
                    hint="leave out --jit-after-warmup error, and report which step asked for it",
                )
        return self._before(**told) if self._before is not None else None

    def counters(self) -> dict[str, int]:
        """``compiles``, and one entry for each kernel that came late."""
        late = {f"jit_after_warmup: {name}": self.late.count(name) for name in sorted(set(self.late))}
        return {"compiles": len(self.compiled), **late}
