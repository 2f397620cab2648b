"""What this machine was measured to do, kept in the cache folder by processor and cores; never part of an artifact."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cacheir.bench.environment import cpu
from cacheir.bench.machine_rates import MachineRates
from cacheir.errors import ArtifactError, CacheIRError
from cacheir.schedule.record_json import from_json, json_bytes, parse_json, to_json
from cacheir.weights.atomic_file import write_file

FORMAT = 1
HOW = "cacheir profile --calibrate"
_COUNT = re.compile(r"[1-9][0-9]{0,5}")  # of threads, as the keys of ``Calibration.threads`` spell it


@dataclass(frozen=True, kw_only=True)
class KernelRate:
    """How long a launch takes: ``launch_s`` + bytes * ``s_per_byte`` + operations * ``s_per_operation``."""

    launch_s: float
    s_per_byte: float
    s_per_operation: float

    def seconds(self, nbytes: int, operations: int) -> float:
        """Seconds of one launch."""
        return self.launch_s + nbytes * self.s_per_byte + operations * self.s_per_operation


@dataclass(frozen=True, kw_only=True)
class BackendRates:
    """A backend with a number of threads.

    ``kernels`` are by name, and by ``NAME@FORMAT`` where the storage format of the weight counts. ``step_s`` is what a
    step takes beyond its launches; ``operations_per_s`` the most that any kernel reached, by how it computes
    (``KernelSpec.numerics``). ``joined`` are kernels that never ran by themselves: the executor makes them part of
    another's launch.
    """

    kernels: Mapping[str, KernelRate] = field(default_factory=dict)
    joined: tuple[str, ...] = ()
    step_s: float = 0.0
    operations_per_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """``threads`` and the rates of a backend are by number of threads, as text; ``devices`` by backend, as each
    measured its own (``BackendSpec.rates``).
    """

    format: int
    processor: str
    instruction_sets: tuple[str, ...]
    cores: int
    threads: Mapping[str, MachineRates]
    backends: Mapping[str, Mapping[str, BackendRates]] = field(default_factory=dict)
    devices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def rates(self, backend: str, threads: int) -> BackendRates | None:
        """Those measured with ``threads`` threads, None where there are none."""
        return self.backends.get(backend, {}).get(str(threads))


def this_machine() -> tuple[str, tuple[str, ...], int]:
    """The processor, its instruction sets and the cores this process may use: what a calibration is kept by."""
    found = cpu()
    return str(found["model"]), tuple(found["instruction_sets"]), int(found["usable_cores"])


def calibration_path(cache: Path) -> Path:
    """The file of this machine's calibration in the cache folder ``cache``."""
    text = json.dumps(this_machine())
    return cache / "calibrations" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def save_calibration(calibration: Calibration, cache: Path) -> Path:
    """Keep it for this machine; what an earlier one measured besides stays. ArtifactError where that fails."""
    path = calibration_path(cache)
    earlier, _ = load_calibration(cache)
    write_file(path, json_bytes(to_json(_joined(earlier, calibration) if earlier else calibration)))
    return path


def load_calibration(cache: Path) -> tuple[Calibration | None, str]:
    """This machine's calibration; else None, and the sentence that says why and how to get one."""
    path = calibration_path(cache)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None, f"this machine is not calibrated, so nothing is predicted: run {HOW}"
    except OSError as error:
        return None, f"{path} cannot be read ({error.strerror}), so nothing is predicted"
    try:
        found = from_json(Calibration, parse_json(data, str(path)), str(path))
        if found.format != FORMAT:
            raise ArtifactError(f"{path} is of format {found.format}, not {FORMAT}")
        odd = [count for count in found.threads if not _COUNT.fullmatch(count)]
        if odd:
            raise ArtifactError(f"{path}: threads has {odd[0][:40]!r}, which is no number of threads")
    except CacheIRError as error:
        return None, f"the calibration cannot be used ({error}): run {HOW} again"
    return found, ""


def _joined(earlier: Calibration, later: Calibration) -> Calibration:
    """Both, with what the later one measured in place of the same from the earlier one."""
    backends = {
        name: {**earlier.backends.get(name, {}), **later.backends.get(name, {})}
        for name in dict.fromkeys((*earlier.backends, *later.backends))
    }
    return replace(
        later,
        threads={**earlier.threads, **later.threads},
        backends=backends,
        devices={**earlier.devices, **later.devices},
    )
