"""Measures this machine and its backends for ``cacheir profile --calibrate``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cacheir.bench.calibration import FORMAT, BackendRates, Calibration, this_machine
from cacheir.bench.kernel_rates import backend_rates
from cacheir.bench.machine_rates import machine_rates
from cacheir.errors import PluginError
from cacheir.plugins.installation import Installation
from cacheir.plugins.inventory import probe
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import BackendSpec


def calibrate(
    installation: Installation,
    *,
    threads: Sequence[int],
    sample_mb: int = 256,
    repeats: int = 5,
    backends: Sequence[str] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """Memory, arithmetic, and each usable backend (those named, else all) with each number of ``threads``.

    Machine rates are over ``sample_mb`` megabytes, those of backends over a third as many megabytes of weights.
    """
    machine = {}
    for count in threads:
        progress(f"memory and arithmetic with {count} thread{'' if count == 1 else 's'}")
        machine[str(count)] = machine_rates(count, sample_mb=sample_mb, repeats=repeats)
    measured: dict[str, Mapping[str, BackendRates]] = {}
    devices = {}
    for spec in installation.backends:
        if backends and spec.name not in backends:
            continue
        if found := _device_rates(spec, progress):
            devices[spec.name] = found
        if probe(spec) is not None:
            continue
        measured[spec.name] = {
            str(count): backend_rates(
                spec, installation, count, weight_mb=max(1, sample_mb // 3), repeats=repeats, progress=progress
            )
            for count in threads
        }
    processor, instruction_sets, cores = this_machine()
    return Calibration(
        format=FORMAT,
        processor=processor,
        instruction_sets=instruction_sets,
        cores=cores,
        threads=machine,
        backends=measured,
        devices=devices,
    )


def _device_rates(spec: BackendSpec, progress: Callable[[str], None]) -> dict[str, float]:
    """What the backend measured of its device; nothing where it has no device."""
    if spec.rates is None:
        return {}
    progress(f"the device of {spec.name}")
    try:
        return {str(name): float(value) for name, value in resolve(spec.rates)().items()}
    except Exception as error:
        raise PluginError(f"backend {spec.name!r}: rates() raised {type(error).__name__}: {error}") from error
