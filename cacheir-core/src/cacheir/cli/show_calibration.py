"""A calibration for people: what memory, processor, kernels and devices were measured to do."""

from __future__ import annotations

from cacheir.bench.calibration import Calibration, KernelRate
from cacheir.cli.output import table


def calibration_text(found: Calibration) -> str:
    """Rates of the machine by threads, of each backend's kernels, and of devices."""
    machine = table(
        ("THREADS", "COPY", "READ", "ARITHMETIC"),
        [
            (
                threads,
                _bandwidth(rates.copy_bytes_per_s),
                _bandwidth(rates.read_bytes_per_s),
                ", ".join(f"{name} {_operations(value)}" for name, value in sorted(rates.operations_per_s.items())),
            )
            for threads, rates in found.threads.items()
        ],
        right=("COPY", "READ"),
    )
    parts = [f"{found.processor}, {found.cores} cores", machine]
    for backend, by_threads in found.backends.items():
        for threads, rates in by_threads.items():
            best = ", ".join(f"{name} {_operations(value)}" for name, value in sorted(rates.operations_per_s.items()))
            rows = [(name, *_rate(rate)) for name, rate in rates.kernels.items()]
            parts.append(
                f"{backend} with {threads} threads: {best}; {rates.step_s * 1e6:.0f} us a step beyond its launches\n"
                + table(("KERNEL", "LAUNCH", "MOVES", "COMPUTES"), rows, right=("LAUNCH", "MOVES", "COMPUTES"))
            )
    for backend, device in found.devices.items():
        parts.append(f"device of {backend}: " + ", ".join(f"{name} {value:.4g}" for name, value in device.items()))
    return "\n\n".join(parts)


def _rate(rate: KernelRate) -> tuple[str, str, str]:
    """What does not count in a kernel's time is left empty."""
    return (
        f"{rate.launch_s * 1e6:.1f} us" if rate.launch_s else "",
        _bandwidth(1 / rate.s_per_byte) if rate.s_per_byte else "",
        _operations(1 / rate.s_per_operation) if rate.s_per_operation else "",
    )


def _bandwidth(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s"


def _operations(per_s: float) -> str:
    return f"{per_s / 1e9:.1f} GFLOP/s" if per_s < 1e13 else f"{per_s / 1e12:.1f} TFLOP/s"
