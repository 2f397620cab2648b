"""Whether a program's products keep their activations in f32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cacheir.errors import BackendError
from cacheir.plugins import KernelSpec
from cacheir.schedule.flatten import Launch
from cacheir_native.refusals import activations_of


def is_precise(launches: Mapping[Any, Sequence[Launch]], kernels: Mapping[str, KernelSpec]) -> bool:
    """Whether all products keep f32 activations. The runner does so for all or none: BackendError for a mixture."""
    rounded: set[str] = set()
    exact: set[str] = set()
    for launch in (launch for list_ in launches.values() for launch in list_):
        spec = kernels.get(launch.choice(1).kernel)
        if spec is None or launch.op.name == "embedding":
            continue
        if spec.numerics != "f32":
            rounded.add(spec.name)
        elif activations_of(launch.op) - {"f32"}:
            exact.add(spec.name)
    if rounded and exact:
        raise BackendError(
            f"{min(exact)} keeps activations in f32 and {min(rounded)} does not, which one runner cannot mix",
            hint="compile with --precise, or without a forced kernel",
        )
    return not rounded
