"""A CacheIR plugin: kernels are chosen by a file of measured times.

`TIMED_KERNELS_FILE` names a JSON file, `{"TARGET": {"MODE": {"KERNEL": seconds}}}`. Of the kernels that accept an op
the one with the least seconds wins. Where fewer than two of them are in the file, the choice is left to others.
"""

import functools
import json
import os

from cacheir.plugins import KernelChoice, hookimpl


@functools.cache
def read_times(path):
    """(target, mode, kernel) -> seconds."""
    from cacheir.errors import UsageError

    try:
        with open(path, encoding="utf-8") as file:
            table = json.load(file)
        return {
            (target, mode, kernel): float(seconds)
            for target, modes in table.items()
            for mode, kernels in modes.items()
            for kernel, seconds in kernels.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"TIMED_KERNELS_FILE: {path} holds no times ({error})",
            hint='write {"cpu": {"decode": {"cpu.numpy.linear": 1.2e-05}}}, or unset the variable',
        ) from error


@hookimpl
def cacheir_select_kernel(candidates, target, mode):
    path = os.environ.get("TIMED_KERNELS_FILE")
    if not path:
        return None
    times = read_times(path)
    timed = [(times[key], kernel) for kernel in candidates if (key := (target, mode, kernel.name)) in times]
    if len(timed) < 2:
        return None
    seconds, kernel = min(timed, key=lambda pair: pair[0])
    return KernelChoice(kernel=kernel, reason=f"measured {seconds:.3g} s, the least of {len(timed)}")
