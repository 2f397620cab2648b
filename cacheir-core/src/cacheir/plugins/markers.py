"""The marks that plugin authors and core put on hooks, and the version of the hook API."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pluggy import HookimplMarker, HookspecMarker

F = TypeVar("F", bound=Callable[..., object])

# (major, minor). Minor: a new hook, a new hook argument, a new record field with a default, a level raised to stable.
# Major: anything removed or renamed. A test compares every signature and field with the snapshot of this version.
HOOK_API = (1, 0)

STABLE = "stable"  # changes only with a new major number
PROVISIONAL = "provisional"  # may change with any minor number; docs/hooks.md says so at each

hookimpl = HookimplMarker("cacheir")
_hookspec = HookspecMarker("cacheir")


def hook(*, level: str, since: tuple[int, int] = (1, 0), firstresult: bool = False) -> Callable[[F], F]:
    """Declare a hook. ``level`` is ``STABLE`` or ``PROVISIONAL``, ``since`` the hook API that first had it."""
    if level not in (STABLE, PROVISIONAL):
        raise ValueError(f"hook level {level!r} must be {STABLE!r} or {PROVISIONAL!r}")

    def mark(function: F) -> F:
        function.cacheir_level = level  # type: ignore[attr-defined]
        function.cacheir_since = since  # type: ignore[attr-defined]
        return _hookspec(function, firstresult=firstresult)

    return mark
