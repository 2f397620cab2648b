"""What makes a measured run invalid: a pure function from what was seen beside the times to the causes."""

from __future__ import annotations

from collections.abc import Mapping

# Above this share of the cores' time, others were measured too.
MAX_FOREIGN_LOAD = 0.10

# Counters of an executor that must not rise during a run, and what it means when they do.
_EVENTS = {"compiles": "a kernel was compiled", "captures": "a device graph was captured"}


def causes(
    *,
    cached_tokens: int,
    counters_before: Mapping[str, int],
    counters_after: Mapping[str, int],
    foreign_load: float | None,
) -> tuple[str, ...]:
    """Why a run does not count, in sentences; () where it does. ``foreign_load`` None is one that nobody could tell."""
    found = []
    if cached_tokens:
        found.append(f"prefix hit: {cached_tokens} tokens of the prompt had been computed before")
    for name, meaning in _EVENTS.items():
        times = counters_after.get(name, 0) - counters_before.get(name, 0)
        if times > 0:
            found.append(f"{meaning} ({times} times)")
    return (*found, *load_causes(foreign_load))


def load_causes(foreign_load: float | None, stolen: float | None = None) -> tuple[str, ...]:
    """The cause that the load of others is; ``stolen`` is the part of it that other virtual machines had."""
    if foreign_load is None or foreign_load <= MAX_FOREIGN_LOAD:
        return ()
    by = f" ({stolen:.0%} stolen by other machines)" if stolen is not None and stolen >= 0.01 else ""
    return (f"foreign CPU load: {foreign_load:.0%} of the cores' time{by}, more than {MAX_FOREIGN_LOAD:.0%}",)
