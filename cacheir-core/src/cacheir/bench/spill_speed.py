"""How fast KV pages move to the host and back on this machine, as ``cacheir profile --calibrate`` measured it."""

from __future__ import annotations

from pathlib import Path

from cacheir.bench.calibration import Calibration, load_calibration


def spill_speed(cache: Path, backend: str) -> tuple[float | None, str]:
    """Bytes each second, out and back together, and a sentence about it; None where nothing was measured."""
    calibration, missing = load_calibration(cache)
    if calibration is None:
        return None, f"{missing} (moving pages is priced by a guess until some were moved)"
    speed = _of_device(calibration, backend) or _of_memory(calibration)
    if speed is None:
        return None, "the calibration has no speed of memory, so moving pages is priced by a guess"
    return speed, f"moving pages is priced at {speed / 1e9:.1f} GB/s, as this machine was calibrated"


def _of_device(calibration: Calibration, backend: str) -> float | None:
    """Both directions between a device and host memory that is not pinned, as pages are moved."""
    found = calibration.devices.get(backend, {})
    out, back = (found.get(f"{way}_unpinned_bytes_per_s", 0.0) for way in ("d2h", "h2d"))
    return 2 / (1 / out + 1 / back) if out > 0 and back > 0 else None


def _of_memory(calibration: Calibration) -> float | None:
    """One thread copies; what is copied is read and written, and both count in ``copy_bytes_per_s``."""
    if not calibration.threads:
        return None
    fewest = min(calibration.threads, key=int)
    copied = calibration.threads[fewest].copy_bytes_per_s / 2
    return copied if copied > 0 else None
